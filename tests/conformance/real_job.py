"""A whole job over real stores that somebody else's choices drive: what `spec.world.whole_job` does in memory."""

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path

from checkpointing.commit.at_rest import Move
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import CheckpointId, Generation, SplitId
from checkpointing.messages import (
    DiscardFiles,
    Effect,
    EndTick,
    Fact,
    NotifyAborted,
    NotifyComplete,
    RowAppended,
    SavepointFailed,
    SavepointKind,
    SavepointTaken,
)
from jobs.sources.position_words import START
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.source_reset import Reset, reset
from jobs.tick.engine import Engine
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.warehouse.rollback_tables import TableNotRolledBackError
from spec.history import (
    Begun,
    DoorBroke,
    DoorStarted,
    ResetAsked,
    TickOver,
)
from spec.reference.pipeline import SPLITS
from spec.world.faults import Faults
from spec.world.whole_job import DrivenJob, SmallJob, TimedDoor
from tests.conformance.pipeline import RowSource
from tests.conformance.real_tick import RealTick
from tests.conformance.real_world import RealWorld
from tests.conformance.strikes import Boundaries, DiedError, Strike, death

CROSSINGS = 3
"""How many boundaries an effect crosses, about."""
PATIENCE_MS = 60_000
"""How long a claim is left alone whose holder, this very process, is alive: longer than a lease."""


class RealHands:
    """Carries out the effects of every tick that there was, each by the stores that it had opened."""

    def __init__(self, readable: dict[SplitId, int]) -> None:
        self.readable = readable
        self.ticks: dict[Generation, RealTick] = {}

    def carry_out(self, effect: Effect, generation: Generation, faults: Faults) -> Fact | None:
        return self.ticks[generation].carry_out(effect, faults)


class RealJob(DrivenJob):
    """One warehouse in a folder and, one after the other or side by side, the ticks over it."""

    def __init__(self, job: SmallJob, root: Path, engine: Engine) -> None:
        super().__init__(job)
        self.world = RealWorld(root, job)
        self.hands = RealHands(self.world.readable)
        self.tick: RealTick | None = None
        self._engine = engine
        self._at_version: int | None = None

    # -------------------------------------------------------------- a tick

    def start(self, *strikes: Strike) -> None:
        self.door, self.outstanding, self.end, self._at_version = None, [], None, None
        tick = self.tick = RealTick(self.world, self.job, self._engine)
        with tick.boundaries.struck(*strikes):
            try:
                setup = tick.begin()
            except Exception as error:  # noqa: BLE001 - nothing forbids that a tick begins here
                what = f"a tick could not begin: {type(error).__name__}: {error}"
                self.world.history.add(DoorBroke(self.world.witness.generation, what))
                return
        self.generation, self._next_id = tick.claim.generation, tick.claim.first_id
        self.hands.ticks[self.generation] = tick
        self.door = TimedDoor(setup)
        self.world.history.add(DoorStarted(self.generation, setup.graph, setup.restored))
        self._take(Begun(setup, self.world.now_ms), self.door.start(self.world.now_ms))
        self.hear()

    def abandoned(self) -> "RealJob":
        """Drop the tick; return it as a zombie, which goes on with its own stores in the same warehouse."""
        zombie = copy(self)
        self.crash()
        return zombie

    def tell(self, fact: Fact) -> None:
        if isinstance(fact, RowAppended):
            self._at_version = fact.version
        super().tell(fact)

    def _carry_on(self, effects: tuple[Effect, ...]) -> None:
        super()._carry_on(())
        for effect in effects:
            match effect:
                case DiscardFiles():
                    self._carry_out(effect)
                    continue
                case NotifyComplete() | NotifyAborted():
                    self._carry_out(effect)
                case SavepointTaken() | SavepointFailed():
                    self.hands.ticks[self.generation].answer(effect)
                case _:
                    """Carried out when it is chosen."""
            super()._carry_on((effect,))
        if self.end is not None and self.tick is not None and self.door is not None:
            self.tick.release(self.end, self.door.next_id, self._at_version)
            self.tick = None

    def _carry_out(self, effect: DiscardFiles | NotifyComplete | NotifyAborted) -> None:
        self.hands.ticks[self.generation].carry_out(effect)

    def _over(self, effect: EndTick) -> None:
        self.end, self.outstanding = effect, []
        seen: Mapping[SplitId, int] = {
            split: far
            for source in self.hands.ticks[self.generation].sources.values()
            for split, far in source.seen.items()
        }
        newest = newest_checkpoint(self.world.rows())
        self.world.history.add(TickOver(self.generation, effect, tuple(seen.items()), newest))

    # -------------------------------------------------------------- rollbacks and resets

    def others(self) -> tuple[CheckpointId, ...]:
        return self.world.others()

    def roll_back(self, checkpoint: CheckpointId, effects_max: int) -> None:
        """Go back to that row as the product does; who does it dies behind so many effects. May be refused by name."""
        boundaries = Boundaries(self.world.watch)
        self.world.now_ms += PATIENCE_MS
        with boundaries.struck(death("", effects_max * CROSSINGS, stays=True)), suppress(DiedError):
            try:
                roll_back(self.world.warehouse, checkpoint, boundary=boundaries)
            except (RollbackRefusedError, TableNotRolledBackError):
                """Neighbours may have merged what would have to go and what stays."""
        self.world.watch("after:death")

    def reset(self, move: Move, effects_max: int) -> None:
        """Read a source on from elsewhere as the product does; who resets it dies behind so many effects."""
        boundaries = Boundaries(self.world.watch)
        self.world.now_ms += PATIENCE_MS
        self.world.history.add(ResetAsked(tuple(move.positions.items())))
        (position,) = set(move.positions.values())
        split = next(iter(move.positions)) if len(move.positions) < len(SPLITS[move.source]) else None
        asked = Reset(move.source, position or START, split)
        sources = {name: RowSource(name, self.world.readable) for name in SPLITS}
        with boundaries.struck(death("", effects_max * CROSSINGS, stays=True)), suppress(DiedError):
            reset(self.world.warehouse, sources, asked, boundary=boundaries)
        self.world.watch("after:death")

    # -------------------------------------------------------------- savepoints

    def ask(self, kind: SavepointKind) -> str:
        if self.tick is None:
            raise TypeError("no tick is running that could be asked")
        request = self.tick.ask(kind)
        self.hear()
        return request

    def hear(self) -> None:
        for fact in self.tick.asked() if self.tick is not None else ():
            self.tell(fact)
