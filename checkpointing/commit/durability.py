"""Says what must be durable before what, so that a power cut takes nothing that an entry or a recorded cut names.

The order is the invariant: first the files that an entry names, then the entry (the commit point), then all log entries
up to the versions of its cut, then the cut. What retained entries and recorded cuts name is durable already, and is not
synced again.

A rollback is an exception. Its entry names only the files that change, and relies on the tables' logs for the others.
So all log entries of its tables are synced before its entry.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.files import handles_of_snapshot
from checkpointing.metadata.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a table's log from version `first` to version `last`."""

    table: TableName
    first: int
    last: int


def files_to_sync(row: CheckpointRecord, retained: Iterable[CheckpointRecord]) -> tuple[str, ...]:
    """Return the files that must be durable before the entry is appended: those that no retained entry names.

    A subtask that has the same snapshot in a retained entry is passed over, so that only changes cost anything. A file
    that has moved to another subtask may be named again. A file whose content lies inside the entry becomes durable
    with it. The files of upsert and state tables are those of the snapshots.
    """
    entries = tuple(retained)
    wanted = dict.fromkeys(file.path for file in _appended(row) if not file.inline)
    durable = {file.path for each in entries for file in _appended(each)}
    known = [{vertex.vertex: vertex.subtasks for vertex in each.vertices} for each in entries]
    for vertex in row.vertices:
        for now, *before in zip_longest(vertex.subtasks, *(each.get(vertex.vertex, ()) for each in known)):
            if now in before:
                continue
            if now is not None:
                wanted |= dict.fromkeys(file.path for file in handles_of_snapshot(now) if not file.inline)
            durable.update(file.path for each in before if each is not None for file in handles_of_snapshot(each))
    return tuple(path for path in wanted if path not in durable)


def _appended(row: CheckpointRecord) -> Iterator[FileHandle]:
    """Yield the files that an entry adds to append tables, also in the place of others."""
    for table in row.tables:
        yield from (*table.adds, *(each.into for each in table.compactions))


def entries_to_sync(
    versions: Mapping[TableName, int], cuts: Mapping[CheckpointId, Mapping[TableName, int]]
) -> tuple[Entries, ...]:
    """Return the log entries that must be durable before a cut of these versions is recorded.

    These are all since the newest recorded cut, including those that others wrote. A log with a gap cannot be loaded.
    """
    return tuple(_entries(versions, cuts))


def _entries(
    versions: Mapping[TableName, int], cuts: Mapping[CheckpointId, Mapping[TableName, int]]
) -> Iterator[Entries]:
    for table, version in versions.items():
        durable = max((cut[table] for cut in cuts.values() if table in cut), default=-1)
        if version > durable:
            yield Entries(table, durable + 1, version)
