"""The alphabet of the subtask door: facts (past tense) in, effects (imperative) out."""

from dataclasses import dataclass

from checkpointing.channel_items import Barrier
from checkpointing.failures import CheckpointFailureReason
from checkpointing.handles import StagedFile
from checkpointing.identifiers import CheckpointId
from checkpointing.snapshots import ChannelState, SubtaskSnapshot


class RefusedFactError(ValueError):
    """A fact that may not be; names what it is about and the rule. The door is as it was before (B3)."""


# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class SnapshotRequested:
    """The gate triggered (or a source was told to): take the snapshot for `barrier`.

    `unaligned`: in-flight segments belong to it. `advance_to_max`: the sources end with it, which only a
    `synchronous` savepoint may ask for (A9, B3).
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
    """Answer to TakeSnapshot; `staged`, `in_flight` and `finished` are filled in by the door."""

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot could not be taken."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason = CheckpointFailureReason.TASK_CHECKPOINT_FAILURE


@dataclass(frozen=True, slots=True)
class InFlightStored:
    """The in-flight segments of an unaligned checkpoint are all known, and lie in files."""

    checkpoint: CheckpointId
    channels: tuple[ChannelState, ...]


@dataclass(frozen=True, slots=True)
class FilesStaged:
    """A micro-batch wrote files for append tables."""

    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The coordinator told that the checkpoint is complete."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """The coordinator told that the checkpoint is aborted, and which one is the latest complete (0: none)."""

    checkpoint: CheckpointId
    latest_completed: CheckpointId


@dataclass(frozen=True, slots=True)
class SubtaskFinished:
    """The subtask has processed all of its input. No run reaches it yet: it waits for finished inputs (B4)."""


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
    """Tell those downstream not to wait for this barrier."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class BroadcastBarrier:
    """Step 1: send the barrier downstream."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Step 3: take the snapshot, off the loop; answered by SnapshotTaken or SnapshotFailed."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Hand the snapshot to the coordinator."""

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot


@dataclass(frozen=True, slots=True)
class Decline:
    """Tell the coordinator that this subtask will not acknowledge the checkpoint."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class CancelSnapshot:
    """Stop the snapshot under way; its answer, if one still comes, is ignored. Staged files live on (3.4)."""

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
