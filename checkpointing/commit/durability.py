"""Says what must be durable before what, so that a power cut takes nothing that an entry or a recorded cut names.

The order is the invariant: first the files that an entry names, then the entry (the commit point), then all log entries
up to the versions of its cut, then the cut. What retained entries and recorded cuts name is durable already, and is not
synced again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.files import files_of, handles_of
from checkpointing.metadata.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a table's log from version `first` to version `last`."""

    table: TableName
    first: int
    last: int


def files_to_sync(row: CheckpointRecord, retained: Iterable[CheckpointRecord]) -> tuple[str, ...]:
    """Return the files that must be durable before the entry is appended: those that no retained entry names.

    A file whose content lies inside the entry becomes durable with it.
    """
    durable = frozenset[str]().union(*(files_of(each) for each in retained))
    wanted = (file.path for file in handles_of(row) if not file.inline)
    return tuple(dict.fromkeys(path for path in wanted if path not in durable))


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
