"""Renders the statistics of checkpoints: of each vertex and subtask, and over the retained checkpoints ."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table as Grid
from rich.text import Text

from checkpointing.distribution import Distribution
from checkpointing.identifiers import EdgeId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord, VertexStatistics
from jobs.showing.quantities import count, plural, seconds, size

NOT_MEASURED: Final = "not measured"
"""Shown for a number that was not measured, as in entries of older versions. It is never shown as 0."""

SUBTASKS_SHOWN: Final = 16
"""If a vertex has more subtasks, the slowest ones are shown. `--subtasks` shows all."""


@dataclass(frozen=True, slots=True)
class Column:
    """One number of the subtasks: its title, its format, and its value for every subtask."""

    title: str
    shown: Callable[[int], str]
    numbers: Sequence[int | None]

    def cell(self, subtask: int) -> str:
        """Return the number of one subtask, formatted."""
        return measured(self.numbers[subtask] if self.numbers else None, self.shown)

    def summary(self, choose: Callable[[Distribution], int]) -> str:
        """Return the least, average or greatest number of all subtasks, formatted."""
        spread = Distribution.of(self.numbers)
        return measured(None if spread is None else choose(spread), self.shown)


@dataclass(frozen=True, slots=True)
class Flying:
    """The rows that a cut holds in flight: an unaligned barrier has overtaken their segments."""

    rows: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, was: VertexRecord, edge: EdgeId | None = None) -> "Flying":
        """Add up what is on its way to a vertex, by all its edges or by one."""
        segments = [
            segment
            for subtask in was.subtasks
            for held in subtask.in_flight
            for segment in held.segments
            if edge in (None, held.channel.edge)
        ]
        return cls(sum(segment.rows for segment in segments), sum(segment.bytes for segment in segments))

    def __str__(self) -> str:
        """Return it as a user reads it."""
        return f"{plural(self.rows, 'row')}, {size(self.size_bytes)}"


def measured(number: int | None, shown: Callable[[int], str]) -> str:
    """Return a number formatted, or `not measured`."""
    return NOT_MEASURED if number is None else shown(number)


def vertices_grid(record: CheckpointRecord) -> Grid:
    """Return each vertex's barriers: start delay, alignment, bytes let through, and the asynchronous part."""
    grid = numbers_grid(
        "barriers", "vertex", "start delay", "aligned for", "let through", "held", "in flight", "async", "acknowledged"
    )
    flying = {was.vertex: Flying.of(was) for was in record.vertices}
    for vertex in record.statistics.vertices:
        if not vertex.barriers:
            continue
        grid.add_row(
            vertex.vertex,
            measured(vertex.start_delay_ms, seconds),
            seconds(vertex.alignment_ms),
            measured(vertex.bytes_processed, size),
            size(vertex.bytes_held),
            size(flying.get(vertex.vertex, Flying()).size_bytes),
            measured(vertex.async_ms, seconds),
            seconds(vertex.acknowledged_ms - record.statistics.triggered_ms),
        )
    return grid


def subtasks_grid(record: CheckpointRecord, *, every: bool) -> Grid:
    """Return the numbers of each operator's subtasks: first least, average and greatest, then each subtask.

    If a vertex has many subtasks, only the slowest are shown, or all if `every` is True.
    """
    columns = ("task time", "writing", "rows in", "rows out", "bytes out", "state written", "state")
    grid = numbers_grid("subtasks, since the last barrier", "vertex", "subtask", *columns)
    known = {vertex.vertex: vertex for vertex in record.statistics.vertices}
    for was in record.vertices:
        if not was.splits and was.vertex in known:
            grid.add_section()
            for row in _rows(was, known[was.vertex], every=every):
                grid.add_row(*row)
    return grid


def columns_of(was: VertexRecord, vertex: VertexStatistics) -> tuple[Column, ...]:
    """Return the columns of a vertex's subtasks. The size of the state comes from the entry's files."""
    own = vertex.subtasks
    state = tuple(sum(keyed.file.bytes for keyed in snapshot.state) for snapshot in was.subtasks)
    return (
        Column("task time", seconds, own.task_ms),
        Column("writing", seconds, own.sync_ms),
        Column("rows in", count, own.rows_in),
        Column("rows out", count, own.rows_out),
        Column("bytes out", size, own.bytes_out),
        Column("state written", size, own.checkpointed_bytes),
        Column("state", size, state),
    )


