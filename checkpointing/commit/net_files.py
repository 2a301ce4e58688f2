"""Computes the net files of a checkpoint: what its publication changes, compared with its parent's cut.

A failed checkpoint loses nothing, because its staged files belong to the next one. So "net" always compares with the
last *committed* entry, the parent. If a range of an upsert table is written in checkpoint n and again in n+1, it
appears once, because only the newest file of a range is live.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from checkpointing.columns import TableColumn, TableColumns, in_another_order, renamed_between
from checkpointing.commit.columns import columns_of, differ, leaving
from checkpointing.commit.live_files import (
    Lists,
    changed_files,
    each_changed,
    each_once,
    is_split,
    lists_of,
    live_files,
)
from checkpointing.commit.recovery import publications
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import CheckpointId, JobName, TableName, VertexId
from checkpointing.messages import Compacted, FileChanges, Publication
from checkpointing.metadata.paths import is_state_table, table_of_state
from checkpointing.metadata.record import CheckpointRecord, RowKind, TableRecord, VertexRecord


@dataclass(frozen=True, slots=True)
class Renamed:
    """A table that no entry has published under its name yet. The next entry publishes it whole.

    It is a renamed table, or a new table under a name that the job gave up. An append table begins with `files`. If
    another table had the name before, its log still exists: `columns` names the columns that it shows now, and
    `removes` are the job's files that must leave it.
    """

    files: tuple[FileHandle, ...] = ()
    removes: tuple[FileHandle, ...] = ()
    columns: tuple[str, ...] = ()
    planned_on: CheckpointId | None = None
    """The checkpoint that the log of an append table showed when this was planned."""


_Columns = tuple[TableColumn, ...]

NONE_RENAMED: Final[Mapping[TableName, Renamed]] = MappingProxyType({})


def net_tables(
    graph: JobGraph,
    vertices: Mapping[VertexId, VertexRecord],
    parent: CheckpointRecord | None,
    versions: Mapping[TableName, int],
    columns: Iterable[TableColumns] = (),
    *,
    renamed: Mapping[TableName, Renamed] = NONE_RENAMED,
) -> tuple[TableRecord, ...]:
    """Return a record for each table whose files or columns change when this cut is published.

    `versions` are the tables' Delta versions at the parent's cut. `columns` are the tables' columns at this cut. The
    parent already has the graph's names. Tables in `renamed` are published whole.
    """
    before = {record.vertex: record for record in parent.vertices} if parent else {}
    was, now = columns_of(parent), {each.table: each.columns for each in columns}
    records = []
    for vertex in graph.operators():
        for table in vertex.tables:
            old, new = was.get(table.name), now.get(table.name)
            first = renamed.get(table.name)
            if first is not None:
                files = _net_files(table, vertices[vertex.id], parent)
                kept = {column.name for column in new or ()}
                gone = tuple(name for name in first.columns if name not in kept)
                whole = _net(table, (*first.files, *files), gone, versions.get(table.name, 0))
                planned: dict[str, object] = {"removes": first.removes, "planned_on": first.planned_on}
                records.append(whole.model_copy(update=planned | _of_columns(table, old, new)))
                continue
            changed = _changed(table, vertices[vertex.id], before.get(vertex.id), parent)
            of_columns = _of_columns(table, old, new)
            if changed is None and (differ(old, new) or of_columns):
                changed = _net_files(table, vertices[vertex.id], parent)
            if changed is not None:
                record = _net(table, changed, leaving(old, new), versions.get(table.name, 0))
                records.append(record.model_copy(update=of_columns))
    return tuple(records)


def _of_columns(table: Table, was: _Columns | None, now: _Columns | None) -> dict[str, object]:
    """Return the fields of a table's record that say which columns are renamed, and whether they are reordered."""
    if was is None or now is None:
        return {}
    renamed = renamed_between(was, now) if table.mode is TableMode.APPEND else ()
    said = {"renamed": renamed, "in_order": in_another_order(was, now)}
    return {name: value for name, value in said.items() if value}


def with_compactions(
    tables: tuple[TableRecord, ...], compacted: Iterable[Compacted], versions: Mapping[TableName, int]
) -> tuple[TableRecord, ...]:
    """Return the records with the compactions. A table that only a compaction changes gets a record of its own."""
    records = {each.table: each for each in tables}
    for each in compacted:
        version = versions.get(each.table, 0)
        record = records.get(each.table) or TableRecord(table=each.table, mode=TableMode.APPEND, parent_version=version)
        records[each.table] = record.model_copy(update={"compactions": each.compactions})
    return tuple(records.values())


def _changed(
    table: Table, now: VertexRecord, before: VertexRecord | None, parent: CheckpointRecord | None
) -> tuple[FileHandle, ...] | None:
    """Return a table's files as `_net_files` does, or None if they are the same as at the parent's cut."""
    if table.mode is TableMode.APPEND:
        return _net_files(table, now, parent) or None
    if parent is None or parent.kind is not RowKind.CHECKPOINT:
        return changed_files(table, now, before)
    shown = next((each.files for each in parent.tables if each.table == table.name), ())
    return changed_files(table, now, before, shown)


