"""Judges event time: watermarks of cuts, what is late by them, and what fires (N1, N4, N7)."""

from collections import Counter
from collections.abc import Iterator

from checkpointing.channel_items import AlignmentType, SourceSlice
from checkpointing.completeness import complete_tables, complete_until_ms
from checkpointing.config import CheckpointingMode
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import Effect, EndTick, PollSource, RunMicroBatch, TickOutcome
from checkpointing.metadata.record import CheckpointRecord, InputTimeRecord, VertexRecord, VertexTimeRecord
from spec.history import CheckpointTriggered, History, RowCommitted
from spec.reference.contents import first_cuts, in_flight, key_groups_of, line_of, merged_state, read_on
from spec.reference.pipeline import (
    LATE_TABLE,
    TIMES,
    WINDOWS,
    WINDOWS_TABLE,
    first_id,
    first_table,
    rows_of,
    source_rows,
)
from spec.reference.times import (
    BEGINNING,
    END,
    furthest,
    goes_on_from,
    last_ms,
    passed_before,
    timed_of,
    window_of,
    windowed,
)
from spec.rules import rule
from spec.rules.savepoints import drained_rows, plain_savepoints
from spec.rules.watching import DoorJudge, Watched, drafted

Place = tuple[int, VertexId, str]
"""An input of a vertex: its number, its upstream vertex, and the split if the upstream vertex is a source."""


def _timed(history: History) -> Iterator[tuple[CheckpointRecord, CheckpointRecord | None]]:
    """Yield each triggered entry of a job with event time, with its parent if the history has it."""
    triggered = {event.checkpoint for event in history.of(CheckpointTriggered)}
    for event in history.of(RowCommitted):
        if timed_of(event.record) and event.record.checkpoint in triggered:
            before = line_of(history, event.record)[:-1]
            yield event.record, before[-1] if before else None


def _inputs(time: VertexTimeRecord) -> dict[Place, InputTimeRecord]:
    return {(each.input, first_id(each.upstream), each.split): each for each in time.inputs}


@rule("time-never-goes-back")
def time_never_goes_back(history: History) -> Iterator[str]:
    """Along a line of cuts, neither the watermark of a vertex nor that of one of its inputs goes back.

    The one exception is a job that goes on after a drain: it leaves the end of time again.
    """
    for record, parent in _timed(history):
        before = timed_of(parent) if parent is not None else {}
        for vertex, now in timed_of(record).items():
            was = before.get(vertex)
            if parent is None or was is None:
                continue
            marks = [goes_on_from(parent, vertex), *passed_before(record, vertex), now.watermark_ms]
            if marks != sorted(marks):
                yield f"checkpoint {record.checkpoint}: the watermarks of {vertex} since the cut before were {marks}"
            for place, each in _inputs(was).items():
                then = _inputs(now).get(place)
                if then is not None and then.watermark_ms < each.watermark_ms:
                    yield f"checkpoint {record.checkpoint}: {vertex} was at {each}, and is at {then}"


@rule("watermark-is-true")
def watermark_is_true(history: History) -> Iterator[str]:
    """For each split and each vertex, a cut has the watermark of the rows before its barrier.

    A split's watermark comes from its rows that have run. A vertex's watermark is the least one of its inputs that are
    not idle and have not ended, so an idle input holds nothing back. Inputs that have sent nothing since a restore
    count too (FLINK-32828). In unaligned mode, a vertex may have an older watermark of an upstream vertex, but never a
    newer one. In at-least-once mode nothing is judged, because rows after a barrier may count.
    """
    if history.mode is not CheckpointingMode.EXACTLY_ONCE:
        return
    drained = {each.checkpoint for each in drained_rows(history)}
    for record, parent in _timed(history):
        ended = _ended(record, drained=record.checkpoint in drained)
        unaligned = {
            first_id(each.vertex) for each in record.statistics.vertices if each.alignment is AlignmentType.UNALIGNED
        }
        for vertex, time in timed_of(record).items():
            for place, each in _inputs(time).items():
                due_ms = _due(history, record, vertex, each)
                wrong = each.watermark_ms > due_ms if vertex in unaligned else each.watermark_ms != due_ms
                if wrong and (each.split or not _is_over(record, place, ended)):
                    yield f"checkpoint {record.checkpoint}: {vertex} has {each}, and the rows reach {due_ms}"
            before = passed_before(record, vertex)
            last_ms = before[-1] if before else BEGINNING if parent is None else goes_on_from(parent, vertex)
            left = [each for place, each in _inputs(time).items() if not _is_over(record, place, ended)]
            rests = _at_rest(left, record.statistics.triggered_ms) is not None
            if vertex not in unaligned and not rests and time.watermark_ms != _combined(left, last_ms):
                yield f"checkpoint {record.checkpoint}: {vertex} is at {time.watermark_ms} after {last_ms}, with {left}"


