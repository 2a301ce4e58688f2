"""Takes and disposes of savepoints of a job at rest in the simulator's stores, effect by effect (A9)."""

from collections.abc import Iterator

from checkpointing.commit.at_rest import SavepointAtRest, is_savable
from checkpointing.commit.fencing import disposed_with, newest_checkpoint, stood_upon
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.paths import ROOT
from checkpointing.metadata.record import CheckpointRecord, RowKind
from checkpointing.tick.attempts import DISPOSAL, SAVEPOINT
from checkpointing.tick.messages import RowChosen, TickFact, Work, Worked
from spec.at_the_door import SOMEONE, Visitor, at_rest
from spec.world import World


def saving(world: World, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Take a savepoint of the newest entry, if there is one and it holds no rows in flight."""

    def chosen(work: Work) -> TickFact:
        cut = work.plan.restore
        return RowChosen(SavepointAtRest(cut)) if cut is not None and is_savable(cut) else Worked()

    yield from at_rest(world, SAVEPOINT, chosen, visitor)


def disposable(world: World) -> tuple[CheckpointId, ...]:
    """Return the savepoints that may go, because no tick begins from them and no other savepoint stands on them."""
    newest = newest_checkpoint(world.rows())
    rows = world.checkpoints()
    stays = stood_upon(rows)
    savepoints = (row for row in rows if row.is_savepoint and row.kind is not RowKind.HELD)
    return tuple(row.checkpoint for row in savepoints if row != newest and row.checkpoint not in stays)


def disposing(world: World, checkpoint: CheckpointId, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Drop a savepoint with the release, and then delete the state files that no other entry named."""
    seen: list[CheckpointRecord] = []

    def dropped(work: Work) -> TickFact:
        if checkpoint not in disposable(world):
            return Worked()
        seen.extend(row for row in work.seen.rows if isinstance(row, CheckpointRecord))
        return Worked(disposed_with(*_gone(seen, checkpoint)))

    yield from at_rest(world, DISPOSAL, dropped, visitor)
    yield
    if not seen or checkpoint in (row.checkpoint for row in world.checkpoints()):
        return
    gone = disposed_with(*_gone(seen, checkpoint))
    named, theirs = (
        frozenset[str]().union(*(world.paths_of(row) for row in seen if (row.checkpoint in gone) is goes))
        for goes in (False, True)
    )
    unused = (path for path in sorted(theirs - named) if path.startswith(f"{ROOT}/"))
    world.discard(world.readers.discardable(unused, world.now_ms))


def _gone(
    seen: list[CheckpointRecord], checkpoint: CheckpointId
) -> tuple[CheckpointRecord, tuple[CheckpointRecord, ...]]:
    """Return the savepoint's entry, and all entries."""
    return next(row for row in seen if row.checkpoint == checkpoint), tuple(seen)
