"""The checkpoints of one subtask (B1 to B4, F1). `SubtaskCheckpointing` is the door; `Subtasks` has all of them."""

from checkpointing.task.aborted import MAX_RECORD_ABORTED_CHECKPOINTS
from checkpointing.task.messages import (
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
    SubtaskEffect,
    SubtaskFact,
    SubtaskFinished,
    TakeSnapshot,
)
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing
from checkpointing.task.subtasks import Subtasks

__all__ = [
    "MAX_RECORD_ABORTED_CHECKPOINTS",
    "Acknowledge",
    "AlignmentAborted",
    "BroadcastBarrier",
    "BroadcastCancelMarker",
    "CancelSnapshot",
    "CheckpointAborted",
    "CheckpointCompleted",
    "Decline",
    "FilesStaged",
    "InFlightStored",
    "NotifyOperatorsAborted",
    "NotifyOperatorsComplete",
    "RefusedFactError",
    "SnapshotFailed",
    "SnapshotRequested",
    "SnapshotTaken",
    "SubtaskCheckpointing",
    "SubtaskEffect",
    "SubtaskFact",
    "SubtaskFinished",
    "Subtasks",
    "TakeSnapshot",
]
