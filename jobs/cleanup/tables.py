"""Finds the folders in which a job stages files: output tables, operators' states, channels, and the manifests.

It does not use the pipeline, because a clean-up must also find what an older version of the pipeline wrote.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from checkpointing.identifiers import CheckpointId, InvalidNameError, TableName, table_name
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.stores.cuts import Cut
from jobs.stores.known_table import KnownTable
from jobs.stores.log_entries import log_of
from jobs.stores.output_tables import JOB_PROPERTY
from jobs.stores.warehouse import Warehouse


class HeldLogs(Protocol):
    """A job's logs that are already open, so that looking at them again is cheap."""

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse of the logs."""

    def rows(self) -> tuple[Row, ...]:
        """Return the entries of `checkpoints`, newest first; raises what the codec raises."""

    def recorded_cuts(self) -> dict[CheckpointId, Cut]:
        """Return every recorded cut."""

    def newest(self, table: TableName) -> AbstractContextManager[KnownTable]:
        """Lend a table at its newest version; raises what delta-rs raises if it cannot be read."""


@dataclass(frozen=True, slots=True, order=True)
class JobTable:
    """A folder of the job. If `ours`, this job made the table and may delete all files that the log has removed."""

    name: TableName
    ours: bool

    def has_log(self, paths: ProtocolPaths) -> bool:
        """Whether it is a table, whose log decides what is needed. Channels and the manifests have none."""
        return not self.name.startswith(f"{paths.channels}/") and self.name != paths.manifests


def job_tables(logs: HeldLogs) -> tuple[JobTable, ...]:
    """Return the job's folders in order of their names, without tables of other jobs in the warehouse."""
    warehouse = logs.warehouse
    named = {table for cut in logs.recorded_cuts().values() for table in cut}
    named |= {table.table for row in logs.rows() if isinstance(row, CheckpointRecord) for table in row.tables}
    found = {JobTable(name, ours=True) for name in _made_by_job(logs)} | set(_own(warehouse))
    known = {table.name for table in found}
    there = {JobTable(name, ours=False) for name in named - known if warehouse.place(name).is_folder()}
    return tuple(sorted(found | there))


def _own(warehouse: Warehouse) -> Iterator[JobTable]:
    for root in (warehouse.paths.states, warehouse.paths.channels):
        yield from (JobTable(TableName(each.name), ours=True) for each in warehouse.place(root).folders())
    yield JobTable(warehouse.paths.manifests, ours=True)


def _made_by_job(logs: HeldLogs) -> Iterator[TableName]:
    """Yield the output tables whose own property says that this job made them."""
    for schema in logs.warehouse.place("").folders():
        for folder in schema.folders():
            name = _named(folder.name)
            if name is not None and log_of(folder).is_folder() and _owner(logs, name) == logs.warehouse.paths.job:
                yield name


def _named(text: str) -> TableName | None:
    try:
        return table_name(text)
    except InvalidNameError:
        return None


def _owner(logs: HeldLogs, table: TableName) -> str | None:
    try:
        with logs.newest(table) as known:
            return known.loaded.metadata().configuration.get(JOB_PROPERTY)
    except Exception:  # noqa: BLE001 - an unreadable table is skipped here; if an entry names it, it is found by that
        return None
