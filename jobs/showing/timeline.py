"""Renders `tidemark checkpoints show`: the life of one epoch from trigger to publication, and what it holds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.channel_items import AlignmentType
from checkpointing.graph import TableMode
from checkpointing.identifiers import SplitId, TableName
from checkpointing.metadata.record import (
    CheckpointRecord,
    RowKind,
    SubtaskStatistics,
    TableRecord,
    VertexRecord,
    VertexStatistics,
)
from jobs.quality.verdict import verdicts_in
from jobs.showing.checkpoints import state_files
from jobs.showing.quantities import count, counted, moment, plural, seconds, size
from jobs.showing.statistics import Flying, counts_line, measured, numbers_grid, right, subtasks_grid, vertices_grid
from jobs.sources.position_words import PositionWords

_WIDTH: Final = 30
"""Columns of the drawn time line."""
_HOOK_WIDTH: Final = 200
"""Characters of a master hook's state that are shown."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of the epoch: when (ms since 1970), where, and what."""

    at_ms: int
    who: str
    what: str
    style: str = ""


def moments(record: CheckpointRecord, published_ms: int | None) -> tuple[Moment, ...]:
    """Return the epoch's events in order of time; events of one instant in the order in which they happen."""
    life = record.statistics
    found = [Moment(life.triggered_ms, "coordinator", f"barrier {record.checkpoint} triggered", "bold")]
    flying = {was.vertex: Flying.of(was) for was in record.vertices}
    for vertex in life.vertices:
        found.extend(_of_vertex(vertex, flying.get(vertex.vertex, Flying())))
    found.append(Moment(life.committed_ms, "coordinator", "COMMIT POINT: the entry is in `checkpoints`", "bold green"))
    if published_ms is not None:
        found.append(Moment(published_ms, "tables", "published, cut recorded", "green"))
    return tuple(sorted(found, key=lambda each: each.at_ms))


def _of_vertex(vertex: VertexStatistics, flying: Flying) -> Iterator[Moment]:
    for barrier in vertex.barriers:
        yield Moment(barrier.at_ms, vertex.vertex, f"barrier on {barrier.channel}", "yellow")
    if vertex.aligned_ms and vertex.barriers:
        yield Moment(vertex.aligned_ms, vertex.vertex, _passed(vertex, flying))
    if vertex.acknowledged_ms:
        yield Moment(vertex.acknowledged_ms, vertex.vertex, "acknowledged", "cyan")


def _passed(vertex: VertexStatistics, flying: Flying) -> str:
    """Return how the barrier passed the vertex, and what that cost."""
    held = f"{size(vertex.bytes_held)} held" if vertex.bytes_held else "nothing held"
    match vertex.alignment:
        case AlignmentType.ALIGNED | AlignmentType.FORCED_ALIGNED:
            return f"aligned after {seconds(vertex.alignment_ms)}, {held}"
        case AlignmentType.AT_LEAST_ONCE:
            return f"all barriers counted after {seconds(vertex.alignment_ms)}, none waited for"
        case AlignmentType.UNALIGNED:
            overtaken = f"the barrier overtook {flying}" if flying.rows else "there was nothing to overtake"
            return f"unaligned: {overtaken}" + (f"; {held} until it turned" if vertex.bytes_held else "")
        case _ as unreachable:
            assert_never(unreachable)


def render_timeline(
    record: CheckpointRecord,
    published_ms: int | None,
    versions: Mapping[TableName, int],
    words: PositionWords,
    *,
    every_subtask: bool = False,
) -> RenderableType:
    """Return the epoch's timeline, its work per vertex and subtask, and its tables, state and positions.

    `words` name the positions.
    """
    return Group(
        _heading(record, published_ms),
        counts_line(record),
        _timeline(moments(record, published_ms), record.statistics.triggered_ms),
        vertices_grid(record),
        _work(record),
        subtasks_grid(record, every=every_subtask),
        _tables(record.tables, versions),
        *(Text(verdict.report()) for verdict in verdicts_in(record.statistics.verdicts)),
        _state(record),
        *_hooks(record),
        *_in_flight(record.vertices),
        _positions(record, words),
    )


def _hooks(record: CheckpointRecord) -> Iterator[Grid]:
    own = [(each.vertex, each.coordinator) for each in record.vertices if each.coordinator is not None]
    if own:
        yield states_grid("source", own)
    if record.hooks:
        yield states_grid("master hook", [(held.hook, held.state) for held in record.hooks])


def states_grid(whose: str, states: Sequence[tuple[str, str | None]]) -> Grid:
    """Return master hooks or sources with the state that an entry holds of them, the beginning of one that is long."""
    grid = Grid(whose, "state")
    for name, state in states:
        grid.add_row(name, Text("none in this checkpoint" if state is None else _short(state)))
    return grid


