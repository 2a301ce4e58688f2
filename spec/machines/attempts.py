"""The machine of a tick's attempts: jobs fail, fill their traces and are stopped, and rivals claim the job (G4).

The reference counts what the attempts have completed and how they failed. From this it computes whether another attempt
follows, after which delay, and with which limits.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkpointing.commit.at_rest import SavepointAtRest, Stamp
from checkpointing.commit.fencing import HolderObserved, Lease, newest_checkpoint
from checkpointing.commit.recovery import Observed
from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.job.setup import TickLimits
from checkpointing.job.tick_end import Pause
from checkpointing.messages import (
    CutRecorded,
    EndTick,
    LookForRival,
    RecordCut,
    RivalSeen,
    RowAppended,
    RowRefused,
    RowUnknown,
    SavepointKind,
    TickOutcome,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Release, Row, Statistics
from checkpointing.tick.attempts import (
    Errand,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
    Terms,
)
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import (
    AppendClaim,
    AppendEntry,
    AppendRelease,
    CleanUp,
    CutRead,
    Done,
    Finish,
    Observe,
    ReadCut,
    RestartDue,
    RowChosen,
    TickEffect,
    TickFact,
    Unsettled,
    Wait,
    Waited,
    Work,
    Worked,
    WorkEnded,
)
from spec.machines.judging import expect
from spec.rules.sources_and_timers import MINUTE_MS, SECOND_MS
from spec.rules.watching import FLINKS_LIST

# ------------------------------------------------------------------
# What the machine of a tick's attempts expects: which limits are left, and whether another attempt follows.


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
    """The restarts since the last time without failures (`reset_after_ms`)."""
    known: int = 0
    """The newest version of `checkpoints` that this tick has seen or written."""
    behind: int = 0
    """How many lists in a row did not reach that version."""
    waits_until_ms: int = 0
    """The time until which a tick whose trace is full waits for another process."""

    def left_ms(self, now_ms: int) -> int | None:
        """Return the rest of the duration."""
        limit = self.limits.duration_ms
        return None if limit is None else max(0, self.began_ms + limit - now_ms)

    def left(self, now_ms: int) -> TickLimits:
        """Return the rest of the limits, for the next attempt."""
        if self.claims <= 1:
            return self.limits
        wanted = self.limits.checkpoints
        return TickLimits(
            checkpoints=None if wanted is None else max(0, wanted - self.completed),
            duration_ms=self.left_ms(now_ms),
            until_caught_up=self.limits.until_caught_up,
        )

    def delays_ms(self, now_ms: int) -> range | None:
        """Record a failure. Return the allowed delays before the next restart, or None if no restart follows."""
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


ATTEMPTS = "attempts"
"""Another attempt follows if the strategy and the limits allow it, and the limits hold for all attempts together."""

ERRAND = Errand(questions=(), repairs=False, runs=True)
FOR_GOOD = (Reason.QUALITY, Reason.TABLE_CHANGED, Reason.FENCED)
JITTER = 0.25
TRIES = 5
"""The attempt fails after this many lists in a row that lag behind."""

_limits = st.builds(
    TickLimits, checkpoints=st.sampled_from([None, 1, 3]), duration_ms=st.sampled_from([None, 1_000, 10_000])
)
_strategies = st.sampled_from(
    [
        NoRestart(),
        FixedDelay(2, 100),
        FixedDelay(5, 2_000),
        FailureRate(2, 3_000, 100),
        FailureRate(1, 3_000, 200),
        ExponentialDelay(100, 1_000, 2.0, 4_000, 0.0, None),
        ExponentialDelay(100, 1_000, 3.0, 4_000, JITTER, 2),
        ExponentialDelay(500, 1_000, 3.0, 4_000, JITTER, None),
    ]
)
_reasons = st.sampled_from([Reason.TASK_FAILURE, Reason.TASK_FAILURE, Reason.CHECKPOINT_EXPIRED, *FOR_GOOD])
_waits = st.sampled_from([0, 400])
_outcomes = st.sampled_from([TickOutcome.CAUGHT_UP, TickOutcome.STOPPED])
_times = st.sampled_from([0, 10, 900, 1_000, 2_800, 3_000, 3_950, 6_000])
"""With the delays, some of these times end exactly with an interval, or within the delay after a quiet time."""


class AttemptsMachine(RuleBasedStateMachine):
    """Ticks one after the other on one job. Their work, and what others do meanwhile, is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.nonces = 0
        self.rows: list[Row] = []
        self.cuts: set[CheckpointId] = set()
        self.stopping = False
        self.effects: list[TickEffect] = []
        self.asked: TickEffect = Finish(None)
        self.rival: Generation | None = None
        """The generation of another process that holds the job and lives."""
        self.is_silent = False
        """Whether the store does not answer claims."""
        self.lagging = self.lacks = 0
        """How many lists lag behind from now on, and how many entries each of them lacks."""
        self.begin(TickLimits(), NoRestart(), waits_ms=0)

    @initialize(limits=_limits, strategy=_strategies, waits_ms=_waits)
    def begin_first(self, limits: TickLimits, strategy: RestartStrategy, waits_ms: int) -> None:
        self.rows, self.cuts = [], set()
        self.begin(limits, strategy, waits_ms)

    @precondition(lambda self: isinstance(self.asked, Finish) and self.rival is None)
    @rule(limits=_limits, strategy=_strategies, waits_ms=_waits)
    def begin(self, limits: TickLimits, strategy: RestartStrategy, waits_ms: int) -> None:
        """Begin a tick."""
        self.stopping = False
        self.told = Told(limits, strategy, self.now_ms)
        self.lagging = 0
        self.waits_ms = waits_ms
        terms = Terms(holder=holder(1), take_over=True, limits=limits, strategy=strategy, waits_ms=waits_ms)
        self.door = TickDoor(ERRAND, terms)
        self._carry_out(self.door.start(self._stamp()))

    # -------------------------------------------------------------- what happens

    @precondition(lambda self: isinstance(self.asked, Work))
    @rule(completed=st.integers(0, 2), took_ms=_times, reason=_reasons, unpublished=st.booleans())
    def fail(self, completed: int, took_ms: int, reason: Reason, unpublished: bool) -> None:  # noqa: FBT001
        """Let the job fail, perhaps with an entry that is not published."""
        end = EndTick(TickOutcome.FAILED, reason, "it broke")
        beaten = self._ended(end, completed, took_ms, unpublished=unpublished, renews=False)
        if beaten or self.stopping or reason in FOR_GOOD:
            self._over(end)
        else:
            self._follows(end)

    @precondition(lambda self: isinstance(self.asked, Work))
    @rule(times=st.lists(_times, min_size=2, max_size=4))
    def fail_again_and_again(self, times: list[int]) -> None:
        """Let the job fail several times in a row. It may recover each time."""
        for took_ms in times:
            if isinstance(self.asked, Work):
                self.fail(0, took_ms, Reason.TASK_FAILURE, unpublished=False)
            self.wait()

    @precondition(lambda self: isinstance(self.asked, Work))
    @rule(completed=st.integers(0, 2), took_ms=_times, unpublished=st.booleans())
    def fill_the_trace(self, completed: int, took_ms: int, unpublished: bool) -> None:  # noqa: FBT001
        """Let the job end because its trace is full."""
        wanted, until_ms = self.told.limits.checkpoints, self.now_ms + took_ms
        met = (wanted is not None and self.told.completed + completed >= wanted) or self.told.left_ms(until_ms) == 0
        self.told.waits_until_ms = until_ms + self.waits_ms
        end = EndTick(TickOutcome.STOPPED)
        self._ended(end, completed, took_ms, unpublished=unpublished, renews=True)
        if met or self.stopping:
            self._over(end)
        else:
            self._goes_on()

    @precondition(lambda self: isinstance(self.asked, Work) and self.rival is None)
    @rule(took_ms=_times, stops=st.booleans())
    def lose_the_job_in_between(self, took_ms: int, stops: bool) -> None:  # noqa: FBT001
        """Let the trace fill, and another process claim the job. Somebody may ask the tick to stop while it waits."""
        self.take_the_job()
        self.fill_the_trace(0, took_ms, unpublished=False)
        if stops and isinstance(self.asked, Wait):
            self.stop()
        self.wait()

    @precondition(lambda self: isinstance(self.asked, Work) and self.rival is None)
    @rule(took_ms=_times)
    def hear_nothing_of_the_claim(self, took_ms: int) -> None:
        """Let the trace fill. The store does not answer the claim that follows, so that attempt fails."""
        self.is_silent = True
        self.fill_the_trace(0, took_ms, unpublished=False)
        self.is_silent = False
        end = self.asked.outcome if isinstance(self.asked, Finish) else None
        if isinstance(end, EndTick) and end.outcome is TickOutcome.FAILED:
            expect("the job could not be claimed (no answer)" in end.message, ATTEMPTS, f"it ends with {end}")

    @precondition(lambda self: isinstance(self.asked, Work) and isinstance(self.rows[-1], Claim) and self.rival is None)
    @rule(lagging=st.sampled_from([1, 4, 5, 6]), lacks=st.integers(1, 3), took_ms=_times, renews=st.booleans())
    def look_at_lists_that_lag(self, lagging: int, lacks: int, took_ms: int, renews: bool) -> None:  # noqa: FBT001
        """Let the attempt end. The next one sees lists that lack the newest entries, but not another's release."""
        self.lagging, self.lacks = lagging, lacks
        if renews:
            self.fill_the_trace(0, took_ms, unpublished=False)
        else:
            self.fail(0, took_ms, Reason.TASK_FAILURE, unpublished=False)
        self.wait()

    @precondition(lambda self: isinstance(self.asked, Work))
    @rule(completed=st.integers(0, 2), took_ms=_times, outcome=_outcomes)
    def end_in_order(self, completed: int, took_ms: int, outcome: TickOutcome) -> None:
        """Let the job end in order."""
        end = EndTick(outcome)
        self._ended(end, completed, took_ms, unpublished=False, renews=False)
        self._over(end)

    @precondition(lambda self: isinstance(self.asked, Wait))
    @rule()
    def wait(self) -> None:
        """Let the time pass for which the tick waits, or let the wish to stop end it."""
        if not isinstance(self.asked, Wait):
            return
        restarts = any(isinstance(each, RestartDue) for each in self.effects)
        self.now_ms += 0 if self.stopping else self.asked.delay_ms
        self.told.waits_until_ms = 0 if restarts else self.told.waits_until_ms
        self._carry_out(self.door.step(Waited(), self._stamp()))
        if restarts and self.stopping:
            self._over(EndTick(TickOutcome.STOPPED))
        else:
            self._goes_on()

    @precondition(lambda self: not isinstance(self.asked, Finish))
    @rule()
    def stop(self) -> None:
        """Ask the tick to stop."""
        self.stopping = True

    @precondition(lambda self: not isinstance(self.asked, Finish) and self.rival is None)
    @rule()
    def take_the_job(self) -> None:
        """Let another process claim the job."""
        self.rival = Generation(max(row.generation for row in self.rows) + 1)
        first = CheckpointId(max(row.last_id for row in self.rows if isinstance(row, Claim)) + 1)
        self.nonces += 1
        self.rows.append(
            Claim(
                generation=self.rival,
                holder=holder(2),
                first_id=first,
                last_id=CheckpointId(first + 9),
                at_ms=self.now_ms,
                nonce=str(self.nonces),
            )
        )

    @precondition(lambda self: self.rival is not None)
    @rule()
    def give_the_job_back(self) -> None:
        """Let that process release the job."""
        first = next(row.first_id for row in self.rows if isinstance(row, Claim) and row.generation == self.rival)
        self.nonces += 1
        release = Release(
            generation=self.rival or Generation(0), next_id=first, at_ms=self.now_ms, nonce=str(self.nonces)
        )
        self.rows.append(release)
        self.rival = None

    # -------------------------------------------------------------- judging

    def _ended(self, end: EndTick, completed: int, took_ms: int, *, unpublished: bool, renews: bool) -> bool:
        """Let the work end. Return whether another process has claimed the job meanwhile."""
        work = self.asked
        if not isinstance(work, Work):
            raise TypeError(work)
        own = work.claim.generation
        beaten = any(row.generation > own for row in self.rows)
        self.now_ms += took_ms
        self.told.completed += completed
        next_id = CheckpointId(work.claim.first_id + completed)
        if unpublished and not beaten:
            self.rows.append(_entry(next_id, own))
            next_id = CheckpointId(next_id + 1)
        version = max(at for at, row in enumerate(self.rows, start=1) if row.generation == own)
        self._carry_out(self.door.step(WorkEnded(end, next_id, version, completed, renews), self._stamp()))
        cleaned = any(isinstance(each, CleanUp) for each in self.effects)
        due = end.outcome is not TickOutcome.FAILED and not self.stopping
        expect(cleaned is due, ATTEMPTS, f"cleaned up: {cleaned}, after {end}")
        return beaten

    def _follows(self, end: EndTick) -> None:
        """Expect a restart after a failed attempt if the strategy allows it. Otherwise expect that the tick is over."""
        due, left_ms = self.told.delays_ms(self.now_ms), self.told.left_ms(self.now_ms)
        restart = next((each for each in self.effects if isinstance(each, RestartDue)), None)
        if restart is None:
            fits = due is not None and (left_ms is None or left_ms > max(due))
            expect(not fits, ATTEMPTS, f"no restart, due is one after {due} ms: {self.told}")
            self._over(end)
            return
        self.told.restarts += 1
        fits = due is not None and restart.delay_ms in due and (left_ms is None or left_ms > restart.delay_ms)
        expect(fits, ATTEMPTS, f"{restart}, due is one after {due} ms, {left_ms} are left: {self.told}")
        expect(restart.restart == self.told.restarts, ATTEMPTS, f"{restart}: {self.told}")
        expect(self.asked == Wait(restart.delay_ms), ATTEMPTS, f"{self.asked} after {restart}")

    def _goes_on(self) -> None:
        """Expect another attempt, once no other process holds the job.

        If its claim gets no answer, the attempt fails.
        """
        if self.is_silent or self.told.behind == TRIES:
            self.told.behind = 0
            self._follows(EndTick(TickOutcome.FAILED, Reason.TASK_FAILURE))
        elif self.rival is None:
            expect(isinstance(self.asked, Work), ATTEMPTS, f"{self.asked}, another attempt is due: {self.told}")
        elif self.now_ms < self.told.waits_until_ms and not self.stopping:
            expect(isinstance(self.asked, Wait), ATTEMPTS, f"{self.asked}, and it waits for the holder: {self.told}")
        else:
            self._over(None)

    def _over(self, end: EndTick | None) -> None:
        """Expect that the tick is over. `end` None: because another process holds the job."""
        last = self.asked
        if not isinstance(last, Finish):
            expect(holds=False, invariant=ATTEMPTS, what=f"{last}, and the tick is to end: {self.told}")
            return
        expect(last.restarts == self.told.restarts, ATTEMPTS, f"{last}: {self.told}")
        if end is not None:
            said = last.outcome
            expect(isinstance(said, EndTick) and said.outcome is end.outcome, ATTEMPTS, f"{said}, due is {end}")

    # -------------------------------------------------------------- the world

    def _carry_out(self, effects: tuple[TickEffect, ...]) -> None:
        """Carry out effects until the tick works, waits or is over."""
        self.effects = []
        while True:
            self.effects += effects
            self.asked = effects[-1]
            fact = self._answer(self.asked)
            if fact is None:
                break
            effects = self._told(fact)
        if isinstance(self.asked, Work):
            due = self.told.left(self.now_ms)
            expect(self.asked.limits == due, ATTEMPTS, f"{self.asked.limits} are left, due are {due}: {self.told}")

    def _answer(self, effect: TickEffect) -> TickFact | None:
        match effect:
            case Observe():
                return self._shown()
            case AppendClaim() | AppendEntry() | AppendRelease():
                return self._append(effect)
            case ReadCut():
                return CutRead({})
            case RecordCut():
                self.cuts.add(effect.checkpoint)
                self.told.completed += self.told.claims > 1
                return CutRecorded(effect.checkpoint)
            case CleanUp():
                return Done()
            case LookForRival(generation):
                claims = (row for row in self.rows if isinstance(row, Claim) and row.generation > generation)
                return RivalSeen(next(claims, None))
            case _:
                return None

    def _shown(self) -> Observed:
        """Return the list that the tick sees. `told.behind` counts lists in a row that lack a known entry.

        If a list lacks entries, the holder seems to live and to have no lease.
        """
        lacks = self.lacks if self.lagging and self.rival is None else 0
        self.lagging -= lacks > 0
        rows = self.rows[: max(0, len(self.rows) - lacks)]
        lease = Lease(self.rival, self.now_ms + 30_000) if self.rival is not None else None
        holder = HolderObserved(alive=lease is not None or lacks > 0, lease=lease)
        self.told.behind = self.told.behind + 1 if len(rows) < self.told.known else 0
        self.told.known = max(self.told.known, len(rows))
        return Observed(len(rows), tuple(rows), frozenset(self.cuts), holder, self.now_ms)

    def _told(self, fact: TickFact) -> tuple[TickEffect, ...]:
        return self.door.step(fact, self._stamp())

    def _append(self, effect: AppendClaim | AppendEntry | AppendRelease) -> TickFact:
        if self.is_silent and isinstance(effect, AppendClaim):
            return RowUnknown(effect.row.nonce, "no answer")
        is_claim = isinstance(effect, AppendClaim)
        self.told.known = effect.at_version + 1 if is_claim else self.told.known
        if effect.at_version != len(self.rows):
            return RowRefused(effect.row.nonce, "another process")
        self.told.claims += is_claim
        self.rows.append(effect.row)
        return RowAppended(effect.row.nonce, len(self.rows))

    def _stamp(self) -> Stamp:
        self.nonces += 1
        return Stamp(self.now_ms, str(self.nonces), self.stopping)


