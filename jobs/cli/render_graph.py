"""`tidemark explain`: a pipeline as vertices, channels and tables, from its graph alone."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from jobs.cli.quantities import plural


def render_graph(name: str, graph: JobGraph) -> RenderableType:
    """Return the vertices in the order in which a record meets them, each with its inputs and its tables."""
    channels = sum(len(graph.channels_into(vertex.id)) for vertex in graph.vertices)
    counts = (
        plural(len(graph.vertices), "vertex", "vertices"),
        plural(sum(1 for _ in graph.subtasks()), "subtask"),
        plural(channels, "channel"),
        plural(len(graph.tables()), "table"),
    )
    tree = Tree(Text.assemble((name, "bold"), f": {', '.join(counts)}"), guide_style="dim")
    for vertex in graph.vertices:
        branch = tree.add(Text.assemble((vertex.id, "bold cyan"), f"  {_kind(vertex)}{_aligning(graph, vertex)}"))
        for line in _inputs(graph, vertex):
            branch.add(line)
        for table in vertex.tables:
            branch.add(Text.assemble(("⇒ ", "green"), (table.name, "green"), f"  {_how(table)}"))
    return tree


def _kind(vertex: Vertex) -> str:
    match vertex.kind:
        case VertexKind.SOURCE:
            return f"source of {plural(vertex.parallelism, 'split')}: {', '.join(vertex.splits) or 'none yet'}"
        case VertexKind.STATELESS:
            return "stateless, materialises its rows"
        case VertexKind.KEYED:
            return f"keyed, {plural(vertex.parallelism, 'subtask')} by ranges of key groups"


def _inputs(graph: JobGraph, vertex: Vertex) -> Iterator[Text]:
    """Yield a line per input: where its channels come from."""
    for edge in dict.fromkeys(channel.edge for channel in graph.channels_into(vertex.id)):
        many = plural(graph.vertex(edge.upstream).parallelism, "channel")
        yield Text.assemble(("← ", "yellow"), f"input {edge.input}: {edge.upstream}  ", (many, "yellow"))


def _aligning(graph: JobGraph, vertex: Vertex) -> str:
    many = len(graph.channels_into(vertex.id))
    return f", aligns the barriers of {many} channels" if many > 1 else ""


def _how(table: Table) -> str:
    match table.mode:
        case TableMode.APPEND:
            how = "append"
        case TableMode.UPSERT:
            how = f"upsert by {', '.join(table.keys)}"
        case TableMode.STATE:
            how = "operator state"
    return f"{how}, judged by a suite at every barrier" if table.judged else how
