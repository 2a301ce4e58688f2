"""Carries out the effects of the real tick door over the simulator's stores: what a start, or work at rest, does.

The order of everything is the door's. A step that changes the stores is a place where the process may die.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import HolderObserved, newest_claim
from checkpointing.commit.recovery import Observed
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import CutRecorded, PublishTable, RecordCut
from checkpointing.metadata.record import Claim, Holder
from checkpointing.tick.door import TickDoor
from checkpointing.tick.errand import TICK, Errand, Terms
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
    LeftoversDiscarded,
    LogsSeen,
    LookAtLogs,
    LookAtTables,
    LookForRival,
    Observe,
    PublishAgain,
    Question,
    ReadCut,
    RivalSeen,
    TablesSeen,
    TickEffect,
    TickFact,
    Work,
)
from spec.behind import doubt, published, restore_what_is_lost
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
"""What changes the stores before the release."""

Alive = Callable[[Claim | None], bool | None]
DoWork = Callable[[Work], TickFact | None]
SOMEBODY: Final = Holder(host="here", pid=1, started="")


class Carrier:
    """Carries out what a door asks of the stores, at once."""

    def __init__(self, world: World, alive: Alive, name: str) -> None:
        """Act on that world; `alive` says of a holder whether it lives, `name` makes nonces unlike others'."""
        self._world = world
        self._alive = alive
        self._name = name

    def moment(self) -> Stamp:
        """Return now. Two rows at one version have one nonce only if the same process appends them."""
        return Stamp(self._world.now_ms, f"{self._name}-{self._world.version}")

    def carry_out(self, effect: TickEffect) -> TickFact | None:  # noqa: C901, PLR0911, PLR0912 - an alphabet
        """Carry out one effect; return its answer. None: nobody answers it, or the code that drives the door does."""
        world = self._world
        match effect:
            case Observe():
                return self._observed()
            case Examine():
                if effect.question is Question.REPAIRABLE:
                    restore_what_is_lost(world)
                return Done()
            case AppendClaim():
                return world.append(effect.row, effect.at_version)
            case AppendEntry():
                return world.append(effect.row, effect.at_version, effect.turn.dropped, effect.turn.marks)
            case AppendRelease():
                return world.release(effect.row, effect.at_version, effect.dropped)
            case LookAtTables():
                return TablesSeen(doubt(world))
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
                world.record_cut(effect.checkpoint, effect.versions)
                return CutRecorded(effect.checkpoint)
            case DiscardLeftovers():
                return LeftoversDiscarded(world.discard_leftovers(effect.current, effect.by))
            case LookForRival():
                newest = newest_claim(world.rows())
                return RivalSeen(newest if newest and newest.generation > effect.generation else None)
            case EnsureTables() | CleanUp():
                return Done()
            case _:
                return None

    def _observed(self) -> Observed:
        world = self._world
        holder = HolderObserved(self._alive(newest_claim(world.rows())), None)
        return Observed(world.version, world.rows(), frozenset(world.cuts), holder, world.now_ms)


def carried_out(door: TickDoor, carrier: Carrier, do_work: DoWork) -> Iterator[TickEffect]:
    """Drive a door to its end, or to the work if `do_work` does not answer; yield every effect that was carried out."""
    waiting = deque(door.start(carrier.moment()))
    while waiting:
        effect = waiting.popleft()
        fact = do_work(effect) if isinstance(effect, Work) else carrier.carry_out(effect)
        yield effect
        if fact is not None:
            waiting.extend(door.step(fact, carrier.moment()))


def at_rest(world: World, errand: Errand, do_work: DoWork, leaves_behind: CheckpointId | None = None) -> Iterator[None]:
    """Do something to a job that nobody holds any more, to its end. Yields where the process may die."""
    door = TickDoor(errand, Terms(holder=SOMEBODY, leaves_behind=leaves_behind))
    for effect in carried_out(door, Carrier(world, _is_dead, "rest"), do_work):
        if isinstance(effect, CHANGES):
            yield


def begun(world: World) -> Work:
    """Let a tick claim a job that nobody holds any more, and recover, all of it at once; return what it works with."""
    terms = Terms(holder=SOMEBODY, take_over=True)
    effects = carried_out(TickDoor(TICK, terms), Carrier(world, _is_dead, "claim"), lambda _: None)
    return next(effect for effect in effects if isinstance(effect, Work))


def _is_dead(claim: Claim | None) -> bool | None:
    return False if claim is not None else None
