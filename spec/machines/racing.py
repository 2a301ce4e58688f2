"""Tests races for a job. Several processes read the entries, ask their questions, and try to claim the job (G5).

Whether a single look allows a claim is the subject of `claiming`. Here, other processes write between two steps of one.
"""

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import HolderObserved, Refused
from checkpointing.commit.recovery import Observed
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import EndTick, RowAppended, RowRefused
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Release, Row, RowKind
from checkpointing.tick.attempts import (
    APPROVAL,
    CANCELLATION,
    CLEANUP,
    DISPOSAL,
    IMPORT,
    REJECTION,
    RESET,
    ROLLBACK,
    SAVEPOINT,
    TICK,
    Errand,
    Terms,
)
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import (
    AppendClaim,
    AppendRelease,
    Done,
    Examine,
    Finish,
    GiveLease,
    Objected,
    Observe,
    Question,
    TakeHold,
    TickEffect,
    TickFact,
    Unsettled,
    Work,
    Worked,
)
from spec.machines.judging import expect
from spec.machines.plain_entry import plain_entry

RACES: Final = "races-are-fair"
"""A process claims the job as its last look showed it, after a yes to each of its questions. With `take_over`, it takes
the job from the holder that it met first, and from no newer one. A no counts only if nothing has changed since the
question. If the list ends before an entry that the process knows of, it looks again. The process gives up after five
lost races, or after five lists in a row that end too early. While a cut waits for approval, nobody moves the job on."""

_BARE: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE), repairs=False, rolls_forward=False)


def _up_to_its_work(errand: Errand) -> Errand:
    """Return the errand without the steps between the claim and the work."""
    return replace(errand, repairs=False, ensures=False, rolls_forward=False, discards=False, publishes=False)


_MOVE_ON: Final = tuple(map(_up_to_its_work, (TICK, ROLLBACK, RESET, CANCELLATION)))
"""The errands that are refused while a cut waits for approval."""
_STAY: Final = tuple(map(_up_to_its_work, (SAVEPOINT, APPROVAL, REJECTION, IMPORT, DISPOSAL, CLEANUP)))
_TRIES: Final = 5
_PROCESSES_MAX: Final = 3
_errands = st.sampled_from([_BARE, _BARE, *_MOVE_ON, *_STAY])
_above = st.sampled_from([(0, 0), (0, 0), (4, 2_000), (40, 5), (2, 40_000)])
_often = st.sampled_from([True, True, False])
_pick = st.integers(0, 9)


@dataclass
class _Process:
    """A process on its way to a claim, or one that holds the job."""

    number: int
    door: TickDoor
    errand: Errand
    terms: Terms
    sees: bool
    """Whether it sees who is alive."""
    asked: TickEffect = field(default_factory=Observe)
    seen: list[Observed] = field(default_factory=list)
    """The lists that it read and that had all entries that it knew of."""
    known: int = 0
    """The newest version that it knows of."""
    behind: int = 0
    """How many lists in a row did not reach that version."""
    yes: list[Question] = field(default_factory=list)
    """The questions to which the answer was yes since the last look."""
    said_no: Exception | None = None
    lost: int = 0
    """How many of its claims were refused."""
    met: Generation | None = None
    """The generation of the holder that it met first."""
    may_take: bool = True
    """Whether it still may take over: it has met no newer holder than the first one."""
    own: Claim | None = None
    gave: bool = False
    """Whether it gave the holder a lease."""

    @property
    def may_take_over(self) -> bool:
        return self.terms.take_over and self.may_take


