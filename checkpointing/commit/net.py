"""The net files of a checkpoint: what publishing it changes, between its parent's cut and its barrier.

A failed checkpoint loses nothing: its staged files belong to the next one, so "net" is always taken
against the last *committed* row, the parent. An upsert range rewritten in n and
again in n+1 appears once, because only the newest file of a range is live.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from checkpointing.graph import JobGraph, Table, TableMode, Vertex
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, JobName, TableName, VertexId
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord, TableRecord, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot


def net_tables(
    graph: JobGraph,
    vertices: Mapping[VertexId, VertexRecord],
    parent: CheckpointRecord | None,
    versions: Mapping[TableName, int],
) -> tuple[TableRecord, ...]:
    """Return a record for each table that publishing this cut changes.

    `versions` are the tables' Delta versions at the parent cut.
    """
    before = {record.vertex: record for record in parent.vertices} if parent else {}
    since = parent.checkpoint if parent else CheckpointId(0)
    records = []
    for vertex in graph.operators():
        for table in vertex.tables:
            record = _net(table, vertex, vertices, before, since, versions.get(table.name, 0))
            if record is not None:
                records.append(record)
    return tuple(records)


def _net(
    table: Table,
    vertex: Vertex,
    now: Mapping[VertexId, VertexRecord],
    before: Mapping[VertexId, VertexRecord],
    since: CheckpointId,
    version: int,
) -> TableRecord | None:
    if table.mode is TableMode.APPEND:
        adds = tuple(_appended(now[vertex.id], table.name, since))
        return TableRecord(table=table.name, mode=table.mode, adds=adds, parent_version=version) if adds else None
    files = live_files(table, now[vertex.id])
    old = live_files(table, before[vertex.id]) if vertex.id in before else ()
    if set(files) == set(old):
        return None
    return TableRecord(table=table.name, mode=table.mode, files=files, parent_version=version)


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


def live_files(table: Table, record: VertexRecord) -> tuple[FileHandle, ...]:
    """Return the files that an upsert or state table consists of at that cut, in order of path."""
    found = {file.path: file for snapshot in record.subtasks for file in _files_of(table, snapshot)}
    return tuple(found[path] for path in sorted(found))


def _files_of(table: Table, snapshot: SubtaskSnapshot) -> Iterator[FileHandle]:
    if table.mode is TableMode.STATE:
        yield from (keyed.file for keyed in snapshot.state)
        return
    for ranges in snapshot.ranges:
        if ranges.table == table.name:
            yield from (keyed.file for keyed in ranges.files)


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
