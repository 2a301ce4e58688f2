"""What the machine of a tick's attempts expects: which limits are left, and whether another attempt follows."""

from dataclasses import dataclass, field

from checkpointing.job.setup import TickLimits
from checkpointing.tick.attempts import ExponentialDelay, FailureRate, FixedDelay, RestartStrategy


@dataclass(slots=True)
class Told:
    """What happened to the attempts of one tick."""

    limits: TickLimits
    strategy: RestartStrategy
    began_ms: int
    claims: int = 0
    completed: int = 0
    restarts: int = 0
    failures_ms: list[int] = field(default_factory=list)
    backoff_ms: int = 0
    in_a_row: int = 0
    """The restarts since the last quiet time."""
    known: int = 0
    """The newest version of `checkpoints` that this tick knows of."""
    behind: int = 0
    """How many lists in a row did not reach that version."""
    waits_until_ms: int = 0
    """Until when a tick whose trace is full waits for another process."""

    def left_ms(self, now_ms: int) -> int | None:
        """Return what is left of the duration."""
        limit = self.limits.duration_ms
        return None if limit is None else max(0, self.began_ms + limit - now_ms)

    def left(self, now_ms: int) -> TickLimits:
        """Return what is left of the limits, for the next attempt."""
        if self.claims <= 1:
            return self.limits
        wanted = self.limits.checkpoints
        return TickLimits(
            checkpoints=None if wanted is None else max(0, wanted - self.completed),
            duration_ms=self.left_ms(now_ms),
            until_caught_up=self.limits.until_caught_up,
        )

    def delays_ms(self, now_ms: int) -> range | None:
        """Note a failure. Return the delays that are right before the next restart, or None if none follows."""
        before, self.failures_ms = self.failures_ms, [*self.failures_ms, now_ms]
        match self.strategy:
            case FixedDelay(attempts, delay_ms):
                return range(delay_ms, delay_ms + 1) if len(before) < attempts else None
            case FailureRate(failures_max, interval_ms, delay_ms):
                recent = [at for at in self.failures_ms if at >= now_ms - interval_ms]
                return range(delay_ms, delay_ms + 1) if len(recent) <= failures_max else None
            case ExponentialDelay():
                return self._backoff(self.strategy, before, now_ms)
            case _:
                return None

    def _backoff(self, strategy: ExponentialDelay, before: list[int], now_ms: int) -> range | None:
        quiet = not before or now_ms - before[-1] - self.backoff_ms >= strategy.reset_after_ms
        self.in_a_row = 1 if quiet else self.in_a_row + 1
        grown = min(int(self.backoff_ms * strategy.multiplier), strategy.max_ms)
        self.backoff_ms = strategy.initial_ms if quiet else grown
        if strategy.attempts is not None and self.in_a_row > strategy.attempts:
            return None
        spread = int(self.backoff_ms * strategy.jitter)
        return range(self.backoff_ms - spread, min(self.backoff_ms + spread, strategy.max_ms) + 1)
