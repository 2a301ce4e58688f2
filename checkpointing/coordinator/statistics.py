"""Keeps times, measurements and outcome of each checkpoint (E6; Flink: `DefaultCheckpointStatsTracker`)."""

from dataclasses import dataclass, field
from enum import Enum

from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.task import SnapshotMetrics, Task
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId


class CheckpointStatus(Enum):
    """The state of a checkpoint."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(slots=True)
class CheckpointStatistics:
    """The life of one checkpoint. Times are in ms as the coordinator saw them."""

    id: CheckpointId
    properties: CheckpointProperties
    triggered_ms: int
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    acknowledged_subtasks: int = 0
    """How many subtasks have acknowledged."""
    ended_ms: int | None = None
    failure: CheckpointFailureReason | None = None
    tasks: dict[Task, SnapshotMetrics] = field(default_factory=dict)


@dataclass(slots=True)
class CheckpointCounters:
    """How many checkpoints there were; `total` includes checkpoints that failed before they were pending."""

    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0


@dataclass(slots=True)
class LatestCheckpoints:
    """The newest id of each kind. `completed` is the newest plain checkpoint."""

    completed: CheckpointId | None = None
    savepoint: CheckpointId | None = None
    failed: CheckpointId | None = None
    restored: CheckpointId | None = None


class StatisticsTracker:
    """Keeps numbers of the last checkpoints, and counts all. No decision of the protocol depends on these statistics.

    Pending checkpoints, and the newest completed checkpoint, failed checkpoint and savepoint are found by id even when
    the history has no place for them (Flink: `CheckpointStatsHistory`).
    """

    __slots__ = ("_beyond_history", "_history_max", "_remembered", "counters", "latest")

    def __init__(self, history_max: int) -> None:
        """Show at most `history_max` checkpoints in the history, including pending ones."""
        self._history_max = history_max
        self._remembered: dict[CheckpointId, CheckpointStatistics] = {}
        self._beyond_history: dict[CheckpointId, CheckpointStatistics] = {}
        self.counters = CheckpointCounters()
        self.latest = LatestCheckpoints()

    def of(self, checkpoint: CheckpointId) -> CheckpointStatistics | None:
        """Return the statistics of a checkpoint, or None if there are none."""
        return self._remembered.get(checkpoint) or self._beyond_history.get(checkpoint)

    def history(self) -> tuple[CheckpointStatistics, ...]:
        """Return the remembered checkpoints, newest first."""
        return tuple(reversed(self._remembered.values()))

    def began(self, checkpoint: CheckpointId, properties: CheckpointProperties, now_ms: int) -> None:
        """Record that a checkpoint is pending."""
        self.counters.total += 1
        self.counters.in_progress += 1
        self._remembered[checkpoint] = CheckpointStatistics(checkpoint, properties, now_ms)
        if len(self._remembered) > self._history_max:
            oldest = next(iter(self._remembered))
            self._beyond_history[oldest] = self._remembered.pop(oldest)
            self._forget()

    def acknowledged(self, checkpoint: CheckpointId, task: Task, metrics: SnapshotMetrics) -> None:
        """Record a task's first acknowledgement."""
        known = self.of(checkpoint)
        if known is not None:
            known.acknowledged_subtasks += 1
            known.tasks[task] = metrics

    def measured(self, checkpoint: CheckpointId, task: Task, metrics: SnapshotMetrics) -> None:
        """Record measurements that came without an acknowledgement, or after the end. They replace no earlier ones."""
        known = self.of(checkpoint)
        if known is not None and task not in known.tasks:
            known.tasks[task] = metrics

    def completed(self, checkpoint: CheckpointId, properties: CheckpointProperties, now_ms: int) -> None:
        """Record that a pending checkpoint is stored."""
        self.counters.in_progress = max(0, self.counters.in_progress - 1)
        self.counters.completed += 1
        if properties.is_savepoint:
            self.latest.savepoint = _newer(self.latest.savepoint, checkpoint)
        else:
            self.latest.completed = _newer(self.latest.completed, checkpoint)
        self._end(checkpoint, CheckpointStatus.COMPLETED, now_ms, None)

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailureReason, now_ms: int) -> None:
        """Record that a pending checkpoint failed, and why."""
        self.counters.in_progress = max(0, self.counters.in_progress - 1)
        self.counters.failed += 1
        self.latest.failed = _newer(self.latest.failed, checkpoint)
        self._end(checkpoint, CheckpointStatus.FAILED, now_ms, reason)

    def failed_before_pending(self) -> None:
        """Record that a trigger failed before a checkpoint was pending."""
        self.counters.total += 1
        self.counters.failed += 1

    def restored(self, checkpoint: CheckpointId) -> None:
        """Record that the job was restored from a checkpoint."""
        self.counters.restored += 1
        self.latest.restored = checkpoint

    def _end(
        self,
        checkpoint: CheckpointId,
        status: CheckpointStatus,
        now_ms: int,
        failure: CheckpointFailureReason | None,
    ) -> None:
        known = self.of(checkpoint)
        if known is not None:
            known.status, known.ended_ms, known.failure = status, now_ms, failure
        self._forget()

    def _forget(self) -> None:
        """Drop checkpoints that are neither in the history, nor pending, nor the newest of their kind."""
        newest = {self.latest.completed, self.latest.savepoint, self.latest.failed}
        self._beyond_history = {
            id_: known
            for id_, known in self._beyond_history.items()
            if known.status is CheckpointStatus.IN_PROGRESS or id_ in newest
        }


def _newer(known: CheckpointId | None, checkpoint: CheckpointId) -> CheckpointId:
    return checkpoint if known is None else max(known, checkpoint)
