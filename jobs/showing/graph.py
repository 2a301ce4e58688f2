"""`tidemark explain`: a pipeline as vertices, channels and tables."""

from collections.abc import Iterator
from typing import assert_never

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from checkpointing.graph import Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import EdgeId
from jobs.operators.in_time.joins import AsOfJoin
from jobs.operators.in_time.rows import OverRows
from jobs.operators.in_time.timers import WithTimers
from jobs.operators.spec import Chain, KeyedInput, KeyedSpec, StatelessSpec, TaskSteps, TextSteps, left_to_spark
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.tables import keeps_time
from jobs.showing.quantities import count, plural, seconds


def render_graph(plan: JobPlan) -> RenderableType:
    """Return the vertices in the order in which rows pass through them, each with its inputs and its tables."""
    vertices = plan.graph.vertices
    counts = (
        plural(len(vertices), "vertex", "vertices"),
        plural(sum(vertex.parallelism for vertex in vertices), "subtask"),
        plural(sum(len(plan.graph.channels_into(vertex.id)) for vertex in vertices), "channel"),
        plural(len(plan.graph.tables()), "table"),
    )
    tree = Tree(Text.assemble((plan.job, "bold"), f": {', '.join(counts)}"), guide_style="dim")
    for vertex in vertices:
        many = len(plan.graph.channels_into(vertex.id))
        aligning = f", aligns the barriers of {count(many)} channels" if many > 1 else ""
        branch = tree.add(Text.assemble((vertex.id, "bold cyan"), f"  {_kind(plan, vertex)}{aligning}"))
        for line in _lines(plan, vertex):
            branch.add(line)
    return tree


def _lines(plan: JobPlan, vertex: Vertex) -> Iterator[Text]:
    for edge in plan.graph.upstream(vertex.id):
        yield Text.assemble(("← ", "yellow"), f"input {edge.input}: {_read(plan, edge)}")
    yield from _watermark(plan, vertex)
    yield from _bound(plan, vertex)
    for table in vertex.tables:
        rules = _rules_by_spark(plan, vertex, table)
        yield Text.assemble(("⇒ ", "green"), (table.name, "green"), f"  {_how(plan, table)}{rules}")


def _watermark(plan: JobPlan, vertex: Vertex) -> Iterator[Text]:
    """Yield a line with the inputs that give the vertex its watermark, or no line if the vertex keeps no event time."""
    if not keeps_time(plan.graph, vertex):
        return
    found = []
    for edge in plan.graph.upstream(vertex.id):
        declared = vertex.event_times[edge.input] if vertex.event_times else None
        if declared is not None:
            idle = declared.idle_after_ms
            rests = "never idle" if idle is None else f"idle after {seconds(idle)}"
            if declared.close_after_ms is not None:
                rests += f", by the clock once all rest for {seconds(declared.close_after_ms)}"
            found.append(f"each split of {edge.upstream} ({seconds(declared.delay_ms)} of delay, {rests})")
        elif keeps_time(plan.graph, plan.graph.vertex(edge.upstream)):
            found.append(f"vertex {edge.upstream}")
    yield Text.assemble(("◷ ", "blue"), f"watermark: the least of {' and '.join(found)}")


def _bound(plan: JobPlan, vertex: Vertex) -> Iterator[Text]:
    """Yield a line that names what bounds the state of a keyed vertex. The line is a warning if nothing does."""
    if vertex.kind is not VertexKind.KEYED:
        return
    spec = plan.vertices[vertex.id].spec
    function = spec.function if isinstance(spec, KeyedSpec) else None
    if vertex.expiry is not None:
        clock = "the clock" if vertex.expiry.by_clock else "event time"
        yield Text(f"◷ state: rows expire {seconds(vertex.expiry.ttl_ms)} after their last change, by {clock}")
    elif isinstance(function, WithTimers):
        yield Text("◷ state: what the function keeps. Only its timers, or a ttl, let rows leave", style="yellow")
    elif isinstance(function, AsOfJoin):
        yield Text("◷ state: by event time. The newest version of each key stays, so it grows with the keys")
    elif isinstance(function, OverRows) and function.rows_max is not None:
        yield Text(f"◷ state: the last {plural(function.rows_max, 'row')} of each key stay, so it grows with the keys")
    elif vertex.fires:
        yield Text("◷ state: by event time. What is due leaves")
    else:
        yield Text("! state: nothing bounds it, and keys stay for ever: a window, within= or ttl= does", style="yellow")


