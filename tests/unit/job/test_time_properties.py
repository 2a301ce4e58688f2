"""Tests how far barriers and tables stay behind rows that wait in a vertex (N6, N8), and windows by the clock (N4)."""

from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import Barrier, StagedSegment, SubtaskSnapshot
from checkpointing.completeness import complete_until_ms
from checkpointing.config import CheckpointConfig
from checkpointing.event_time import BEFORE_TIME, END_OF_TIME, EventTime, VertexTime
from checkpointing.gate.messages import TriggerCheckpoint
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation, SplitId, TableName, VertexId
from checkpointing.job.drafts import time_record
from checkpointing.job.operator_run import LiveFiles, OperatorRun
from checkpointing.job.restoring import operator_runs
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.metadata.record import Statistics, VertexRecord
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

# ------------------------------------------------------------------
# A chain of vertices. In each, a row may wait until the watermark is a given time past the row's time, as in a join
# within a time range. In the reference, each row waits as long as the example says, and the reference knows where each
# row is.


WAITS: Final = "barriers-wait-with-rows"
"""A row that waited in a vertex is not late downstream: the vertex's watermark lags by the longest wait there.

This is checked only if all upstream vertices declare how long a row may wait.
"""
COMPLETE: Final = "tables-are-complete"
"""A table has all rows up to the time in the cut. If the cut has no time, no row has come, or rows wait for a drain."""

_CLICKS: Final = VertexId("clicks")
_SPLITS: Final = 2
_DELAY_MS: Final = 5
_waits = st.lists(st.sampled_from([0, 0, 10, 25, None]), min_size=1, max_size=3)
_rows = st.lists(st.tuples(st.integers(0, _SPLITS - 1), st.integers(0, 60)), max_size=6)


@dataclass
class _Stage:
    """A vertex of the chain: its waiting rows, each with the time at which it is emitted, and the rows in its table."""

    run: OperatorRun
    channels: tuple[ChannelId, ...]
    waiting: list[tuple[int, int]] = field(default_factory=list)
    table: list[int] = field(default_factory=list)

    def take(self, rows, wait, *, judged):
        """Take rows before the next barrier. No row may be late."""
        late_ms, most_ms = self.run.time.watermark.ms, self.run.vertex.rows_wait_ms
        late = [row for row in rows if judged and row <= late_ms]
        expect(not late, WAITS, f"{self.run.vertex.id} is at {late_ms} when rows of {late} come")
        self.waiting += [(row, END_OF_TIME if most_ms is None else row + min(most_ms, wait)) for row in rows]

    def passed(self, barriers):
        """Pass a barrier. Return the rows emitted before the barrier, and the barrier that the vertex sends on."""
        for channel, barrier in zip(self.channels, barriers, strict=True):
            self.run.time.received(channel, barrier)
        passed = self.run.pass_time(TriggerCheckpoint(barriers[0]))
        gone = [row for row, due_ms in self.waiting if due_ms <= passed.watermark_ms or due_ms == row]
        self.waiting = [(row, due_ms) for row, due_ms in self.waiting if due_ms > passed.watermark_ms and due_ms != row]
        self.table += gone
        self.run.take_snapshot(passed)
        return gone, self.run.sent_on(passed)


def _chain(waits):
    """Return a graph with one vertex for each wait. The first one reads two splits."""
    ids = [VertexId(f"stage_{place}") for place in range(len(waits))]
    source = Vertex(_CLICKS, VertexKind.SOURCE, _SPLITS, splits=tuple(SplitId(f"{each}") for each in range(_SPLITS)))
    vertices = [
        Vertex(name, VertexKind.KEYED, 1, (Table(TableName(f"gold/{name}"), TableMode.APPEND),), rows_wait_ms=wait)
        for name, wait in zip(ids, waits, strict=True)
    ]
    vertices[0] = replace(vertices[0], event_times=(EventTime(_DELAY_MS),))
    edges = [EdgeId(above, below) for above, below in zip([_CLICKS, *ids], ids, strict=False)]
    return JobGraph((source, *vertices), tuple(edges))


