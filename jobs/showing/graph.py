"""`tidemark explain`: a pipeline as vertices, channels and tables."""

from collections.abc import Iterator
from typing import assert_never

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from checkpointing.graph import TableMode, VertexKind
from jobs.planner.explain import InputExplanation, PlanExplanation, TableExplanation, VertexExplanation
from jobs.showing.quantities import count, plural


def render_graph(plan: PlanExplanation) -> RenderableType:
    """Return the vertices in the order in which rows pass through them, each with its inputs and its tables."""
    counts = (
        plural(len(plan.vertices), "vertex", "vertices"),
        plural(sum(vertex.parallelism for vertex in plan.vertices), "subtask"),
        plural(sum(_channels(vertex) for vertex in plan.vertices), "channel"),
        plural(sum(len(vertex.tables) for vertex in plan.vertices), "table"),
    )
    tree = Tree(Text.assemble((plan.job, "bold"), f": {', '.join(counts)}"), guide_style="dim")
    for vertex in plan.vertices:
        branch = tree.add(Text.assemble((vertex.id, "bold cyan"), f"  {_kind(vertex)}{_aligning(vertex)}"))
        for line in _lines(vertex):
            branch.add(line)
    return tree


def _lines(vertex: VertexExplanation) -> Iterator[Text]:
    for ordinal, read in enumerate(vertex.inputs):
        yield Text.assemble(("← ", "yellow"), f"input {ordinal}: {_read(read)}")
    for table in vertex.tables:
        yield Text.assemble(("⇒ ", "green"), (table.name, "green"), f"  {_how(table)}")


def _kind(vertex: VertexExplanation) -> str:
    match vertex.kind:
        case VertexKind.SOURCE:
            cap = "" if vertex.rows_per_epoch is None else f", at most {plural(vertex.rows_per_epoch, 'row')} an epoch"
            names = f": {', '.join(vertex.splits)}" if vertex.splits else ", its input is not there yet"
            return f"source of {plural(vertex.parallelism, 'split')}{names}{cap}"
        case VertexKind.STATELESS:
            return "stateless, writes its rows to files"
        case VertexKind.KEYED:
            return f"keyed, {plural(vertex.parallelism, 'subtask')}"
        case _ as unreachable:
            assert_never(unreachable)


def _channels(vertex: VertexExplanation) -> int:
    return sum(read.channels for read in vertex.inputs)


def _aligning(vertex: VertexExplanation) -> str:
    many = _channels(vertex)
    return f", aligns the barriers of {count(many)} channels" if many > 1 else ""


def _read(read: InputExplanation) -> str:
    what = "lazy slices" if read.lazy else "files"
    keys = f", exchanged by {', '.join(read.keys)}" if read.keys else ""
    return f"{read.upstream}  {plural(read.channels, 'channel')} of {what}{keys}"


def _how(table: TableExplanation) -> str:
    judged = "" if table.suite is None else f", judged at every barrier by suite {table.suite}"
    columns = plural(len(table.columns), "column")
    match table.mode:
        case TableMode.APPEND:
            return f"append, {columns}{judged}"
        case TableMode.UPSERT:
            return f"upsert by {', '.join(table.keys)}, {columns}{judged}"
        case TableMode.STATE:
            return f"operator state by {', '.join(table.keys)}"
        case _ as unreachable:
            assert_never(unreachable)
