"""Decides how many failed checkpoints the job survives (E5; Flink: `CheckpointFailureManager`)."""

from dataclasses import dataclass, field

from checkpointing.coordinator.messages import FailJob
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId

COUNTED = frozenset(
    {
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
"""Reasons of failures that are counted. All other reasons occur in a healthy job too."""

NEVER_TOLERATED = frozenset(
    {
        CheckpointFailureReason.QUALITY,
        CheckpointFailureReason.TABLE_CHANGED,
        CheckpointFailureReason.FENCED,
    }
)
"""Reasons after which the next attempt would fail too. Flink does not have them."""


@dataclass(slots=True)
class FailurePolicy:
    """Counts failed checkpoints in a row, each once. A completed checkpoint resets the count.

    If `tolerable` is None, any number is tolerated.
    """

    tolerable: int | None
    consecutive: int = 0
    counted: set[CheckpointId] = field(default_factory=set)
    last_success: CheckpointId | None = None

    def failed(
        self,
        properties: CheckpointProperties,
        reason: CheckpointFailureReason,
        checkpoint: CheckpointId | None,
        *,
        by_task: bool = False,
        message: str = "",
    ) -> FailJob | None:
        """Record a failure. Return FailJob if there are too many.

        `checkpoint` is None if the checkpoint failed before it had an id. `by_task`: a task declined it. If a task
        declines a synchronous savepoint, the job always fails, because half of it has stopped (FLINK-12858). The
        failure of another savepoint is counted only if a task declined it.
        """
        if reason in NEVER_TOLERATED:
            return FailJob(reason, message or reason.message)
        task_level = by_task and not reason.pre_flight
        if task_level and properties.is_synchronous:
            return FailJob(reason, f"the savepoint of the stop failed: {message or reason.message}")
        if properties.is_of_user and not task_level:
            return None
        return self._count(reason, checkpoint, message)

    def succeeded(self, checkpoint: CheckpointId) -> None:
        """Reset the count, unless a newer checkpoint has succeeded already."""
        if self.last_success is None or checkpoint > self.last_success:
            self.last_success = checkpoint
            self._reset()

    def _count(self, reason: CheckpointFailureReason, checkpoint: CheckpointId | None, message: str) -> FailJob | None:
        if self.tolerable is None or reason not in COUNTED or self._is_past(checkpoint) or checkpoint in self.counted:
            return None
        if checkpoint is not None:
            self.counted.add(checkpoint)
        self.consecutive += 1
        if self.consecutive <= self.tolerable:
            return None
        failed = "a checkpoint failed" if self.consecutive == 1 else f"{self.consecutive} checkpoints failed in a row"
        exceeded = (
            f"{failed}, tolerable_failures is {self.tolerable} (with a larger number, as in "
            f"--set tolerable_failures={self.consecutive + 2}, the job goes on)"
        )
        self._reset()
        return FailJob(reason, f"{exceeded}; the last one: {message or reason.message}")

    def _is_past(self, checkpoint: CheckpointId | None) -> bool:
        return checkpoint is not None and self.last_success is not None and checkpoint <= self.last_success

    def _reset(self) -> None:
        self.consecutive = 0
        self.counted.clear()
