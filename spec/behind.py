"""Bringing tables back over the simulator's stores: what a start does about tables that show less than their cuts.

What is done is the core's own decision. A table that cannot be brought back comes from a backup, as the refusal says.
"""

from collections.abc import Iterator

from checkpointing.commit.behind import Entry, LogSeen, Standing, corrected, decide_mending
from checkpointing.commit.cleanup import readable_cuts
from checkpointing.identifiers import CheckpointId, TableName
from spec.pipeline import JOB
from spec.world import TableLog, World


def standing(world: World) -> Standing:
    """Return what the tables' logs say of the rows and the cuts that may be read."""
    readable = readable_cuts(world.rows(), frozenset(world.cuts))
    cuts = {checkpoint: cut for checkpoint, cut in world.cuts.items() if checkpoint in readable}
    names = {table for cut in cuts.values() for table in cut}
    names |= {table.table for row in world.checkpoints() for table in row.tables}
    logs = {name: _seen(world.table(name)) for name in sorted(names)}
    return Standing(JOB, tuple(world.checkpoints()), cuts, logs)


def restore_what_is_lost(world: World) -> None:
    """Do what a refused start asks for: tables that cannot be brought back come whole from a backup."""
    for lost in decide_mending(standing(world)).lost:
        world.restore(lost.table)


def bringing_back(world: World) -> Iterator[None]:
    """Publish again what the tables lack, and correct the cuts; nothing if no table is in doubt."""
    seen = standing(world)
    mending = decide_mending(seen)
    if not mending.tables:
        return
    for each in mending.again:
        world.publish(each.checkpoint, each.publication, again=True)
        yield
    published: dict[TableName, dict[CheckpointId, int]] = {
        name: {entry.checkpoint: version for version, entry in _seen(world.table(name)).published.items()}
        for name in mending.tables
    }
    world.correct_cuts(seen.cuts, corrected(seen, published))
    yield


def _seen(log: TableLog) -> LogSeen:
    published = {
        version: Entry(CheckpointId(log.shown[version]), version in log.again)
        for version in range(1, log.version + 1)
        if log.shown[version] != log.shown[version - 1]
    }
    return LogSeen(log.version, CheckpointId(log.shown[-1]), published)
