"""Failures, stops, limits and savepoints, in any order, decide how a tick ends (A10, E5)."""

from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.job.setup import TickLimits
from checkpointing.job.tick_end import OWN_REQUEST, Cause, Ending, Next
from checkpointing.messages import (
    EndTick,
    SavepointKind,
    StopKind,
    TickOutcome,
)
from checkpointing.metadata.record import (
    RowKind,
)
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

ENDS: Final = "ends-as-it-must"
"""A tick reports its first failure, and fails only if something has failed.

A tick ends only when no entry is in doubt and a cut shows its rows, unless the tick fails or must stop now. A tick ends
when a limit is reached.
"""

_limits = st.builds(
    TickLimits,
    checkpoints=st.sampled_from([None, None, 1, 3]),
    duration_ms=st.sampled_from([None, None, 1_000]),
    until_caught_up=st.booleans(),
)
_reasons = st.sampled_from([Reason.TASK_FAILURE, Reason.CHECKPOINT_EXPIRED, Reason.QUALITY])
_kinds = st.sampled_from([SavepointKind.SUSPEND, SavepointKind.DRAIN])
_flags = st.fixed_dictionaries(dict.fromkeys(("quiet", "in_doubt", "idle", "spent", "failing", "ended"), st.booleans()))
_STARTED_MS: Final = 500


def _event(name: str, **drawn: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.just(name), st.fixed_dictionaries(drawn))


_asks = _event("ask_whether_to_end", flags=_flags, ms=st.sampled_from([0, 10, 490, 500, 999, 1_000]))
_events = st.lists(
    st.one_of(
        _asks,
        _asks,
        _asks,
        _event("fail", reason=_reasons),
        _event("fail_at_a_split", at_once=st.booleans()),
        _event("stop", kind=st.sampled_from(list(StopKind))),
        _event("ask", kind=st.sampled_from(list(SavepointKind))),
        _event("stop_beside_a_savepoint", kind=st.sampled_from([SavepointKind.SUSPEND, SavepointKind.DRAIN])),
        _event("answer", fails=st.booleans(), behind_barrier=st.booleans()),
        _event("answer", fails=st.just(value=True), behind_barrier=st.just(value=False)),
        _event(
            "answer_its_own",
            reason=st.sampled_from([None, Reason.CHECKPOINT_EXPIRED, Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS]),
        ),
        _event("send"),
        _event("complete", uncommitted=st.booleans()),
        _event("complete", uncommitted=st.just(value=False)),
        _event("save", held=st.booleans()),
        _event("hold_after_a_split_failed"),
    ),
    min_size=2,
    max_size=14,
)


