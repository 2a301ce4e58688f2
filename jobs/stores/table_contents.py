"""What a table of a job shows, for people who look at it: its checkpoint, its version, its files at a cut, its rows."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, TableName
from jobs.stores.delta_log import active_paths
from jobs.stores.tables import TableLogs


@dataclass(frozen=True, slots=True)
class TableShown:
    """A table as its log tells it: the checkpoint that it shows, its Delta version, and the rows of an append table.

    `at_cut` are its files, relative to the warehouse, at the version that a cut records; None if it records
    none, or for an append table, whose files are others' business too.
    """

    shows: CheckpointId
    version: int
    rows: int | None
    at_cut: frozenset[str] | None


def table_shown(logs: TableLogs, name: TableName, mode: TableMode, recorded: int | None) -> TableShown | None:
    """Return what a table shows now and at the version `recorded`; None for a table that is not there."""
    log = logs.log(name)
    if not log.exists():
        return None
    table = log.current()
    shows, version = CheckpointId(logs.shown(table, name)), table.version()
    if mode is TableMode.APPEND:
        return TableShown(shows, version, _rows_of(table), None)
    if recorded is None or recorded > version:
        return TableShown(shows, version, None, None)
    at_cut = DeltaTable(str(log.folder), version=recorded)
    return TableShown(shows, version, None, frozenset(f"{name}/{path}" for path in active_paths(at_cut)))


def rows_at(logs: TableLogs, name: TableName, version: int) -> int | None:
    """Return how many rows a table had at a version, by its log alone; None for a table that is not there."""
    log = logs.log(name)
    return _rows_of(DeltaTable(str(log.folder), version=version)) if log.exists() else None


def _rows_of(table: DeltaTable) -> int:
    files = pa.table(table.get_add_actions(flatten=True))
    return int(pc.sum(files.column("num_records")).as_py() or 0) if files.num_rows else 0
