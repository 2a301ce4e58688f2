"""Moves a source's positions in the simulator's stores, as `tidemark reset` does, effect by effect (K2).

The core decides the order of everything, and builds the entry.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from checkpointing.commit.at_rest import Move, SourceReset
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.tick.attempts import RESET
from checkpointing.tick.messages import RowChosen, TickFact, Work, Worked
from spec.at_the_door import SOMEONE, Visitor, at_rest
from spec.history import ResetAsked
from spec.pipeline import SPLITS, first_id, position_before
from spec.world import World


def can_be_reset(world: World) -> bool:
    """Return whether the job has an entry whose positions could be others."""
    return newest_checkpoint(world.rows()) is not None


def to_row(source: VertexId, splits: tuple[SplitId, ...], row: int) -> Move:
    """Return the move of these splits to before this row, as a user writes it. Before the first row is the start."""
    return Move(source, dict.fromkeys(splits, position_before(row) if row else None))


def drawn_move(random: Random, readable: dict[SplitId, int]) -> Move:
    """Return a random move of a source or of one of its splits, back or forth, within what can be read."""
    source = random.choice(list(SPLITS))
    splits = random.choice([SPLITS[source], (random.choice(SPLITS[source]),)])
    return to_row(source, splits, random.randint(0, min(readable[split] for split in splits)))


def resetting(world: World, move: Move, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Move the source, if there is an entry whose positions could be others."""

    def chosen(work: Work) -> TickFact:
        if work.plan.restore is None:
            return Worked()
        world.history.add(ResetAsked(tuple(move.positions.items())))
        known = {first_id(was.vertex): was.vertex for was in work.plan.restore.vertices}
        return RowChosen(SourceReset(work.plan.restore, replace(move, source=known.get(move.source, move.source))))

    yield from at_rest(world, RESET, chosen, visitor)
