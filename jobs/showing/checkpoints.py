"""`tidemark checkpoints list`: one line per retained or failed checkpoint, newest first."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.channel_items import AlignmentType
from checkpointing.completeness import complete_tables, held_back_by, is_at_rest, late_rows
from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, EdgeId, Generation, SplitId, TableName
from checkpointing.metadata.record import (
    CheckpointFailure,
    CheckpointRecord,
    Claim,
    InputTimeRecord,
    Release,
    Row,
    RowKind,
    SubtaskStatistics,
    TableRecord,
    VertexRecord,
    VertexStatistics,
)
from checkpointing.metadata.row_validity import TIME_MS_MAX
from checkpointing.percentiles import Distribution
from jobs.operators.in_time.windows import LATE
from jobs.quality.verdict import verdicts_in
from jobs.showing.quantities import count, counted, moment, plural, seconds, size
from jobs.sources.position_words import PositionWords
from jobs.warehouse.cuts_table import event_time

# ------------------------------------------------------------------
# Renders the statistics of checkpoints: of each vertex and subtask, and over the retained checkpoints.


NOT_MEASURED: Final = "not measured"
"""Shown for a number that was not measured, as in entries of older releases of Tidemark. It is never shown as 0."""

FAILED_SHOWN: Final = 10
"""The list shows this many of the newest failed checkpoints. `--json` has all that are known."""

SUBTASKS_SHOWN: Final = 16
"""If a vertex has more subtasks, only the slowest are shown. `--subtasks` shows all."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers about subtasks: its title, the format of a number, and the number of every subtask."""

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
        """Add up the rows in flight to a vertex, on all its edges or on one."""
        segments = [
            segment
            for subtask in was.subtasks
            for held in subtask.in_flight
            for segment in held.segments
            if edge in (None, held.channel.edge)
        ]
        return cls(sum(segment.rows for segment in segments), sum(segment.bytes for segment in segments))

    def __str__(self) -> str:
        """Return the rows and bytes as a user reads them."""
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
    """Return the subtasks to show, in their order: all if they are few, or else the ones whose tasks ran longest."""
    times = vertex.subtasks.task_ms or (None,) * subtasks
    longest = sorted(range(subtasks), key=lambda subtask: -(times[subtask] or 0))
    return sorted(longest[:SUBTASKS_SHOWN])


