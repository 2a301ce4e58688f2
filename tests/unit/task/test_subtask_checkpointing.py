"""The checkpoints of one subtask: B1 to B4, its part of F1 and F4, and the staged files in every snapshot."""

import pytest

from checkpointing.channel_items import AlignmentType, Barrier, ChannelState, SourceSlice, SubtaskSnapshot
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.handles import FileHandle, StagedFile
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, SplitId, SubtaskId, TableName, VertexId
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
    TakeSnapshot,
)
from tests.unit.digest import digest

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
    """B1: the barrier goes downstream, the snapshot is taken, and then acknowledged."""
    door = _door()
    expected = (BroadcastBarrier(_barrier(1)), TakeSnapshot(1))
    assert expected == door.step(SnapshotRequested(_barrier(1)))
    assert [1] == list(door._in_progress)
    assert (Acknowledge(1, EMPTY),) == door.step(SnapshotTaken(1, EMPTY))
    assert not door._in_progress


def test_an_unaligned_snapshot_is_acknowledged_with_its_segments_in_flight():
    """B1: the segments in flight are known when the barrier has been sent. The acknowledgement has them."""
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


def test_a_checkpoint_aborted_before_its_barrier_sends_only_a_cancel_marker():
    """B1 step 0: for an id that is known as aborted, no snapshot is taken."""
    door = _door()
    assert (NotifyOperatorsAborted(1),) == door.step(CheckpointAborted(1, 0))
    assert (BroadcastCancelMarker(1),) == door.step(SnapshotRequested(_barrier(1)))
    assert not door._in_progress
    assert TakeSnapshot(2) in door.step(SnapshotRequested(_barrier(2)))


def test_the_number_of_remembered_aborted_ids_is_bounded():
    """At most 128 are kept. An id that may have been forgotten counts as aborted too."""
    door = _door()
    newest = MAX_RECORD_ABORTED_CHECKPOINTS + 10
    for number in range(1, newest + 1):
        door.step(CheckpointAborted(number, 0))
    assert MAX_RECORD_ABORTED_CHECKPOINTS == len(tuple(door._aborted._ids))
    assert (BroadcastCancelMarker(1),) == door.step(SnapshotRequested(_barrier(1)))
    assert (BroadcastCancelMarker(newest),) == door.step(SnapshotRequested(_barrier(newest)))


def test_a_failed_snapshot_is_declined_once_with_its_reason():
    """B2: if any step fails, the subtask declines. Later answers for this id do nothing."""
    door = _door()
    door.step(SnapshotRequested(_barrier(1)))
    failed = SnapshotFailed(1, Reason.CHECKPOINT_ASYNC_EXCEPTION)
    assert (Decline(1, Reason.CHECKPOINT_ASYNC_EXCEPTION),) == door.step(failed)
    assert () == door.step(failed)
    assert () == door.step(SnapshotTaken(1, EMPTY))


def test_an_abort_cancels_the_snapshot_under_way():
    """B2: after the abort, the snapshot's answer is ignored. The id is not remembered as aborted."""
    door = _door()
    door.step(SnapshotRequested(_barrier(1)))
    assert (CancelSnapshot(1), NotifyOperatorsAborted(1)) == door.step(CheckpointAborted(1, 0))
    assert () == door.step(SnapshotTaken(1, EMPTY))
    assert () == tuple(door._aborted._ids)


def test_an_aborted_alignment_is_declined_and_sent_downstream():
    """The gate's abort declines with its reason and is sent downstream. The checkpoint has ended here."""
    door = _door()
    reason = Reason.CHECKPOINT_DECLINED_SUBSUMED
    expected = (Decline(1, reason), NotifyOperatorsAborted(1), BroadcastCancelMarker(1))
    assert expected == door.step(AlignmentAborted(1, reason))
    assert () == door.step(SnapshotRequested(_barrier(1)))


def test_ended_ids_are_not_kept_as_aborted():
    """After an aborted alignment, the barriers of older aborted ids can no longer come, so the ids are forgotten."""
    door = _door()
    door.step(CheckpointAborted(1, 0))
    door.step(CheckpointAborted(3, 0))
    door.step(AlignmentAborted(2, Reason.CHECKPOINT_DECLINED_SUBSUMED))
    assert (3,) == tuple(door._aborted._ids)


def test_an_abort_tells_the_latest_completion_first():
    """A subtask that missed a completion hears of it with the next abort, once."""
    door = _door()
    _acknowledged(door, 1)
    expected = (NotifyOperatorsComplete(1), NotifyOperatorsAborted(2))
    assert expected == door.step(CheckpointAborted(2, 1))
    assert (NotifyOperatorsAborted(3),) == door.step(CheckpointAborted(3, 1))


def test_a_plain_checkpoint_must_not_end_the_job():
    """B3: advancing to MAX without a synchronous savepoint is refused, and nothing changes."""
    door = _door()
    before = digest([door])
    with pytest.raises(RefusedFactError, match="checkpoint 1 of silver/0: only a synchronous savepoint"):
        door.step(SnapshotRequested(_barrier(1), advance_to_max=True))
    assert before == digest([door])


def test_a_finished_subtask_takes_part_in_checkpoints():
    """B4: its acknowledgements say that it has finished."""
    door = _door()
    door.step(SubtaskFinished())
    assert _acknowledged(door, 1).finished


def test_a_late_completion_drops_no_further_files():
    """Completion 1 comes after 2 and changes nothing. Files that 1 published are not carried again."""
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