class _Ending:
    """One tick and the events that may end it."""

    def __init__(self) -> None:
        """Begin without limits."""
        self._begin(TickLimits())

    def run(self, limits: TickLimits, events: list[tuple[str, dict[str, Any]]]) -> None:
        """Run a tick until it must end, or until there are no more events."""
        self._begin(limits)
        for name, drawn in events:
            if self.over is None:
                getattr(self, f"_{name}")(**drawn)

    def _begin(self, limits: TickLimits) -> None:
        self.limits = limits
        self.ending = Ending(limits)
        self.ending.started(_STARTED_MS)
        self.now_ms = _STARTED_MS
        self.first: tuple[Reason, str] | None = None
        """The first failure that ends the tick."""
        self.split: str | None = None
        """The failure of a split. After such a failure, the tick still commits what it has read."""
        self.completed = 0
        self.uncommitted = False
        self.asked: SavepointKind | None = None
        self.over: EndTick | None = None
        self.must_stop = self.must_finish = self.must_hold = self.held = False
        self.told = 0

    def _failed(self, reason: Reason, message: str) -> None:
        self.first = self.first or (reason, message)

    # -------------------------------------------------------------- what is told

    def _fail(self, reason: Reason) -> None:
        """Something fails, and the tick cannot go on."""
        self.told += 1
        self._failed(reason, f"it broke {self.told}")
        self.ending.failed(reason, f"it broke {self.told}")

    def _fail_at_a_split(self, at_once: bool) -> None:
        """A split cannot be read."""
        self.told += 1
        message = f"unreadable {self.told}"
        if at_once:
            self._failed(Reason.TASK_FAILURE, message)
        elif not self.ending.stopping:
            self.split = message
        self.ending.split_failed(message, at_once=at_once)

    def _stop(self, kind: StopKind) -> None:
        """A user asks the tick to stop."""
        self.must_stop |= kind is StopKind.NOW
        self.must_finish |= kind is StopKind.AFTER_CHECKPOINT and self.ending.reads
        self.ending.stop_requested(kind)

    def _ask(self, kind: SavepointKind) -> None:
        """A user stops the tick with a savepoint. A plain savepoint does not stop the tick, however it ends."""
        before = self.ending.phase
        if kind is SavepointKind.PLAIN:
            self.ending.answered(RequestFailed("p", Reason.CHECKPOINT_EXPIRED), kind, behind_barrier=True)
            expect(self.ending.phase is before, ENDS, f"a plain savepoint leads from {before} to {self.ending.phase}")
        elif not self.ending.stopping:
            self.asked = kind
            self.ending.told(Cause.SAVEPOINT_ASKED)

    def _stop_beside_a_savepoint(self, kind: SavepointKind) -> None:
        """One user stops the tick with a savepoint, and another user without one."""
        self._ask(kind)
        self._stop(StopKind.AFTER_CHECKPOINT)

    def _answer(self, fails: bool, behind_barrier: bool) -> None:
        """The savepoint of the stop is taken, or it fails before or after its barrier.

        If no savepoint was requested, request one.
        """
        kind, self.asked = self.asked, None
        if kind is None:
            self._ask(SavepointKind.SUSPEND)
            return
        if fails and behind_barrier:
            self._failed(Reason.CHECKPOINT_EXPIRED, "the savepoint of the stop failed: it broke")
        self.must_stop |= not fails
        request = RequestFailed("s", Reason.CHECKPOINT_EXPIRED, "it broke")
        answered = request if fails else RequestSucceeded("s", CheckpointId(5))
        waits = self.ending.reads
        goes_on = self.ending.answered(answered, kind, behind_barrier=behind_barrier)
        due = fails and not behind_barrier and waits
        expect(goes_on is due, ENDS, f"it goes on: {goes_on}, in {self.ending.phase}")

    def _save(self, held: bool) -> None:
        """An entry is committed. A held cut ends the tick, unless the tick's end is decided already."""
        self.held |= held
        self.must_hold |= held and self.ending.takes_checkpoints
        kind = RowKind.HELD if held else RowKind.CHECKPOINT
        self.ending.saved(plain_entry(kind))

    def _hold_after_a_split_failed(self) -> None:
        """A split cannot be read. What was read of the other splits is committed, and the cut is held."""
        self._fail_at_a_split(at_once=False)
        self._save(held=True)

    def _answer_its_own(self, reason: Reason | None) -> None:
        """A checkpoint that the tick has asked for ends. If it could not even be triggered, the tick fails."""
        before = self.ending.requested
        if reason is not None and reason.pre_flight:
            self._failed(reason, reason.message)
        answered = (
            RequestSucceeded(OWN_REQUEST, CheckpointId(5)) if reason is None else RequestFailed(OWN_REQUEST, reason)
        )
        self.ending.answered(answered, None, behind_barrier=False)
        expect(self.ending.requested == before - 1, ENDS, f"{self.ending.requested} are open, {before} were")

    def _complete(self, uncommitted: bool) -> None:
        """A checkpoint completes. Rows that came after its barrier may be in no cut yet."""
        self.completed += 1
        self.uncommitted = uncommitted
        self.ending.completed(uncommitted=uncommitted)

    def _send(self) -> None:
        """Rows are sent. No cut shows them yet."""
        self.uncommitted = self.ending.uncommitted = True

    # -------------------------------------------------------------- the end

    def _ask_whether_to_end(self, flags: dict[str, bool], ms: int) -> None:
        """The tick asks whether it must end."""
        self.now_ms += ms
        flags["quiet"] &= not flags["in_doubt"]  # as the door says it
        flags["ended"] &= self.split is None  # a split that cannot be read has not ended
        settled = flags["quiet"] and not self.uncommitted
        running, takes = not self.ending.stopping, self.ending.takes_checkpoints
        forgotten = self.must_finish and self.asked is None and self.ending.reads
        expect(not forgotten, ENDS, f"it reads on in {self.ending.phase}, and was asked to stop")
        settles = not (self.ending.reads or takes or self.ending.over)
        expect(self.ending.settles is settles, ENDS, f"it only settles in {self.ending.phase}: {not settles}")
        limit_ms = self.limits.duration_ms
        if running or limit_ms is None:
            due_ms = None if limit_ms is None else _STARTED_MS + limit_ms
            expect(self.ending.wake_at_ms == due_ms, ENDS, f"it wakes at {self.ending.wake_at_ms}, not at {due_ms}")
        late = takes and limit_ms is not None and self.now_ms - _STARTED_MS >= limit_ms
        has_enough = self.limits.checkpoints is not None and self.completed >= self.limits.checkpoints
        caught_up = running and self.limits.until_caught_up and flags["idle"] and not flags["failing"]
        must = self.first is not None or self.must_stop or self.must_hold or (has_enough and self.asked is None)
        done = settled and ((flags["ended"] and takes) or (takes and not running) or late or caught_up)
        answer = self.ending.next(self.now_ms, **flags)
        if isinstance(answer, EndTick):
            self.over = answer
            expect(self.ending.over, ENDS, "it has an end, and is not over")
            self._judge(answer, flags, may=must or has_enough)
            finished = settled and takes and flags["ended"]
            own = TickOutcome.FINISHED if finished else TickOutcome.CAUGHT_UP if settled and caught_up else None
            decided = bool(self.split) or must or self.held or late or has_enough or own is None
            expect(decided or answer.outcome is own, ENDS, f"{answer}, due is {own}")
            return
        expect(not done and (flags["in_doubt"] or not must), ENDS, f"it goes on in {self.ending.phase}: {flags}")
        rest = self.uncommitted and (flags["idle"] or not self.ending.reads)
        due = flags["quiet"] and (flags["spent"] or rest) and self.ending.takes_checkpoints
        expect((answer is Next.CHECKPOINT) == due, ENDS, f"{answer} in {self.ending.phase}: {flags}")

    def _judge(self, end: EndTick, flags: dict[str, bool], *, may: bool) -> None:
        settled = flags["quiet"] and not self.uncommitted
        expect(settled or not flags["in_doubt"], ENDS, f"{end}, and an entry is in doubt")
        expect(settled or may, ENDS, f"{end}, and rows are in no cut: {self.ending.phase}, {flags}")
        if self.first is not None:
            said = end.outcome, end.reason, end.message
            expect(said == (TickOutcome.FAILED, *self.first), ENDS, f"{said}, the first failure was {self.first}")
        elif self.split is not None or end.outcome is TickOutcome.FAILED:
            as_failed = end.outcome is TickOutcome.FAILED and end.message == self.split
            expect(as_failed, ENDS, f"{end}, and nothing has failed but {self.split}")
        elif self.must_hold:
            expect(end.outcome in (TickOutcome.HELD, TickOutcome.FINISHED), ENDS, f"{end}, and a cut is held")
        elif end.outcome is TickOutcome.HELD:
            expect(self.held, ENDS, f"{end}, and no cut is held")
        elif end.outcome is TickOutcome.FINISHED:
            expect(flags["ended"] and settled, ENDS, f"{end}, and there is more to read or to show")
        elif end.outcome is TickOutcome.CAUGHT_UP:
            caught_up = flags["idle"] and not flags["failing"] and self.limits.until_caught_up and settled
            expect(caught_up, ENDS, f"{end}, and there may be more to read: {flags}")


@settings(max_examples=5 * settings.default.max_examples)
@given(limits=_limits, events=_events)
def test_end_run(limits, events):
    """A tick runs until it must end, or until nothing more happens."""
    _Ending().run(limits, events)