def holder(pid: int) -> Holder:
    """Return a process of this host."""
    return Holder(host="here", pid=pid, started="")


def _entry(checkpoint: CheckpointId, generation: Generation) -> CheckpointRecord:
    return CheckpointRecord(
        job="small",
        checkpoint=checkpoint,
        parent=CheckpointId(0),
        generation=generation,
        nonce=f"entry {checkpoint}",
        max_parallelism=8,
        vertices=(),
        tables=(),
        statistics=Statistics(triggered_ms=1, committed_ms=1, rows=0),
    )


# ------------------------------------------------------------------
# The machine of lost answers: a process does not learn whether its claim or entry was appended, and its door asks again
# (A6).
#
# This machine adds lost answers and savepoints at rest to the machine of a tick's attempts.


ASKED_AGAIN = "asked-again"
"""If the outcome of an append is unknown, the process asks for the same append again, `ASKED_MAX` times altogether. If
the outcome stays unknown, the user is told. No other entry gets the id, because the first entry may have been
stored."""
RELEASED = "released-at-last"
"""A process that took a savepoint releases the job with the next id, even if it does not know whether its entry was
appended."""
ASKED_MAX = 5
"""How often a process asks for an append altogether while the outcome is unknown."""
AT_REST = Errand(questions=(), repairs=False)

