"""Holds the log of each output table open for the whole tick, and says what a table shows."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, TableName
from jobs.stores.delta_log import DeltaLog, FaultHook, active_paths, no_fault
from jobs.stores.warehouse import Warehouse


class TableLogs:
    """The logs of a job's output and state tables, by name. One thread at a time per table."""

    def __init__(self, warehouse: Warehouse, *, hook: FaultHook = no_fault) -> None:
        """Name the warehouse; a table is opened when it is first asked for."""
        self._warehouse = warehouse
        self._hook = hook
        self._logs: dict[TableName, DeltaLog] = {}
        self._shown: dict[TableName, tuple[DeltaTable, int, int]] = {}
        """A loaded table, its version then, and the checkpoint it showed: looking that up costs half a commit."""

    def log(self, table: TableName) -> DeltaLog:
        """Return a table's log, even if the table does not exist yet."""
        if table not in self._logs:
            folder = self._warehouse.place(self._warehouse.paths.table(table))
            self._logs[table] = DeltaLog(folder, hook=self._hook)
        return self._logs[table]

    def shown(self, table: DeltaTable, name: TableName) -> int:
        """Return the newest checkpoint whose effect that loaded table shows, 0 for none."""
        known, version, checkpoint = self._shown.get(name, (None, 0, 0))
        if known is not table or version != table.version():
            checkpoint = table.transaction_version(self._warehouse.paths.transaction_id(name)) or 0
            self._shown[name] = (table, table.version(), checkpoint)
        return checkpoint

    def published(self, table: DeltaTable, name: TableName, checkpoint: CheckpointId) -> None:
        """Take note that a commit behind that loaded table lets the table show a checkpoint."""
        self._shown[name] = (table, table.version() + 1, checkpoint)


@dataclass(frozen=True, slots=True)
class TableShown:
    """What a table's log tells: the checkpoint that it shows, its Delta version, and the rows of an append table.

    `at_cut` are its files, relative to the warehouse, at the version that a cut records. It is None if no cut records
    one, and for an append table, to which others may add files.
    """

    shows: CheckpointId
    version: int
    rows: int | None
    at_cut: frozenset[str] | None


def table_shown(logs: TableLogs, name: TableName, mode: TableMode, recorded: int | None) -> TableShown | None:
    """Return what a table shows now and at the version `recorded`; None if there is no such table."""
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
    """Return how many rows a table had at a version, by its log alone; None if there is no such table."""
    log = logs.log(name)
    return _rows_of(DeltaTable(str(log.folder), version=version)) if log.exists() else None


def _rows_of(table: DeltaTable) -> int:
    files = pa.table(table.get_add_actions(flatten=True))
    return int(pc.sum(files.column("num_records")).as_py() or 0) if files.num_rows else 0
