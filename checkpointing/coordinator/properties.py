"""What kind of snapshot a request wants, and what may later be done with it (A9; Flink: `CheckpointProperties`)."""

from dataclasses import dataclass
from enum import Enum


class SnapshotKind(Enum):
    """What a request asks for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    SYNCHRONOUS_SAVEPOINT = "synchronous_savepoint"
    """The job stops after it: the only savepoint whose completion is notified, so that sinks commit on it."""


class CheckpointType(Enum):
    """What a task is told to take (Flink: `SnapshotType`)."""

    CHECKPOINT = "CHECKPOINT"
    """As configured: may refer to files of earlier checkpoints."""
    FULL_CHECKPOINT = "FULL_CHECKPOINT"
    """Refers to nothing of an earlier checkpoint: the first ones after a NO_CLAIM restore (G3)."""
    SAVEPOINT = "SAVEPOINT"


class RequestedType(Enum):
    """A user's explicit wish for a checkpoint (Flink: `CheckpointType` of `triggerCheckpoint`)."""

    CONFIGURED = "CONFIGURED"
    FULL = "FULL"
    INCREMENTAL = "INCREMENTAL"


class TerminationRefusedError(ValueError):
    """Only a synchronous savepoint may advance the job to its MAX watermark (A9)."""

    def __init__(self, kind: SnapshotKind) -> None:
        super().__init__(
            f"a {kind.value} may not terminate the job: only synchronous savepoints are allowed to advance the "
            "watermark to MAX; ask for a synchronous savepoint, or leave out terminate"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProperties:
    """The properties of one request; raises TerminationRefusedError for a terminating non-synchronous one.

    `forced` ignores max_concurrent and the minimum pause. `terminate` drains the job (MAX watermark)
    before the snapshot; a synchronous savepoint without it suspends.
    """

    kind: SnapshotKind = SnapshotKind.CHECKPOINT
    forced: bool = False
    requested_type: RequestedType = RequestedType.CONFIGURED
    terminate: bool = False

    def __post_init__(self) -> None:
        """Refuse a drain of anything but a synchronous savepoint."""
        if self.terminate and not self.is_synchronous:
            raise TerminationRefusedError(self.kind)

    @property
    def is_savepoint(self) -> bool:
        """Whether the user owns it: it is never subsumed and never put in the store."""
        return self.kind is not SnapshotKind.CHECKPOINT

    @property
    def is_synchronous(self) -> bool:
        """Whether the job stops after it."""
        return self.kind is SnapshotKind.SYNCHRONOUS_SAVEPOINT

    @property
    def commits(self) -> bool:
        """Whether its completion is notified, so that sinks commit (FLINK-25191: plain savepoints do not)."""
        return not self.is_savepoint or self.is_synchronous

    @property
    def can_be_subsumed(self) -> bool:
        """Whether a newer completed checkpoint may abort it while it is pending (E4)."""
        return not self.is_savepoint

    def checkpoint_type(self, *, force_full: bool) -> CheckpointType:
        """Return what tasks are told; `force_full` (after NO_CLAIM) wins over an INCREMENTAL wish."""
        if self.is_savepoint:
            return CheckpointType.SAVEPOINT
        if force_full or self.requested_type is RequestedType.FULL:
            return CheckpointType.FULL_CHECKPOINT
        return CheckpointType.CHECKPOINT


CHECKPOINT = CheckpointProperties()
"""A plain checkpoint as configured."""


def savepoint(*, unaligned: bool) -> CheckpointProperties:
    """Return a user's savepoint: forced unless unaligned checkpoints are on (Flink: `triggerSavepoint`)."""
    return CheckpointProperties(kind=SnapshotKind.SAVEPOINT, forced=not unaligned)


def synchronous_savepoint(*, unaligned: bool, terminate: bool) -> CheckpointProperties:
    """Return the savepoint of a stop: `terminate` drains, else the job is suspended (F4)."""
    return CheckpointProperties(kind=SnapshotKind.SYNCHRONOUS_SAVEPOINT, forced=not unaligned, terminate=terminate)