def counts_line(record: CheckpointRecord) -> Text:
    """Return how many checkpoints the entry's generation had triggered when it was written, and how they ended.

    The entry was written while its own checkpoint was in progress, and counts it so. Since the entry exists, this
    checkpoint is shown as completed.
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


@dataclass(frozen=True, slots=True)
class FailedCheckpoint:
    """A checkpoint that failed or was declined: in which generation, when, why, and what to do now."""

    checkpoint: CheckpointId
    generation: Generation
    at_ms: int
    reason: CheckpointFailureReason
    message: str
    todo: str

    @property
    def status(self) -> str:
        """How the checkpoint ended: a task or a suite declined it, or it failed for another reason."""
        declined = self.reason.name.startswith("CHECKPOINT_DECLINED") or self.reason is CheckpointFailureReason.QUALITY
        return "declined" if declined else "failed"


def failed_checkpoints(
    rows: Iterable[Row], more: tuple[Generation, Sequence[CheckpointFailure]] = (Generation(0), ())
) -> list[FailedCheckpoint]:
    """Return the failed checkpoints that entries and releases list, newest first, each once.

    `more` has a generation, and failed checkpoints of it that no entry may list yet.
    """
    known = list(rows)
    told = {failed.checkpoint: (more[0], failed) for failed in more[1]}
    for row in known:
        listed: tuple[CheckpointFailure, ...] = ()
        if isinstance(row, CheckpointRecord):
            listed = row.statistics.failed
        elif isinstance(row, Release) and row.ended is not None:
            listed = row.ended.failed
        told |= {failed.checkpoint: (row.generation, failed) for failed in listed}
    line = sorted(row.checkpoint for row in _records(known) if row.commits and not row.abandoned)
    return [
        FailedCheckpoint(checkpoint, generation, failed.at_ms, failed.reason, failed.message, _todo(checkpoint, line))
        for checkpoint, (generation, failed) in sorted(told.items(), reverse=True)
    ]


def _todo(checkpoint: CheckpointId, line: Sequence[CheckpointId]) -> str:
    later = next((each for each in line if each > checkpoint), None)
    if later is None:
        return "remove the cause: the next checkpoint has its rows"
    return f"nothing: checkpoint {later} has its rows"


def _records(rows: Iterable[Row]) -> list[CheckpointRecord]:
    found = (row for row in rows if isinstance(row, CheckpointRecord))
    return sorted(found, key=lambda record: record.checkpoint, reverse=True)


def ticks_that_failed(rows: Iterable[Row]) -> Iterator[tuple[Generation, str]]:
    """Yield each tick that failed or died, with time and reason, newest first. The newest claim may still be held.

    A tick that died has no release, and another process made the next claim. If the same process made the next claim,
    the tick went on in another attempt.
    """
    known = list(rows)
    claims = {row.generation: row for row in sorted_claims(known)}
    releases = {row.generation: row for row in known if isinstance(row, Release)}
    said = {failed.message for failed in failed_checkpoints(known)}
    for generation, claim in sorted(claims.items(), reverse=True):
        ended, next_claim = releases.get(generation), claims.get(Generation(generation + 1))
        if ended is not None:
            if ended.ended is not None and ended.ended.has_failed and ended.ended.message not in said:
                yield generation, f"failed {moment(ended.at_ms)} UTC: {ended.ended.message}"
        elif next_claim is not None and next_claim.holder != claim.holder:
            own = max((each.checkpoint for each in _records(known) if each.generation == generation), default=None)
            done = "no retained checkpoint is its own" if own is None else f"its last checkpoint is {own}"
            yield generation, f"died, or was taken over: {claim.holder} began it {moment(claim.at_ms)} UTC; {done}"


def sorted_claims(rows: Iterable[Row]) -> list[Claim]:
    """Return the claims, in the order in which they were made. A claim that only reserves ids comes last."""
    return sorted((row for row in rows if isinstance(row, Claim)), key=lambda claim: (claim.generation, claim.last_id))


def render_checkpoints(job: str, rows: Iterable[Row], published: Iterable[CheckpointId], holder: str) -> RenderableType:
    """Return the retained and the failed checkpoints of a job as a table, why they failed, and who holds the job."""
    known, cuts = list(rows), frozenset(published)
    shown, failed = _records(known), failed_checkpoints(known)[:FAILED_SHOWN]
    columns = ("checkpoint", "kind", "triggered, UTC", "rows", "to commit", "aligned for", "held", "state", "cut")
    grid = right(Grid(*columns), 0, 3, 4, 5, 6, 7)
    grid.columns[2].no_wrap = True
    lines = {record.checkpoint: (*_cells(record), _cut(record, cuts)) for record in shown}
    lines |= {one.checkpoint: (str(one.checkpoint), one.status, *[""] * 6, "none") for one in failed}
    for _, cells in sorted(lines.items(), reverse=True):
        grid.add_row(*cells)
    held = [record.checkpoint for record in shown if record.kind is RowKind.HELD]
    savepoints = sum(record.is_savepoint for record in shown) - len(held)
    retained = f": {plural(len(shown) - savepoints - len(held), 'checkpoint')} retained"
    heading = Text.assemble(
        (job, "bold"),
        retained,
        f", {plural(savepoints, 'savepoint')}" if savepoints else "",
        f", cut {held[0]} waits for approval" if held else "",
    )
    said = [
        f"checkpoint {one.checkpoint} {one.status} (generation {one.generation}, {moment(one.at_ms)} UTC): "
        f"{one.message}. What to do: {one.todo}"
        for one in failed
    ]
    said += [f"the tick of generation {generation} {how}" for generation, how in ticks_that_failed(known)]
    ended = (Text(line, style="yellow") for line in said)
    return Group(heading, grid, *_gaps(shown, failed), *ended, *_measured(shown), Text(holder, style="dim"))


def checkpoints_as_json(
    job: str, rows: Iterable[Row], published: Iterable[CheckpointId], holder: str
) -> dict[str, object]:
    """Return what `render_checkpoints` shows, for programs. Times are ms since 1970, UTC.

    For a table that is complete for ever, the time is the last millisecond of the year 9999.
    """
    known, cuts = list(rows), frozenset(published)
    return {
        "job": job,
        "holder": holder,
        "checkpoints": [_as_json(record, cuts) for record in _records(known)],
        "failed": [
            {
                "checkpoint": one.checkpoint,
                "status": one.status,
                "generation": one.generation,
                "at_ms": one.at_ms,
                "reason": one.reason.name,
                "message": one.message,
                "what_to_do": one.todo,
            }
            for one in failed_checkpoints(known)
        ],
        "failed_ticks": [{"generation": generation, "how": how} for generation, how in ticks_that_failed(known)],
    }


def _as_json(record: CheckpointRecord, cuts: frozenset[CheckpointId]) -> dict[str, object]:
    return {
        "checkpoint": record.checkpoint,
        "kind": record.kind.value,
        "generation": record.generation,
        "parent": record.parent,
        "triggered_ms": record.statistics.triggered_ms,
        "committed_ms": record.statistics.committed_ms,
        "rows": record.statistics.rows,
        "state_bytes": sum(file.bytes for file in state_files(record)),
        "savepoint": record.is_savepoint and record.kind is not RowKind.HELD,
        "abandoned": record.abandoned,
        "finished": record.finished,
        "published": record.checkpoint in cuts,
        "complete_until_ms": {name: min(ms, TIME_MS_MAX) for name, ms in complete_tables(record).items()},
    }


def _measured(shown: list[CheckpointRecord]) -> Iterator[RenderableType]:
    """Yield the distribution of the completed checkpoints' numbers, and the counts in the newest entry."""
    ticks = [record for record in shown if record.kind in (RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD)]
    if len(ticks) > 1:
        yield history_grid(ticks)
    if ticks:
        yield counts_line(max(ticks, key=lambda record: record.checkpoint))


