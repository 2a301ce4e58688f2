"""Whether and when a failed job restarts inside its tick (G4; Flink: `RestartBackoffTimeStrategy`).

A strategy is a value; what it must remember of earlier failures is a value too. Time is an argument.
"""

from dataclasses import dataclass
from typing import assert_never

_MASK = 0xFFFF_FFFF_FFFF_FFFF


class InvalidStrategyError(ValueError):
    """A restart strategy that means nothing: names the field and the rule."""


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure ends the tick; the next one recovers."""


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """At most `attempts` restarts, each after `delay_ms`."""

    attempts: int
    delay_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse a negative number."""
        _check(self.attempts >= 0, "attempts must not be negative")
        _check(self.delay_ms >= 0, "delay_ms must not be negative")


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restart after `delay_ms` unless more than `failures_max` failures fell within `interval_ms`."""

    failures_max: int
    interval_ms: int
    delay_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers below one, and a negative delay."""
        _check(self.failures_max >= 1, "failures_max must be at least 1")
        _check(self.interval_ms >= 1, "interval_ms must be at least 1")
        _check(self.delay_ms >= 0, "delay_ms must not be negative")


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """The delay grows by `multiplier` up to `max_ms`; a quiet time of `reset_after_ms` starts it anew.

    `jitter` spreads the delay by up to that share of it either way, drawn from a seed. `attempts` None:
    without an end.
    """

    initial_ms: int
    max_ms: int
    multiplier: float = 2.0
    reset_after_ms: int = 60_000
    jitter: float = 0.0
    attempts: int | None = None

    def __post_init__(self) -> None:
        """Refuse a delay that never grows, or a share beyond the whole."""
        _check(1 <= self.initial_ms <= self.max_ms, "initial_ms must be at least 1 and not more than max_ms")
        _check(self.multiplier > 1, "multiplier must be greater than 1")
        _check(self.reset_after_ms >= 1, "reset_after_ms must be at least 1")
        _check(0 <= self.jitter <= 1, "jitter must lie between 0 and 1")
        _check(self.attempts is None or self.attempts >= 1, "attempts must be at least 1, or None")


RestartStrategy = NoRestart | FixedDelay | FailureRate | ExponentialDelay


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """What a strategy remembers: restarts so far, the last failures' times, the last delay without jitter."""

    restarts: int = 0
    failures_ms: tuple[int, ...] = ()
    backoff_ms: int = 0


NO_FAILURES = FailureHistory()


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """When to restart (`delay_ms` None: not at all), and the history to give back at the next failure."""

    delay_ms: int | None
    history: FailureHistory


def after_failure(strategy: RestartStrategy, history: FailureHistory, now_ms: int, seed: int = 0) -> RestartDecision:
    """Return whether the job restarts after a failure at `now_ms`; `seed` draws the jitter."""
    match strategy:
        case NoRestart():
            return RestartDecision(None, history)
        case FixedDelay():
            allowed = history.restarts < strategy.attempts
            noted = FailureHistory(restarts=history.restarts + 1, failures_ms=(now_ms,))
            return RestartDecision(strategy.delay_ms if allowed else None, noted)
        case FailureRate():
            return _by_rate(strategy, history, now_ms)
        case ExponentialDelay():
            return _by_backoff(strategy, history, now_ms, seed)
        case _:
            assert_never(strategy)


def _by_rate(strategy: FailureRate, history: FailureHistory, now_ms: int) -> RestartDecision:
    failures = (*history.failures_ms, now_ms)[-(strategy.failures_max + 1) :]
    too_many = len(failures) > strategy.failures_max and now_ms - failures[0] <= strategy.interval_ms
    noted = FailureHistory(restarts=history.restarts + 1, failures_ms=failures)
    return RestartDecision(None if too_many else strategy.delay_ms, noted)


def _by_backoff(strategy: ExponentialDelay, history: FailureHistory, now_ms: int, seed: int) -> RestartDecision:
    quiet = not history.failures_ms or (
        now_ms - history.failures_ms[-1] >= strategy.reset_after_ms + history.backoff_ms
    )
    restarts = 0 if quiet else history.restarts
    grown = min(int(history.backoff_ms * strategy.multiplier), strategy.max_ms)
    backoff_ms = strategy.initial_ms if quiet else max(grown, strategy.initial_ms)
    noted = FailureHistory(restarts + 1, (now_ms,), backoff_ms)
    if strategy.attempts is not None and restarts >= strategy.attempts:
        return RestartDecision(None, noted)
    return RestartDecision(_jittered(backoff_ms, strategy, seed), noted)


def _jittered(backoff_ms: int, strategy: ExponentialDelay, seed: int) -> int:
    """Return the delay moved by a share in [-jitter, jitter], still within the strategy's bounds."""
    spread_ms = int(backoff_ms * strategy.jitter)
    mixed = ((seed + 1) * 0x9E37_79B9_7F4A_7C15) & _MASK
    offset_ms = (mixed >> 16) % (2 * spread_ms + 1) - spread_ms
    return max(0, min(backoff_ms + offset_ms, strategy.max_ms))


def _check(holds: bool, rule: str) -> None:  # noqa: FBT001 - the rule's truth
    if not holds:
        raise InvalidStrategyError(f"restart strategy: {rule}")
