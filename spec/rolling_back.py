"""Goes back to an older cut in the simulator's stores, as `tidemark rollback` does, effect by effect (K2).

The core decides the order of everything, builds the entry, and decides which entries are abandoned. As in the real
stores, the way back of each table is read from its log.
"""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.columns import TableColumn
from checkpointing.commit.at_rest import Rollback
from checkpointing.commit.columns import columns_of, leaving_back
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.live_files import live_files
from checkpointing.commit.lost_publications import mode_of, wanted
from checkpointing.commit.outside_sinks import sinks_after
from checkpointing.commit.recovery import unpublished
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, TableRecord
from checkpointing.tick.attempts import ROLLBACK
from checkpointing.tick.messages import RowChosen, TickFact, Work, Worked
from spec.at_the_door import SOMEONE, Visitor, at_rest
from spec.behind import standing
from spec.outside_events import LEAVES_OUTSIDE_EVERY
from spec.pipeline import AUDIT, RENAMED_TABLES, RENAMED_VERTICES
from spec.renaming import handle_of
from spec.world import World


def others_than_the_newest(world: World) -> tuple[CheckpointId, ...]:
    """Return the entries to which the job may go back, including abandoned savepoints."""
    newest = newest_checkpoint(world.rows())
    others = (row for row in world.checkpoints() if newest and row.checkpoint != newest.checkpoint)
    return tuple(row.checkpoint for row in others if row.checkpoint in world.cuts or row.parent in world.cuts)


def rolling_back(world: World, graph: JobGraph, checkpoint: CheckpointId, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Take tables, state and positions back to this entry.

    If a neighbour has merged files of a table, that is undone first. No entry is appended if a table cannot go back: a
    merge cannot be undone, or the cut went with lost log entries.
    """

    def chosen(_: Work) -> TickFact:
        target = next((row for row in world.checkpoints() if row.checkpoint == checkpoint), None)
        if target is None or checkpoint not in others_than_the_newest(world):
            return Worked()
        if not _is_as_published(world, target):
            return Worked()
        _undo_merges(world, graph, target)
        if _merged(world, graph, target):
            return Worked()
        newest, then = newest_checkpoint(world.rows()), columns_of(target)
        pending = unpublished(world.rows(), world.cuts)
        tables = tuple(
            _back(world, vertex, table, target).model_copy(update={"leaving": lost})
            for vertex, table in _tables(world, graph, target)
            for lost in (leaving_back(_shown(world, newest, table), then.get(table.name), pending, table.name),)
        )
        world.make_durable({table.table: world.table(table.table).version for table in tables})
        leaves = checkpoint % LEAVES_OUTSIDE_EVERY == 0
        sinks = sinks_after(world.checkpoints(), target, leave_outside=leaves)
        return RowChosen(Rollback(target, tables, sinks))

    yield from at_rest(world, ROLLBACK, chosen, visitor, leaves_behind=checkpoint)


def _shown(world: World, newest: CheckpointRecord | None, table: Table) -> tuple[TableColumn, ...]:
    """Return the columns of a table in the newest entry, or those of its log if the entry does not have the table."""
    said = columns_of(newest).get(table.name)
    return said or tuple(TableColumn(name, "long") for name in sorted(world.table(table.name).columns[-1]))


def _tables(world: World, graph: JobGraph, target: CheckpointRecord) -> Iterator[tuple[VertexId, Table]]:
    """Yield every table that the job has now or had at the entry, each with the vertex that writes it.

    It may have its first name, the other one, or both, if both have a log.
    """
    said = {each.table for each in target.columns}
    for vertex in graph.operators():
        for table in vertex.tables:
            comes_and_goes = vertex.id == AUDIT or table.broadcast
            if not comes_and_goes or table.name in said or world.table(table.name).version:
                yield vertex.id, table
            other = RENAMED_TABLES.get(table.name)
            if other is not None and (other in said or world.table(other).version):
                yield RENAMED_VERTICES[vertex.id], replace(table, name=other)


def _back(world: World, vertex: VertexId, table: Table, target: CheckpointRecord) -> TableRecord:
    """Return the files that take a table back to that entry: all, or for an append table those that come and go."""
    log = world.table(table.name)
    if table.mode is not TableMode.APPEND:
        was = next((each for each in target.vertices if each.vertex == vertex), None)
        files = live_files(table, was) if was is not None else ()
        return TableRecord(table=table.name, mode=table.mode, files=files, parent_version=log.version)
    wanted = _appended(world, table.name, target)
    return TableRecord(
        table=table.name,
        mode=TableMode.APPEND,
        adds=tuple(handle_of(world, path) for path in sorted(wanted - log.active)),
        removes=tuple(handle_of(world, path) for path in sorted(log.active - wanted)),
        parent_version=log.version,
        planned_on=CheckpointId(log.shown[-1]),
    )


def _appended(world: World, name: TableName, target: CheckpointRecord) -> frozenset[str]:
    """Return an append table's files at the entry: at its cut, or at its parent's with a plain savepoint's."""
    published = target.checkpoint in world.cuts
    cut = world.cuts.get(target.checkpoint if published else target.parent, {})
    net = [] if published else [each for each in target.tables if each.table == name]
    gone = {file.path for each in net for file in each.removes}
    return (world.table(name).versions[cut.get(name, 0)] - gone) | {file.path for each in net for file in each.adds}


def _is_as_published(world: World, target: CheckpointRecord) -> bool:
    """Return whether append tables still have the versions that the cut of the row names."""
    seen = standing(world)
    base = target.checkpoint if target.checkpoint in seen.cuts else target.parent
    versions = ((name, at, wanted(seen, base, name)) for name, at in seen.cuts.get(base, {}).items())
    return all(
        seen.logs[name].is_as_published(at, due)
        for name, at, due in versions
        if mode_of(seen, name) is TableMode.APPEND
    )


def _undo_merges(world: World, graph: JobGraph, target: CheckpointRecord) -> None:
    """Undo another writer's merges of files that must leave a table, if all files from before still exist.

    No row of the table changes.
    """
    for _, table in _tables(world, graph, target):
        if table.mode is TableMode.APPEND:
            leaving = world.files.keys() - _appended(world, table.name, target)
            undone = world.table(table.name).copy()
            undone.undo_merges(leaving, world.now_ms)
            if undone.active.isdisjoint(world.gone):
                world.table(table.name).undo_merges(leaving, world.now_ms)


def _merged(world: World, graph: JobGraph, target: CheckpointRecord) -> bool:
    """Return whether another writer's file holds rows from before and after the entry. Then the rollback is refused."""
    appended = [table.name for _, table in _tables(world, graph, target) if table.mode is TableMode.APPEND]
    changing = (_appended(world, name, target) ^ world.table(name).active for name in appended)
    return any(world.files[path].generation == 0 for paths in changing for path in paths)
