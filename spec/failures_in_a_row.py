"""Counts the failed checkpoints of a tick in a row, as Flink's `CheckpointFailureManager` does (E5)."""

from dataclasses import dataclass

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId

FLINKS_LIST = frozenset(
    {
        Reason.IO_EXCEPTION,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.CHECKPOINT_EXPIRED,
        Reason.CHECKPOINT_DECLINED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
"""The reasons that Flink's `CheckpointFailureManager` counts."""


@dataclass(slots=True)
class FailuresInARow:
    """The failures in a row of one generation."""

    count: int = 0
    success: CheckpointId = NO_CHECKPOINT
    is_over: bool = False
    """True if there was one failure too many."""

    def ended(self, checkpoint: CheckpointId, reason: Reason | None, tolerable: int) -> None:
        """Take the end of a checkpoint. Without a reason it was completed."""
        if checkpoint < self.success:
            return
        if reason is None:
            self.count, self.success = 0, checkpoint
        elif reason in FLINKS_LIST:
            self.count += 1
            self.is_over = self.is_over or self.count > tolerable
