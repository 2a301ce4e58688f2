"""The statistics tracker's content in the form in which cases write it."""

from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import SnapshotMetrics
from checkpointing.identifiers import CheckpointId
from spec.coordinator_cases.unit import Value
from spec.flink.messages import FlinkMetrics


def counters(tracker: StatisticsTracker) -> Value:
    """Return the counters by name."""
    c = tracker.counters
    return {
        "total": c.total,
        "in_progress": c.in_progress,
        "completed": c.completed,
        "failed": c.failed,
        "restored": c.restored,
    }


def statistics_of(tracker: StatisticsTracker, checkpoint: int) -> Value:
    """Return what is known of one checkpoint, or None."""
    known = tracker.of(CheckpointId(checkpoint))
    if known is None:
        return None
    measured = {task: _by_flink(metrics) for task, metrics in known.tasks.items()}
    tasks = {
        str(task): {
            "alignment_ms": metrics.alignment_ms,
            "async_ms": metrics.async_ms,
            "start_delay_ms": metrics.start_delay_ms,
        }
        for task, metrics in measured.items()
    }
    return {
        "status": known.status.value,
        "acked_subtasks": known.acknowledged_subtasks,
        "state_size": sum(metrics.state_bytes or 0 for metrics in measured.values()),
        "tasks": tasks,
    }


def _by_flink(metrics: SnapshotMetrics) -> FlinkMetrics:
    return metrics if isinstance(metrics, FlinkMetrics) else FlinkMetrics()


def history(tracker: StatisticsTracker) -> Value:
    """Return id and status of what is remembered, newest first."""
    return [[known.id, known.status.value] for known in tracker.history()]


def latest(tracker: StatisticsTracker) -> Value:
    """Return the newest id of each sort."""
    known = tracker.latest
    return {
        "completed": known.completed,
        "savepoint": known.savepoint,
        "failed": known.failed,
        "restored": known.restored,
    }
