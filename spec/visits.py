"""Draws what visitors do to a job between its ticks: rollbacks, resets, savepoints at rest, disposals, clean-ups.

A visit goes step by step, and ticks have their turns in between. A visit is refused while a living process holds the
job. Only a clean-up then works beside the tick.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from checkpointing.graph import JobGraph
from checkpointing.identifiers import SplitId
from spec.at_the_door import Alive, Visitor
from spec.cleaning import cleaning, cleaning_beside
from spec.importing import importable, importing
from spec.moves import Moves
from spec.pipeline import graph, with_broadcast
from spec.readers import reading
from spec.resetting import drawn_move, resetting
from spec.rolling_back import others_than_the_newest, rolling_back
from spec.saving import disposable, disposing, saving
from spec.settling import approving, rejecting, waits
from spec.world import World

DIES_ROLLING_BACK = 0.05
"""For each step."""
DIES_READING = 0.05
"""For each step."""
READS_MAX = 20
RENEWS = 0.5
SETTLES = 0.6
"""For each tick: a person settles the cut that waits, before or after the other visits."""
APPROVES = 0.6
DIES = 0.2
"""For each step of a visit with few steps."""
KEEPS = 0.6
"""How often a visitor takes a savepoint instead of a rollback, if the newest entry is no savepoint."""


@dataclass(slots=True)
class Visit:
    """A visit in progress."""

    told: str
    turns: Iterator[None]
    visitor: Visitor
    dies: float = DIES

    @property
    def generation(self) -> int:
        """The generation of its claim."""
        return self.visitor.generation


class Visits:
    """Draws the visits of a run."""

    def __init__(
        self, world: World, moves: Moves, random: Random, readable: dict[SplitId, int], settling: Random
    ) -> None:
        """Draw for this world. `readable` says how far each split can be read now. `settling` draws for held cuts."""
        self._world = world
        self._moves = moves
        self._random = random
        self._readable = readable
        self._settling = settling
        self._made = 0

    def drawn(self, alive: Alive) -> Iterator[Visit]:
        """Yield the visits after a tick. Each is drawn when the one before is over."""
        settles = int(self._moves.holds and self._settling.random() < SETTLES)
        first = settles and self._settling.random() < SETTLES
        made: list[tuple[int, Callable[[Visitor], Visit | None]]] = [
            (self._moves.rollbacks_max, self._rollback),
            (self._moves.resets_max, self._reset),
            (self._moves.savepoints_at_rest_max, self._savepoint),
            (self._moves.clean_ups_max, self._clean_up),
        ]
        self._random.shuffle(made)
        for most, make in [(first, self._settle), *made, (settles - first, self._settle)]:
            for _ in range(most if make == self._settle else self._random.randint(0, most) if most else 0):
                self._made += 1
                visit = make(Visitor(f"visit-{self._made}", alive))
                if visit is not None:
                    yield visit

    def settling(self, alive: Alive, *, dies: float = DIES) -> Visit | None:
        """Return a person who settles the cut that waits, None if none does. Two of them may race."""
        if not waits(self._world):
            return None
        self._made += 1
        visit = self._settle(Visitor(f"visit-{self._made}", alive))
        return None if visit is None else replace(visit, dies=dies)

    def _settle(self, visitor: Visitor) -> Visit | None:
        if not waits(self._world):
            return None
        if self._settling.random() < APPROVES:
            return Visit("approval", approving(self._world, visitor), visitor)
        return Visit("rejection", rejecting(self._world, visitor), visitor)

    def beside(self, alive: Alive) -> Visit:
        """Return a clean-up that begins while a tick runs, or after one has died."""
        self._made += 1
        return self._clean_up(Visitor(f"visit-{self._made}", alive))

    def last_clean_up(self, alive: Alive) -> Visit:
        """Return a clean-up of the job at rest, without grace for readers."""
        visitor = Visitor("last-visit", alive)
        return Visit("last clean-up", cleaning(self._world, 0, visitor), visitor, dies=0)

    def imported(self, origin: World, alive: Alive) -> Visit | None:
        """Return the import of an entry of another warehouse, or None if it has none whose files are all there."""
        there = importable(origin)
        if not there:
            return None
        wanted = self._random.choice(there)
        self._made += 1
        visitor = Visitor(f"visit-{self._made}", alive)
        return Visit(
            f"import of {wanted.checkpoint}", importing(self._world, origin, wanted, visitor), visitor, DIES / 4
        )

    def reader(self) -> Visit | None:
        """Return somebody who reads a cut, None if there is none."""
        if not self._world.cuts:
            return None
        self._made += 1
        name, cuts = f"reader-{self._made}", sorted(self._world.cuts)
        checkpoint = self._random.choice([cuts[0], *cuts])
        lease_ms = self._random.choice([60, 400, 3_000])
        renewals = [self._random.random() < RENEWS for _ in range(self._random.randint(1, READS_MAX))]
        turns = reading(self._world, name, checkpoint, lease_ms, renewals)
        return Visit(f"{name} reads cut {checkpoint}", turns, Visitor(name), DIES_READING)

    def _rollback(self, visitor: Visitor) -> Visit:
        """Go back. If there is no other entry, take a savepoint, to which a later visitor may go back.

        Some visitors take a savepoint instead, if the newest entry is none. When a later rollback leaves this line, the
        savepoint stays, and somebody may go back to it.
        """
        others = others_than_the_newest(self._world)
        if not others or (not self._world.checkpoints()[-1].is_savepoint and self._random.random() < KEEPS):
            return Visit("savepoint to go back to", saving(self._world, visitor), visitor)
        abandoned = [row.checkpoint for row in self._world.checkpoints() if row.abandoned and row.checkpoint in others]
        to = self._random.choice([*others, *12 * abandoned])
        visitor.ignores_lost = self._made % 2 == 0
        return Visit(
            f"rollback to {to}",
            rolling_back(self._world, self._widest(), to, visitor),
            visitor,
            DIES_ROLLING_BACK,
        )

    def _widest(self) -> JobGraph:
        """Return a graph with all vertices and tables that a release may have."""
        return with_broadcast(graph(1, audited=True, overwrites=self._moves.overwrites))

    def _reset(self, visitor: Visitor) -> Visit:
        move = drawn_move(self._random, self._readable)
        told = f"reset of {move.source} to {move.positions}"
        return Visit(told, resetting(self._world, move, visitor), visitor)

    def _savepoint(self, visitor: Visitor) -> Visit:
        there = disposable(self._world)
        if there and self._random.random() < DIES:
            gone = self._random.choice(there)
            return Visit(f"disposal of savepoint {gone}", disposing(self._world, gone, visitor), visitor)
        return Visit("savepoint at rest", saving(self._world, visitor), visitor)

    def _clean_up(self, visitor: Visitor) -> Visit:
        grace_ms = self._random.choice([0, 0, 300])
        held = self._world.holder()
        if visitor.alive(held):
            turns = cleaning_beside(self._world, self._world.generation, grace_ms)
            return Visit(f"clean-up beside {held}", turns, visitor)
        return Visit("clean-up", cleaning(self._world, grace_ms, visitor), visitor)