@given(waits=_waits, epochs=st.lists(st.tuples(_rows, st.integers(0, 30)), min_size=1, max_size=6))
def test_no_row_is_late_behind_a_vertex_in_which_it_waited_and_tables_are_complete_as_cuts_say(waits, epochs):
    graph = _chain(waits)
    stages = []
    for vertex in graph.operators():
        channels = graph.time_channels(vertex.id)
        run = OperatorRun(vertex, None, Generation(1), [LiveFiles()], time=VertexTime(channels))
        stages.append(_Stage(run, tuple(channels)))
    read = []
    for number, (drawn, wait) in enumerate(epochs, start=1):
        first = stages[0].run.time
        rows = [(split, max(first.watermark.ms, 0) + 1 + ahead) for split, ahead in drawn]
        for split, row in rows:
            channel = stages[0].channels[split]
            first.came(channel)
            first.ran(channel, 1)
            first.read(channel, row)
        _barrier(graph, stages, [row for _, row in rows], read, number, wait)
    for stage in stages:
        stage.run.time.end()
    _barrier(graph, stages, [], read, len(epochs) + 1, 0)
    for stage in stages:
        expect(sorted(stage.table) == sorted(read), COMPLETE, f"at its end {stage.run.vertex.id} has {stage.table}")


def _barrier(graph, stages, rows, read, number, wait):
    """Send rows and a barrier through the chain, and judge up to which time the cut calls each table complete."""
    read += rows
    barriers = [Barrier(CheckpointId(number))] * _SPLITS
    for place, stage in enumerate(stages):
        above = [each.run.vertex.rows_wait_ms for each in stages[:place]]
        stage.take(rows, wait, judged=None not in above)
        rows, sent = stage.passed(barriers)
        barriers = [sent]
        vertex = stage.run.vertex
        was = VertexRecord(
            vertex=vertex.id, micro_batch=1, subtasks=(), time=time_record(graph, vertex, stage.run.time)
        )
        until_ms = complete_until_ms(plain_entry(vertices=(was,)), vertex.tables[0].name)
        if until_ms is None:
            unknown = stage.run.time.watermark.ms == BEFORE_TIME or None in (*above, vertex.rows_wait_ms)
            expect(unknown, COMPLETE, f"cut {number} says nothing of the table of {vertex.id}")
            continue
        lacks = Counter(row for row in read if row <= until_ms) - Counter(stage.table)
        expect(not lacks, COMPLETE, f"cut {number}: the table of {vertex.id} says {until_ms}, and lacks {lacks}")


# ------------------------------------------------------------------
# Windows by the clock. The reference knows only the clocks of barriers and claims.


CLOCK: Final = "windows-by-the-clock"
"""A row has the clock of the barrier before it, or of a later claim.

Its window closes at the first barrier after its end.
"""

_WINDOW_MS: Final = 50
_SECONDS: Final = VertexId("seconds")
_EDGE: Final = EdgeId(VertexId("clicks"), _SECONDS)
_FILE: Final = FileHandle("bronze/clicks/_data/1/bronze-1-a.parquet", 1, 1, 1)
_STATE: Final = KeyedFile(FileHandle("s", 1, 1, 0), KeyedFileKind.BASE, 0, 7, Version(Generation(1), 1))
_step = st.one_of(
    st.just(("row", 0)),
    st.tuples(st.just("pass"), st.integers(0, 120)),
    st.just(("barrier", 0)),
    st.tuples(st.just("crash"), st.integers(-40, 120)),
)


def _last_ms(window):
    return (window + 1) * _WINDOW_MS - 1


@dataclass(frozen=True)
class _Cut:
    """The content of a cut: when its barrier was sent, and the open and closed windows with their numbers of rows."""

    clock_ms: int = 0
    open: Counter[int] = field(default_factory=Counter)
    closed: Counter[int] = field(default_factory=Counter)


