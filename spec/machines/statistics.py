"""Judges a coordinator's statistics by the model: how checkpoints ended, and how long they took (E6)."""

from collections.abc import Sequence

from checkpointing.coordinator.statistics import CheckpointStatistics, CheckpointStatus, StatisticsTracker
from checkpointing.percentiles import Distribution
from spec.machines.coordinator_model import CoordinatorModel, Fate, Known
from spec.machines.judging import expect

RULE = "statistics-add-up"
_STATUS = {
    Fate.PENDING: CheckpointStatus.IN_PROGRESS,
    Fate.COMMITTING: CheckpointStatus.IN_PROGRESS,
    Fate.COMPLETED: CheckpointStatus.COMPLETED,
    Fate.ABORTED: CheckpointStatus.FAILED,
}


def statistics_agree(tracker: StatisticsTracker, model: CoordinatorModel) -> None:
    """Raise BrokenRuleError unless the counters equal the model's, add up, and are not negative.

    A request that began no checkpoint counts as failed, unless it was refused in the queue.
    """
    counts, ended = tracker.counters, model.ended()
    agree = (counts.in_progress, counts.completed) == (len(model.pending()), ended[Fate.COMPLETED])
    adds_up = counts.total == counts.in_progress + counts.completed + counts.failed
    right = agree and adds_up and model.refused_by_plan <= counts.failed - ended[Fate.ABORTED] <= model.refused
    expect(right, RULE, f"{counts}: {ended}, and {model.refused} requests began nothing")
    for known in tracker.history():
        _life_agrees(known, model.checkpoints[known.id])
    _newest_agree(tracker, model)
    took = [each.ended_ms - each.triggered_ms for each in tracker.history() if each.ended_ms is not None]
    summary_agrees(took)


def _life_agrees(known: CheckpointStatistics, due: Known) -> None:
    begun, status, reason = due.begun_ms, _STATUS[due.fate], due.reason
    expect((known.triggered_ms, known.status) == (begun, status), RULE, f"{known}: begun at {begun}, {status}")
    expect(known.failure is reason, RULE, f"checkpoint {known.id} failed for {known.failure}, not {reason}")
    heard = len(due.states) + due.finished
    expect(known.acknowledged_subtasks == heard, RULE, f"{known}: {heard} subtasks were heard")
    times = due.ended_ms
    if times is None or known.ended_ms is None:
        right = times is None and known.ended_ms is None
    else:
        right = times[0] <= known.ended_ms <= times[1]
    expect(right, RULE, f"checkpoint {known.id} ended at {known.ended_ms}, between {times} is due")


def _newest_agree(tracker: StatisticsTracker, model: CoordinatorModel) -> None:
    """Raise BrokenRuleError unless the newest checkpoint of each kind is the one with the highest id."""
    completed = [n for n, known in model.checkpoints.items() if known.fate is Fate.COMPLETED]
    savepoints = [n for n in completed if model.checkpoints[n].properties.is_savepoint]
    plain = [n for n in completed if n not in savepoints]
    aborted = [n for n, known in model.checkpoints.items() if known.fate is Fate.ABORTED]
    due = tuple(max(ids, default=None) for ids in (plain, savepoints, aborted))
    newest = (tracker.latest.completed, tracker.latest.savepoint, tracker.latest.failed)
    expect(newest == due, RULE, f"the newest are {newest}, due are {due}")


def summary_agrees(numbers: Sequence[int]) -> None:
    """Raise BrokenRuleError unless the summary lies within the numbers, with each percentile at its place."""
    summary = Distribution.of(numbers)
    if summary is None:
        expect(not numbers, RULE, f"{numbers} have no summary")
        return
    extent = (summary.count, summary.minimum, summary.maximum)
    right = extent == (len(numbers), min(numbers), max(numbers)) and min(numbers) <= summary.average <= max(numbers)
    for per_cent, value in ((50, summary.p50), (95, summary.p95), (99, summary.p99)):
        below, reached = sum(n < value for n in numbers), sum(n <= value for n in numbers)
        right = right and value in numbers and 100 * below < per_cent * len(numbers) <= 100 * reached
    expect(right, RULE, f"{sorted(numbers)}: {summary}")
