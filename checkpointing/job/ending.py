"""Decides when a tick ends: caught up, limit met, asked to stop, or failed. docs/STATES.md draws the table `MOVES`."""

from enum import Enum
from typing import Final

from checkpointing.commit.approval import waits_for_approval
from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.job.setup import TickLimits
from checkpointing.messages import EndTick, SavepointKind, StopKind, TickOutcome
from checkpointing.metadata.record import CheckpointRecord, RowKind

OWN_REQUEST: Final = "tick"
"""The request name of the tick's own checkpoints: by rows, by quota, at its end."""


class TickPhase(Enum):
    """How near to its end a tick is."""

    RUNNING = "running"
    """It reads and takes checkpoints."""
    FINISHING = "finishing"
    """It reads no more. It ends when a cut shows every row that was sent."""
    SUSPENDING = "suspending"
    """The savepoint of a stop is being taken. If it fails, the tick goes on."""
    SUSPENDING_OR_FINISHING = "suspending_or_finishing"
    """The same, but the tick was also asked to stop. If the savepoint fails, the tick finishes."""
    STOPPING = "stopping"
    """It ends as soon as no entry of `checkpoints` is in doubt."""
    FAILING = "failing"
    """The same, and it ends as failed."""
    ENDED = "ended"


class Cause(Enum):
    """What moves a tick from one phase to the next."""

    FAILURE = "failure"
    STOP_NOW = "stop now"
    STOP_AFTER_CHECKPOINT = "stop after checkpoint"
    SAVEPOINT_ASKED = "savepoint of a stop asked for"
    SAVEPOINT_TAKEN = "savepoint taken"
    SAVEPOINT_FAILED = "savepoint failed"
    CHECKPOINTS_TAKEN = "all checkpoints taken"
    """The tick has taken as many checkpoints as its limits allow."""
    HELD = "cut held"
    """A cut waits for a person's approval, so this tick can do nothing more."""
    DURATION_OVER = "duration over"
    FINISHED = "finished"
    """Every split has ended, and the newest cut shows the effect of every row (B4)."""
    CAUGHT_UP = "caught up"
    """Every split is idle, and the newest cut shows every row that was sent."""
    SHOWN = "all rows shown"
    """The newest cut shows every row that was sent, and nothing moves."""
    SPLIT_FAILED = "split failed too often"
    """A split cannot be read. What was read of the others is committed first, so that they get on."""
    SETTLED = "no entry in doubt"


_STOPS: Final = {Cause.FAILURE: TickPhase.FAILING, Cause.STOP_NOW: TickPhase.STOPPING}
_PHASES: Final[dict[TickPhase, dict[Cause, TickPhase]]] = {
    TickPhase.RUNNING: {
        **_STOPS,
        Cause.CHECKPOINTS_TAKEN: TickPhase.STOPPING,
        Cause.HELD: TickPhase.STOPPING,
        Cause.STOP_AFTER_CHECKPOINT: TickPhase.FINISHING,
        Cause.DURATION_OVER: TickPhase.FINISHING,
        Cause.SPLIT_FAILED: TickPhase.FINISHING,
        Cause.SAVEPOINT_ASKED: TickPhase.SUSPENDING,
        Cause.CAUGHT_UP: TickPhase.ENDED,
        Cause.FINISHED: TickPhase.ENDED,
    },
    TickPhase.FINISHING: {
        **_STOPS,
        Cause.CHECKPOINTS_TAKEN: TickPhase.STOPPING,
        Cause.HELD: TickPhase.STOPPING,
        Cause.SHOWN: TickPhase.ENDED,
        Cause.FINISHED: TickPhase.ENDED,
    },
    TickPhase.SUSPENDING: {
        **_STOPS,
        Cause.STOP_AFTER_CHECKPOINT: TickPhase.SUSPENDING_OR_FINISHING,
        Cause.SAVEPOINT_TAKEN: TickPhase.STOPPING,
        Cause.SAVEPOINT_FAILED: TickPhase.RUNNING,
    },
    TickPhase.SUSPENDING_OR_FINISHING: {
        **_STOPS,
        Cause.SAVEPOINT_TAKEN: TickPhase.STOPPING,
        Cause.SAVEPOINT_FAILED: TickPhase.FINISHING,
    },
    TickPhase.STOPPING: {Cause.FAILURE: TickPhase.FAILING, Cause.SETTLED: TickPhase.ENDED},
    TickPhase.FAILING: {Cause.SETTLED: TickPhase.ENDED},
}
MOVES: Final[dict[tuple[TickPhase, Cause], TickPhase]] = {
    (phase, cause): reached for phase, moves in _PHASES.items() for cause, reached in moves.items()
}
"""(phase, cause) -> the next phase. Any other cause changes nothing."""


class Next(Enum):
    """What the tick must do next, as far as its end is concerned."""

    GO_ON = "go_on"
    CHECKPOINT = "checkpoint"


