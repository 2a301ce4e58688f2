"""Restart strategies: how often and when a failed job restarts inside its tick (G4)."""

from checkpointing.failures import CheckpointFailureReason
from checkpointing.tick.attempts import (
    NO_FAILURES,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    after_failure,
    may_restart,
)


def delays(strategy, *times_ms):
    """Return the delay after each failure."""
    history, seen = NO_FAILURES, []
    for now_ms in times_ms:
        decision = after_failure(strategy, history, now_ms)
        history = decision.history
        seen.append(decision.delay_ms)
    return seen


def growing(initial_ms, max_ms, *, reset_after_ms=60_000, jitter=0.0, attempts=None):
    return ExponentialDelay(initial_ms, max_ms, 2.0, reset_after_ms, jitter, attempts)


def test_no_restart_ends_at_the_first_failure():
    """The next tick recovers the job."""
    assert [None] == delays(NoRestart(), 5)


def test_a_fixed_delay_allows_a_number_of_restarts():
    """The failure after the last allowed restart ends the tick (Flink: FixedDelayRestartBackoffTimeStrategy)."""
    assert [7, 7, None, None] == delays(FixedDelay(2, 7), 1, 2, 3, 4)


def test_a_failure_rate_looks_at_the_last_failures_only():
    """The tick ends if the interval, its end included, has more failures than allowed. Rarer failures never end it."""
    assert [1, 1, None] == delays(FailureRate(2, 100, 1), 0, 50, 100)
    assert [1, 1, 1, 1] == delays(FailureRate(2, 100, 1), 0, 50, 101, 152)
    assert [1, None] == delays(FailureRate(1, 100, 1), 0, 100)


def test_an_exponential_delay_grows_to_its_limit_and_resets_after_quiet():
    """The delay doubles up to the limit. A quiet time after the end of a delay resets it to the first delay."""
    strategy = growing(10, 35, reset_after_ms=100)
    assert [10, 20, 35, 35, 10] == delays(strategy, 0, 1, 2, 3, 3 + 100 + 35)
    assert [10, 20, 35, 35, 35] == delays(strategy, 0, 1, 2, 3, 3 + 100 + 34)


def test_an_exponential_delay_may_end():
    """If the number of attempts is limited, the tick ends after the last one. A quiet time restores all attempts."""
    assert [10, 20, None] == delays(growing(10, 90, attempts=2), 0, 1, 2)
    assert [10, 20, 10, 20, None] == delays(growing(10, 90, reset_after_ms=5, attempts=2), 0, 1, 26, 27, 28)


def test_jitter_spreads_within_its_share_and_its_limit():
    """Every seed gives a delay within the share of the backoff. Both ends are reached. No delay exceeds the limit."""
    strategy = growing(100, 110, jitter=0.2)
    drawn = [after_failure(strategy, NO_FAILURES, 0, seed).delay_ms for seed in range(500)]
    assert (80, 110) == (min(drawn), max(drawn))
    assert drawn == [after_failure(strategy, NO_FAILURES, 0, seed).delay_ms for seed in range(500)]


def test_jitter_does_not_change_the_growth_of_the_delay():
    """The random part changes one delay only. The next one grows from the plain backoff."""
    strategy = growing(100, 1_000, jitter=1.0)
    first = after_failure(strategy, NO_FAILURES, 0, seed=3)
    assert (100, 200) == (first.history.backoff_ms, after_failure(strategy, first.history, 1).history.backoff_ms)


def test_a_failure_that_the_next_attempt_would_meet_again_causes_no_restart():
    """A verdict, a changed table and a newer claim end the tick with every strategy.

    Other failures may be restarted.
    """
    never = {reason for reason in CheckpointFailureReason if not may_restart(reason)}
    reasons = CheckpointFailureReason
    assert {reasons.QUALITY, reasons.TABLE_CHANGED, reasons.FENCED} == never
