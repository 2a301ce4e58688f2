"""Reading a source on from elsewhere, over the simulator's stores: what `tidemark reset` does, effect by effect (K2).

The order of everything and the row are the core's own.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from checkpointing.commit.at_rest import SourceReset
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.reset import Move
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.tick.errand import RESET
from checkpointing.tick.messages import RowChosen, TickFact, Work, Worked
from spec.at_the_door import SOMEONE, Visitor, at_rest
from spec.history import ResetAsked
from spec.pipeline import SPLITS, first_id
from spec.world import World


def can_be_reset(world: World) -> bool:
    """Return whether the job has a row whose positions could be others."""
    return newest_checkpoint(world.rows()) is not None


def to_row(source: VertexId, splits: tuple[SplitId, ...], row: int) -> Move:
    """Return the move of these splits to before that row, as a user names it: before the first one is the start."""
    return Move(source, dict.fromkeys(splits, str(row) if row else None))


def drawn_move(random: Random, readable: dict[SplitId, int]) -> Move:
    """Return a move of a source or of one of its splits, back or forth, no further than can be read."""
    source = random.choice(list(SPLITS))
    splits = random.choice([SPLITS[source], (random.choice(SPLITS[source]),)])
    return to_row(source, splits, random.randint(0, min(readable[split] for split in splits)))


def resetting(world: World, move: Move, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Read a source on from other positions, if there is a row whose positions they could be."""

    def chosen(work: Work) -> TickFact:
        if work.plan.restore is None:
            return Worked()
        world.history.add(ResetAsked(tuple(move.positions.items())))
        known = {first_id(was.vertex): was.vertex for was in work.plan.restore.vertices}
        return RowChosen(SourceReset(work.plan.restore, replace(move, source=known.get(move.source, move.source))))

    yield from at_rest(world, RESET, chosen, visitor)
