"""The attempts of one tick: whether another follows on the last one, and the wait between them (G4).

Another follows on one that failed, as the restart strategy allows, and on one that ended because its trace was full.

An attempt ends as a tick does, with its release; the next one claims the next generation. So no file and
no row of two attempts can be taken for each other, and what the first left undone is recovery's, as ever.
"""

import time
from dataclasses import replace
from typing import Final

from checkpointing.coordinator.restart import (
    NO_FAILURES,
    NoRestart,
    RestartStrategy,
    after_failure,
    may_restart,
)
from checkpointing.job.setup import TickLimits
from checkpointing.messages import EndTick, TickOutcome
from jobs.runtime.driver import Inbox
from jobs.runtime.listener import Restarting, TickListener
from jobs.user_code import noted

POLL_MS: Final = 50
"""How often a waiting tick looks whether it was asked to stop: a lock may not be waited for in a signal handler."""


class Restarts:
    """What one tick remembers of its failed attempts."""

    def __init__(self, strategy: RestartStrategy, limits: TickLimits, inbox: Inbox, listener: TickListener) -> None:
        """The tick begins now. `limits` are those of all its attempts together."""
        self._strategy = strategy
        self._limits = limits
        self._inbox = inbox
        self._listener = listener
        self._history = NO_FAILURES
        self._began = time.monotonic()
        self._renewals = 0
        """Attempts that followed on one whose trace was full."""
        self.count = 0
        """Attempts that followed on a failed one."""

    def renews(self, completed: int) -> bool:
        """Return whether the tick goes on after an attempt whose trace was full; `completed` counts checkpoints.

        It does unless somebody has asked it to stop, or a limit of the tick is met.
        """
        wanted, left_ms = self._limits.checkpoints, self._left_ms()
        met = (wanted is not None and completed >= wanted) or left_ms == 0
        goes_on = not self._inbox.stop_requested and not met
        self._renewals += goes_on
        return goes_on

    def follows(self, end: EndTick, now_ms: int, seed: int) -> EndTick | None:
        """Wait for the next attempt and return None; or return how the tick ends, since none follows.

        `seed` draws the delay's jitter. A tick that is asked to stop while it waits ends in order; one
        whose duration would be over before the restart ends as it failed.
        """
        if end.outcome is not TickOutcome.FAILED or self._inbox.stop_requested or not may_restart(end.reason):
            return end
        decision = after_failure(self._strategy, self._history, now_ms, seed)
        self._history = decision.history
        if decision.delay_ms is None:
            return self._exhausted(end)
        left_ms = self._left_ms()
        if left_ms is not None and left_ms <= decision.delay_ms:
            return replace(end, message=noted(end.message, "(no restart: it would come after the tick's duration)"))
        self.count += 1
        self._listener.progress(Restarting(self.count, end.reason, end.message, decision.delay_ms))
        if not self._waited(decision.delay_ms):
            return EndTick(TickOutcome.STOPPED, end.reason, f"stopped before restart {self.count} after: {end.message}")
        return None

    def limits(self, completed: int) -> TickLimits:
        """Return what is left of the tick's limits for an attempt; `completed` counts the checkpoints so far."""
        if not self.count and not self._renewals:
            return self._limits
        wanted = self._limits.checkpoints
        return replace(
            self._limits,
            checkpoints=None if wanted is None else max(0, wanted - completed),
            duration_ms=self._left_ms(),
        )

    def _left_ms(self) -> int | None:
        limit = self._limits.duration_ms
        return None if limit is None else max(0, limit - round((time.monotonic() - self._began) * 1000))

    def _exhausted(self, end: EndTick) -> EndTick:
        if isinstance(self._strategy, NoRestart):
            return end
        note = f"(after {self.count} restarts the strategy allows no further one)"
        return replace(end, message=noted(end.message, note))

    def _waited(self, delay_ms: int) -> bool:
        """Return True after the delay, False as soon as a stop is asked for."""
        until = time.monotonic() + delay_ms / 1000
        while not self._inbox.stop_requested:
            left = until - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, POLL_MS / 1000))
        return False
