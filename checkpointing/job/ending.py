"""When a tick ends: caught up, a limit met, asked to stop, or failed."""

from enum import Enum

from checkpointing.failures import CheckpointFailureReason
from checkpointing.job.setup import TickLimits
from checkpointing.messages import EndTick, StopKind, TickOutcome


class Next(Enum):
    """What the end of the tick asks for now."""

    GO_ON = "go_on"
    STOP_READING = "stop_reading"
    CHECKPOINT = "checkpoint"


class Ending:
    """Decides, from what is told, whether the tick goes on; a tick never ends with a commit in doubt."""

    def __init__(self, limits: TickLimits) -> None:
        """Begin with nothing asked and nothing done."""
        self._limits = limits
        self._started_ms = 0
        self._completed = 0
        self._stop: StopKind | None = None
        self._failure: EndTick | None = None
        self.over = False
        self.requested = 0
        """Checkpoints that this tick wanted (rows, quota, end) and that have not ended."""
        self.suspending = False
        """A savepoint of a stop is on its way: it alone ends the tick."""
        self.suspended = False
        """That savepoint is complete."""
        self.uncommitted = False
        """Rows were sent that no completed cut shows."""

    @property
    def wake_at_ms(self) -> int | None:
        """When the duration is over."""
        limit = self._limits.duration_ms
        return None if limit is None or self._stop is not None else self._started_ms + limit

    @property
    def stopping(self) -> bool:
        """Whether somebody stops the tick, or something has failed."""
        return self._stop is not None or self._failure is not None or self.suspending

    def started(self, now_ms: int) -> None:
        """The tick began."""
        self._started_ms = now_ms

    def stop_requested(self, kind: StopKind) -> None:
        """Somebody asked to stop; NOW wins over AFTER_CHECKPOINT."""
        self._stop = kind if self._stop is not StopKind.NOW else self._stop

    def failed(self, reason: CheckpointFailureReason, message: str) -> None:
        """The tick can't go on; the first failure is the one that is told."""
        if self._failure is None:
            self._failure = EndTick(TickOutcome.FAILED, reason, message)

    def completed(self, *, uncommitted: bool) -> None:
        """A checkpoint completed; `uncommitted`: rows were sent that its cut does not show."""
        self._completed += 1
        self.uncommitted = uncommitted

    def next(
        self, now_ms: int, *, quiet: bool, in_doubt: bool, stopped: bool, idle: bool, spent: bool
    ) -> Next | EndTick:
        """Return what is to be done; an EndTick is the last word.

        `quiet`: nothing moves. `in_doubt`: a row is on its way or unpublished. `stopped`: nothing is
        read any more. `idle`: every split had nothing to read. `spent`: one would read in a new epoch.
        """
        if self._failure is not None:
            return Next.GO_ON if in_doubt else self._end(self._failure)
        if self._stop is StopKind.NOW or self.suspended or (self._has_enough() and not self.suspending):
            return Next.GO_ON if in_doubt else self._end(EndTick(TickOutcome.STOPPED))
        if self.suspending:
            return Next.GO_ON
        if self._stop is StopKind.AFTER_CHECKPOINT or self._is_late(now_ms):
            if not stopped:
                return Next.STOP_READING
            return self._last_word(EndTick(TickOutcome.STOPPED)) if quiet else Next.GO_ON
        if not quiet:
            return Next.GO_ON
        if idle and self._limits.until_caught_up:
            return self._last_word(EndTick(TickOutcome.CAUGHT_UP))
        return Next.CHECKPOINT if spent or (idle and self.uncommitted) else Next.GO_ON

    def _last_word(self, end: EndTick) -> Next | EndTick:
        return Next.CHECKPOINT if self.uncommitted else self._end(end)

    def _has_enough(self) -> bool:
        return self._limits.checkpoints is not None and self._completed >= self._limits.checkpoints

    def _is_late(self, now_ms: int) -> bool:
        limit = self._limits.duration_ms
        return limit is not None and now_ms - self._started_ms >= limit

    def _end(self, end: EndTick) -> EndTick:
        self.over = True
        return end
