"""Carries out the effects of the real tick door on the simulator's stores, for a start and for work at rest.

The door decides the order. At each effect that changes the stores, the process may die.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import HolderObserved, Lease, Refused, newest_claim, release_of, rival_of
from checkpointing.commit.outside_sinks import to_roll_back
from checkpointing.commit.recovery import Observed
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.messages import (
    CutRecorded,
    EndTick,
    LookForRival,
    PublishFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RowUnknown,
    TickOutcome,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder
from checkpointing.tick.attempts import TICK, Errand, Terms
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import (
    AppendClaim,
    AppendEntry,
    AppendRelease,
    CleanUp,
    CorrectCuts,
    CutRead,
    DiscardLeftovers,
    Done,
    EnsureTables,
    Examine,
    Failed,
    Finish,
    GiveLease,
    LeftoversDiscarded,
    LogsSeen,
    LookAtLogs,
    LookAtTables,
    Objected,
    Observe,
    PublishAgain,
    Question,
    ReadCut,
    RollBackPreCommitted,
    TablesSeen,
    TakeHold,
    TickEffect,
    TickFact,
    Work,
)
from spec.behind import doubt, published, restore_what_is_lost
from spec.mishap_events import ListsWereStale
from spec.politeness import UnseenLeft, UnseenRefused
from spec.rest_events import EntryAtRest
from spec.store_faults import NO_ANSWER, Harm
from spec.world import World

CHANGES: Final = (
    AppendClaim,
    AppendEntry,
    PublishAgain,
    CorrectCuts,
    PublishTable,
    RecordCut,
    DiscardLeftovers,
)
"""Effects that change the stores before the release."""

Alive = Callable[[Claim | None], bool | None]
DoWork = Callable[[Work], TickFact | None]
NOBODY: Final = Generation(0)
LAGS: Final = 0.3
"""The probability that a list lags behind, in runs where lists may."""
LEASE_MS: Final = 500
"""How long a lease lasts. Nobody renews one, as if every holder were paused."""
PAUSED: Final = 3
"""Every third holder is paused before it writes its first lease. So others find none, or that of an older holder."""
TAKEN: Final = ("has run out", "has died", "taken over")
"""How somebody comes to hold a job that was not released, as the reason of a claim names it."""
SOMEBODY: Final = Holder(host="here", pid=1_000, started="")


@dataclass(slots=True)
class Eyes:
    """What a process sees of the world: the error of its clock, whether it sees who is alive, whether its lists lag."""

    skew_ms: int = 0
    sees_holders: bool = True
    lags: Random | None = None
    """Decides whether a list of entries lags behind. None: no list does."""

    def at(self, now_ms: int) -> int:
        """Return what its clock shows."""
        return max(0, now_ms + self.skew_ms)


GOOD_EYES: Final = Eyes()


class Carrier:
    """Carries out at once what a door asks of the stores."""

    def __init__(
        self, world: World, alive: Alive, name: str, eyes: Eyes = GOOD_EYES, *, ignores_lost: bool = False
    ) -> None:
        """Act on this world. `alive` says whether a holder lives. `name` makes its nonces differ from others'.

        With `ignores_lost`, tables that cannot be repaired are left as they are, and not restored from a backup.
        """
        self._ignores_lost = ignores_lost
        self._eyes = eyes
        self._world = world
        self._alive = alive
        self._name = name
        self._retained: frozenset[CheckpointId] | None = None
        self._lease: Lease | None = None
        """The lease that it found when it looked last."""
        self._has_written = False
        """True once it has written. Lists show a process at least what it has written itself."""

    def begin(self, effect: TickEffect) -> None:
        """Read what is needed to carry the effect out, before other processes have their turns."""
        if isinstance(effect, RecordCut):
            self._retained = self._world.retained(effect.checkpoint)

    def moment(self) -> Stamp:
        """Return a stamp. Two entries at one version have the same nonce only if the same process appends them."""
        return Stamp(self._eyes.at(self._world.now_ms), f"{self._name}-{self._world.version}")

    def carry_out(self, effect: TickEffect) -> TickFact | None:
        """Carry out one effect. Return its answer, or None if it has none here. A write or its reply may be lost."""
        harm = self._world.harm() if isinstance(effect, (*CHANGES, AppendRelease)) else None
        self._has_written |= isinstance(effect, CHANGES)
        fact = self._carried_out(effect) if harm is not Harm.WRITE_LOST else None
        return fact if harm is None else _unheard(effect)

    def _carried_out(self, effect: TickEffect) -> TickFact | None:  # noqa: C901, PLR0911, PLR0912 - an alphabet
        world = self._world
        match effect:
            case Observe():
                return self._observed()
            case Examine():
                if effect.question is Question.WHOLE and not doubt(world).is_none:
                    return Objected(RuntimeError("a table shows less than its cut"))
                if effect.question is Question.REPAIRABLE and world.struck and not self._ignores_lost:
                    restore_what_is_lost(world)
                return Done()
            case AppendClaim():
                self._note_claim(effect)
                return world.append(effect.row, effect.at_version)
            case AppendEntry():
                return world.append(effect.row, effect.at_version, effect.turn.dropped, effect.turn.marks)
            case AppendRelease():
                return world.release(effect.row, effect.at_version, effect.dropped)
            case LookAtTables():
                seen = doubt(world)
                return TablesSeen(None if self._ignores_lost and seen.repairs.lost else seen)
            case PublishAgain():
                return world.publish(effect.again.checkpoint, effect.again.publication, again=True)
            case LookAtLogs():
                return LogsSeen(published(world, effect.doubt.repairs.tables))
            case CorrectCuts():
                world.correct_cuts(effect.doubt.seen.cuts, effect.correction)
                return Done()
            case ReadCut():
                return CutRead(world.cuts.get(effect.checkpoint, {}))
            case PublishTable():
                return world.publish(effect.checkpoint, effect.publication)
            case RecordCut():
                begun_with, self._retained = self._retained, None
                retained = world.retained(effect.checkpoint) if begun_with is None else begun_with
                world.record_cut(effect.checkpoint, effect.versions, retained)
                return CutRecorded(effect.checkpoint)
            case DiscardLeftovers():
                world.history.events.extend(world.outside.settle(effect.current, effect.first_id))
                return LeftoversDiscarded(world.discard_leftovers(effect.current, effect.by))
            case LookForRival():
                _, rows = world.before if world.is_stale() else (0, world.rows())
                return RivalSeen(rival_of(rows, effect.generation))
            case RollBackPreCommitted():
                world.history.events.extend(world.outside.roll_back(to_roll_back(world.outside.left(), effect.before)))
                return Done()
            case EnsureTables() | CleanUp():
                return Done()
            case TakeHold():
                world.met.update(name for name in TAKEN if name in effect.plan.claim.why)
                if effect.claim.generation % PAUSED:
                    world.lease = Lease(effect.claim.generation, world.now_ms + LEASE_MS)
            case GiveLease():
                world.lease = Lease(effect.to.generation, world.now_ms + LEASE_MS)
            case Finish(Refused() as refused) if not self._eyes.sees_holders:
                world.history.add(UnseenRefused(refused.generation, world.lease))
            case _:
                """The effect has no answer, or the code that drives the door answers it."""
        return None

    def _note_claim(self, effect: AppendClaim) -> None:
        """Note a claim that will be in, if the process cannot see whether the holder before lives."""
        world, before = self._world, self._world.holder()
        refused = effect.at_version != world.version
        if refused or self._eyes.sees_holders or before is None or release_of(world.rows(), before.generation):
            return
        row, now_ms = effect.row, self._eyes.at(world.now_ms)
        seen = UnseenLeft(row.generation, row.holder, before.generation, before.holder, self._lease, now_ms)
        world.history.add(seen)

    def _lags(self) -> bool:
        return (self._eyes.lags is not None and self._eyes.lags.random() < LAGS) or self._is_stale()

    def _is_stale(self) -> bool:
        return not self._has_written and self._world.is_stale()

    def _observed(self) -> Observed:
        world = self._world
        lags, cuts_lag = self._lags(), self._is_stale()
        cuts = world.cuts_before if cuts_lag else frozenset(world.cuts)
        if lags or cuts_lag:
            world.history.add(ListsWereStale(tuple(sorted(world.cuts.keys() - cuts))))
        version, rows = world.before if lags else (world.version, world.rows())
        alive, self._lease = self._alive(newest_claim(rows)), world.lease
        holder = HolderObserved(alive, None) if self._eyes.sees_holders else HolderObserved(None, world.lease)
        rows = tuple(map(world.as_read, rows))
        return Observed(version, rows, cuts, holder, self._eyes.at(world.now_ms))


def _unheard(effect: TickEffect) -> TickFact:
    """Return what a process is told if it hears nothing of a write."""
    match effect:
        case AppendClaim() | AppendEntry() | AppendRelease():
            return RowUnknown(effect.row.nonce, NO_ANSWER)
        case PublishTable():
            return PublishFailed(effect.checkpoint, effect.publication.table, NO_ANSWER)
        case PublishAgain():
            return PublishFailed(effect.again.checkpoint, effect.again.publication.table, NO_ANSWER)
        case _:
            reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
            return Failed(EndTick(TickOutcome.FAILED, reason, NO_ANSWER))


def carried_out(door: TickDoor, carrier: Carrier, do_work: DoWork) -> Iterator[TickEffect]:
    """Drive a door to its end, or to its work if `do_work` does not answer. Yield every effect that was carried out."""
    waiting = deque(door.start(carrier.moment()))
    while waiting:
        effect = waiting.popleft()
        fact = do_work(effect) if isinstance(effect, Work) else carrier.carry_out(effect)
        yield effect
        if fact is not None:
            waiting.extend(door.step(fact, carrier.moment()))


def _is_dead(claim: Claim | None) -> bool | None:
    return False if claim is not None else None


@dataclass(slots=True)
class Visitor:
    """A process that works on a job at rest. `generation` is that of its claim."""

    name: str = "rest"
    alive: Alive = _is_dead
    generation: Generation = NOBODY
    ignores_lost: bool = False
    """Whether it goes on although tables cannot be brought back, as a rollback may."""


SOMEONE: Final = Visitor()
"""A visitor that meets no living holder."""


def at_rest(
    world: World,
    errand: Errand,
    do_work: DoWork,
    visitor: Visitor = SOMEONE,
    before: Callable[[Work], Iterator[None]] = lambda _: iter(()),
    *,
    leaves_behind: CheckpointId | None = None,
    above: tuple[Generation, CheckpointId] = (NOBODY, NO_CHECKPOINT),
) -> Iterator[None]:
    """Do something to a job that nobody holds, to its end: `before` step by step, then `do_work`.

    It yields wherever other processes may have a turn, and where this one may die.
    """
    carrier = Carrier(world, visitor.alive, visitor.name, ignores_lost=visitor.ignores_lost)
    door = TickDoor(errand, Terms(holder=SOMEBODY, leaves_behind=leaves_behind, above=above))
    waiting = deque(door.start(carrier.moment()))
    while waiting:
        effect = waiting.popleft()
        if isinstance(effect, Work):
            yield from before(effect)
        if isinstance(effect, TakeHold):
            visitor.generation = effect.claim.generation
        if isinstance(effect, Finish) and isinstance(effect.outcome, CheckpointRecord):
            world.history.add(EntryAtRest(effect.outcome))
        fact = do_work(effect) if isinstance(effect, Work) else carrier.carry_out(effect)
        if isinstance(effect, CHANGES) and world.faults and world.faults.late_ms():
            yield
        if fact is not None:
            waiting.extend(door.step(fact, carrier.moment()))
            carrier.begin(waiting[0])
        if isinstance(effect, CHANGES):
            yield


def begun(world: World) -> Work:
    """Let a tick claim a job that nobody holds, and recover, all at once. Return what it needs for its work."""
    terms = Terms(holder=SOMEBODY, take_over=True)
    effects = carried_out(TickDoor(TICK, terms), Carrier(world, _is_dead, "claim"), lambda _: None)
    return next(effect for effect in effects if isinstance(effect, Work))
