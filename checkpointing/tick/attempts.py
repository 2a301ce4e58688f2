"""Decides whether a tick makes another attempt (G4).

Another attempt follows a failed one if the restart strategy allows it. It also follows one that ended because its trace
was full. Each attempt ends with its release, and the next one claims the next generation. So nobody can take files and
entries of one attempt for those of another, and the next attempt recovers what the last one left unfinished.
"""

from dataclasses import replace

from checkpointing.commit.at_rest import Stamp
from checkpointing.coordinator.restart import NO_FAILURES, NoRestart, RestartStrategy, after_failure, may_restart
from checkpointing.identifiers import Generation
from checkpointing.job.setup import TickLimits
from checkpointing.messages import EndTick, TickOutcome
from checkpointing.tick.messages import Recovered, RestartDue


class Attempts:
    """What one tick remembers of its attempts. `limits` hold for all of them together."""

    def __init__(self, strategy: RestartStrategy, limits: TickLimits) -> None:
        """Begin before the first attempt."""
        self._strategy = strategy
        self._limits = limits
        self._history = NO_FAILURES
        self._began_ms = 0
        self._renewals = 0
        """How many attempts followed one whose trace was full."""
        self._generations = set[Generation]()
        """The generations of the attempts whose job has begun."""
        self.restarts = 0
        """How many attempts followed a failed one."""
        self.completed = 0
        """How many checkpoints all attempts have completed."""

    def began(self, at: Stamp) -> None:
        """Note when the tick began."""
        self._began_ms = at.now_ms

    def recovered(self, done: Recovered, by: Generation) -> None:
        """Count the checkpoint that the attempt `by` has published, if an earlier attempt of this tick committed it."""
        published = done.plan.roll_forward
        self.completed += published is not None and published.generation in self._generations
        self._generations.add(by)

    def renews(self, at: Stamp) -> bool:
        """Return whether another attempt follows one whose trace is full. If the tick is to stop, none does."""
        wanted = self._limits.checkpoints
        met = (wanted is not None and self.completed >= wanted) or self._left_ms(at) == 0
        goes_on = not at.stopping and not met
        self._renewals += goes_on
        return goes_on

    def follows(self, end: EndTick, at: Stamp, seed: int) -> RestartDue | EndTick:
        """Return how the tick ends, or when it restarts. `seed` decides the jitter of the delay."""
        if end.outcome is not TickOutcome.FAILED or at.stopping or not may_restart(end.reason):
            return end
        decision = after_failure(self._strategy, self._history, at.now_ms, seed)
        self._history = decision.history
        if decision.delay_ms is None:
            return self._exhausted(end)
        left_ms = self._left_ms(at)
        if left_ms is not None and left_ms <= decision.delay_ms:
            return _noted(end, "(no restart: it would come after the tick's duration)")
        self.restarts += 1
        return RestartDue(self.restarts, end, decision.delay_ms)

    def stopped(self, after: EndTick) -> EndTick:
        """Return the end of a tick that was asked to stop while it waited for a restart."""
        message = f"stopped before restart {self.restarts} after: {after.message}"
        return EndTick(TickOutcome.STOPPED, after.reason, message)

    def limits(self, at: Stamp) -> TickLimits:
        """Return the rest of the tick's limits, for the next attempt."""
        if not self.restarts and not self._renewals:
            return self._limits
        wanted = self._limits.checkpoints
        left = None if wanted is None else max(0, wanted - self.completed)
        return replace(self._limits, checkpoints=left, duration_ms=self._left_ms(at))

    def _left_ms(self, at: Stamp) -> int | None:
        limit = self._limits.duration_ms
        return None if limit is None else max(0, limit - (at.now_ms - self._began_ms))

    def _exhausted(self, end: EndTick) -> EndTick:
        if isinstance(self._strategy, NoRestart):
            return end
        return _noted(end, f"(after {self.restarts} restarts the strategy allows no further one)")


def _noted(end: EndTick, note: str) -> EndTick:
    """Return the end with a note after the first line of its message."""
    sentence, newline, below = end.message.partition("\n")
    return replace(end, message=f"{sentence} {note}{newline}{below}")