class RacesMachine(RuleBasedStateMachine):
    """Processes that want one job. Each looks, asks and claims in steps of its own."""

    def __init__(self) -> None:
        """Begin with a job that nobody has held."""
        super().__init__()
        self.rows: list[Row] = []
        self.alive: dict[Generation, bool] = {}
        self.processes: list[_Process] = []
        self.numbers = count(1)
        self.lacks = 0
        """How many of the newest entries are missing in the lists that processes see."""

    # -------------------------------------------------------------- processes

    @precondition(lambda self: len(self.processes) < _PROCESSES_MAX)
    @rule(errand=_errands, take_over=_often, sees=_often, above=_above, ids=st.integers(1, 3))
    def begin(
        self,
        errand: Errand,
        take_over: bool,  # noqa: FBT001 - drawn
        sees: bool,  # noqa: FBT001 - as above
        above: tuple[int, int],
        ids: int,
    ) -> None:
        """A process begins. It may bring an entry of a warehouse that has used other generations and ids."""
        number = next(self.numbers)
        terms = Terms(
            holder=Holder(host="h", pid=number, started="s"),
            take_over=take_over,
            above=(Generation(above[0]), CheckpointId(above[1])),
            ids=ids,
        )
        process = _Process(number, TickDoor(errand, terms), errand, terms, sees)
        self.processes.append(process)
        self._follow(process, process.door.start(self._stamp(process)))

    @precondition(lambda self: self.processes)
    @rule(
        turns=st.lists(_pick, min_size=1, max_size=10),
        says_no=st.sampled_from([False, False, False, True]),
        lacks=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def go_on(self, turns: list[int], says_no: bool, lacks: int) -> None:  # noqa: FBT001 - drawn
        """Processes take their next steps, in any order, up to their work. A list may lack the newest entries."""
        self.lacks = lacks
        for pick in turns:
            waiting = [each for each in self.processes if not isinstance(each.asked, Work)]
            if waiting:
                self._step(waiting[pick % len(waiting)], says_no=says_no)
        self.lacks = 0

    @precondition(lambda self: self.processes)
    @rule(pick=_pick, dies=st.booleans())
    def end(self, pick: int, dies: bool) -> None:  # noqa: FBT001 - drawn
        """A holder has done its work, and releases the job, or a process dies. Others see whether a holder is dead."""
        process = self.processes[pick % len(self.processes)]
        if dies:
            self.processes.remove(process)
            if process.own is not None:
                self.alive[process.own.generation] = False
        elif isinstance(process.asked, Work):
            self._follow(process, process.door.step(Worked(), self._stamp(process)))
            while process in self.processes:
                self._step(process, says_no=False)

    @rule(ids=st.integers(1, 3))
    def others_append(self, ids: int) -> None:
        """Somebody whom nobody sees claims the job and dies, or the holder reserves further ids."""
        newest = self._newest()
        at = Generation(newest.generation if newest and not self._released(newest) else self._generation() + 1)
        first = (newest.last_id if newest else 0) + 1
        block = _claim(at, first, first + ids - 1, f"other-{next(self.numbers)}")
        self.alive.setdefault(at, False)
        self.rows.append(block)

    @precondition(lambda self: self.alive)
    @rule()
    def others_hold_a_cut(self) -> None:
        """A tick of before has left a cut that waits for approval."""
        nonce = f"held-{next(self.numbers)}"
        self.rows.append(plain_entry(RowKind.HELD, generation=self._generation(), nonce=nonce))

    # -------------------------------------------------------------- steps

    def _step(self, process: _Process, *, says_no: bool) -> None:
        fact = self._answer(process, process.asked, says_no=says_no)
        self._follow(process, process.door.step(fact, self._stamp(process)))
        again = not process.behind or isinstance(process.asked, (Observe, Finish))
        expect(again, RACES, f"{process.asked} after a list that ends before {process.known}")

    def _answer(self, process: _Process, effect: TickEffect, *, says_no: bool) -> TickFact:
        match effect:
            case Observe():
                return self._shown(process)
            case Examine():
                expect(effect.seen is process.seen[-1], RACES, "a question is asked of an older look")
                if says_no:
                    process.said_no = RuntimeError(f"no {effect.question}")
                    return Objected(process.said_no)
                process.yes.append(effect.question)
                return Done()
            case AppendClaim():
                return self._claimed(process, effect)
            case AppendRelease():
                self.rows.append(effect.row)
                return RowAppended(effect.row.nonce, len(self.rows))
            case _:
                return Done()

    def _shown(self, process: _Process) -> Observed:
        """Return the list that a process sees. Note it in `seen` if it has all entries that the process knows of."""
        rows = self.rows[: max(0, len(self.rows) - self.lacks)]
        newest = _newest(rows)
        alive = None if newest is None or not process.sees else self.alive[newest.generation]
        seen = Observed(len(rows), tuple(rows), frozenset(), HolderObserved(alive, None), _NOW_MS)
        if seen.version < process.known:
            process.behind += 1
            return seen
        process.behind, process.known = 0, seen.version
        process.seen.append(seen)
        process.yes = []
        generation = newest.generation if newest is not None else Generation(0)
        process.met = generation if process.met is None else process.met
        process.may_take = process.may_take and generation == process.met
        return seen

    def _claimed(self, process: _Process, effect: AppendClaim) -> TickFact:
        """Judge a claim by what the process saw. Append it if nobody was first."""
        seen, claim = process.seen[-1], effect.row
        expect(effect.at_version == seen.version, RACES, f"{claim} follows {effect.at_version}: {seen.version}")
        expect(process.yes == [*process.errand.questions], RACES, f"{claim} was asked for after {process.yes}")
        expect(claim.holder.pid == process.number, RACES, f"{claim} is of {process.number}")
        expect(claim.nonce.endswith(f"-{len(process.seen)}"), RACES, f"{claim} has the stamp of an older step")
        waits = process.errand in _MOVE_ON and self._holds_a_cut(seen)
        expect(not waits, RACES, f"{claim} would move the job on, and a cut waits for approval")
        claims = [row for row in seen.rows if isinstance(row, Claim)]
        free = self._is_free(seen)
        expect(free or process.may_take_over, RACES, f"{claim} is taken from {claims[-1:]}")
        generation = max(claims[-1].generation if claims else 0, process.terms.above[0]) + 1
        last = max(self._last_id(seen), process.terms.above[1])
        due = generation, last + 1, last + process.terms.ids
        expect((claim.generation, claim.first_id, claim.last_id) == due, RACES, f"{claim}, due are {due}")
        if effect.at_version != len(self.rows):
            process.lost += 1
            process.known = effect.at_version + 1
            return RowRefused(claim.nonce, "others were first")
        self.rows.append(claim)
        self.alive[claim.generation] = True
        process.own = claim
        return RowAppended(claim.nonce, len(self.rows))

    def _follow(self, process: _Process, effects: tuple[TickEffect, ...]) -> None:
        for effect in effects:
            process.gave |= isinstance(effect, GiveLease)
            if isinstance(effect, TakeHold):
                expect(effect.claim == process.own, RACES, f"{effect.claim} is held, {process.own} is in")
        process.asked = effects[-1]
        if isinstance(process.asked, Finish):
            self.processes.remove(process)
            self._judge_end(process, process.asked)

    def _judge_end(self, process: _Process, end: Finish) -> None:
        seen = process.seen[-1]
        match end.outcome:
            case None:
                expect(process.own is not None, RACES, "it ends without a claim")
            case Refused() as refused:
                newest = [row for row in seen.rows if isinstance(row, Claim)][-1]
                may = self._is_free(seen) or process.may_take_over
                expect(not may, RACES, f"{refused} of {newest}, which it may take")
                expect(refused.generation == newest.generation, RACES, f"{refused} of {newest}")
                expect(process.gave is not process.sees, RACES, f"{refused}, and it gave a lease: {process.gave}")
            case Unsettled():
                in_vain = f"{process.lost} lost races, and {process.behind} lists that lag behind"
                expect(_TRIES in (process.lost, process.behind), RACES, f"it gives up after {in_vain}")
            case EndTick() as held:
                waits = process.errand in _MOVE_ON and self._holds_a_cut(seen)
                expect(waits and self._looked_twice(process), RACES, f"{held}, and no cut waits")
            case _:
                is_own = end.outcome is process.said_no and self._looked_twice(process)
                expect(is_own, RACES, f"{end.outcome}, and something has changed since the question")

    # -------------------------------------------------------------- the job

    def _newest(self) -> Claim | None:
        return _newest(self.rows)

    def _generation(self) -> Generation:
        newest = self._newest()
        return newest.generation if newest is not None else Generation(0)

    def _released(self, claim: Claim) -> bool:
        return any(isinstance(row, Release) and row.generation == claim.generation for row in self.rows)

    @staticmethod
    def _looked_twice(process: _Process) -> bool:
        """Return whether the last look found what the one before it had found."""
        return len({each.version for each in process.seen[-2:]}) == 1 < len(process.seen)

    @staticmethod
    def _holds_a_cut(seen: Observed) -> bool:
        return any(isinstance(row, CheckpointRecord) for row in seen.rows)

    @staticmethod
    def _is_free(seen: Observed) -> bool:
        """Return whether what was seen allows anybody to claim the job."""
        claims = [row for row in seen.rows if isinstance(row, Claim)]
        released = {row.generation for row in seen.rows if isinstance(row, Release)}
        return not claims or claims[-1].generation in released or seen.holder.alive is False

    @staticmethod
    def _last_id(seen: Observed) -> int:
        """Return the last id that was used, or reserved by a holder that has not released the job."""
        claims = [row for row in seen.rows if isinstance(row, Claim)]
        if not claims:
            return 0
        free = {row.generation: row.next_id for row in seen.rows if isinstance(row, Release)}
        return free.get(claims[-1].generation, CheckpointId(claims[-1].last_id + 1)) - 1

    @staticmethod
    def _stamp(process: _Process) -> Stamp:
        return Stamp(_NOW_MS, f"{process.number}-{len(process.seen)}")


_NOW_MS: Final = 1_000


def _newest(rows: list[Row]) -> Claim | None:
    return next((row for row in reversed(rows) if isinstance(row, Claim)), None)


def _claim(generation: Generation, first: int, last: int, nonce: str) -> Claim:
    return Claim(
        generation=generation,
        holder=Holder(host="h", pid=0, started="s"),
        first_id=CheckpointId(first),
        last_id=CheckpointId(last),
        at_ms=_NOW_MS,
        nonce=nonce,
    )