def _gaps(shown: Iterable[CheckpointRecord], failed: Iterable[FailedCheckpoint]) -> Iterator[Text]:
    """Explain why a checkpoint's id does not follow its parent's id.

    Each id is given out only once, even if it is unused.
    """
    records, listed = list(shown), {one.checkpoint for one in failed}
    for record in records:
        beside = listed | {each.checkpoint for each in records if each.parent == record.parent}
        between = set(range(record.parent + 1, record.checkpoint)) - beside
        if between and record.parent:
            yield Text(
                f"{record.checkpoint} follows {record.parent}: the ids between were given to a tick that died, to a "
                "checkpoint that failed or to a savepoint, and no id is used twice",
                style="dim",
            )


def _cut(record: CheckpointRecord, published: frozenset[CheckpointId]) -> str:
    if record.kind is RowKind.HELD:
        return "waits for approval"
    if record.kind is RowKind.SAVEPOINT:
        return f"none; after {record.parent}"
    return "published" if record.checkpoint in published else "not yet"


def _kind(record: CheckpointRecord) -> str:
    """Return an entry's kind.

    The savepoint of a stop is a checkpoint too: it is published, and the next tick begins from it.

    The last checkpoint of a finished job is just `finished`, so that it fits into a window of 120 characters.
    """
    match record.kind:
        case RowKind.ROLLBACK:
            what = f"rollback to {record.parent}"
        case RowKind.CHECKPOINT if record.pinned:
            what = "savepoint, stopped"
        case RowKind.CHECKPOINT if record.finished:
            return "finished, abandoned" if record.abandoned else "finished"
        case _:
            what = record.kind.value
    what += ", finished" if record.finished else ""
    return f"{what}, abandoned" if record.abandoned else what


def _cells(record: CheckpointRecord) -> tuple[str, ...]:
    state = size(sum(file.bytes for file in state_files(record)))
    return str(record.checkpoint), _kind(record), moment(record.statistics.triggered_ms), *figures(record), state


def figures(record: CheckpointRecord) -> tuple[str, str, str, str]:
    """Return an epoch's rows, its time from trigger to commit, its longest alignment, and the bytes held back in it."""
    life = record.statistics
    return (
        counted(life.rows, life.rows_estimated),
        seconds(life.committed_ms - life.triggered_ms),
        seconds(max((vertex.alignment_ms for vertex in life.vertices), default=0)),
        size(sum(vertex.bytes_held for vertex in life.vertices)),
    )


def state_files(record: CheckpointRecord) -> tuple[FileHandle, ...]:
    """Return the state files that a checkpoint refers to, each once."""
    files = (keyed.file for vertex in record.vertices for subtask in vertex.subtasks for keyed in subtask.state)
    return tuple({file.path: file for file in files}.values())


# ------------------------------------------------------------------
# Renders `tidemark checkpoints show`: the life of one epoch from trigger to publication, and what it holds.


