"""One subtask's checkpoint life: B1 to B4, its part of F1 and F4, and the staged files that every snapshot carries."""

import pytest

from checkpointing.channel_items import AlignmentType, Barrier, SourceSlice
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.handles import FileHandle, StagedFile
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, SplitId, SubtaskId, TableName, VertexId
from checkpointing.snapshots import ChannelState, SubtaskSnapshot
from checkpointing.task import (
    MAX_RECORD_ABORTED_CHECKPOINTS,
    Acknowledge,
    AlignmentAborted,
    BroadcastBarrier,
    BroadcastCancelMarker,
    CancelSnapshot,
    CheckpointAborted,
    CheckpointCompleted,
    Decline,
    FilesStaged,
    InFlightStored,
    NotifyOperatorsAborted,
    NotifyOperatorsComplete,
    RefusedFactError,
    SnapshotFailed,
    SnapshotRequested,
    SnapshotTaken,
    SubtaskCheckpointing,
    SubtaskFinished,
    Subtasks,
    TakeSnapshot,
)
from spec.explore_branching import digest

SUBTASK = SubtaskId(VertexId("silver"), 0)
EMPTY = SubtaskSnapshot()


def _barrier(number: int, alignment: AlignmentType = AlignmentType.ALIGNED) -> Barrier:
    return Barrier(CheckpointId(number), 0, alignment)


def _staged(name: str, after: int) -> StagedFile:
    return StagedFile(TableName("silver/flights"), FileHandle(name, 1, 1, 0), CheckpointId(after))


def _door(**options: object) -> SubtaskCheckpointing:
    return SubtaskCheckpointing(SUBTASK, **options)  # type: ignore[arg-type]


def _acknowledged(door: SubtaskCheckpointing, number: int) -> SubtaskSnapshot:
    door.step(SnapshotRequested(_barrier(number)))
    (effect,) = door.step(SnapshotTaken(CheckpointId(number), EMPTY))
    assert isinstance(effect, Acknowledge)
    return effect.snapshot


def test_the_steps_come_in_flinks_order():
    """B1: barrier downstream, snapshot; then the acknowledgement."""
    door = _door()
    expected = (BroadcastBarrier(_barrier(1)), TakeSnapshot(1))
    assert expected == door.step(SnapshotRequested(_barrier(1)))
    assert [1] == list(door._in_progress)
    assert (Acknowledge(1, EMPTY),) == door.step(SnapshotTaken(1, EMPTY))
    assert not door._in_progress


def test_an_unaligned_snapshot_is_acknowledged_once_its_in_flight_segments_are_stored_too():
    """B1: in-flight segments are all known after the barrier has left, and travel with the acknowledgement."""
    segment = SourceSlice(VertexId("bronze"), SplitId("a"), "0", "1", "{}", 1, 1)
    channel = ChannelState(ChannelId(EdgeId(VertexId("bronze"), VertexId("silver")), 0), (segment,))
    barrier = _barrier(1, AlignmentType.UNALIGNED)
    for facts in (
        [SnapshotTaken(1, EMPTY), InFlightStored(1, (channel,))],
        [InFlightStored(1, (channel,)), SnapshotTaken(1, EMPTY)],
    ):
        door = _door()
        expected = (BroadcastBarrier(barrier), TakeSnapshot(1))
        assert expected == door.step(SnapshotRequested(barrier, unaligned=True))
        assert () == door.step(facts[0])
        assert (Acknowledge(1, SubtaskSnapshot(in_flight=(channel,))),) == door.step(facts[1])


def test_a_checkpoint_aborted_before_its_barrier_only_passes_on_a_cancel_marker():
    """B1 step 0: an id known as aborted takes no snapshot."""
    door = _door()
    assert (NotifyOperatorsAborted(1),) == door.step(CheckpointAborted(1, 0))
    assert (BroadcastCancelMarker(1),) == door.step(SnapshotRequested(_barrier(1)))
    assert not door._in_progress
    assert TakeSnapshot(2) in door.step(SnapshotRequested(_barrier(2)))


@pytest.mark.parametrize("number", [1, 2])
def test_a_request_that_is_not_newer_is_ignored(number):
    """Out of order barriers and repeated requests do nothing."""
    door = _door()
    door.step(SnapshotRequested(_barrier(2)))
    assert () == door.step(SnapshotRequested(_barrier(number)))