_unheard = st.lists(st.booleans(), min_size=1, max_size=ASKED_MAX - 1)
"""For each lost answer, True if the entry is appended nevertheless."""


class LostAnswersMachine(AttemptsMachine):
    """Ticks, and savepoints between them. Answers to appends of claims and entries are lost."""

    def __init__(self) -> None:
        self.unheard: list[bool] = []
        """The next answers are lost. For each of them, True if the entry is appended nevertheless."""
        self.unknown = 0
        """How many answers in a row were lost."""
        self.sent = NO_CHECKPOINT
        """The id of the holder's own entry, once it was sent."""
        super().__init__()

    @precondition(lambda self: isinstance(self.asked, Finish) and self.rival is None)
    @rule(comes_in=st.integers(0, ASKED_MAX))
    def begin_without_any_answer(self, comes_in: int) -> None:
        """Begin a tick whose claim stays unknown. It may come in with one of the appends, or never."""
        self.unheard = [each == comes_in for each in range(ASKED_MAX)]
        self.begin(TickLimits(), NoRestart(), waits_ms=0)
        self._is_unsettled()

    @precondition(lambda self: isinstance(self.asked, Finish) and self.rival is None)
    @rule(unheard=st.lists(st.booleans(), max_size=ASKED_MAX))
    def save_at_rest(self, unheard: list[bool]) -> None:
        """Take a savepoint while no tick runs, and lose so many answers to the append of its entry."""
        self.told = Told(TickLimits(), NoRestart(), self.now_ms)
        self.stopping = False
        self.lagging = 0
        self.door = TickDoor(AT_REST, Terms(holder=holder(1), take_over=True))
        self._carry_out(self.door.start(self._stamp()))
        newest = newest_checkpoint(tuple(self.rows))
        if newest is None:
            self._carry_out(self.door.step(Worked(), self._stamp()))
            return
        self.unheard = list(unheard)
        self._carry_out(self.door.step(RowChosen(SavepointAtRest(newest)), self._stamp()))
        own = self.rows[-1].generation
        saved = [row for row in self.rows if isinstance(row, CheckpointRecord) and row.generation == own]
        is_in = any(unheard) or len(unheard) < ASKED_MAX
        expect(len(saved) == is_in, ASKED_AGAIN, f"{saved} are in after the answers {unheard}")
        free_from = [row.next_id for row in self.rows if isinstance(row, Release) and row.generation == own]
        due = [next(row.first_id for row in self.rows if isinstance(row, Claim) and row.generation == own) + 1]
        expect(free_from == due, RELEASED, f"generation {own} is released with {free_from} after the answers {unheard}")
        tries = sum(isinstance(each, AppendRelease) for each in self.effects)
        expect(tries == 1 or bool(unheard), RELEASED, f"{tries} releases of generation {own}, and no answer was lost")
        if len(unheard) == ASKED_MAX:
            self._is_unsettled()
        else:
            done = isinstance(self.asked, Finish) and self.asked.outcome in saved
            expect(done, ASKED_AGAIN, f"{self.asked}, and the savepoint is in")

    @rule(unheard=_unheard)
    def lose_answers(self, unheard: list[bool]) -> None:
        """Lose the next answers to the append of a claim."""
        self.unheard = list(unheard)

    # -------------------------------------------------------------- judging

    def _is_unsettled(self) -> None:
        unsettled = isinstance(self.asked, Finish) and isinstance(self.asked.outcome, Unsettled)
        expect(unsettled, ASKED_AGAIN, f"{self.asked}, and nobody knows whether the entry is in")

    def _told(self, fact: TickFact) -> tuple[TickEffect, ...]:
        """Judge what follows a lost answer: the same append, until it was asked for often enough."""
        effects = super()._told(fact)
        self.unknown = self.unknown + 1 if isinstance(fact, RowUnknown) else 0
        if self.unknown:
            again, due = effects == (self.asked,), self.unknown < ASKED_MAX
            expect(again is due, ASKED_AGAIN, f"{effects} after {self.unknown} lost answers to {self.asked}")
        return effects

    def _append(self, effect: AppendClaim | AppendEntry | AppendRelease) -> TickFact:
        """Append an entry once, however often it is asked for. The answer may be lost."""
        nonce = effect.row.nonce
        if isinstance(effect, AppendEntry):
            self.sent = effect.row.checkpoint
        if isinstance(effect, AppendRelease) and self.sent:
            free = effect.row.next_id
            expect(free > self.sent, ASKED_AGAIN, f"id {free} is given free, and entry {self.sent} was sent")
            self.sent = NO_CHECKPOINT
        answers = not self.unheard or isinstance(effect, AppendRelease)
        comes_in = answers or self.unheard.pop(0)
        nonces = [row.nonce for row in self.rows]
        if nonce in nonces:
            there: TickFact = RowAppended(nonce, nonces.index(nonce) + 1)
        elif comes_in:
            there = super()._append(effect)
        return there if answers else RowUnknown(nonce, "the connection broke")


# ------------------------------------------------------------------
# The machine of the pause after failures: requests of the tick and of users succeed and fail, and time passes.
#
# The reference keeps the results of the tick's own requests. It computes the end of each pause from this list.


PAUSES = "pauses"
"""A tick waits a second after a failure, twice as long after each further failure in a row, and a minute at most."""
_kinds = st.sampled_from([None, None, *SavepointKind])
_others = st.sampled_from([Reason.QUALITY, Reason.CHECKPOINT_SUBSUMED, Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS])
_counted = st.sampled_from(sorted(FLINKS_LIST, key=lambda each: each.name))


class PauseMachine(RuleBasedStateMachine):
    """The pause of one tick."""

    def __init__(self) -> None:
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
