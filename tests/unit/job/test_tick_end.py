"""Tests what users learn of stops, drains and held cuts, and what falls due while no rows come."""

from dataclasses import replace

import pytest

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.event_time import EventTime
from checkpointing.failures import CheckpointFailureReason
from checkpointing.handles import Version
from checkpointing.job.setup import TickLimits
from checkpointing.job.tick_end import Ending
from checkpointing.messages import (
    EndTick,
    MicroBatchFinished,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    StopKind,
    StopRequested,
    SubtaskOutput,
    TickOutcome,
)
from checkpointing.metadata.record import InputTimeRecord, RowKind, VertexTimeRecord

REASON = CheckpointFailureReason
PLAIN, SUSPEND, DRAIN = SavepointKind.PLAIN, SavepointKind.SUSPEND, SavepointKind.DRAIN


def asked(kind, request="mine"):
    return SavepointRequested(request, kind)


def answers(story):
    return [told for told in story.told if isinstance(told, SavepointTaken | SavepointFailed)]


def test_the_declined_savepoint_of_a_stop_fails_the_job(job):
    """A part of the job has already stopped, so the job cannot go on (11; FLINK-12858).

    The request is answered first.
    """
    story = job.story(job.two_sources(judged=True), {"tolerable_failures": 9}, linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(SUSPEND))
    story.finishes()
    story.judges(passed=False, message="a row is bad")
    assert [SavepointFailed("mine", REASON.QUALITY, "a row is bad")] == answers(story)
    assert (TickOutcome.FAILED, REASON.QUALITY) == (story.end.outcome, story.end.reason)


def test_a_drain_runs_a_last_micro_batch_and_sends_the_end_downstream(job):
    """Inputs end before the barrier.

    Bronze runs its last rows, then joined runs the end of its input, then both snapshot.
    """
    story = job.story(job.in_a_row(), linger_ms=1_000)
    story.offers("left", 3)
    story.tell(asked(DRAIN))
    bronze = story.all(RunMicroBatch)[0]
    assert ("bronze", True) == (bronze.vertex, bronze.end_of_input)
    assert [] == [run for run in story.all(RunMicroBatch) if run.vertex == "joined"]
    story.finishes("bronze")
    (joined,) = story.all(RunMicroBatch)
    assert ("joined", True, [0]) == (joined.vertex, joined.end_of_input, [each.input for each in joined.inputs])
    story.finishes("joined")
    row = story.commits()
    assert (True, {"out/bronze", "out/joined"}) == (row.pinned, {table.table for table in row.tables})
    assert [SavepointTaken("mine", row.checkpoint), EndTick(TickOutcome.STOPPED)] == story.told[-2:]


# ------------------------------------------------------------------
# A savepoint that the tick gives up.


CONFIG = {"every_rows": 3, "rows_of": ("left",), "slice_rows_max": 3, "interval_ms": 200, "max_concurrent": 1_000}


@pytest.mark.parametrize("kind", [SavepointKind.PLAIN, SavepointKind.SUSPEND])
def test_a_user_hears_why_a_savepoint_is_given_up(job, kind):
    """The savepoint waits until it may begin. When the tick must stop at once, the savepoint is given up."""
    story = job.story(job.two_sources(), CONFIG)
    story.offers("left", 3)
    story.passes(2_000)
    story.finishes()
    story.checks()
    story.tell(SavepointRequested("mine", kind))
    assert story.all_told(SavepointFailed) == []
    story.tell(StopRequested(StopKind.NOW))
    assert ["the tick is about to end: ask again when it has"] == [
        each.message for each in story.all_told(SavepointFailed)
    ]


# ------------------------------------------------------------------
# A tick that holds its cut.


HOLD = TickLimits(hold=True)


def test_a_tick_that_holds_refuses_a_stop_and_takes_a_savepoint(job):
    """The savepoint of a stop would publish. A plain savepoint publishes nothing, and the tick goes on."""
    story = job.story(job.two_sources(), linger_ms=0, limits=HOLD)
    story.offers("left", 3)
    story.tell(SavepointRequested("stop", SavepointKind.SUSPEND))
    (refused,) = [told for told in story.told if isinstance(told, SavepointFailed)]
    assert CheckpointFailureReason.CHECKPOINT_DECLINED is refused.reason
    assert "tidemark cancel" in refused.message
    story.tell(SavepointRequested("keep", SavepointKind.PLAIN))
    story.finishes()
    assert RowKind.SAVEPOINT is story.appends().kind