def test_aborted_ids_are_remembered_within_a_bound_and_forgotten_ones_count_as_aborted():
    """At most 128 are kept; an id that may have been forgotten takes no snapshot either."""
    door = _door()
    newest = MAX_RECORD_ABORTED_CHECKPOINTS + 10
    for number in range(1, newest + 1):
        door.step(CheckpointAborted(number, 0))
    assert MAX_RECORD_ABORTED_CHECKPOINTS == len(tuple(door._aborted._ids))
    assert (BroadcastCancelMarker(1),) == door.step(SnapshotRequested(_barrier(1)))
    assert (BroadcastCancelMarker(newest),) == door.step(SnapshotRequested(_barrier(newest)))


def test_a_failed_snapshot_is_declined_once_with_its_reason():
    """B2: any failing step declines; what comes later for that id does nothing."""
    door = _door()
    door.step(SnapshotRequested(_barrier(1)))
    failed = SnapshotFailed(1, Reason.CHECKPOINT_ASYNC_EXCEPTION)
    assert (Decline(1, Reason.CHECKPOINT_ASYNC_EXCEPTION),) == door.step(failed)
    assert () == door.step(failed)
    assert () == door.step(SnapshotTaken(1, EMPTY))


def test_an_abort_cancels_the_snapshot_under_way():
    """B2: after the abort the answer of the snapshot is ignored, and the id isn't remembered as aborted."""
    door = _door()
    door.step(SnapshotRequested(_barrier(1)))
    assert (CancelSnapshot(1), NotifyOperatorsAborted(1)) == door.step(CheckpointAborted(1, 0))
    assert () == door.step(SnapshotTaken(1, EMPTY))
    assert () == tuple(door._aborted._ids)


def test_an_abort_of_an_acknowledged_checkpoint_cancels_nothing():
    """There is nothing under way any more; the operators are told."""
    door = _door()
    _acknowledged(door, 1)
    assert (NotifyOperatorsAborted(1),) == door.step(CheckpointAborted(1, 0))


def test_an_aborted_alignment_is_declined_and_passed_on():
    """The gate's abort declines with its reason and tells those downstream; the id is over."""
    door = _door()
    reason = Reason.CHECKPOINT_DECLINED_SUBSUMED
    expected = (Decline(1, reason), NotifyOperatorsAborted(1), BroadcastCancelMarker(1))
    assert expected == door.step(AlignmentAborted(1, reason))
    assert () == door.step(SnapshotRequested(_barrier(1)))


def test_ids_that_are_over_are_not_kept_as_aborted():
    """An aborted alignment forgets the aborted ids before it: their barriers can no longer come."""
    door = _door()
    door.step(CheckpointAborted(1, 0))
    door.step(CheckpointAborted(3, 0))
    door.step(AlignmentAborted(2, Reason.CHECKPOINT_DECLINED_SUBSUMED))
    assert (3,) == tuple(door._aborted._ids)


def test_an_aborted_alignment_cancels_an_unaligned_snapshot_under_way():
    """An unaligned checkpoint may be aborted by its gate after it was triggered."""
    door = _door()
    door.step(SnapshotRequested(_barrier(1, AlignmentType.UNALIGNED), unaligned=True))
    effects = door.step(AlignmentAborted(1, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER))
    assert CancelSnapshot(1) == effects[0]
    assert not door._in_progress


def test_an_abort_tells_the_latest_completion_first():
    """A subtask that missed a completion learns of it with the next abort, once."""
    door = _door()
    _acknowledged(door, 1)
    expected = (NotifyOperatorsComplete(1), NotifyOperatorsAborted(2))
    assert expected == door.step(CheckpointAborted(2, 1))
    assert (NotifyOperatorsAborted(3),) == door.step(CheckpointAborted(3, 1))


def test_an_asynchronous_checkpoint_may_not_end_the_job():
    """B3: advancing to MAX without a synchronous savepoint is refused, and nothing changes."""
    door = _door()
    before = digest([door])
    with pytest.raises(RefusedFactError, match="checkpoint 1 of silver/0: only a synchronous savepoint"):
        door.step(SnapshotRequested(_barrier(1), advance_to_max=True))
    assert before == digest([door])


