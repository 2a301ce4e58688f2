"""Says what must be durable before what, so that a power cut takes nothing that a row or a recorded cut names.

The order is the invariant: the files that a row names, then the row (the commit point), then every log entry up to
the versions of its cut, then the cut. What is durable need not be synced again. The rows that are retained and the
cuts that are recorded tell what that is.
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
    """Return the files that must be durable before the row is appended: those that no retained row names.

    A file whose content lies in the row is durable with it.
    """
    durable = frozenset[str]().union(*(files_of(each) for each in retained))
    wanted = (file.path for file in handles_of(row) if not file.inline)
    return tuple(dict.fromkeys(path for path in wanted if path not in durable))


def entries_to_sync(
    versions: Mapping[TableName, int], cuts: Mapping[CheckpointId, Mapping[TableName, int]]
) -> tuple[Entries, ...]:
    """Return the entries that must be durable before a cut of these versions is recorded.

    They are all that came since the newest recorded cut, those of others too: a log with a gap cannot be loaded.
    """
    return tuple(_entries(versions, cuts))


def _entries(
    versions: Mapping[TableName, int], cuts: Mapping[CheckpointId, Mapping[TableName, int]]
) -> Iterator[Entries]:
    for table, version in versions.items():
        durable = max((cut[table] for cut in cuts.values() if table in cut), default=-1)
        if version > durable:
            yield Entries(table, durable + 1, version)
