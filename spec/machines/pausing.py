"""The machine of the pause after failures: requests of the tick and of users succeed and fail, and time passes.

Its reference keeps the results of the tick's own requests. The end of each pause follows from this list.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.job.tick_end import Pause
from checkpointing.messages import SavepointKind
from spec.failures_in_a_row import FLINKS_LIST
from spec.machines.judging import expect
from spec.pauses import MINUTE_MS, SECOND_MS

PAUSES = "pauses"
"""A tick waits a second after a failure, twice as long after each further one in a row, and a minute at most."""
_kinds = st.sampled_from([None, None, *SavepointKind])
_others = st.sampled_from([Reason.QUALITY, Reason.CHECKPOINT_SUBSUMED, Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS])
_counted = st.sampled_from(sorted(FLINKS_LIST, key=lambda each: each.name))


class PauseMachine(RuleBasedStateMachine):
    """The pause of one tick."""

    def __init__(self) -> None:
        """Begin without a failure."""
        super().__init__()
        self.pause = Pause()
        self.now_ms = 0
        self.failed_ms: list[int] = []
        """When the tick's own requests failed, since the last one that succeeded."""

    @rule(kind=_kinds)
    def succeed(self, kind: SavepointKind | None) -> None:
        """A request of the tick, or a user's request of some kind, becomes a checkpoint."""
        self.pause.answered(RequestSucceeded("request", CheckpointId(1)), kind, self.now_ms)
        if kind is None:
            self.failed_ms.clear()

    @rule(kind=_kinds, reason=_counted)
    def fail(self, kind: SavepointKind | None, reason: Reason) -> None:
        """A request fails for a reason that counts."""
        self.pause.answered(RequestFailed("request", reason), kind, self.now_ms)
        if kind is None:
            self.failed_ms.append(self.now_ms)

    @rule(reason=_others)
    def fail_otherwise(self, reason: Reason) -> None:
        """A request fails for a reason that belongs to a job's normal life. This changes nothing."""
        self.pause.answered(RequestFailed("request", reason), None, self.now_ms)

    @rule(ms=st.sampled_from([1, SECOND_MS - 1, SECOND_MS, MINUTE_MS]))
    def wait(self, ms: int) -> None:
        """Time passes."""
        self.now_ms += ms

    @invariant()
    def lasts_as_long_as_the_failures_say(self) -> None:
        """The pause is over when its time has passed, and the tick wakes up then."""
        due_ms = self._due_ms()
        expect(self.pause.until_ms == due_ms, PAUSES, f"until {self.pause.until_ms}, due is {due_ms}")
        for now_ms in (self.now_ms, (due_ms or 1) - 1, due_ms or 0):
            is_over = due_ms is None or due_ms <= now_ms
            expect(self.pause.is_over(now_ms) == is_over, PAUSES, f"at {now_ms}, and it lasts until {due_ms}")

    def _due_ms(self) -> int | None:
        lasts_ms = SECOND_MS
        for _ in self.failed_ms[1:]:
            lasts_ms = min(MINUTE_MS, 2 * lasts_ms)
        return self.failed_ms[-1] + lasts_ms if self.failed_ms else None
