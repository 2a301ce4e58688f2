"""The small parts of the job door: ends, credit, ids, epochs, a vertex's run and its live files."""

import pytest

from checkpointing.channel_items import AlignmentType, Barrier, RangeFiles, StagedSegment
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import NO_METRICS
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import GateConfig, GatePolicy, InputGate
from checkpointing.gate.messages import BarrierReceived, InFlightComplete, TriggerCheckpoint
from checkpointing.graph import JobGraph, Vertex, VertexKind
from checkpointing.handles import KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import ChannelId, EdgeId, Generation, SubtaskId
from checkpointing.job.door import Credit
from checkpointing.job.drafts import EpochLog
from checkpointing.job.operator_run import LiveFiles, OperatorRun
from checkpointing.job.setup import TickLimits
from checkpointing.job.tick_end import Cause, CheckpointIds, Ending, Next
from checkpointing.messages import EndTick, MicroBatchFinished, StopKind, SubtaskOutput, TickOutcome

CAUGHT_UP, STOPPED = EndTick(TickOutcome.CAUGHT_UP), EndTick(TickOutcome.STOPPED)
EDGE = EdgeId("up", "down")
ONE = JobGraph((Vertex("v", VertexKind.KEYED, 1),), ())
"""A graph with one vertex of one subtask."""


# ------------------------------------------------------------------ ending


def asked(ending, now_ms=0, **seen):
    """Return the next step of a tick. By default, the tick is quiet and idle."""
    usual = {"quiet": True, "in_doubt": False, "idle": True, "spent": False, "failing": False, "ended": False}
    return ending.next(now_ms, **{**usual, **seen})


@pytest.mark.parametrize(
    ("uncommitted", "seen", "expected"),
    [
        (False, {}, CAUGHT_UP),
        (True, {}, Next.CHECKPOINT),
        (False, {"quiet": False}, Next.GO_ON),
        (False, {"idle": False}, Next.GO_ON),
        (True, {"idle": False, "spent": True}, Next.CHECKPOINT),
    ],
)
def test_a_tick_ends_caught_up_when_all_rows_are_committed(uncommitted, seen, expected):
    """A quiet, idle tick with everything committed ends.

    Rows that no cut shows, or a spent quota, need a checkpoint first.
    """
    ending = Ending(TickLimits())
    ending.uncommitted = uncommitted
    assert expected == asked(ending, **seen)


def test_a_tick_for_a_duration_goes_on_while_idle():
    """Without `until_caught_up`, an idle tick commits what it has read, and waits. When its time is over, it stops."""
    ending = Ending(TickLimits(until_caught_up=False, duration_ms=100))
    ending.started(1_000)
    assert 1_100 == ending.wake_at_ms
    assert Next.GO_ON is asked(ending, 1_050)
    ending.uncommitted = True
    assert Next.CHECKPOINT is asked(ending, 1_050)
    assert ending.reads
    assert Next.CHECKPOINT is asked(ending, 1_100)
    assert not ending.reads
    ending.completed(uncommitted=False)
    assert STOPPED == asked(ending, 1_100)


def test_the_first_failure_is_the_one_that_is_reported():
    """A failure ends the tick as soon as nothing is in doubt. Failures that follow from it are not reported."""
    ending = Ending(TickLimits())
    ending.failed(CheckpointFailureReason.TASK_FAILURE, "out of memory")
    ending.failed(CheckpointFailureReason.FENCED, "later")
    assert Next.GO_ON is asked(ending, in_doubt=True)
    assert EndTick(TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE, "out of memory") == asked(ending)
    assert ending.over


def test_now_wins_over_after_checkpoint():
    """A user who asks to stop now does not wait for a checkpoint that somebody requested earlier."""
    ending = Ending(TickLimits())
    ending.uncommitted = True
    ending.stop_requested(StopKind.NOW)
    ending.stop_requested(StopKind.AFTER_CHECKPOINT)
    assert Next.GO_ON is asked(ending, in_doubt=True, quiet=False)
    assert STOPPED == asked(ending, quiet=False)


def test_a_stop_that_came_during_a_savepoint_counts_when_that_fails():
    """No other checkpoint is taken during the savepoint of a stop.

    If it fails, the tick takes its last checkpoint and ends.
    """
    ending = Ending(TickLimits(duration_ms=100))
    ending.told(Cause.SAVEPOINT_ASKED)
    ending.stop_requested(StopKind.AFTER_CHECKPOINT)
    ending.uncommitted = True
    assert Next.GO_ON is asked(ending, 500)
    ending.told(Cause.SAVEPOINT_FAILED)
    assert Next.CHECKPOINT is asked(ending)
    ending.completed(uncommitted=False)
    assert STOPPED == asked(ending)