def _short(state: str) -> str:
    return state if len(state) <= _HOOK_WIDTH else f"{state[:_HOOK_WIDTH]}... ({len(state):,} characters)"


def _heading(record: CheckpointRecord, published_ms: int | None) -> Text:
    life = record.statistics
    parent = f"builds on {record.parent}" if record.parent else "the first"
    committed_ms = life.committed_ms - life.triggered_ms
    rows = f"{counted(life.rows, life.rows_estimated)} {'row' if life.rows == 1 else 'rows'}"
    return Text.assemble(
        (f"{record.kind.value} {record.checkpoint}", "bold"),
        f" of {record.job}, {parent}, generation {record.generation}: {rows}, ",
        f"triggered {moment(life.triggered_ms)} UTC, committed after {seconds(committed_ms)}, ",
        _published(record, published_ms),
    )


def _published(record: CheckpointRecord, published_ms: int | None) -> str:
    if record.kind is RowKind.SAVEPOINT:
        return "publishes nothing"
    if record.kind is RowKind.HELD:
        return "publishes nothing until somebody approves it"
    if published_ms is None:
        return "not published yet"
    return f"published after {seconds(published_ms - record.statistics.triggered_ms)}"


def _timeline(found: tuple[Moment, ...], start_ms: int) -> Grid:
    grid = Grid("after", "", "who", "what", title="timeline", title_justify="left", title_style="bold")
    grid.columns[0].justify = "right"
    span_ms = max(max(each.at_ms for each in found) - start_ms, 1)
    for each in found:
        offset_ms = max(each.at_ms - start_ms, 0)
        place = round(offset_ms / span_ms * (_WIDTH - 1))
        drawn = Text("·" * place + "●" + "·" * (_WIDTH - 1 - place), style=each.style or "none")
        grid.add_row(seconds(offset_ms), drawn, each.who, Text(each.what, style=each.style or "none"))
    return grid


def _work(record: CheckpointRecord) -> Grid:
    sources = {was.vertex for was in record.vertices if was.splits}
    grid = numbers_grid(
        "work since the last barrier", "vertex", "micro-batches", "busy", "rows in", "rows out", "bytes out"
    )
    for vertex in record.statistics.vertices:
        if vertex.vertex in sources:
            continue
        numbers = (count(vertex.micro_batches), seconds(vertex.busy_ms), count(vertex.rows_in), count(vertex.rows_out))
        grid.add_row(vertex.vertex, *numbers, size(vertex.bytes_out))
    return grid


def _tables(tables: tuple[TableRecord, ...], versions: Mapping[TableName, int]) -> Grid:
    grid = numbers_grid("tables", "table", "mode", "files", "rows", "bytes", "Delta version")
    for table in tables:
        files = table.adds if table.mode is TableMode.APPEND else table.files
        mode = "append: new files" if table.mode is TableMode.APPEND else f"{table.mode.value}: all files"
        version = versions.get(table.table)
        shown = "not published" if version is None else str(version)
        sums = (count(sum(file.rows for file in files)), size(sum(file.bytes for file in files)))
        grid.add_row(table.table, mode, count(len(files)), *sums, shown)
    return grid


def _state(record: CheckpointRecord) -> Text:
    files = state_files(record)
    return Text.assemble(
        ("state ", "bold"),
        f"{plural(len(files), 'file')}, {size(sum(file.bytes for file in files))} in all; ",
        "a checkpoint refers to files, it does not copy them",
    )


def _in_flight(vertices: tuple[VertexRecord, ...]) -> Iterator[Text]:
    """A line for each edge on which the cut holds rows in flight; no line if there are none."""
    for was in vertices:
        edges = {held.channel.edge: None for subtask in was.subtasks for held in subtask.in_flight}
        for edge in edges:
            way = f"from {edge.upstream} to {edge.downstream}; a restore begins with them"
            yield Text.assemble(("in flight ", "bold"), f"{Flying.of(was, edge)} {way}")


def _positions(record: CheckpointRecord, words: PositionWords) -> Grid:
    """Return the position of each split, and what it sent since the last barrier."""
    grid = Grid("source", "split", "position", "rows", "bytes", title="positions", title_justify="left")
    grid.title_style = "bold"
    right(grid, 3, 4)
    sent = {vertex.vertex: vertex.subtasks for vertex in record.statistics.vertices}
    for vertex in record.vertices:
        own = sent.get(vertex.vertex, SubtaskStatistics())
        unknown = (None,) * len(vertex.splits)
        sources = zip(vertex.splits, own.rows_out or unknown, own.bytes_out or unknown, strict=True)
        for place, (split, rows, size_bytes) in enumerate(sources if vertex.splits else ()):
            position = words.named(vertex.vertex, SplitId(split), vertex.subtasks[place].position)
            grid.add_row(vertex.vertex, split, position, measured(rows, count), measured(size_bytes, size))
    return grid