def _kind(plan: JobPlan, vertex: Vertex) -> str:
    match vertex.kind:
        case VertexKind.SOURCE:
            most = plan.rows_per_epoch.get(vertex.id)
            cap = "" if most is None else f", at most {plural(most, 'row')} an epoch"
            names = f": {', '.join(vertex.splits)}" if vertex.splits else ", its input is not there yet"
            return f"source of {plural(vertex.parallelism, 'split')}{names}{cap}"
        case VertexKind.STATELESS:
            return "stateless, writes its rows to files"
        case VertexKind.KEYED:
            return f"keyed, {plural(vertex.parallelism, 'subtask')}"
        case _ as unreachable:
            assert_never(unreachable)


def _read(plan: JobPlan, edge: EdgeId) -> str:
    upstream, spec = plan.graph.vertex(edge.upstream), plan.vertices[edge.downstream].spec
    what = "lazy slices" if upstream.kind is VertexKind.SOURCE else "files"
    exchanged = _exchanged(spec, spec.inputs[edge.input]) if isinstance(spec, KeyedSpec) else ""
    read = plan.vertices[edge.downstream].inputs[edge.input]
    named = "" if read.output is None else f", output {read.output}"
    return (
        f"{upstream.id}{named}  {plural(upstream.parallelism, 'channel')} of {what}{exchanged}{_by_spark(read.chain)}"
    )


def _by_spark(steps: Chain | None) -> str:
    """Return what only Spark can compute before the operator, so that tasks cannot just read the rows from files."""
    match steps:
        case None | TaskSteps():
            return ""
        case TextSteps(sql=sql):
            return f", Spark computes {'; '.join(sql)}"
        case _:
            return ", Spark calls a function"


def _rules_by_spark(plan: JobPlan, vertex: Vertex, table: Table) -> str:
    """Return those row rules of a quarantine that only Spark can judge."""
    spec = plan.vertices[vertex.id].spec
    if not isinstance(spec, StatelessSpec) or spec.quarantine is None or spec.quarantine.name != table.name:
        return ""
    rules = left_to_spark(spec.rules)
    return f", Spark judges {'; '.join(rules)}" if rules else ""


def _exchanged(spec: KeyedSpec, given: KeyedInput) -> str:
    if given.is_broadcast and spec.broadcast is not None:
        kept = spec.broadcast.kept
        return f", broadcast: the newest row of each {', '.join(kept.keys)} by {kept.latest_by}"
    return f", exchanged by {', '.join(given.keys)}"


def _how(plan: JobPlan, table: Table) -> str:
    suite = plan.suites.get(table.name)
    judged = "" if suite is None else f", judged at every barrier by suite {suite.name}"
    columns = plural(len(table.columns), "column")
    match table.mode:
        case TableMode.APPEND:
            return f"append, {columns}{judged}"
        case TableMode.UPSERT:
            return f"upsert by {', '.join(table.keys)}, {columns}{judged}"
        case TableMode.OVERWRITE:
            of = f" of each partition by {', '.join(table.partitioned_by)}" if table.partitioned_by else ""
            return f"overwrite, shows the greatest {', '.join(table.keys)}{of}, {columns}{judged}"
        case TableMode.STATE:
            return f"{'broadcast' if table.broadcast else 'operator'} state by {', '.join(table.keys)}"
        case _ as unreachable:
            assert_never(unreachable)
