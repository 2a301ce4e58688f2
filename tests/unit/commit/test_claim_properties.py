"""Living holders are left alone, races for a job are fair, and a rollback keeps the entries of its line (G5)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.at_rest import Recipe, Rollback, SavepointAtRest, Stamp, turn_of
from checkpointing.commit.cleanup import readable_cuts
from checkpointing.commit.fencing import (
    HolderObserved,
    Lease,
    MayClaim,
    Refused,
    decide_claim,
    disposed_with,
    newest_checkpoint,
    newest_claim,
    release_of,
    restorable,
    rival_of,
)
from checkpointing.commit.recovery import Observed
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, VertexId
from checkpointing.messages import EndTick, RowAppended, RowRefused
from checkpointing.metadata.record import (
    CheckpointRecord,
    Claim,
    Holder,
    Release,
    Row,
    RowKind,
    VertexRecord,
)
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
from spec.machines import judging
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

CLAIMS: Final = "claims-are-polite"
"""A process may claim the job after a release, or with `take_over`, or if the holder is dead or its lease expired.

After a release, the new ids follow the last used id. Otherwise they follow the last reserved id. A holder that is or
may be alive keeps the job while its lease runs. Without a lease, it keeps the job until it has had time to write
one."""

_NOW_MS: Final = 1_000_000
_SILENT_S: Final = 30
_GRACE_MS: Final = 10_000
_claimed_before = st.sampled_from([0, 1, _GRACE_MS - 1, _GRACE_MS, _GRACE_MS + 1, 500_000, -5])
_left_ms = st.sampled_from([-1, 0, 1, 999, 1_000, 1_001, 29_999])


class ClaimsMachine(RuleBasedStateMachine):
    """The claims and releases of one job."""

    def __init__(self) -> None:
        """Begin with a job that nobody has held."""
        super().__init__()
        self.claims: list[Claim] = []
        self.released: dict[Generation, CheckpointId] = {}
        self.last_id = 0

    @rule(ids=st.integers(1, 3), before_ms=_claimed_before)
    def claim(self, ids: int, before_ms: int) -> None:
        """Another generation claims the job, with the ids that it may use."""
        newest = self.claims[-1].generation if self.claims else Generation(0)
        first = self.released.get(newest, CheckpointId(self.last_id + 1))
        self._reserve(Generation(newest + 1), first, ids, before_ms)

    @rule(ids=st.integers(1, 3), before_ms=_claimed_before)
    def reserve_further_ids(self, ids: int, before_ms: int) -> None:
        """The newest generation reserves a further block."""
        if self.claims and self.claims[-1].generation not in self.released:
            self._reserve(self.claims[-1].generation, CheckpointId(self.last_id + 1), ids, before_ms)

    @rule(used=st.integers(0, 3))
    def release(self, used: int) -> None:
        """The newest generation ends in order. Some of its ids were not used."""
        if self.claims and self.claims[-1].generation not in self.released:
            newest = self.claims[-1]
            self.last_id = min(newest.first_id + used, newest.last_id)
            self.released[newest.generation] = CheckpointId(self.last_id + 1)

    @rule(
        alive=st.sampled_from([None, True, False]),
        left_ms=st.one_of(st.none(), _left_ms),
        older=st.sampled_from([0, 0, 0, 1]),
        take_over=st.sampled_from([False, False, True]),
        shuffled=st.booleans(),
    )
    def ask(self, *, alive: bool | None, left_ms: int | None, older: int, take_over: bool, shuffled: bool) -> None:
        """A process asks for the job. It may see whether the holder lives.

        It finds the holder's lease, an older one, or none.
        """
        rows = self._rows(shuffled=shuffled)
        held = self.claims[-1] if self.claims else None
        of = Generation((held.generation if held is not None else 1) - older)
        lease = None if left_ms is None else Lease(of, _NOW_MS + left_ms)
        made = decide_claim(rows, HolderObserved(alive, lease), _NOW_MS, take_over=take_over)
        own_ms = left_ms if not older else None
        if isinstance(made, MayClaim):
            first, why = self._free(held, alive=alive, left_ms=own_ms, take_over=take_over)
            expect(why != "", CLAIMS, f"{made} is allowed of {held}: {alive}, {lease}")
            said = (made.generation, made.first_id)
            due = (held.generation + 1 if held is not None else 1, first)
            expect(said == due and why in made.why, CLAIMS, f"{made}, due are {due}, because {why}")
            block = made.claim(Holder(host="h", pid=1, started="s"), 5, "n", 3)
            whole = (block.generation, block.first_id, block.last_id, block.at_ms, block.nonce)
            expect(whole == (*due, first + 2, 5, "n"), CLAIMS, f"{block} of {made}")
            return
        self._is_refused(made, held, own_ms, sees=alive is not None)
        free = self._free(held, alive=alive, left_ms=own_ms, take_over=take_over)[1]
        expect(not free, CLAIMS, f"{made}, and {free}: {alive}, {lease}")

    @rule(since=st.integers(0, 4), shuffled=st.booleans())
    def look_for_a_rival(self, since: int, shuffled: bool) -> None:
        """A process looks whether a later generation has claimed the job, and whether one has released it."""
        rows, own = self._rows(shuffled=shuffled), Generation(since)
        newest = self.claims[-1] if self.claims else None
        expect(newest_claim(rows) == newest, CLAIMS, f"{newest_claim(rows)} is the newest of {rows}")
        rival = newest if newest is not None and newest.generation > own else None
        expect(rival_of(rows, own) == rival, CLAIMS, f"{rival_of(rows, own)} came after {own}, due is {rival}")
        released = release_of(rows, own)
        next_id = released.next_id if released is not None else None
        expect(next_id == self.released.get(own), CLAIMS, f"{released} of {own} in {rows}")

    # -------------------------------------------------------------- the reference

    def _free(
        self, held: Claim | None, *, alive: bool | None, left_ms: int | None, take_over: bool
    ) -> tuple[CheckpointId, str]:
        """Return the first id of an allowed claim, and why it is allowed. The reason is "" if the claim is refused."""
        if held is None:
            return CheckpointId(1), "nobody has held the job before"
        if held.generation in self.released:
            return self.released[held.generation], "ended normally"
        first = CheckpointId(held.last_id + 1)
        if alive is False:
            return first, f"{held.holder} has died"
        if take_over:
            return first, f"taken over from {held.holder}"
        if left_ms is None:
            had_time = alive is True and _NOW_MS - held.at_ms >= _GRACE_MS
            return first, "has run out" if had_time else ""
        return first, "" if left_ms > 0 else "has run out"

    @staticmethod
    def _is_refused(made: Refused, held: Claim | None, left_ms: int | None, *, sees: bool) -> None:
        """Judge whom a refusal names, and how much time it gives the holder."""
        if held is None:
            expect(holds=False, invariant=CLAIMS, what=f"{made} of a job that nobody has held")
            return
        expect((made.holder, made.generation) == (held.holder, held.generation), CLAIMS, f"{made} of {held}")
        gives = _SILENT_S * 1_000 if not sees and left_ms is None else None
        expect(made.give_lease_ms == gives, CLAIMS, f"{made} of {held}, due is {gives}")
        if left_ms is not None:
            said = f"another {-(-left_ms // 1_000)} s"
        else:
            said = f"within {_SILENT_S} s" if not sees else "a moment ago"
        expect(said in made.why, CLAIMS, f"{made.why}, due is {said}")

    def _reserve(self, generation: Generation, first: CheckpointId, ids: int, before_ms: int) -> None:
        self.last_id = first + ids - 1
        self.claims.append(
            Claim(
                generation=generation,
                holder=Holder(host="h", pid=generation, started="s"),
                first_id=first,
                last_id=CheckpointId(self.last_id),
                at_ms=_NOW_MS - before_ms,
                nonce=f"{generation}/{first}",
            )
        )

    def _rows(self, *, shuffled: bool) -> tuple[Row, ...]:
        released = [
            Release(generation=each, next_id=next_id, at_ms=1, nonce=f"r{each}")
            for each, next_id in self.released.items()
        ]
        rows: list[Row] = [*released, *self.claims]
        return tuple(reversed(rows)) if shuffled else tuple(rows)


# ------------------------------------------------------------------
# Tests races for a job. Several processes read the entries, ask their questions, and try to claim the job (G5). Whether
# a single look allows a claim is the subject of the claims above. Here, other processes write between two steps of a
# process.


RACES: Final = "races-are-fair"
"""A process bases its claim on its last look at the job, and on a yes to each of its questions.

