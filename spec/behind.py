"""Observes tables of the simulator that show less than their cuts. The core decides what to do about them."""

from dataclasses import replace

from checkpointing.commit.cleanup import readable_cuts
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.lost_publications import (
    Doubt,
    Entry,
    LogSeen,
    Rebuilt,
    Standing,
    decide_repairs,
    lacks_cuts,
    rebuilt,
)
from checkpointing.identifiers import CheckpointId, TableName
from spec.pipeline import JOB
from spec.rest_events import FoundFinished
from spec.table_log import TableLog
from spec.world import World


def standing(world: World) -> Standing:
    """Return what the tables' logs say of the readable entries and cuts."""
    readable = readable_cuts(world.rows(), frozenset(world.cuts))
    cuts = {checkpoint: cut for checkpoint, cut in world.cuts.items() if checkpoint in readable}
    names = {table for cut in cuts.values() for table in cut}
    names |= {table.table for row in world.checkpoints() for table in row.tables}
    logs = {name: _seen(world.table(name)) for name in sorted(names)}
    return Standing(JOB, tuple(world.checkpoints()), cuts, logs)


def doubt(world: World) -> Doubt:
    """Return which tables are in doubt, and how to repair them. Lost cuts are rebuilt first."""
    seen = standing(world)
    found = _rebuilt(world, seen)
    seen = replace(seen, cuts={**seen.cuts, **found.cuts})
    return Doubt(seen, decide_repairs(seen), found.cuts)


def rebuilt_cuts(world: World) -> Rebuilt:
    """Return the lost cuts that entries and logs prove."""
    return _rebuilt(world, standing(world))


def _rebuilt(world: World, seen: Standing) -> Rebuilt:
    if not lacks_cuts(seen):
        return Rebuilt({})
    logs = {name: _seen(log) for name, log in sorted(world.tables.items())}
    return rebuilt(replace(seen, logs={**logs, **seen.logs}), tuple(logs))


def found_finished(world: World) -> FoundFinished:
    """Return what the stores say of a job that a tick has not claimed, because it has finished."""
    return FoundFinished(newest_checkpoint(world.rows()), frozenset(world.cuts), doubt(world).repairs.tables)


def published(world: World, tables: frozenset[TableName]) -> dict[TableName, dict[CheckpointId, int]]:
    """Return at which version each of these tables shows which checkpoint."""
    return {
        name: {entry.checkpoint: version for version, entry in _seen(world.table(name)).published.items()}
        for name in tables
    }


def restore_what_is_lost(world: World) -> None:
    """Do what a refused start asks for: restore tables that cannot be repaired from a backup."""
    for lost in doubt(world).repairs.lost:
        world.restore(lost.table)


def _seen(log: TableLog) -> LogSeen:
    published = {
        version: Entry(CheckpointId(log.shown[version]), version in log.again)
        for version in range(max(1, log.oldest), log.version + 1)
        if log.shown[version] != log.shown[version - 1]
    }
    return LogSeen(log.version, CheckpointId(log.shown[-1]), published, log.oldest)