@rule("time-goes-on-at-rest")
def time_goes_on_at_rest(history: History) -> Iterator[str]:
    """While no split of a stream with `close_after` has rows, its time goes on at the pace of the barriers' clock.

    Once the stream has had no rows for that long, its time goes on from its greatest row. In unaligned mode, a vertex
    may have an older watermark.
    """
    drained = {each.checkpoint for each in drained_rows(history)}
    for record, parent in _timed(history):
        clock_ms, ended = record.statistics.triggered_ms, _ended(record, drained=record.checkpoint in drained)
        unaligned = {first_id(e.vertex) for e in record.statistics.vertices if e.alignment is AlignmentType.UNALIGNED}
        for vertex, time in timed_of(record).items():
            left = [each for place, each in _inputs(time).items() if not _is_over(record, place, ended)]
            rests = _at_rest(left, clock_ms)
            before = passed_before(record, vertex)
            last_ms = before[-1] if before else BEGINNING if parent is None else goes_on_from(parent, vertex)
            if rests is None:
                continue
            due_ms = max(last_ms, rests)
            if time.watermark_ms > due_ms or (vertex not in unaligned and time.watermark_ms != due_ms):
                yield f"checkpoint {record.checkpoint}, at {clock_ms}: {vertex} is at {time.watermark_ms}, with {left}"


def _at_rest(inputs: list[InputTimeRecord], clock_ms: int) -> int | None:
    """Return the watermark that the clock gives a vertex whose only stream is at rest, or None.

    If a split is idle although it had rows at this clock, it waits for an earlier part of its source.
    """
    reading = [each for each in inputs if each.split and not (each.idle and each.active_ms == clock_ms)]
    greatest_ms = max((each.watermark_ms for each in reading), default=BEGINNING)
    rested_ms = clock_ms - max((each.active_ms or clock_ms for each in reading), default=clock_ms)
    after_ms = next((each.close_after_ms for each in reading), None)
    rests = after_ms is not None and greatest_ms > BEGINNING and rested_ms > after_ms
    return greatest_ms + rested_ms if rests else None


def _due(history: History, record: CheckpointRecord, vertex: VertexId, each: InputTimeRecord) -> int:
    """Return the greatest watermark that an input of a vertex can have at an entry."""
    if not each.split:
        above = timed_of(record)[first_id(each.upstream)]
        return max(BEGINNING, above.watermark_ms - above.behind_ms)
    read = read_on(line_of(history, record)).get(SplitId(each.split), [])
    rows = Counter(row for begin, end in read for row in source_rows(SplitId(each.split), begin, end))
    for held in in_flight(record):
        if first_id(held.channel.edge.downstream) == vertex:
            for segment in held.segments:
                if isinstance(segment, SourceSlice) and segment.split == each.split:
                    rows -= Counter(rows_of(segment))
    return furthest(list(rows))


def _ended(record: CheckpointRecord, *, drained: bool) -> set[str]:
    """Return the splits from which no more rows come."""
    pairs = ((split, each) for was in record.vertices for split, each in zip(was.splits, was.subtasks, strict=False))
    return {split for split, each in pairs if drained or each.finished}


def _is_over(record: CheckpointRecord, place: Place, ended: set[str]) -> bool:
    """Return whether an input is at the end of time."""
    _, upstream, split = place
    return split in ended if split else timed_of(record)[upstream].watermark_ms == END


def _combined(left: list[InputTimeRecord], last_ms: int) -> int:
    if not left:
        return END
    active = [each.watermark_ms for each in left if not each.idle]
    if not active:
        return max(last_ms, *(each.watermark_ms for each in left))
    return max(last_ms, min(active))


@rule("complete-once-and-for-all")
def complete_once_and_for_all(history: History) -> Iterator[str]:
    """Along a line of cuts, the time until which a table is complete never goes back, not even after a drain.

    The one exception: all splits above the table had ended, and their source is no longer bounded.
    """
    for record, parent in _timed(history):
        ended = set[str]() if parent is None else _ended(parent, drained=False)
        now = {first_table(table): until_ms for table, until_ms in complete_tables(record).items()}
        for was in () if parent is None else parent.vertices:
            name = first_id(was.vertex)
            if parent is None or was.time is None or name not in timed_of(record):
                continue
            for table in was.time.tables:
                until_ms, then_ms = complete_until_ms(parent, table), now.get(first_table(table), BEGINNING)
                reopened = until_ms == END and ended.issuperset(_splits_above(parent, name))
                if until_ms is not None and then_ms < until_ms and not reopened:
                    yield f"checkpoint {record.checkpoint}: {table} is complete until {then_ms}, after {until_ms}"