def _rows(was: VertexRecord, vertex: VertexStatistics, *, every: bool) -> Iterator[tuple[str, ...]]:
    columns, subtasks = columns_of(was, vertex), len(was.subtasks)
    if subtasks > 1:
        for name, choose in _SPREAD:
            yield (vertex.vertex, name, *(column.summary(choose) for column in columns))
    chosen = list(range(subtasks)) if every else _slowest(vertex, subtasks)
    for subtask in chosen:
        yield (vertex.vertex, str(subtask), *(column.cell(subtask) for column in columns))
    if len(chosen) < subtasks:
        yield (f"{plural(subtasks - len(chosen), 'faster subtask')} left out: --subtasks shows all",)


_SPREAD: Final[tuple[tuple[str, Callable[[Distribution], int]], ...]] = (
    ("least", lambda spread: spread.minimum),
    ("average", lambda spread: spread.average),
    ("most", lambda spread: spread.maximum),
)


def _slowest(vertex: VertexStatistics, subtasks: int) -> list[int]:
    """Return the subtasks to show, in their order: all if they are few, else those whose tasks ran longest."""
    times = vertex.subtasks.task_ms or (None,) * subtasks
    longest = sorted(range(subtasks), key=lambda subtask: -(times[subtask] or 0))
    return sorted(longest[:SUBTASKS_SHOWN])


def counts_line(record: CheckpointRecord) -> Text:
    """Return how many checkpoints the entry's generation had triggered when it was written, and how they ended.

    When the entry was written, it counted itself as in progress. Since it is there, its checkpoint has completed.
    """
    when = f"generation {record.generation} up to checkpoint {record.checkpoint}"
    counts = record.statistics.counts
    if counts is None:
        return Text(f"{when}: checkpoints {NOT_MEASURED}", style="dim")
    itself = min(counts.in_progress, 1)
    others = counts.in_progress - itself
    parts = (
        f"{count(counts.total)} triggered",
        f"{count(counts.completed + itself)} completed",
        f"{count(counts.failed)} failed",
        f"{count(others)} more in progress" if others else "",
        "restored from a checkpoint" if counts.restored else "started without a checkpoint",
    )
    return Text(f"{when}: {', '.join(filter(None, parts))}")


def history_grid(records: Iterable[CheckpointRecord]) -> Grid:
    """Return the distribution of the numbers of several checkpoints: least, average, most and percentiles."""
    shown = list(records)
    title = f"over {plural(len(shown), 'checkpoint')}"
    grid = numbers_grid(title, "", "least", "average", "most", "p50", "p95", "p99")
    vertices = [record.statistics.vertices for record in shown]
    for name, numbers, said in (
        ("to commit", [each.statistics.committed_ms - each.statistics.triggered_ms for each in shown], seconds),
        ("aligned for", [max((v.alignment_ms for v in each), default=0) for each in vertices], seconds),
        ("slowest subtask", [slowest_task_ms(record) for record in shown], seconds),
        ("state written", [state_written(record) for record in shown], size),
    ):
        grid.add_row(name, *_spread(Distribution.of(numbers), said))
    return grid


def _spread(spread: Distribution | None, said: Callable[[int], str]) -> Iterator[str]:
    if spread is None:
        yield NOT_MEASURED
        return
    numbers = (spread.minimum, spread.average, spread.maximum, spread.p50, spread.p95, spread.p99)
    yield from (said(number) for number in numbers)


def slowest_task_ms(record: CheckpointRecord) -> int | None:
    """Return how long the tasks of the slowest subtask ran in a checkpoint's epoch; None if it was not measured."""
    spread = Distribution.of(ms for vertex in record.statistics.vertices for ms in vertex.subtasks.task_ms)
    return None if spread is None else spread.maximum


def state_written(record: CheckpointRecord) -> int | None:
    """Return how many bytes of state were written in a checkpoint's epoch; None if it was not measured."""
    columns = [vertex.subtasks.checkpointed_bytes for vertex in record.statistics.vertices]
    known = [number for column in columns for number in column if number is not None]
    return sum(known) if known else None


def numbers_grid(title: str, *columns: str) -> Grid:
    """Return an empty table whose first column is a name, and whose others are numbers."""
    grid = Grid(*columns, title=title, title_justify="left", title_style="bold")
    return right(grid, *range(1, len(columns)))


def right(grid: Grid, *columns: int) -> Grid:
    """Return the table with these columns aligned to the right, as numbers are."""
    for column in columns:
        grid.columns[column].justify = "right"
    return grid
