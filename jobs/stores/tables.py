"""Holds the log of each output table open for the whole tick."""

from deltalake import DeltaTable

from checkpointing.identifiers import TableName
from jobs.stores.delta_log import DeltaLog, FaultHook, no_fault
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
            folder = self._warehouse.path(self._warehouse.paths.table(table))
            self._logs[table] = DeltaLog(folder, hook=self._hook)
        return self._logs[table]

    def shown(self, table: DeltaTable, name: TableName) -> int:
        """Return the newest checkpoint whose effect that loaded table shows, 0 for none."""
        known, version, checkpoint = self._shown.get(name, (None, 0, 0))
        if known is not table or version != table.version():
            checkpoint = table.transaction_version(self._warehouse.paths.transaction_id(name)) or 0
            self._shown[name] = (table, table.version(), checkpoint)
        return checkpoint
