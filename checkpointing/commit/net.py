"""The net files of a checkpoint: what publishing it changes, between its parent's cut and its barrier.

A failed checkpoint loses nothing: its staged files belong to the next one, so "net" is always taken
against the last *committed* row, the parent. An upsert range rewritten in n and
again in n+1 appears once, because only the newest file of a range is live.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from checkpointing.columns import TableColumns
from checkpointing.commit.columns import columns_of, differ, leaving
from checkpointing.commit.live_files import live_files
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, JobName, TableName, VertexId
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord, TableRecord, VertexRecord


@dataclass(frozen=True, slots=True)
class Renamed:
    """A table that no row has published under its name yet: the next one publishes it whole.

    It is a renamed one, or a new one under a name that the job gave up.

    `files` are those that an append table begins with. If a table had the name before, its log is there still:
    `columns` names what it shows now, and `removes` are the files of ours that an append table has to let go.
    """

    files: tuple[FileHandle, ...] = ()
    removes: tuple[FileHandle, ...] = ()
    columns: tuple[str, ...] = ()


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
    """Return a record for each table that publishing this cut changes, in its files or in its columns.

    `versions` are the tables' Delta versions at the parent cut, `columns` the tables' columns at this one. The parent
    has the names of the graph; tables that are `renamed` are published whole.
    """
    before = {record.vertex: record for record in parent.vertices} if parent else {}
    was, now = columns_of(parent), {each.table: each.columns for each in columns}
    records = []
    for vertex in graph.operators():
        for table in vertex.tables:
            old, new = was.get(table.name), now.get(table.name)
            files = _net_files(table, vertices[vertex.id], parent)
            first = renamed.get(table.name)
            if first is not None:
                kept = {column.name for column in new or ()}
                gone = tuple(name for name in first.columns if name not in kept)
                whole = _net(table, (*first.files, *files), gone, versions.get(table.name, 0))
                records.append(whole.model_copy(update={"removes": first.removes}))
                continue
            unchanged = live_files(table, before[vertex.id]) if vertex.id in before else ()
            if set(files) != set(unchanged) or differ(old, new):
                records.append(_net(table, files, leaving(old, new), versions.get(table.name, 0)))
    return tuple(records)


def _net(table: Table, files: tuple[FileHandle, ...], leaving: tuple[str, ...], version: int) -> TableRecord:
    adds, whole = (files, ()) if table.mode is TableMode.APPEND else ((), files)
    return TableRecord(
        table=table.name, mode=table.mode, adds=adds, files=whole, leaving=leaving, parent_version=version
    )


def _net_files(table: Table, now: VertexRecord, parent: CheckpointRecord | None) -> tuple[FileHandle, ...]:
    """Return what came to an append table since the parent, or all that another table consists of now."""
    if table.mode is not TableMode.APPEND:
        return live_files(table, now)
    return tuple(_appended(now, table.name, parent.checkpoint if parent else CheckpointId(0)))


def _appended(record: VertexRecord, table: TableName, since: CheckpointId) -> Iterator[FileHandle]:
    for snapshot in record.subtasks:
        for staged in snapshot.staged:
            if staged.table == table and staged.after >= since:
                yield staged.file


def nothing_staged(record: CheckpointRecord) -> tuple[VertexRecord, ...]:
    """Return the row's vertices without the files staged for append tables, which its tables name."""
    return tuple(
        vertex.model_copy(update={"subtasks": tuple(replace(each, staged=()) for each in vertex.subtasks)})
        for vertex in record.vertices
    )


def keyed_tables(record: CheckpointRecord, job: JobName) -> Iterator[tuple[TableName, TableRecord]]:
    """Yield, whole, the upsert and state tables that the snapshots name, in order of their vertices."""
    for vertex in record.vertices:
        upserts: dict[TableName, dict[str, FileHandle]] = {}
        for snapshot in vertex.subtasks:
            for ranges in snapshot.ranges:
                found = upserts.setdefault(ranges.table, {})
                found.update({keyed.file.path: keyed.file for keyed in ranges.files})
        for name, files in upserts.items():
            yield name, _keyed_table(name, TableMode.UPSERT, files)
        state = {keyed.file.path: keyed.file for snapshot in vertex.subtasks for keyed in snapshot.state}
        if state:
            name = table_of_state(job, vertex.vertex)
            yield name, _keyed_table(name, TableMode.STATE, state)


def _keyed_table(name: TableName, mode: TableMode, files: Mapping[str, FileHandle]) -> TableRecord:
    return TableRecord(table=name, mode=mode, files=tuple(files[path] for path in sorted(files)), parent_version=0)