def _net(table: Table, files: tuple[FileHandle, ...], leaving: tuple[str, ...], version: int) -> TableRecord:
    adds, whole = (files, ()) if table.mode is TableMode.APPEND else ((), files)
    return TableRecord(
        table=table.name, mode=table.mode, adds=adds, files=whole, leaving=leaving, parent_version=version
    )


def _net_files(table: Table, now: VertexRecord, parent: CheckpointRecord | None) -> tuple[FileHandle, ...]:
    """Return the new files of an append table since the parent, or all files of another table."""
    if table.mode is not TableMode.APPEND:
        return live_files(table, now)
    return tuple(_appended(now, table.name, parent.checkpoint if parent else CheckpointId(0)))


def _appended(record: VertexRecord, table: TableName, since: CheckpointId) -> Iterator[FileHandle]:
    for snapshot in record.subtasks:
        for staged in snapshot.staged:
            if staged.table == table and staged.after >= since:
                yield staged.file


def nothing_staged(record: CheckpointRecord) -> tuple[VertexRecord, ...]:
    """Return the entry's vertices without the files staged for append tables. The entry's tables name those files."""
    return tuple(
        vertex.model_copy(update={"subtasks": tuple(replace(each, staged=()) for each in vertex.subtasks)})
        for vertex in record.vertices
    )


def keyed_tables(record: CheckpointRecord, job: JobName) -> Iterator[tuple[TableName, TableRecord]]:
    """Yield the upsert, overwrite and state tables that the snapshots name, each with all its files."""
    for name, mode, lists in keyed_lists(record, job):
        yield name, TableRecord(table=name, mode=mode, files=each_once(lists), parent_version=0)


def keyed_lists(record: CheckpointRecord, job: JobName) -> Iterator[tuple[TableName, TableMode, Lists]]:
    """Yield the tables whose files the snapshots all name, each with the lists of its files."""
    for vertex in record.vertices:
        modes = {keys.table: keys.mode for keys in vertex.table_keys}
        found: dict[TableName, list[tuple[KeyedFile, ...]]] = {}
        for snapshot in vertex.subtasks:
            for ranges in snapshot.ranges:
                found.setdefault(ranges.table, []).append(ranges.files)
        for name, lists in found.items():
            yield name, TableMode.STATE if is_state_table(name) else modes.get(name, TableMode.UPSERT), lists
        state = [snapshot.state for snapshot in vertex.subtasks]
        if any(state):
            yield table_of_state(job, vertex.vertex), TableMode.STATE, state


# ------------------------------------------------------------------
# Says how an upsert or state table changes when a checkpoint is published.
#
# An entry names every live file of such a table. There may be many, and most were live at the parent's cut too. So a
# publication names the files that changed since that cut, and the version at which the table showed the cut. If the
# table is still at that version, only these changes are read. The invariant: with or without these changes, the table's
# active files become exactly the publication's files.


_PATH: Final = attrgetter("path")


def with_changes(
    graph: JobGraph, record: CheckpointRecord, parent: CheckpointRecord | None, renamed: Collection[TableName]
) -> tuple[Publication, ...]:
    """Return the publications of an entry. Where a table can be compared with the parent's cut, say what changed since.

    A table can be compared if the parent published it and no two subtasks share one of its files, at both cuts.
    Subtasks can share files after a change of parallelism. A table in `renamed` shows the parent's cut under its old
    name.
    """
    if parent is None or parent.kind is not RowKind.CHECKPOINT:
        return publications(record)
    now, before = ({vertex.vertex: vertex for vertex in each.vertices} for each in (record, parent))
    shown = {each.table: each.files for each in parent.tables if each.table not in renamed}
    says = {each.table: each for each in record.tables}
    changes: dict[TableName, FileChanges] = {}
    for vertex in (each for each in graph.operators() if each.id in before):
        for table in (each for each in vertex.tables if each.mode is not TableMode.APPEND and each.name in shown):
            said = says.get(table.name)
            lists, were = lists_of(table, now[vertex.id]), lists_of(table, before[vertex.id])
            if said is not None and is_split(said.files, lists) and is_split(shown[table.name], were):
                changes[table.name] = FileChanges(said.parent_version, *each_changed(lists, were))
    return tuple(replace(each, changes=changes.get(each.table)) for each in publications(record))


def changes_at(
    publication: Publication, version: int, active: set[str] | frozenset[str]
) -> tuple[list[FileHandle], set[str] | frozenset[str]]:
    """Return the files that an upsert or state table lacks at this version, and the paths that must leave it."""
    said = publication.changes
    if said is not None and said.version == version and _explains(said, active, len(publication.files)):
        return [*said.new], {*map(_PATH, said.gone)}
    new = [file for file in publication.files if file.path not in active]  # a large table has many, so this does little
    return new, active.difference(map(_PATH, publication.files))


def _explains(said: FileChanges, active: set[str] | frozenset[str], files: int) -> bool:
    """Return True if the table shows all files that leave it, no new file, and then has the right number of files."""
    fits = len(active) - len(said.gone) + len(said.new) == files
    return fits and active.issuperset(map(_PATH, said.gone)) and active.isdisjoint(map(_PATH, said.new))
