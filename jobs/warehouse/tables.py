"""Holds the log of each output table open for the whole tick, and remembers which checkpoint a table shows."""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from checkpointing.commit.lost_publications import Entry
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, TableName
from jobs.sinks.port import NOTHING_SAID, Description
from jobs.storage.folder import Folder
from jobs.storage.place import both
from jobs.warehouse.delta_log import DeltaLog, FaultHook, no_fault
from jobs.warehouse.log_entries import published_by
from jobs.warehouse.table_snapshot import KnownTable, active_paths, delta_table
from jobs.warehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Left:
    """The newest version of a table, and the checkpoint of the job that it published."""

    version: int
    shows: CheckpointId


class TableLogs:
    """The logs of a job's output and state tables. Each log is found by its table's name.

    Only one thread at a time may use a table.
    """

    def __init__(self, warehouse: Warehouse, *, hook: FaultHook = no_fault) -> None:
        """Store the warehouse. A table is opened when it is first used."""
        self._warehouse = warehouse
        self._hook = hook
        self._logs: dict[TableName, DeltaLog] = {}
        self._shown: dict[TableName, tuple[DeltaTable, int, int]] = {}
        """Per table: a loaded table, its version, and the checkpoint that it shows.

        They are remembered because the lookup takes half as long as a commit.
        """
        self._published: dict[tuple[TableName, int], Entry] = {}
        """The checkpoints that log entries published. An entry never changes."""
        self._said: dict[TableName, Description] = {}
        self._left: dict[TableName, Left] = {}
        """Tables that were looked at since `look_anew` and need not be opened yet, as `left` found."""

    def log(self, table: TableName) -> DeltaLog:
        """Return a table's log, even if the table does not exist yet."""
        if table not in self._logs:
            folder = self._warehouse.place(self._warehouse.paths.table(table))
            self._logs[table] = DeltaLog(folder, hook=self._hook)
        return self._logs[table]

    def shown(self, table: KnownTable, name: TableName) -> int:
        """Return the newest checkpoint that the table shows, or 0 if it shows none."""
        known, version, checkpoint = self._shown.get(name, (None, 0, 0))
        if known is not table.loaded or version != table.version():
            checkpoint = self._shown_by(table, name)
            self._shown[name] = (table.loaded, table.version(), checkpoint)
        return checkpoint

    def _shown_by(self, table: KnownTable, name: TableName) -> int:
        """Return the checkpoint in the newest log entry. If another writer wrote it, delta-rs reads the whole log."""
        newest = self.published_at(name, table.version())
        if newest is not None:
            return newest.checkpoint
        return self.log(name).loaded().transaction_version(self._warehouse.paths.transaction_id(name)) or 0

    def published_at(self, name: TableName, version: int) -> Entry | None:
        """Return the job's checkpoint that a table's log entry published. None without one, or if it is unreadable."""
        known = self._published.get((name, version))
        if known is not None:
            return known
        found = published_by(self.log(name).folder, version, self._warehouse.paths.transaction_id(name))
        if found is not None:
            self._published[name, version] = found
        return found

    def left(self, name: TableName, versions: Collection[int] = ()) -> Left | None:
        """Return the newest version of a table in an object store if it is among `versions` and the job published it.

        Then no other writer has changed the table since, and the table need not be opened, for which delta-rs would
        read the whole log. Without `versions`, return the result of the look since `look_anew`. None means only that
        the table must be opened.
        """
        log = self.log(name)
        if versions and not log.is_open and not isinstance(log.folder.storage, Folder):
            newest = max(versions)
            is_newest, entry = both(
                log.folder.storage, lambda: log.ends_at(newest), lambda: self.published_at(name, newest)
            )
            if is_newest and entry is not None:
                self._left[name] = Left(newest, entry.checkpoint)
        return self._left.get(name)

    def describe(self, name: TableName, says: Description) -> None:
        """Store the pipeline's comments and properties of a table."""
        self._said[name] = says

    def says(self, name: TableName) -> Description:
        """Return the pipeline's comments and properties of a table. A command without a pipeline has none."""
        return self._said.get(name, NOTHING_SAID)

    def look_anew(self) -> None:
        """Make the next use of each log look at it again, because others may have committed since."""
        self._left.clear()
        for log in self._logs.values():
            log.look_anew()

    def published(self, table: KnownTable, name: TableName, checkpoint: CheckpointId) -> None:
        """Record that a commit after that table makes the table show a checkpoint."""
        self._shown[name] = (table.loaded, table.version() + 1, checkpoint)
        self._left.pop(name, None)


@dataclass(frozen=True, slots=True)
class TableShown:
    """What a table shows according to its log: checkpoint, Delta version, and for an append table the number of rows.

    `at_cut` has the table's files at the version of a recorded cut, relative to the warehouse. `at_cut` is None if no
    cut records the table, and also for an append table, because others can add files to such a table.
    """

    shows: CheckpointId
    version: int
    rows: int | None
    at_cut: frozenset[str] | None


def table_shown(logs: TableLogs, name: TableName, mode: TableMode, recorded: int | None) -> TableShown | None:
    """Return what a table shows now and at the version `recorded`, or None if there is no such table."""
    log = logs.log(name)
    if not log.exists():
        return None
    table = log.current()
    shows, version = CheckpointId(logs.shown(table, name)), table.version()
    if mode is TableMode.APPEND:
        return TableShown(shows, version, _rows_of(log.loaded()), None)
    if recorded is None or recorded > version:
        return TableShown(shows, version, None, None)
    at_cut = delta_table(log.folder, recorded)
    return TableShown(shows, version, None, frozenset(f"{name}/{path}" for path in active_paths(at_cut)))


def rows_at(logs: TableLogs, name: TableName, version: int) -> int | None:
    """Return how many rows a table has at a Delta version according to its log, or None if there is no such table."""
    log = logs.log(name)
    return _rows_of(delta_table(log.folder, version)) if log.exists() else None


def _rows_of(table: DeltaTable) -> int:
    files = pa.table(table.get_add_actions(flatten=True))
    return int(pc.sum(files.column("num_records")).as_py() or 0) if files.num_rows else 0