_WIDTH: Final = 30
"""The width of the drawn time line, in characters."""
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
    """Return the epoch's events in order of time. Events of the same instant are in the order in which they happen."""
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
    """Return how the barrier passed the vertex, and what its alignment cost."""
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
        *_times(record),
        *_hooks(record),
        *_in_flight(record.vertices),
        _positions(record, words),
    )


def _times(record: CheckpointRecord) -> Iterator[RenderableType]:
    """Yield the watermark of each vertex and of each of its inputs. Yield nothing for a job without event times."""
    times = times_of(record)
    if not times:
        return
    columns = (
        "vertex",
        "watermark, UTC",
        "input",
        "its watermark, UTC",
        "idle since, UTC",
        "holds it back",
        "late rows",
    )
    grid = right(Grid(*columns, title="event time", title_justify="left", title_style="bold"), 6)
    for time in times:
        late = "" if time.late_rows is None else count(time.late_rows)
        for place, each in enumerate(time.inputs):
            own = (time.vertex, event_moment(time.watermark_ms)) if place == 0 else ("", "")
            idle = "" if not each.idle else NOT_MEASURED if each.active_ms is None else moment(each.active_ms)
            holds = "goes on by the clock" if each in time.at_rest else "yes" if each is time.held_back_by else ""
            named = f"{each.upstream} {each.split}".strip()
            grid.add_row(*own, named, event_moment(each.watermark_ms), idle, holds, late if place == 0 else "")
    yield grid


@dataclass(frozen=True, slots=True)
class TimeOfVertex:
    """A vertex's event time at a checkpoint. `late_rows` is None if the vertex has no table of late rows.

    For the inputs `at_rest`, time goes on by the clock (`close_after`).
    """

    vertex: str
    watermark_ms: int
    inputs: Sequence[InputTimeRecord]
    held_back_by: InputTimeRecord | None
    at_rest: Sequence[InputTimeRecord]
    late_rows: int | None


def times_of(record: CheckpointRecord) -> list[TimeOfVertex]:
    """Return the event time of each vertex that keeps one."""
    late = late_rows(record, LATE)
    return [
        TimeOfVertex(
            was.vertex,
            was.time.watermark_ms,
            was.time.inputs,
            held_back_by(was.time),
            [each for each in was.time.inputs if is_at_rest(record, was.time, each)],
            late.get(was.vertex),
        )
        for was in record.vertices
        if was.time is not None
    ]


def event_moment(ms: int) -> str:
    """Return an event time to the millisecond, as a user reads it."""
    if ms in (BEFORE_TIME, END_OF_TIME):
        return "before all" if ms == BEFORE_TIME else "the end"
    return event_time(ms).replace(tzinfo=None).isoformat(" ", "milliseconds")


def checkpoint_as_json(job: str, record: CheckpointRecord, published: Iterable[CheckpointId]) -> dict[str, object]:
    """Return the numbers of one checkpoint, and its event times, for programs. Times are ms since 1970, UTC.

    The watermark before all rows is -2^63, and the one after all rows 2^63 - 1.
    """
    times = [
        {
            "vertex": time.vertex,
            "watermark_ms": time.watermark_ms,
            "held_back_by": None if time.held_back_by is None else time.inputs.index(time.held_back_by),
            "at_rest": [time.inputs.index(each) for each in time.at_rest],
            "late_rows": time.late_rows,
            "inputs": [each.model_dump() for each in time.inputs],
        }
        for time in times_of(record)
    ]
    return {"job": job} | _as_json(record, frozenset(published)) | {"event_time": times}


def _hooks(record: CheckpointRecord) -> Iterator[Grid]:
    own = [(each.vertex, each.coordinator) for each in record.vertices if each.coordinator is not None]
    if own:
        yield states_grid("source", own)
    if record.hooks:
        yield states_grid("master hook", [(held.hook, held.state) for held in record.hooks])


def states_grid(whose: str, states: Sequence[tuple[str, str | None]]) -> Grid:
    """Return master hooks or sources with their state in an entry. A long state is cut to its beginning."""
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
    """Yield a line for each edge on which the cut holds rows in flight, and no line if there are none."""
    for was in vertices:
        edges = {held.channel.edge: None for subtask in was.subtasks for held in subtask.in_flight}
        for edge in edges:
            way = f"from {edge.upstream} to {edge.downstream}; a restore begins with them"
            yield Text.assemble(("in flight ", "bold"), f"{Flying.of(was, edge)} {way}")


def _positions(record: CheckpointRecord, words: PositionWords) -> Grid:
    """Return the position of each split, and the rows and bytes that it sent since the last barrier."""
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
