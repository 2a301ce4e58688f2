"""The statistics tracker's content in the form in which cases write it."""

from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.identifiers import CheckpointId
from spec.coordinator_cases.unit import Value


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
    tasks = {
        str(task): {
            "alignment_ms": metrics.alignment_ms,
            "async_ms": metrics.async_ms,
            "start_delay_ms": metrics.start_delay_ms,
        }
        for task, metrics in known.tasks.items()
    }
    return {
        "status": known.status.value,
        "acked_subtasks": known.acknowledged_subtasks,
        "state_size": known.state_size,
        "tasks": tasks,
    }


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