With `take_over`, it takes the job from the holder that it met first, and from no newer holder. An answer no is accepted
only if nothing has changed since the question. If a list lacks an entry that the process knows of, the process looks
again. The process gives up after five lost races, or after five such lists in a row. While a cut waits for approval, no
process moves the job on.
"""

_BARE: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE), repairs=False, rolls_forward=False)


def _up_to_its_work(errand: Errand) -> Errand:
    """Return the errand without its steps between the claim and the work."""
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
    """Whether the process can see if a holder is alive."""
    asked: TickEffect = field(default_factory=Observe)
    seen: list[Observed] = field(default_factory=list)
    """The lists that the process has read, except those that lacked an entry that it knew of."""
    known: int = 0
    """The newest version of `checkpoints` that the process knows of."""
    behind: int = 0
    """How many lists in a row did not reach that version."""
    yes: list[Question] = field(default_factory=list)
    """The questions to which the answer was yes since the last look."""
    said_no: Exception | None = None
    lost: int = 0
    """How many of the process's claims were refused."""
    met: Generation | None = None
    """The generation of the holder that the process met first."""
    may_take: bool = True
    """Whether the process may still take over, since it has met no newer holder than the first one."""
    own: Claim | None = None
    gave: bool = False
    """Whether the process gave the holder a lease."""

    @property
    def may_take_over(self) -> bool:
        return self.terms.take_over and self.may_take