def test_a_tick_ends_after_its_checkpoints():
    """With `checkpoints=2`, the second completion ends the tick, even if it is not quiet."""
    ending = Ending(TickLimits(checkpoints=2))
    ending.completed(uncommitted=True)
    assert Next.GO_ON is asked(ending, quiet=False)
    ending.completed(uncommitted=True)
    assert STOPPED == asked(ending, quiet=False)


# ------------------------------------------------------------------ credit


def test_credit_is_counted_by_channel():
    """A subtask may send while each of its channels is below the limit. Processed bytes are returned as credit."""
    graph = JobGraph(
        (
            Vertex("s", VertexKind.SOURCE, 2, splits=("a", "b")),
            Vertex("x", VertexKind.STATELESS, 1),
            Vertex("y", VertexKind.STATELESS, 1),
        ),
        (EdgeId("s", "x"), EdgeId("s", "y")),
    )
    credit = Credit(graph, 10)
    into_x, into_y = ChannelId(EdgeId("s", "x"), 0), ChannelId(EdgeId("s", "y"), 0)
    assert [into_x, into_y] == credit.channels_from(SubtaskId("s", 0))
    credit.sent(into_x, 9)
    assert credit.has(SubtaskId("s", 0))
    credit.sent(into_y, 10)
    assert [False, True] == [credit.has(SubtaskId("s", index)) for index in (0, 1)]
    credit.processed(into_y, 1)
    assert credit.has(SubtaskId("s", 0))
    assert credit.has(SubtaskId("x", 0))
    assert {into_x: 9, into_y: 9} == {channel: size for channel, size in credit._bytes.items() if size}


# ------------------------------------------------------------------ ids


def test_ids_rise_from_block_to_block(job):
    """When a block is used up, a claim reserves the next one, under a new nonce (A6)."""
    ids = CheckpointIds(job.claim.model_copy(update={"first_id": 5, "last_id": 6}))
    assert [5, 6, None] == [ids.take() for _ in range(3)]
    further = ids.further(77)
    assert (7, 1_006, 77, "nonce+7") == (further.first_id, further.last_id, further.at_ms, further.nonce)
    assert [7, 8] == [ids.take(), ids.take()]
    assert 9 == ids.next_id
    ids.next_id = 1_007
    assert ids.take() is None
    assert "nonce+1007" == ids.further(78).nonce


# ------------------------------------------------------------------ epochs


def test_an_epoch_counts_its_events(job):
    """Rows, barriers, micro-batches and acknowledgements are counted. A file that is emitted and staged counts once."""
    log = EpochLog(ONE, Generation(1))
    both = job.file("a", 4)
    output = SubtaskOutput(emitted=(both,), staged=(("out/t", both),))
    log.worked(MicroBatchFinished("v", 1, (output,), 30), rows_in=6)
    log.triggered(1, 100, 6)
    log.received("v", BarrierReceived(ChannelId(EDGE, 0), 1, 110))
    log.passed(
        "v", TriggerCheckpoint(Barrier(1), unaligned=False, alignment_ms=5, bytes_processed=0, bytes_held=9), 120
    )
    log.acknowledged(SubtaskId("v", 0), 1, 130)
    log.judged(1, "{}")
    ended = log.ended(1, StatisticsTracker(1))
    (vertex,) = ended.vertices
    assert (100, 6, ("{}",)) == (ended.triggered_ms, ended.rows, ended.verdicts)
    assert (1, 6, 4, 40, 30) == (
        vertex.micro_batches,
        vertex.rows_in,
        vertex.rows_out,
        vertex.bytes_out,
        vertex.busy_ms,
    )
    assert (120, 5, 9, 130) == (vertex.aligned_ms, vertex.alignment_ms, vertex.bytes_held, vertex.acknowledged_ms)
    assert [("up->down:0[0]", 110)] == [(barrier.channel, barrier.at_ms) for barrier in vertex.barriers]


def test_a_barrier_that_comes_after_an_unaligned_snapshot_is_measured_too():
    """The snapshot keeps its time. The last barrier says how long the alignment would have been (C5, C7)."""
    log = EpochLog(ONE, Generation(1))
    log.triggered(1, 100, 6)
    log.received("v", BarrierReceived(ChannelId(EDGE, 0), 1, 110))
    log.passed("v", TriggerCheckpoint(Barrier(1, alignment=AlignmentType.UNALIGNED), unaligned=True), 120)
    log.received("v", BarrierReceived(ChannelId(EDGE, 1), 1, 910))
    log.overtaken("v", InFlightComplete(1, (), alignment_ms=800))
    (vertex,) = log.ended(1, StatisticsTracker(1)).vertices
    assert (AlignmentType.UNALIGNED, 120, 800) == (vertex.alignment, vertex.aligned_ms, vertex.alignment_ms)
    assert [110, 910] == [barrier.at_ms for barrier in vertex.barriers]


