"""What a coordinator's statistics must say, told from the model: how checkpoints ended, and how long they took (E6)."""

from collections.abc import Sequence

from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.distribution import Distribution
from spec.machines.coordinator_model import CoordinatorModel, Fate
from spec.machines.judging import expect

RULE = "statistics-add-up"


def statistics_agree(tracker: StatisticsTracker, model: CoordinatorModel) -> None:
    """Raise BrokenRuleError unless counters are the model's, add up and are never negative.

    A request that began nothing counts as failed. An acknowledgement's numbers count once.
    """
    counts, ended = tracker.counters, model.ended()
    agree = (counts.in_progress, counts.completed) == (len(model.pending()), ended[Fate.COMPLETED])
    adds_up = counts.total == counts.in_progress + counts.completed + counts.failed
    right = agree and adds_up and 0 <= counts.failed - ended[Fate.ABORTED] <= model.refused
    expect(right, RULE, f"{counts}: {ended}, and {model.refused} requests began nothing")
    for known in tracker.history():
        size = sum(metrics.state_bytes or 0 for metrics in known.tasks.values())
        expect(known.state_size == size, RULE, f"checkpoint {known.id}: {known.state_size} bytes, not {size}")
    took = [each.ended_ms - each.triggered_ms for each in tracker.history() if each.ended_ms is not None]
    summary_agrees(took)


def summary_agrees(numbers: Sequence[int]) -> None:
    """Raise BrokenRuleError unless the summary of the numbers lies within them, each percentile where it belongs."""
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