class RacesMachine(RuleBasedStateMachine):
    """Several processes want one job. Each of them looks, asks and claims in separate steps."""

    def __init__(self) -> None:
        """Begin with a job that nobody has held."""
        super().__init__()
        self.rows: list[Row] = []
        self.alive: dict[Generation, bool] = {}
        self.processes: list[_Process] = []
        self.numbers = count(1)
        self.lacks = 0
        """How many of the newest entries are missing from the lists that processes see."""

    # -------------------------------------------------------------- processes

    @precondition(lambda self: len(self.processes) < _PROCESSES_MAX)
    @rule(errand=_errands, take_over=_often, sees=_often, above=_above, ids=st.integers(1, 3))
    def begin(
        self,
        errand: Errand,
        take_over: bool,
        sees: bool,
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
    def go_on(self, turns: list[int], says_no: bool, lacks: int) -> None:
        """Processes take their next steps, in any order, up to their work. A list may lack the newest entries."""
        self.lacks = lacks
        for pick in turns:
            waiting = [each for each in self.processes if not isinstance(each.asked, Work)]
            if waiting:
                self._step(waiting[pick % len(waiting)], says_no=says_no)
        self.lacks = 0

    @precondition(lambda self: self.processes)
    @rule(pick=_pick, dies=st.booleans())
    def end(self, pick: int, dies: bool) -> None:
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
        """Return the list that a process sees.

        Add the list to `seen` if it has all entries that the process knows of.
        """
        rows = self.rows[: max(0, len(self.rows) - self.lacks)]
        newest = _newest(rows)
        alive = None if newest is None or not process.sees else self.alive[newest.generation]
        seen = Observed(len(rows), tuple(rows), frozenset(), HolderObserved(alive, None), _NOW_MS_OF_RACING)
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
        """Judge a claim by what the process saw. Append the claim unless another entry came first."""
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
        """Return whether the last two looks found the same."""
        return len({each.version for each in process.seen[-2:]}) == 1 < len(process.seen)

    @staticmethod
    def _holds_a_cut(seen: Observed) -> bool:
        return any(isinstance(row, CheckpointRecord) for row in seen.rows)

    @staticmethod
    def _is_free(seen: Observed) -> bool:
        """Return whether this look allows any process to claim the job."""
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
        return Stamp(_NOW_MS_OF_RACING, f"{process.number}-{len(process.seen)}")


_NOW_MS_OF_RACING: Final = 1_000


@pytest.mark.parametrize("errand", [TICK, SAVEPOINT, ROLLBACK, RESET, CANCELLATION, CLEANUP])
@pytest.mark.parametrize(("released", "published"), [*product((True, False), repeat=2)])
def test_only_a_tick_ends_at_once_if_the_job_has_finished(errand, released, published):
    """A tick has work if the holder has died, or if the last entry is not published. Other errands always have work."""
    read = VertexRecord(vertex=VertexId("numbers"), micro_batch=1, subtasks=(SubtaskSnapshot(finished=True),))
    entry, release = plain_entry(vertices=(read,)), Release(generation=1, next_id=9, at_ms=1, nonce="r")
    rows = (_claim(Generation(1), 1, 9, "c"), entry, *([release] if released else []))
    cuts = frozenset({entry.checkpoint} if published else ())
    door = TickDoor(errand, Terms(holder=Holder(host="h", pid=1, started="s")))
    door.start(Stamp(_NOW_MS_OF_RACING, "1"))
    seen = Observed(len(rows), rows, cuts, HolderObserved(alive=False, lease=None), _NOW_MS_OF_RACING)
    effect = door.step(seen, Stamp(_NOW_MS_OF_RACING, "2"))[-1]
    asks_whether_tables_are_whole = isinstance(effect, Examine) and effect.question is Question.WHOLE
    assert (errand.runs and released and published) is asks_whether_tables_are_whole


def _newest(rows: list[Row]) -> Claim | None:
    return next((row for row in reversed(rows) if isinstance(row, Claim)), None)


def _claim(generation: Generation, first: int, last: int, nonce: str) -> Claim:
    return Claim(
        generation=generation,
        holder=Holder(host="h", pid=0, started="s"),
        first_id=CheckpointId(first),
        last_id=CheckpointId(last),
        at_ms=_NOW_MS_OF_RACING,
        nonce=nonce,
    )


# ------------------------------------------------------------------
# The machine of the line of entries: the job goes on, and users take savepoints, roll back and dispose of savepoints.
# Its reference remembers the parent of every entry that was ever committed, deleted ones included. A user may roll back
# to the newest entry's ancestors, which form the line, and to plain savepoints of an entry on the line.


WAY_BACK = "way-back"
"""A rollback drops exactly the checkpoints that are not on its line, and marks the savepoints that are not.

If the entries that show whether an entry is on the line are gone, the entry keeps its mark, and may stay.
"""
CUTS_STAY = "cuts-stay"
"""A recorded cut stays while its entry exists, or another entry that can only be read or published from this cut."""

_pick_of_turning = st.integers(0, 20)


class LineMachine(RuleBasedStateMachine):
    """The entries of one job. Between two claims, users roll the job back."""

    def __init__(self) -> None:
        """Begin with one checkpoint."""
        super().__init__()
        self.retained = 2
        self.there: dict[CheckpointId, CheckpointRecord] = {}
        self.built_on: dict[CheckpointId, CheckpointId] = {}
        """The parent of each entry that was ever committed."""
        self.end = NO_CHECKPOINT
        """The newest entry with a cut, which may be the entry of a rollback."""
        self.untold: set[CheckpointId] = set()
        """Savepoints whose mark may be wrong, because the entries that would show the error are gone."""
        self.cuts: set[CheckpointId] = set()
        """The recorded cuts that no clean-up has dropped."""
        self.claims = 0
        self.last_id = 0
        self.complete(pinned=False, records=True)

    @initialize(retained=st.integers(1, 4))
    def configure(self, retained: int) -> None:
        """Draw how many checkpoints are retained."""
        self.retained = retained

    # -------------------------------------------------------------- what is committed

    @rule(pinned=st.booleans(), records=st.booleans())
    def complete(self, pinned: bool, records: bool) -> None:
        """Complete a checkpoint, or the savepoint of a stop (`pinned`). Old checkpoints are dropped.

        If `records` is False, the tick dies before it records the cut. The next tick that goes on from the entry
        records it.
        """
        self._complete(self._next_id(), pinned=pinned)
        self.cuts |= {self.end} if records else set()

    @rule()
    def complete_after_a_later_savepoint(self) -> None:
        """Take a plain savepoint that was triggered after a checkpoint, and is committed before it."""
        checkpoint = self._next_id()
        self._save(self._next_id())
        self._complete(checkpoint, pinned=False)

    @rule()
    def save_in_a_tick(self) -> None:
        """Take a plain savepoint while a tick runs."""
        self._save(self._next_id())

    @rule()
    def save_at_rest(self) -> None:
        """Take a plain savepoint of the newest cut while no tick runs."""
        self._at_rest(SavepointAtRest(self.there[self.end]))

    @precondition(lambda self: len(self.there) > 1)
    @rule(pick=_pick_of_turning)
    def roll_back(self, pick: int) -> None:
        """Take the job back to an entry. It may be a savepoint that an earlier rollback abandoned."""
        target = self.there[sorted(self.there)[pick % len(self.there)]]
        if target.checkpoint == self.end:
            return
        line = set(self._walk(target.checkpoint))
        told_from = self._told_from(target)
        seen_from = max(told_from, *(line & self.untold - set(self._walk(self.end))), NO_CHECKPOINT)
        before = dict(self.there)
        self.end = self._at_rest(Rollback(target, ())).checkpoint
        self.cuts.add(self.end)
        self._judge(before, line, told_from, seen_from)

    @precondition(lambda self: any(row.pinned for row in self.there.values()))
    @rule(pick=_pick_of_turning)
    def dispose(self, pick: int) -> None:
        """Dispose of a savepoint, unless the job stands at it."""
        stays = self._stood_upon(self.there) | {self.end}
        pinned = [each for each, row in sorted(self.there.items()) if row.pinned and each not in stays]
        if not pinned:
            return
        gone, before = pinned[pick % len(pinned)], dict(self.there)
        for each in disposed_with(before[gone], tuple(before.values())):
            del self.there[each]
        stood_on, line = self._stood_upon({gone: before[gone]}), set(self._walk(self.end))
        alone = {each for each in stood_on & before.keys() - line if not before[each].pinned}
        due = {gone} | alone - self._stood_upon(self.there)
        went = before.keys() - self.there.keys()
        expect(
            went - due <= self.untold, WAY_BACK, f"{sorted(went)} went with savepoint {gone}, due were {sorted(due)}"
        )
        expect(due - went <= self.untold, WAY_BACK, f"{sorted(due - went)} stay without savepoint {gone}")
        self.untold -= went

    # -------------------------------------------------------------- judging

    @invariant()
    def the_newest_entry_ends_the_line(self) -> None:
        """A tick would begin from the end of the line."""
        newest = newest_checkpoint(tuple(self.there.values()))
        begins = newest.checkpoint if newest is not None else None
        expect(begins == self.end, WAY_BACK, f"a tick begins from {begins}, and the line ends in {self.end}")

    @invariant()
    def cuts_stay(self) -> None:
        """A clean-up drops exactly the recorded cuts that no entry needs any more."""
        unread = {each for each, row in self.there.items() if not row.commits or each not in self.cuts}
        due = self.cuts & (self.there.keys() | {self.built_on[each] for each in unread})
        kept = readable_cuts(self.there.values(), self.cuts)
        expect(kept == due, CUTS_STAY, f"of the cuts {sorted(self.cuts)}, {sorted(kept)} stay, due are {sorted(due)}")
        self.cuts = due

    def _judge(
        self,
        before: Mapping[CheckpointId, CheckpointRecord],
        line: set[CheckpointId],
        told_from: CheckpointId,
        seen_from: CheckpointId,
    ) -> None:
        """Judge a rollback by the entries that it drops, and by the entries to which a user may now roll back.

        Below `seen_from`, the walk along the line ends at a missing entry, or at one whose mark may be wrong.
        """
        on = {each for each, row in before.items() if each in line or (not row.commits and self.built_on[each] in line)}
        gone = before.keys() - self.there.keys()
        off = {each for each in before.keys() - on - self._stood_upon(before) if not before[each].pinned}
        due = {each for each in off - self.untold if each >= seen_from}
        expect(due <= gone <= off, WAY_BACK, f"{sorted(gone)} went, due were {sorted(due)}, the line is {sorted(line)}")
        offered = {row.checkpoint for row in restorable(self.there.values())} - {self.end}
        wrong = offered ^ (on & self.there.keys())
        stands_on = {each: each if row.commits else self.built_on[each] for each, row in before.items()}
        told = {each for each in wrong & before.keys() if stands_on[each] >= told_from}
        expect(told <= self.untold, WAY_BACK, f"{told} are marked wrongly, the line is {sorted(line)}")
        self.untold = wrong
        changed = {each for each in before.keys() & self.there.keys() if _mark(before, each) != _mark(self.there, each)}
        guessed = {each for each in changed if stands_on[each] < told_from}
        expect(
            not guessed, WAY_BACK, f"no existing entry tells whether {guessed} are on the line, and their mark changed"
        )

    def _stood_upon(self, rows: Mapping[CheckpointId, CheckpointRecord]) -> set[CheckpointId]:
        """Return the entries after which one of these plain savepoints was taken. These entries stay."""
        return {row.parent for row in rows.values() if not row.commits}

    def _walk(self, end: CheckpointId) -> Iterator[CheckpointId]:
        """Yield an entry and its ancestors, deleted ones included."""
        at = end
        while at != NO_CHECKPOINT:
            yield at
            at = self.built_on[at]

    def _told_from(self, target: CheckpointRecord) -> CheckpointId:
        """Return the newest deleted entry between this one and the present line, or NO_CHECKPOINT.

        Above that entry, the existing entries show which entries are on the target's line.
        """
        present = set(self._walk(self.end))
        missing = (each for each in self._walk(target.checkpoint) if each not in present and each not in self.there)
        return next(missing, NO_CHECKPOINT)

    # -------------------------------------------------------------- the store

    def _next_id(self) -> CheckpointId:
        self.last_id += 1
        return CheckpointId(self.last_id)

    def _complete(self, checkpoint: CheckpointId, *, pinned: bool) -> None:
        self.cuts |= {self.end} - {NO_CHECKPOINT}
        self._put(self._entry(RowKind.CHECKPOINT, checkpoint, pinned=pinned))
        self.end = checkpoint
        own = [each for each, row in sorted(self.there.items()) if not (row.pinned or row.abandoned)]
        for subsumed in set(own[: -self.retained]) - self._stood_upon(self.there):
            del self.there[subsumed]

    def _save(self, checkpoint: CheckpointId) -> None:
        self._put(self._entry(RowKind.SAVEPOINT, checkpoint, pinned=True))

    def _at_rest(self, recipe: Recipe) -> CheckpointRecord:
        """Append the entry of a recipe under a new claim, as the tick door does."""
        self.claims += 1
        first = self._next_id()
        holder = Holder(host="here", pid=1, started="")
        claim = Claim(
            generation=Generation(self.claims),
            holder=holder,
            first_id=first,
            last_id=first,
            at_ms=1,
            nonce=f"claim {first}",
        )
        row, turn = recipe.row(claim, Stamp(1, str(first))), turn_of(recipe, tuple(self.there.values()))
        for each, abandoned in turn.marks.items():
            self.there[each] = self.there[each].model_copy(update={"abandoned": abandoned})
        for each in turn.dropped:
            del self.there[each]
        self._put(row)
        return row

    def _put(self, row: CheckpointRecord) -> None:
        self.there[row.checkpoint] = row
        self.built_on[row.checkpoint] = row.parent

    def _entry(self, kind: RowKind, checkpoint: CheckpointId, *, pinned: bool) -> CheckpointRecord:
        return plain_entry(
            kind=kind,
            pinned=pinned,
            checkpoint=checkpoint,
            parent=self.end,
            generation=Generation(self.claims),
            nonce=str(checkpoint),
        )


def _mark(rows: Mapping[CheckpointId, CheckpointRecord], checkpoint: CheckpointId) -> bool:
    return rows[checkpoint].abandoned


def test_holders_that_live_are_left_alone():
    """Each process finds another combination of claims, releases and leases."""
    run_state_machine_as_test(ClaimsMachine, settings=judging.fitting(ClaimsMachine, settings()))


def test_several_processes_race_for_a_job():
    """Each process looks, asks its questions and claims in separate steps, and others write in between."""
    run_state_machine_as_test(RacesMachine, settings=judging.fitting(RacesMachine, settings()))


def test_a_rollback_leaves_the_entries_of_its_line():
    """Checkpoints complete, and users take savepoints, roll back and dispose of savepoints."""
    run_state_machine_as_test(LineMachine, settings=judging.fitting(LineMachine, settings()))