def _splits_above(record: CheckpointRecord, vertex: VertexId) -> Iterator[str]:
    for each in timed_of(record)[vertex].inputs:
        yield from (each.split,) if each.split else _splits_above(record, first_id(each.upstream))


@rule("idle-by-the-clock")
def idle_by_the_clock(history: History) -> Iterator[str]:
    """A split is idle at a cut if by the barriers' clocks its last barrier with rows is over `idle_after` ago.

    A split that waits for an earlier part of its source is idle at once.
    """
    for record, parent in _timed(history):
        clock_ms = record.statistics.triggered_ms
        before = timed_of(parent) if parent is not None else {}
        unaligned = {first_id(e.vertex) for e in record.statistics.vertices if e.alignment is AlignmentType.UNALIGNED}
        for vertex, time in timed_of(record).items():
            for place, each in _inputs(time).items():
                if not each.split or each.active_ms is None or each.active_ms == clock_ms or vertex in unaligned:
                    continue
                was = _inputs(before[vertex]).get(place) if vertex in before else None
                rests = clock_ms - each.active_ms > (TIMES.idle_after_ms or 0)
                known = {barrier.clock_ms for barrier in record.barriers} | {was.active_ms if was is not None else None}
                if each.idle != rests or each.active_ms not in known:
                    yield f"checkpoint {record.checkpoint}, at {clock_ms}: {vertex} has {each}, it was {was}"


@rule("late-by-the-last-barrier")
class LateByTheLastBarrier(DoorJudge):
    """A vertex judges lateness by its watermark at its last barrier, which an entry records, or by the restored one.

    So the entries alone determine which rows are late. A vertex with windows by the clock is not judged, because it
    uses another time.
    """

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        restored, graph = door.setup.restored, door.setup.graph
        names = [each.id for each in graph.operators() if graph.time_channels(each.id) and not each.by_clock]
        first = {name: BEGINNING if restored is None else goes_on_from(restored, first_id(name)) for name in names}
        self._known = {name: {ms} for name, ms in first.items()}
        self._judged: dict[VertexId, list[int]] = {name: [] for name in names}
        """Maps each vertex to the watermarks by which it has judged rows, and which no entry has recorded yet."""

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, RunMicroBatch) and effect.inputs:
            if effect.late_ms not in self._known.get(effect.vertex, {effect.late_ms}):
                self._judged[effect.vertex].append(effect.late_ms)
            return
        record = drafted(effect)
        if record is None or not timed_of(record):
            return
        for name in self._known:
            now_ms = timed_of(record)[first_id(name)].watermark_ms
            self._known[name] = {*self._known[name], now_ms, *passed_before(record, first_id(name))}
            left = [ms for ms in self._judged[name] if ms not in self._known[name]]
            self._judged[name] = [ms for ms in left if ms > now_ms]
            for ms in left:
                if ms <= now_ms:
                    self.wrong(f"{name} judged rows by {ms}, and the entries name {sorted(self._known[name])}")


@rule("nothing-due-is-left")
def nothing_due_is_left(history: History) -> Iterator[str]:
    """No cut holds state that is due at its vertex's watermark, and each cut records when its first state is due.

    So the next tick knows when the state fires.
    """
    for record, _ in _timed(history):
        was = next((each for each in record.vertices if each.vertex == WINDOWS), None)
        time = timed_of(record).get(WINDOWS)
        if was is None or time is None:
            continue
        for index, snapshot in enumerate(was.subtasks):
            due_ms = _first_due(history, was, index, record.max_parallelism)
            said_ms = END if snapshot.due_ms is None else snapshot.due_ms
            if due_ms is not None and (due_ms <= time.watermark_ms or said_ms > due_ms):
                where = f"checkpoint {record.checkpoint}, at {time.watermark_ms}: subtask {index} of {WINDOWS}"
                yield f"{where} holds what is due at {due_ms}, and says {snapshot.due_ms}"


def _first_due(history: History, was: VertexRecord, index: int, max_parallelism: int) -> int | None:
    own = key_groups_of(index, len(was.subtasks), max_parallelism)
    state = merged_state(history, was.subtasks[index].state, own)
    rows = (row for value in state.values() for row in value or () if isinstance(row, int))
    return min((last_ms(window_of(row)) for row in rows), default=None)


