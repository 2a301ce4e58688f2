"""The messages of the subtask door: facts (past tense) in, effects (imperative) out."""

from dataclasses import dataclass

from checkpointing.channel_items import Barrier, ChannelState, SubtaskSnapshot
from checkpointing.failures import CheckpointFailureReason
from checkpointing.handles import StagedFile
from checkpointing.identifiers import CheckpointId


class RefusedFactError(ValueError):
    """A fact that breaks a rule. The message names its subject and the rule. The door is unchanged (B3)."""


# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class SnapshotRequested:
    """The gate triggered, or a source was told to: take the snapshot for `barrier`.

    `unaligned`: segments in flight belong to the snapshot. `advance_to_max`: the sources end with it. Only a
    `synchronous` savepoint may ask for that (A9, B3).
    """

    barrier: Barrier
    unaligned: bool = False
    synchronous: bool = False
    advance_to_max: bool = False


@dataclass(frozen=True, slots=True)
class AlignmentAborted:
    """The gate aborted the checkpoint."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Answer to TakeSnapshot. The door fills in `staged`, `in_flight` and `finished`."""

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot could not be taken."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason = CheckpointFailureReason.TASK_CHECKPOINT_FAILURE


@dataclass(frozen=True, slots=True)
class InFlightStored:
    """All segments in flight of an unaligned checkpoint are known, and are in files."""

    checkpoint: CheckpointId
    channels: tuple[ChannelState, ...]


@dataclass(frozen=True, slots=True)
class FilesStaged:
    """A micro-batch wrote files for append tables."""

    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The coordinator says that the checkpoint is complete."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """The coordinator says that the checkpoint is aborted. `latest_completed` is 0 if none is complete."""

    checkpoint: CheckpointId
    latest_completed: CheckpointId


@dataclass(frozen=True, slots=True)
class SubtaskFinished:
    """The subtask has no row left: its split has ended, or its vertex has processed all its input (B4)."""


SubtaskFact = (
    SnapshotRequested
    | AlignmentAborted
    | SnapshotTaken
    | SnapshotFailed
    | InFlightStored
    | FilesStaged
    | CheckpointCompleted
    | CheckpointAborted
    | SubtaskFinished
)


# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class BroadcastCancelMarker:
    """Tell the vertices downstream not to wait for this barrier."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class BroadcastBarrier:
    """Step 1: send the barrier downstream."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Step 3: take the snapshot asynchronously. Answer with SnapshotTaken or SnapshotFailed."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Give the snapshot to the coordinator."""

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot


@dataclass(frozen=True, slots=True)
class Decline:
    """Tell the coordinator that this subtask will not acknowledge the checkpoint."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class CancelSnapshot:
    """Stop the snapshot in progress, and ignore its answer. Its staged files stay for the next checkpoint (3.4)."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class NotifyOperatorsComplete:
    """Tell the subtask's operators that the checkpoint is complete (F1)."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class NotifyOperatorsAborted:
    """Tell the subtask's operators that the checkpoint is aborted (F1)."""

    checkpoint: CheckpointId


SubtaskEffect = (
    BroadcastCancelMarker
    | BroadcastBarrier
    | TakeSnapshot
    | Acknowledge
    | Decline
    | CancelSnapshot
    | NotifyOperatorsComplete
    | NotifyOperatorsAborted
)