def test_an_epoch_that_has_ended_is_forgotten():
    """Late events of an ended epoch change nothing."""
    log = EpochLog(ONE, Generation(1))
    log.triggered(1, 100, 6)
    log.forget(1)
    assert NO_METRICS == log.acknowledged(SubtaskId("v", 0), 1, 130)
    log.judged(1, "{}")
    log.received("v", BarrierReceived(ChannelId(EDGE, 0), 1, 110))
    log.triggered(1, 200, 9)
    ended = log.ended(1, StatisticsTracker(1))
    assert (200, 9, (), ()) == (ended.triggered_ms, ended.rows, ended.vertices, ended.verdicts)


# ------------------------------------------------------------------ a vertex's run


@pytest.fixture
def run():
    """Return an idle vertex of two subtasks."""
    vertex = Vertex("down", VertexKind.KEYED, 2)
    gate = InputGate(GateConfig(GatePolicy.ALIGNED_BLOCKING), (ChannelId(EDGE, 0),))
    return OperatorRun(vertex, gate, generation=3, live=[LiveFiles(), LiveFiles()], passed=4)


def test_a_micro_batch_takes_all_collected_segments(run, job):
    """Segments are grouped by input, in the order of the gate. The counter rises."""
    other = ChannelId(EdgeId("left", "down", 1), 0)
    for channel, name in [(other, "b"), (ChannelId(EDGE, 0), "a"), (other, "c")]:
        run.collect(channel, StagedSegment((job.file(name),)), 50)
    assert (3, 50, True) == (run.collected_rows, run.collected_since_ms, run.at_work)
    effect = run.start(100)
    inputs = [(each.input, [part.files[0].path for part in each.segments]) for each in effect.inputs]
    assert [(0, ["a"]), (1, ["b", "c"])] == inputs
    assert (1, 3, True, []) == (effect.micro_batch, effect.generation, run.busy, run.collected)


def test_a_base_replaces_the_deltas_before_it(run, job):
    """Deltas pile up until a base. Only deltas that no snapshot has are then discarded."""

    def state(*files):
        return MicroBatchFinished("down", 1, (SubtaskOutput(state=files), SubtaskOutput()))

    run.finish(state(job.keyed("d1", 0, 63, Version(3, 1))))
    run.take_snapshot(5)
    assert () == run.finish(state(job.keyed("d2", 0, 63, Version(3, 2))))
    assert ["d1", "d2"] == [each.file.path for each in run.live[0].state]
    assert ("d2",) == run.finish(state(job.keyed("b", 0, 63, Version(3, 3), KeyedFileKind.BASE)))
    assert ["b"] == [each.file.path for each in run.take_snapshot(6)[0].state]


def test_a_range_is_replaced_as_a_whole(run, job):
    """The new files of an upsert range replace the old ones. Ranges of other tables stay."""
    old, new = (job.keyed(name, 0, 63, Version(3, 1), KeyedFileKind.BASE) for name in ("old", "new"))
    other = RangeFiles("out/other", (job.keyed("x", 0, 63, Version(3, 1), KeyedFileKind.BASE),))
    first = SubtaskOutput(ranges=(RangeFiles("out/t", (old,)), other))
    run.finish(MicroBatchFinished("down", 1, (first, SubtaskOutput())))
    second = SubtaskOutput(ranges=(RangeFiles("out/t", (new,)),))
    assert ("old",) == run.finish(MicroBatchFinished("down", 2, (second, SubtaskOutput())))
    assert {"out/t": "new", "out/other": "x"} == {
        each.table: each.files[0].file.path for each in run.take_snapshot(5)[0].ranges
    }


def test_a_staged_file_has_the_id_of_the_barrier_before_it(run, job):
    """This is the last barrier that its vertex had passed. Each entry's net files are found by it."""
    output = SubtaskOutput(staged=(("out/t", job.file("a")),))
    assert (StagedFile("out/t", job.file("a"), 4),) == run.staged(output)
    run.take_snapshot(5)
    assert (StagedFile("out/t", job.file("a"), 5),) == run.staged(output)


def test_a_subtask_that_wrote_nothing_hands_over_the_same_snapshot(run, job):
    """A commit compares the objects instead of their files. One that wrote hands over another snapshot."""

    def writes(name, micro_batch):
        written = SubtaskOutput(state=(job.keyed(name, 0, 63, Version(3, micro_batch)),))
        run.finish(MicroBatchFinished("down", micro_batch, (written, SubtaskOutput())))

    writes("d1", 1)
    before = run.take_snapshot(5)
    writes("d2", 2)
    after = run.take_snapshot(6)
    assert before[1] is after[1]
    assert [["d1"], ["d1", "d2"]] == [[each.file.path for each in taken[0].state] for taken in (before, after)]
