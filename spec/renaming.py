"""Renames in the simulator's stores: a tick translates the cut from which it begins to the pipeline's names (G2).

The core decides what is renamed, and which paths the files get.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from checkpointing.commit.net_files import Renamed
from checkpointing.graph import JobGraph, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.job.renaming import (
    due_renames,
    new_append_tables,
    relocated,
    relocated_files,
    renamed_tables,
    under_new_names,
)
from checkpointing.metadata.record import CheckpointRecord
from spec.pipeline import AUDIT_TABLE, JOB, ROW_BYTES
from spec.world import World


@dataclass(frozen=True, slots=True)
class Names:
    """A restored cut under the graph's names, and the new name of each renamed table by the old one."""

    record: CheckpointRecord | None = None
    tables: Mapping[TableName, TableName] = field(default_factory=dict)

    def then(self, graph: JobGraph) -> tuple[TableName, ...]:
        """Return the tables of the graph under their names at the cut."""
        before = {now: was for was, now in self.tables.items()}
        return tuple(before.get(table.name, table.name) for table in graph.tables())


def names_of(graph: JobGraph, restored: CheckpointRecord | None) -> Names:
    """Return what the graph renames in a restored cut."""
    if restored is None:
        return Names()
    due = due_renames(graph, restored)
    return Names(under_new_names(graph, restored, due) if due else restored, renamed_tables(due, JOB))


def blocked(world: World, graph: JobGraph, names: Names) -> bool:
    """Return whether a neighbour's file lies in a renamed append table.

    The product then ends the tick with an error that names the table, and the user takes another name.
    """
    new = set(names.tables.values())
    appended = (table.name for table in graph.tables() if table.mode is TableMode.APPEND and table.name in new)
    return any(world.files[path].generation == 0 for name in appended for path in world.table(name).active)


def taken(world: World, restored: CheckpointRecord | None) -> bool:
    """Return whether the cut lacks the table that comes and goes, and another writer's file lies in it.

    The product then ends the tick with an error that names the table, and the user goes on without it.
    """
    lacks = restored is not None and AUDIT_TABLE not in {each.table for each in restored.columns}
    return lacks and any(world.files[path].generation == 0 for path in world.table(AUDIT_TABLE).active)


def link(
    world: World, graph: JobGraph, names: Names, generation: Generation
) -> tuple[CheckpointRecord | None, dict[TableName, Renamed]]:
    """Link the files of renamed tables into their new folders. Return the cut with them, and the tables."""
    if names.record is None:
        return None, {}
    renamed = _new_tables(world, graph, names.record)
    if not names.tables:
        return names.record, renamed
    moved = relocated(names.record, names.tables, generation)
    links = dict(moved.links)
    before = {now: was for was, now in names.tables.items()}
    for table in (table for table in graph.tables() if table.name in before):
        if table.mode is TableMode.APPEND:
            old = (handle_of(world, path) for path in sorted(world.table(before[table.name]).active))
            files, more = relocated_files(old, JOB, names.tables, generation)
            links |= more
            renamed[table.name] = replace(_emptied(world, table.name), files=files)
        else:
            renamed[table.name] = Renamed(columns=tuple(sorted(world.table(table.name).columns[-1])))
    world.link(links, generation)
    return moved.record, renamed


def _new_tables(world: World, graph: JobGraph, record: CheckpointRecord) -> dict[TableName, Renamed]:
    """Return the append tables that the cut lacks, and whose logs still show a checkpoint."""
    names = (name for name in new_append_tables(graph, record) if world.table(name).shown[-1])
    return {name: _emptied(world, name) for name in names}


def _emptied(world: World, name: TableName) -> Renamed:
    """Return what takes the rows and columns of before out of an append table."""
    log = world.table(name)
    removes = tuple(handle_of(world, path) for path in sorted(log.active))
    return Renamed((), removes, tuple(sorted(log.columns[-1])), CheckpointId(log.shown[-1]))


def handle_of(world: World, path: str) -> FileHandle:
    """Return the handle of a file of the simulated warehouse."""
    rows = len(world.files[path].rows)
    return FileHandle(path, rows, rows * ROW_BYTES, 0)
