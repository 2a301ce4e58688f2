"""Finds the files of an upsert or state table at a cut, in the snapshots of its vertex."""

from collections.abc import Iterator

from checkpointing.graph import Table, TableMode
from checkpointing.handles import FileHandle
from checkpointing.metadata.record import VertexRecord
from checkpointing.snapshots import SubtaskSnapshot


def live_files(table: Table, record: VertexRecord) -> tuple[FileHandle, ...]:
    """Return the files of an upsert or state table at that cut, in order of path. An append table has none."""
    found = {file.path: file for snapshot in record.subtasks for file in _files_of(table, snapshot)}
    return tuple(found[path] for path in sorted(found))


def _files_of(table: Table, snapshot: SubtaskSnapshot) -> Iterator[FileHandle]:
    if table.mode is TableMode.STATE:
        yield from (keyed.file for keyed in snapshot.state)
        return
    for ranges in snapshot.ranges:
        if ranges.table == table.name:
            yield from (keyed.file for keyed in ranges.files)
