"""Reading a source on from elsewhere, over the simulator's stores: what `tidemark reset` does, effect by effect (K2).

The row is the core's own. Each yield is a place where whoever does it may die.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.reset import Move, reset_row
from checkpointing.graph import JobGraph
from checkpointing.identifiers import SplitId, VertexId
from spec.history import ResetAsked
from spec.pipeline import SPLITS, first_id
from spec.rolling_back import claimed_at_rest, made_ready, moved_on, released
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


def resetting(world: World, graph: JobGraph, move: Move) -> Iterator[None]:
    """Read a source on from other positions: claim, roll forward, discard, append, record the cut, release."""
    claim, plan = claimed_at_rest(world)
    yield
    yield from made_ready(world, graph, claim, plan)
    if plan.restore is None:
        released(world, claim, claim.first_id)
        return
    world.history.add(ResetAsked(tuple(move.positions.items())))
    known = {first_id(was.vertex): was.vertex for was in plan.restore.vertices}
    move = replace(move, source=known.get(move.source, move.source))
    row = reset_row(plan.restore, move, claim, nonce=f"{claim.nonce}/reset", committed_ms=0)
    yield from moved_on(world, graph, claim, row)
