"""Computes the net files of a checkpoint: what publishing it changes, compared with its parent's cut.

A failed checkpoint loses nothing, because its staged files belong to the next one. So "net" always compares with the
last *committed* entry, the parent. If an upsert range is written in n and again in n+1, it appears once, because only
the newest file of a range is live.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from checkpointing.columns import TableColumn, TableColumns, in_another_order, renamed_between
from checkpointing.commit.columns import columns_of, differ, leaving
from checkpointing.commit.live_files import Lists, changed_files, each_once, live_files
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import CheckpointId, JobName, TableName, VertexId
from checkpointing.messages import Compacted
from checkpointing.metadata.paths import is_state_table, table_of_state
from checkpointing.metadata.record import CheckpointRecord, RowKind, TableRecord, VertexRecord


@dataclass(frozen=True, slots=True)
class Renamed:
    """A table that no entry has published under its name yet. The next entry publishes it whole.

    It is a renamed table, or a new one under a name that the job gave up. An append table begins with `files`. If
    another table had the name before, its log still exists: `columns` names what it shows now, and `removes` are our
    files that must leave it.
    """

    files: tuple[FileHandle, ...] = ()
    removes: tuple[FileHandle, ...] = ()
    columns: tuple[str, ...] = ()
    planned_on: CheckpointId | None = None
    """The checkpoint that the log of an append table showed then."""


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
    """Return the records with what was compacted. A table that changes in no other way gets a record of its own."""
    records = {each.table: each for each in tables}
    for each in compacted:
        version = versions.get(each.table, 0)
        record = records.get(each.table) or TableRecord(table=each.table, mode=TableMode.APPEND, parent_version=version)
        records[each.table] = record.model_copy(update={"compactions": each.compactions})
    return tuple(records.values())


def _changed(
    table: Table, now: VertexRecord, before: VertexRecord | None, parent: CheckpointRecord | None
) -> tuple[FileHandle, ...] | None:
    """Return a table's files, as `_net_files` does, or None if they are those of the parent's cut."""
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
    """Yield the tables of which the snapshots name all files, each with the lists of its files."""
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
