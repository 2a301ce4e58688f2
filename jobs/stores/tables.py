"""The output tables' logs, each held open once for the whole tick and shared by all who look at tables."""

from dataclasses import dataclass

from deltalake import DeltaTable

from checkpointing.identifiers import TableName
from jobs.stores.delta_log import DeltaLog, FaultHook, no_fault
from jobs.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a table showed when it was loaded at that version; looking it up costs as much as half a commit."""

    table: DeltaTable
    version: int
    checkpoint: int


class TableLogs:
    """The logs of a job's output and state tables, by name. One thread at a time per table."""

    def __init__(self, warehouse: Warehouse, *, hook: FaultHook = no_fault) -> None:
        """Name the warehouse; a table is opened when it is first asked for."""
        self._warehouse = warehouse
        self._hook = hook
        self._logs: dict[TableName, DeltaLog] = {}
        self._shown: dict[TableName, _Shown] = {}

    def log(self, table: TableName) -> DeltaLog:
        """Return a table's log, whether or not the table is there yet."""
        if table not in self._logs:
            folder = self._warehouse.path(self._warehouse.paths.table(table))
            self._logs[table] = DeltaLog(folder, hook=self._hook)
        return self._logs[table]

    def shown(self, table: DeltaTable, name: TableName) -> int:
        """Return the newest checkpoint whose effect that loaded table shows, 0 for none."""
        known = self._shown.get(name)
        if known is not None and known.table is table and known.version == table.version():
            return known.checkpoint
        checkpoint = table.transaction_version(self._warehouse.paths.transaction_id(name)) or 0
        self._shown[name] = _Shown(table, table.version(), checkpoint)
        return checkpoint
