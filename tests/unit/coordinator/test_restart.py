"""Restart strategies: how often and when a failed job goes on inside its tick (G4)."""

import pytest

from checkpointing.coordinator.restart import (
    NO_FAILURES,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    InvalidStrategyError,
    NoRestart,
    after_failure,
)


def delays(strategy, *times_ms):
    """Return the delay after each failure."""
    history, seen = NO_FAILURES, []
    for now_ms in times_ms:
        decision = after_failure(strategy, history, now_ms)
        history = decision.history
        seen.append(decision.delay_ms)
    return seen


def test_no_restart_ends_at_the_first_failure():
    """The next tick recovers."""
    assert [None] == delays(NoRestart(), 5)


def test_a_fixed_delay_allows_so_many_restarts():
    """The failure after the last allowed restart ends the tick."""
    assert [7, 7, None, None] == delays(FixedDelay(2, 7), 1, 2, 3, 4)
    assert [None] == delays(FixedDelay(0), 1)


def test_a_failure_rate_looks_at_the_last_failures_only():
    """More than the number within the interval end the tick; slow failures never do."""
    assert [1, 1, None] == delays(FailureRate(2, 100, 1), 0, 50, 100)
    assert [1, 1, 1, 1] == delays(FailureRate(2, 100, 1), 0, 50, 101, 152)


def test_an_exponential_delay_grows_to_its_limit_and_resets_after_quiet():
    """It doubles up to the limit; after the quiet time it starts anew."""
    strategy = ExponentialDelay(10, 35, reset_after_ms=100)
    assert [10, 20, 35, 35, 10] == delays(strategy, 0, 1, 2, 3, 3 + 100 + 35)
    assert [10, 20, 35, 35, 35] == delays(strategy, 0, 1, 2, 3, 3 + 100 + 34)


def test_an_exponential_delay_may_end():
    """With a number of attempts the tick ends after them, unless it was quiet."""
    assert [10, 20, None] == delays(ExponentialDelay(10, 90, attempts=2), 0, 1, 2)


def test_jitter_spreads_within_its_share_and_its_limit():
    """Every seed gives a delay within the share of the backoff, both sides are reached, none above the limit."""
    strategy = ExponentialDelay(100, 110, jitter=0.2)
    drawn = [after_failure(strategy, NO_FAILURES, 0, seed).delay_ms for seed in range(500)]
    assert (80, 110) == (min(drawn), max(drawn))


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: FixedDelay(-1), "attempts must not be negative"),
        (lambda: FixedDelay(1, -1), "delay_ms"),
        (lambda: FailureRate(0, 1), "failures_max"),
        (lambda: FailureRate(1, 0), "interval_ms"),
        (lambda: FailureRate(1, 1, -1), "delay_ms"),
        (lambda: ExponentialDelay(2, 1), "initial_ms"),
        (lambda: ExponentialDelay(1, 1, multiplier=1), "multiplier"),
        (lambda: ExponentialDelay(1, 1, reset_after_ms=0), "reset_after_ms"),
        (lambda: ExponentialDelay(1, 1, jitter=1.1), "jitter"),
        (lambda: ExponentialDelay(1, 1, attempts=0), "attempts"),
    ],
)
def test_a_strategy_that_means_nothing_is_refused(make, rule):
    """The error names the field and the rule (H1)."""
    with pytest.raises(InvalidStrategyError, match=rule):
        make()
