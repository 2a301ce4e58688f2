"""Decides whether and when a failed job restarts inside its tick (G4; Flink: `RestartBackoffTimeStrategy`).

A strategy is a value, and so is what it remembers of earlier failures. The time and the seed for jitter are arguments.
`CheckpointConfig` checks the numbers of a strategy.
"""

from dataclasses import dataclass
from typing import TypeVar, assert_never

from checkpointing.config import CheckpointConfig, RestartStrategyKind
from checkpointing.coordinator.failure_policy import NEVER_TOLERATED
from checkpointing.failures import CheckpointFailureReason

_Number = TypeVar("_Number", int, float)
_MASK = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure ends the tick; the next one recovers."""


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """At most `attempts` restarts, each after `delay_ms`."""

    attempts: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restart after `delay_ms`, unless more than `failures_max` failures were within `interval_ms`.

    Older versions of Flink gave up at exactly that number.
    """

    failures_max: int
    interval_ms: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """The delay grows by `multiplier` up to `max_ms`. After a quiet time of `reset_after_ms` it starts anew.

    The quiet time is the time between two failures, less the delay between them. `jitter` moves the delay up or down by
    at most this share. `attempts` limits the restarts between two quiet times. None: no limit.
    """

    initial_ms: int
    max_ms: int
    multiplier: float
    reset_after_ms: int
    jitter: float
    attempts: int | None


RestartStrategy = NoRestart | FixedDelay | FailureRate | ExponentialDelay


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """What a strategy remembers: the number of restarts, the times of failures, the last delay without jitter."""

    restarts: int = 0
    failures_ms: tuple[int, ...] = ()
    backoff_ms: int = 0


NO_FAILURES = FailureHistory()


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """When to restart (`delay_ms` None: not at all), and the history to pass in at the next failure."""

    delay_ms: int | None
    history: FailureHistory


def strategy_of(config: CheckpointConfig) -> RestartStrategy:
    """Return the strategy of a configuration. Numbers that it leaves open are Flink's defaults."""
    delay_ms = config.first_restart_delay_ms
    match config.restart_strategy:
        case RestartStrategyKind.NONE:
            return NoRestart()
        case RestartStrategyKind.FIXED_DELAY:
            return FixedDelay(_given(config.restart_attempts, 1), delay_ms)
        case RestartStrategyKind.FAILURE_RATE:
            return FailureRate(
                _given(config.restart_failures_max, 1), _given(config.restart_failures_interval_ms, 60_000), delay_ms
            )
        case RestartStrategyKind.EXPONENTIAL_DELAY:
            return ExponentialDelay(
                initial_ms=delay_ms,
                max_ms=config.longest_restart_delay_ms,
                multiplier=_given(config.restart_multiplier, 2.0),
                reset_after_ms=_given(config.restart_reset_after_ms, 3_600_000),
                jitter=_given(config.restart_jitter, 0.1),
                attempts=config.restart_attempts,
            )
        case _ as unreachable:
            assert_never(unreachable)


def may_restart(reason: CheckpointFailureReason | None) -> bool:
    """Return whether a job that failed for this reason may restart.

    It may not if the next attempt would fail too, or if the job belongs to another process (Flink:
    `SuppressRestartsException`): a suite's verdict, a changed table, a newer claim.
    """
    return reason not in NEVER_TOLERATED


def after_failure(strategy: RestartStrategy, history: FailureHistory, now_ms: int, seed: int = 0) -> RestartDecision:
    """Return whether the job restarts after a failure at `now_ms`. `seed` decides the jitter."""
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
        case _ as unreachable:
            assert_never(unreachable)


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
    """Return the delay, moved by a share in [-jitter, jitter], and at most `max_ms`."""
    spread_ms = int(backoff_ms * strategy.jitter)
    mixed = ((seed + 1) * 0x9E37_79B9_7F4A_7C15) & _MASK
    offset_ms = (mixed >> 16) % (2 * spread_ms + 1) - spread_ms
    return min(backoff_ms + offset_ms, strategy.max_ms)


def _given(value: _Number | None, default: _Number) -> _Number:
    return default if value is None else value