def test_a_completion_that_was_never_asked_for_is_refused():
    """B3: telling an unknown checkpoint complete, directly or with an abort, changes nothing."""
    door = _door()
    door.step(FilesStaged((_staged("a", 0),)))
    before = digest([door])
    with pytest.raises(RefusedFactError, match="checkpoint 5 was told complete to silver/0"):
        door.step(CheckpointCompleted(5))
    with pytest.raises(RefusedFactError, match="checkpoint 5 was told complete"):
        door.step(CheckpointAborted(6, 5))
    assert before == digest([door])


def test_facts_for_an_unknown_subtask_are_refused():
    """B3: the error names it and those that are known."""
    subtasks = Subtasks([_door()])
    assert TakeSnapshot(1) in subtasks.step(SUBTASK, SnapshotRequested(_barrier(1)))
    with pytest.raises(RefusedFactError, match="no subtask gold/3; known are silver/0"):
        subtasks.step(SubtaskId(VertexId("gold"), 3), CheckpointCompleted(1))
    assert [SUBTASK] == [door.subtask for door in subtasks]


def test_a_finished_subtask_goes_on_taking_part():
    """B4: its acknowledgements say that it is finished."""
    door = _door()
    door.step(SubtaskFinished())
    assert _acknowledged(door, 1).finished


def test_a_finished_subtask_declines_if_it_is_configured_so():
    """B4: without checkpoints after tasks finish it declines, and nobody downstream waits."""
    door = _door(checkpoint_after_finished=False)
    door.step(SubtaskFinished())
    expected = (Decline(1, Reason.CHECKPOINT_DECLINED_TASK_CLOSING), BroadcastCancelMarker(1))
    assert expected == door.step(SnapshotRequested(_barrier(1)))


def test_staged_files_travel_with_every_acknowledgement_until_one_is_complete():
    """3.4: a failed checkpoint loses nothing, its files belong to the next one."""
    door = _door()
    a, b, c = _staged("a", 0), _staged("b", 1), _staged("c", 2)
    door.step(FilesStaged((a,)))
    assert (a,) == _acknowledged(door, 1).staged
    door.step(FilesStaged((b,)))
    door.step(CheckpointAborted(1, 0))
    assert (a, b) == _acknowledged(door, 2).staged
    door.step(FilesStaged((c,)))
    door.step(CheckpointCompleted(2))
    assert (c,) == door.staged
    assert (c,) == _acknowledged(door, 3).staged


def test_files_staged_behind_the_barrier_belong_to_the_next_checkpoint():
    """What is staged while snapshot 1 is under way is not part of it."""
    door = _door()
    door.step(FilesStaged((_staged("a", 0),)))
    door.step(SnapshotRequested(_barrier(1)))
    door.step(FilesStaged((_staged("b", 1),)))
    (effect,) = door.step(SnapshotTaken(1, EMPTY))
    assert (_staged("a", 0),) == effect.snapshot.staged
    door.step(CheckpointCompleted(1))
    assert (_staged("b", 1),) == door.staged


def test_a_late_completion_drops_nothing_that_a_newer_one_did_not():
    """Completion 1 told after 2 changes nothing in what is carried; what 1 published is not carried twice."""
    door = _door()
    door.step(FilesStaged((_staged("a", 0),)))
    door.step(SnapshotRequested(_barrier(1)))
    door.step(SnapshotTaken(1, EMPTY))
    door.step(FilesStaged((_staged("b", 1),)))
    door.step(SnapshotRequested(_barrier(2)))
    door.step(CheckpointCompleted(1))
    (effect,) = door.step(SnapshotTaken(2, EMPTY))
    assert (_staged("b", 1),) == effect.snapshot.staged
    door.step(FilesStaged((_staged("c", 2),)))
    door.step(SnapshotRequested(_barrier(3)))
    door.step(CheckpointCompleted(2))
    door.step(CheckpointCompleted(1))
    assert (_staged("c", 2),) == door.staged
    (effect,) = door.step(SnapshotTaken(3, EMPTY))
    assert (_staged("c", 2),) == effect.snapshot.staged


def test_a_door_opens_at_the_cut_that_was_restored():
    """Ids up to the restored one are over; what that cut left unpublished is carried on."""
    door = _door(last=CheckpointId(7), staged=(_staged("a", 7),))
    assert () == door.step(SnapshotRequested(_barrier(7)))
    assert (_staged("a", 7),) == _acknowledged(door, 8).staged
