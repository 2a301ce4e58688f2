"""Says what kind of snapshot a request asks for, and what may happen to it (A9; Flink: `CheckpointProperties`)."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class SnapshotKind(Enum):
    """The kind of snapshot that a request asks for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    SYNCHRONOUS_SAVEPOINT = "synchronous_savepoint"
    """The job stops after it. It is the only savepoint that is notified as complete, so that sinks commit."""
    HELD = "held"
    """A checkpoint that a person must approve. It publishes nothing, and the job stops after it.

    Flink has no such kind. Its rules are those of a plain savepoint, but its failures count like a checkpoint's."""


class CheckpointType(Enum):
    """The type of snapshot that a task must take (Flink: `SnapshotType`)."""

    CHECKPOINT = "CHECKPOINT"
    """As configured. It may refer to files of earlier checkpoints."""
    FULL_CHECKPOINT = "FULL_CHECKPOINT"
    """It refers to no earlier checkpoint. After a NO_CLAIM restore, checkpoints are full until one completes (G3)."""
    SAVEPOINT = "SAVEPOINT"


class RequestedType(Enum):
    """The type of checkpoint that a user explicitly requests (Flink: `CheckpointType` of `triggerCheckpoint`)."""

    CONFIGURED = "CONFIGURED"
    FULL = "FULL"
    INCREMENTAL = "INCREMENTAL"


class TerminationRefusedError(ValueError):
    """A request that is not a synchronous savepoint asked to advance the job to its MAX watermark (A9)."""

    def __init__(self, kind: SnapshotKind) -> None:
        super().__init__(
            f"a {kind.value} may not terminate the job: only synchronous savepoints are allowed to advance the "
            "watermark to MAX; ask for a synchronous savepoint, or leave out terminate"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProperties:
    """The properties of one request.

    Raises TerminationRefusedError if `terminate` is set and the kind is not a synchronous savepoint. `forced` ignores
    max_concurrent and the minimum pause. `terminate` drains the job (MAX watermark) before the snapshot. A synchronous
    savepoint without `terminate` suspends the job.
    """

    kind: SnapshotKind = SnapshotKind.CHECKPOINT
    forced: bool = False
    requested_type: RequestedType = RequestedType.CONFIGURED
    terminate: bool = False

    def __post_init__(self) -> None:
        """Refuse `terminate` for anything but a synchronous savepoint."""
        if self.terminate and not self.is_synchronous:
            raise TerminationRefusedError(self.kind)

    @property
    def is_savepoint(self) -> bool:
        """True if a user disposes of it. It is never subsumed, and never in the store."""
        return self.kind is not SnapshotKind.CHECKPOINT

    @property
    def is_synchronous(self) -> bool:
        """True if the job stops after it."""
        return self.kind is SnapshotKind.SYNCHRONOUS_SAVEPOINT

    @property
    def is_of_user(self) -> bool:
        """True if a user asked for it. Its failure is counted as a failure of the job only if a task declined it."""
        return self.is_savepoint and self.kind is not SnapshotKind.HELD

    @property
    def commits(self) -> bool:
        """True if its completion is notified, so that sinks commit. Plain savepoints notify nobody (FLINK-25191)."""
        return not self.is_savepoint or self.is_synchronous

    @property
    def can_be_subsumed(self) -> bool:
        """True if a newer completed checkpoint may abort it while it is pending (E4)."""
        return not self.is_savepoint

    def checkpoint_type(self, *, force_full: bool) -> CheckpointType:
        """Return the type of snapshot that tasks must take. `force_full` (after NO_CLAIM) overrides INCREMENTAL."""
        if self.is_savepoint:
            return CheckpointType.SAVEPOINT
        if force_full or self.requested_type is RequestedType.FULL:
            return CheckpointType.FULL_CHECKPOINT
        return CheckpointType.CHECKPOINT


CHECKPOINT = CheckpointProperties()
"""A plain checkpoint as configured."""
HELD: Final = CheckpointProperties(kind=SnapshotKind.HELD)
"""A checkpoint that is held until a person approves it."""


def savepoint(*, unaligned: bool) -> CheckpointProperties:
    """Return a user's savepoint. It is forced, unless unaligned checkpoints are on (Flink: `triggerSavepoint`)."""
    return CheckpointProperties(kind=SnapshotKind.SAVEPOINT, forced=not unaligned)


def synchronous_savepoint(*, unaligned: bool, terminate: bool) -> CheckpointProperties:
    """Return the savepoint of a stop. With `terminate` it drains the job, otherwise it suspends the job (F4)."""
    return CheckpointProperties(kind=SnapshotKind.SYNCHRONOUS_SAVEPOINT, forced=not unaligned, terminate=terminate)