class Ending:
    """Decides whether the tick goes on. A tick never ends while an entry is in doubt."""

    def __init__(self, limits: TickLimits) -> None:
        """Begin with nothing asked and nothing done."""
        self._limits = limits
        self._started_ms = 0
        self._completed = 0
        self._end = EndTick(TickOutcome.STOPPED)
        self.phase = TickPhase.RUNNING
        self.requested = 0
        """How many checkpoints this tick asked for (rows, quota, end) that have not ended."""
        self.uncommitted = False
        """True if rows were sent that no completed cut shows."""

    @property
    def over(self) -> bool:
        """True if the tick has ended."""
        return self.phase is TickPhase.ENDED

    @property
    def stopping(self) -> bool:
        """True if the tick is about to end. Requests must wait for the next tick."""
        return self.phase is not TickPhase.RUNNING

    @property
    def reads(self) -> bool:
        """True if more rows may be read. A tick that stops or fails could not commit them."""
        return self.phase in (TickPhase.RUNNING, TickPhase.SUSPENDING, TickPhase.SUSPENDING_OR_FINISHING)

    @property
    def settles(self) -> bool:
        """True if the tick only waits until no entry is in doubt. It begins no checkpoint any more."""
        return self.phase in (TickPhase.STOPPING, TickPhase.FAILING)

    @property
    def takes_checkpoints(self) -> bool:
        """True if the tick may ask for checkpoints of its own. During the savepoint of a stop it may not."""
        return self.phase in (TickPhase.RUNNING, TickPhase.FINISHING)

    @property
    def wake_at_ms(self) -> int | None:
        """When the tick's duration is over, or None."""
        limit = self._limits.duration_ms
        counts = self.phase in (TickPhase.RUNNING, TickPhase.SUSPENDING)
        return self._started_ms + limit if counts and limit is not None else None

    def started(self, now_ms: int) -> None:
        """Note when the tick began."""
        self._started_ms = now_ms

    def stop_requested(self, kind: StopKind) -> None:
        """Note a request to stop."""
        self.told(Cause.STOP_NOW if kind is StopKind.NOW else Cause.STOP_AFTER_CHECKPOINT)

    def failed(self, reason: Reason, message: str) -> None:
        """Note that the tick cannot go on. The first failure is the one that is reported."""
        if self.told(Cause.FAILURE):
            self._end = EndTick(TickOutcome.FAILED, reason, message)

    def split_failed(self, message: str, *, at_once: bool) -> None:
        """A split has failed too often: commit what was read, and end as failed; or end `at_once`."""
        if self.told(Cause.FAILURE if at_once else Cause.SPLIT_FAILED):
            self._end = EndTick(TickOutcome.FAILED, Reason.TASK_FAILURE, message)

    def saved(self, record: CheckpointRecord) -> None:
        """Note that an entry is in. A held cut ends the tick, which says so unless it ends as failed."""
        if record.kind is RowKind.HELD:
            self.told(Cause.HELD)
            if self.phase is TickPhase.STOPPING and self._end.outcome is not TickOutcome.FAILED:
                self._end = EndTick(TickOutcome.HELD, message=waits_for_approval(record))

    def completed(self, *, uncommitted: bool) -> None:
        """Count a completed checkpoint. `uncommitted`: rows were sent that its cut does not show."""
        self._completed += 1
        self.uncommitted = uncommitted

    def answered(
        self, effect: RequestSucceeded | RequestFailed, kind: SavepointKind | None, *, behind_barrier: bool
    ) -> bool:
        """Take the result of a request. Return whether a tick that was about to stop goes on.

        `kind` is None for a checkpoint that the tick asked for itself. If such a checkpoint cannot be triggered, the
        tick fails. After the barrier of a stop nothing is read any more, so from there the job can only fail (E5).
        """
        failure = effect if isinstance(effect, RequestFailed) else None
        if kind is None:
            self.requested -= 1
            if failure and (failure.reason.pre_flight or failure.reason is Reason.TRIGGER_CHECKPOINT_FAILURE):
                self.failed(failure.reason, failure.message or failure.reason.message)
        elif kind is SavepointKind.PLAIN:
            return False
        elif failure is None:
            self.told(Cause.SAVEPOINT_TAKEN)
        elif behind_barrier:
            self.failed(failure.reason, f"the savepoint of the stop failed: {failure.message}")
        else:
            return self.told(Cause.SAVEPOINT_FAILED)
        return False

    def told(self, cause: Cause) -> bool:
        """Move as the table says. Return whether the phase changed."""
        before, self.phase = self.phase, MOVES.get((self.phase, cause), self.phase)
        return self.phase is not before

    def next(
        self, now_ms: int, *, quiet: bool, in_doubt: bool, idle: bool, spent: bool, failing: bool, ended: bool
    ) -> Next | EndTick:
        """Return what to do next; EndTick is the last answer.

        `quiet`: nothing moves. `in_doubt`: an entry is being appended, or is unpublished. `idle`: no split had anything
        to read. `spent`: a split would read more in a new epoch. `failing`: a split could not say what it has.
        `ended`: every split has ended, and operators have been told.
        """
        if ended and quiet and not self.uncommitted and self.told(Cause.FINISHED):
            self._end = EndTick(TickOutcome.FINISHED)
        if self._has_enough():
            self.told(Cause.CHECKPOINTS_TAKEN)
        if self._is_late(now_ms):
            self.told(Cause.DURATION_OVER)
        if not in_doubt:
            self.told(Cause.SETTLED)
        if quiet and not self.uncommitted:
            self.told(Cause.SHOWN)
            caught_up = idle and not failing and self._limits.until_caught_up
            if caught_up and self.told(Cause.CAUGHT_UP):
                self._end = EndTick(TickOutcome.CAUGHT_UP)
        if self.over:
            return self._end
        due = spent or (self.uncommitted and (idle or not self.reads))
        return Next.CHECKPOINT if quiet and due and self.takes_checkpoints else Next.GO_ON

    def _has_enough(self) -> bool:
        return self._limits.checkpoints is not None and self._completed >= self._limits.checkpoints

    def _is_late(self, now_ms: int) -> bool:
        limit = self._limits.duration_ms
        return limit is not None and now_ms - self._started_ms >= limit