@rule("windows-are-exact")
def windows_are_exact(history: History) -> Iterator[str]:
    """At each cut, the closed windows and late rows are those of a replay from cut to cut, each exactly once.

    The replay knows no micro-batches, no parallelism, no crash and no restore. So these change neither rows nor late
    rows, and nothing fires twice or never in one line of cuts.
    """
    if history.mode is not CheckpointingMode.EXACTLY_ONCE:
        return
    for record, cut in (*first_cuts(history), *plain_savepoints(history)):
        due = windowed(history, record) if WINDOWS in timed_of(record) else None
        if due is None:
            continue
        active = dict(cut.active)
        closed = history.multiset(active.get(WINDOWS_TABLE, frozenset()))
        late = history.multiset(active.get(LATE_TABLE, frozenset()))
        wanted: tuple[tuple[str, Counter[tuple[int, ...]], Counter[tuple[int, ...]]], ...] = (
            ("windows", due.closed, closed),
            ("late rows", due.late, late),
        )
        for name, want, have in wanted:
            if want != have:
                yield f"checkpoint {record.checkpoint}, {name}: lacks {want - have}, has too much {have - want}"


@rule("held-back")
class HeldBack(DoorJudge):
    """No split is read that may be more than `hold_back` ahead in event time of a split that can catch up (N1)."""

    def asked(self, effect: Effect) -> None:
        if not isinstance(effect, PollSource) or effect.source in self.door.setup.cut_groups:
            return
        if self.door.runs_ahead((effect.source, effect.split)):
            self.wrong(f"split {effect.split} of {effect.source} is read, with {self.door.reached}")


def _days(until_ms: int) -> int:
    """Return how many days have ended in a table that is complete until then.

    The table's clock is 10 ms ahead of UTC.
    """
    return max(0, (until_ms + 1 + 10) // 600)


@rule("time-comes-without-rows")
class TimeComesWithoutRows(DoorJudge):
    """A tick that has read everything first fires what is due and completes the days that are over (N4, N8).

    Time goes on without rows when splits turn idle, or when a stream is at rest. In unaligned mode, a watermark needs
    several barriers until it has passed all vertices. A tick with an aborted checkpoint is not judged, because its
    barrier may have carried an unknown state of splits that were not polled yet.
    """

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._newest = door.setup.restored

    def asked(self, effect: Effect) -> None:
        record = drafted(effect)
        if record is not None:
            self._newest = record
        if not isinstance(effect, EndTick) or effect.outcome is not TickOutcome.CAUGHT_UP or self._newest is None:
            return
        was = next((each for each in self._newest.vertices if each.vertex == WINDOWS), None)
        if was is None or self.door.aborted or WINDOWS not in timed_of(self._newest):
            return
        now = self._now(self._newest)
        due = [each.due_ms for each in was.subtasks if each.due_ms is not None and each.due_ms <= now]
        if due:
            self.wrong(f"{WINDOWS} would be at {now}, holds what is due at {min(due)}, and the tick ends")
        then = goes_on_from(self._newest, WINDOWS)
        if now != END and _days(now) > _days(then):
            self.wrong(f"{WINDOWS} would be at {now}, was at {then}, a day ends between them, and the tick ends")

    def _now(self, record: CheckpointRecord) -> int:
        """Return the watermark that the vertex with windows would have at a barrier that came now."""
        ended = _ended(record, drained=False) | {split for _, split in self.door.ended}
        marks = [self._mark(record, first_id(each.upstream), ended) for each in timed_of(record)[WINDOWS].inputs]
        left = [mark for mark in marks if mark[0] != END]
        last_ms = goes_on_from(record, WINDOWS)
        active = [ms for ms, idle in left if not idle]
        return END if not left else max(last_ms, min(active)) if active else max(last_ms, *(ms for ms, _ in left))

    def _mark(self, record: CheckpointRecord, upstream: VertexId, ended: set[str]) -> tuple[int, bool]:
        time = timed_of(record)[upstream]
        left = [each for each in time.inputs if each.split not in ended]
        clock_ms = self.door.now_ms
        now = [self._at(each, clock_ms) for each in left]
        last_ms, rests = goes_on_from(record, upstream), _at_rest(now, clock_ms)
        return _combined(now, last_ms) if rests is None else max(last_ms, rests), all(each.idle for each in now)

    def _at(self, was: InputTimeRecord, clock_ms: int) -> InputTimeRecord:
        """Return how far a split would be without further rows. A split that waited at the entry may be read by now.

        If the clock has gone back, a split that was idle at the entry may be active again.
        """
        if self.door.is_held((first_id(was.upstream), SplitId(was.split))):
            return was.model_copy(update={"idle": True, "active_ms": clock_ms})
        rested_ms = clock_ms - (was.active_ms or clock_ms)
        return was.model_copy(update={"idle": rested_ms > (TIMES.idle_after_ms or 0)})