@pytest.mark.parametrize(("reason", "message"), [(REASON.QUALITY, "a row is bad"), (REASON.TASK_FAILURE, "")])
def test_a_failed_checkpoint_is_the_end_of_its_tick_if_reason_and_message_are_the_same(reason, message):
    """So listeners are notified of the failure only once."""
    ending = Ending(TickLimits())
    assert not ending.ends_for(reason, message)
    ending.failed(reason, f"3 failed: {message}")
    assert ending.ends_for(reason, message)
    assert not ending.ends_for(reason, f"{message}!")
    assert not ending.ends_for(REASON.CHECKPOINT_EXPIRED, message)


# ------------------------------------------------------------------
# Timers and windows that fall due although no row comes (N4).


def at_rest(job, due_ms, *known):
    """Return a job with two streams. The cut has the streams in `known`, whose greatest rows are of 10 and 11 ms."""
    declared = (EventTime(0, close_after_ms=1_000),) * 2
    left, right, joined = job.two_sources().vertices
    graph = replace(job.two_sources(), vertices=(left, right, replace(joined, event_times=declared, fires=True)))
    inputs = tuple(
        InputTimeRecord(input=place, upstream=name, split=name[0], watermark_ms=10 + place, active_ms=1_000)
        for place, name in enumerate(known)
    )
    was = job.record(
        graph, 1, {"joined": (SubtaskSnapshot(due_ms=due_ms, state=(job.keyed("s", 0, 127, Version(1, 1)),)),)}
    )
    time = VertexTimeRecord(watermark_ms=10, inputs=inputs)
    was = was.model_copy(update={"vertices": (*was.vertices[:2], was.vertices[2].model_copy(update={"time": time}))})
    return job.story(graph, restored=was, claim=job.claim.model_copy(update={"first_id": 2}))


@pytest.mark.parametrize("due_ms", [None, 50])
def test_the_rest_of_a_new_split_begins_at_a_barrier_that_comes_without_rows(job, due_ms):
    """Otherwise no cut would ever have the split, and the split would keep windows open for ever. One cut is enough."""
    story = at_rest(job, due_ms, "left")
    story.passes(1_100)
    story.is_idle("left", "right")
    if due_ms is not None:
        assert story.end is None
        assert [1_000, 2_100] == [each.active_ms for each in story.commits().vertices[2].time.inputs]
    assert TickOutcome.CAUGHT_UP is story.end.outcome


@pytest.mark.parametrize("due_ms", [None, 1_110, 1_111])
def test_what_falls_due_while_the_input_rests_is_shown_and_nothing_else_brings_a_cut(job, due_ms):
    """The streams have rested for 1,100 ms. So the watermark of each is 1,100 ms after its greatest row."""
    story = at_rest(job, due_ms, "left", "right")
    story.passes(1_100)
    story.is_idle("left", "right")
    if due_ms != 1_110:
        assert TickOutcome.CAUGHT_UP is story.end.outcome
        return
    assert story.end is None
    fired = story.take(RunMicroBatch)
    assert ((), 1_110) == (fired.inputs, fired.due_ms)
    story.tell(MicroBatchFinished("joined", fired.micro_batch, (SubtaskOutput(),)))
    assert 1_110 == story.commits().vertices[2].time.watermark_ms
    assert TickOutcome.CAUGHT_UP is story.end.outcome


def test_what_falls_due_by_idleness_is_shown_although_no_rows_come(job):
    """The left split has had no rows for longer than its idle time.

    So the right split alone determines the watermark.
    """
    declared = (EventTime(0, idle_after_ms=1_000),) * 2
    left, right, joined = job.two_sources().vertices
    graph = replace(job.two_sources(), vertices=(left, right, replace(joined, event_times=declared, fires=True)))
    inputs = tuple(
        InputTimeRecord(input=place, upstream=name, split=name[0], watermark_ms=ms, active_ms=active_ms)
        for place, (name, ms, active_ms) in enumerate([("left", 10, 0), ("right", 99, 1_000)])
    )
    was = job.record(
        graph, 1, {"joined": (SubtaskSnapshot(due_ms=50, state=(job.keyed("s", 0, 127, Version(1, 1)),)),)}
    )
    time = VertexTimeRecord(watermark_ms=10, inputs=inputs)
    was = was.model_copy(update={"vertices": (*was.vertices[:2], was.vertices[2].model_copy(update={"time": time}))})
    for rests_ms, fires in ((0, False), (1, True)):
        story = job.story(graph, restored=was, claim=job.claim.model_copy(update={"first_id": 2}))
        story.passes(rests_ms)
        story.is_idle("left", "right")
        assert fires is (story.end is None)
    fired = story.take(RunMicroBatch)
    assert ((), 99) == (fired.inputs, fired.due_ms)
    story.tell(MicroBatchFinished("joined", fired.micro_batch, (SubtaskOutput(),)))
    assert 99 == story.commits().vertices[2].time.watermark_ms
    assert TickOutcome.CAUGHT_UP is story.end.outcome