class _Clocked:
    """A job whose only vertex counts rows in windows by the clock. The job carries out the effects."""

    def __init__(self, claim_ms, cut):
        """Begin at a cut, as a restore does."""
        vertex = Vertex(_SECONDS, VertexKind.KEYED, 1, fires=True, by_clock=True)
        source = Vertex(_EDGE.upstream, VertexKind.SOURCE, 1, splits=(SplitId("a"),))
        snapshot = SubtaskSnapshot(state=(_STATE,), due_ms=min(map(_last_ms, cut.open), default=None))
        was = VertexRecord(vertex=_SECONDS, micro_batch=1, subtasks=(snapshot,))
        statistics = Statistics(triggered_ms=cut.clock_ms, committed_ms=cut.clock_ms, rows=1)
        setup = SimpleNamespace(
            config=CheckpointConfig(max_parallelism=8),
            graph=JobGraph((source, vertex), (_EDGE,)),
            restored=plain_entry(vertices=(was,), statistics=statistics) if cut.clock_ms else None,
            claim=SimpleNamespace(generation=Generation(2), at_ms=claim_ms),
        )
        self.run = operator_runs(setup)[_SECONDS]
        self.open, self.closed = Counter(cut.open), Counter(cut.closed)

    def row(self, now_ms):
        """Run a micro-batch of one row."""
        self.run.collect(ChannelId(_EDGE, 0), StagedSegment((_FILE,)), now_ms)
        self._done(self.run.start(1))

    def barrier(self, number, now_ms):
        """Pass a barrier, and return the cut behind it."""
        trigger = TriggerCheckpoint(Barrier(CheckpointId(number), now_ms))
        self.run.triggered(trigger)
        self.run.pass_time(trigger)
        if self.run.fires_next:
            self._done(self.run.fire())
        self.run.take_snapshot(self.run.pass_time(trigger))
        return _Cut(now_ms, Counter(self.open), Counter(self.closed))

    def _done(self, effect: RunMicroBatch):
        if effect.inputs:
            self.open[(effect.late_ms + 1) // _WINDOW_MS] += 1
        for window in [each for each in self.open if effect.due_ms is not None and _last_ms(each) <= effect.due_ms]:
            self.closed[window] += self.open.pop(window)
        due_ms = min(map(_last_ms, self.open), default=None)
        self.run.finish(MicroBatchFinished(_SECONDS, effect.micro_batch, (SubtaskOutput(due_ms=due_ms),)))


@given(st.lists(_step, max_size=30))
def test_windows_by_the_clock_close_at_the_first_barrier_after_them(steps):
    now_ms, number, cut, kept = 1_000, 0, _Cut(), ()
    job, clock_ms, rows = _Clocked(now_ms, cut), now_ms, []
    for step, ms in steps:
        now_ms += ms if step == "pass" else 0
        if step == "row":
            job.row(now_ms)
            rows.append(clock_ms // _WINDOW_MS)
        elif step == "barrier":
            number += 1
            clock_ms, cut, kept = now_ms, job.barrier(number, now_ms), tuple(rows)
            over = Counter(each for each in rows if (each + 1) * _WINDOW_MS <= now_ms)
            expect(cut.closed == over, CLOCK, f"at {now_ms} there are {cut.closed}, and {over} are over")
            expect(cut.open == Counter(rows) - over, CLOCK, f"at {now_ms} {cut.open} are left of {rows}")
        elif step == "crash":
            job, rows = _Clocked(now_ms + ms, cut), list(kept)
            clock_ms = max(now_ms + ms, cut.clock_ms)
        left = Counter(rows) - cut.closed
        due_ms = min(((each + 1) * _WINDOW_MS for each in left), default=None)
        expect(job.run.turns_at_ms() == due_ms, CLOCK, f"it turns at {job.run.turns_at_ms()}, with {left} open")
