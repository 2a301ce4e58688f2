"""Keeps a catalog up to date: enters each table that a cut shows, after the cut is recorded.

This is a reporter, so a catalog that fails or hangs neither fails nor delays a tick.
"""

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.paths import ProtocolPaths
from jobs.catalogs.port import Catalog, CatalogError, CatalogTable
from jobs.catalogs.registering import names_in_catalog, register, tables_in_catalog, unregister_others
from jobs.pipeline.job_plan import JobPlan
from jobs.storage.address import Root, absolute
from jobs.tick.reporters.events import CheckpointFailed, CheckpointPublished, Event, TickEnded
from jobs.warehouse.job_stores import newest_restorable
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse


class CatalogReporter:
    """Enters the output tables of a job into a catalog.

    At the tick's first checkpoint, or at the end of a tick without checkpoints, the reporter reads all entries of the
    catalog. Later it calls the catalog only for a table that has changed in a way that the catalog shows.
    """

    def __init__(self, plan: JobPlan, root: Root, catalog: Catalog) -> None:
        """Prepare without calling the catalog. Raises UnusableCatalogError for tables that would share a name."""
        self._warehouse = Warehouse(absolute(root), ProtocolPaths(plan.job))
        self._catalog, self._logs = catalog, TableLogs(self._warehouse)
        outputs = [table for table in plan.graph.tables() if table.mode is not TableMode.STATE]
        self._names = names_in_catalog(table.name for table in outputs)
        before = names_in_catalog(table.renamed_from for table in outputs if table.renamed_from is not None)
        self._renamed = {
            self._names[table.name]: before[table.renamed_from] for table in outputs if table.renamed_from is not None
        }
        self._newest: CheckpointId | None = None
        self._known: dict[str, CatalogTable] | None = None
        """The tables as they were entered in this tick. None: the catalog was not called yet."""

    def report(self, event: Event) -> None:
        """Keep the newest checkpoint, whose tables will be entered."""
        match event:
            case CheckpointPublished():
                self._newest = CheckpointId(event.checkpoint)
            case TickEnded(outcome=outcome) if self._known is None and outcome != "failed":
                newest = newest_restorable(self._warehouse)
                self._newest = None if newest is None else newest.checkpoint
            case CheckpointFailed() | TickEnded():
                return

    def flush(self) -> None:
        """Bring the catalog up to date."""
        if self._newest is not None:
            self._tell(self._newest)
            self._newest = None

    def close(self) -> None:
        """End the connection."""
        self._catalog.close()

    def _tell(self, checkpoint: CheckpointId) -> None:
        tables = list(tables_in_catalog(self._warehouse, self._logs, self._names))
        known = self._known or {}
        changed = [table for table in tables if known.get(table.name) != table]
        refused: list[CatalogError] = []
        try:
            entries = dict(self._catalog.entries()) if changed or self._known is None else {}
            for table in changed:
                try:
                    register(self._catalog, table, entries, checkpoint, self._renamed.get(table.name))
                except CatalogError as error:
                    refused.append(error)
            if self._known is None:
                entered = {table.name for table in tables} & entries.keys()
                before = {old for new, old in self._renamed.items() if new not in entered}
                unregister_others(self._catalog, entries, self._warehouse, {*self._names.values(), *before})
        except Exception:
            self._catalog.close()
            raise
        self._known = {table.name: table for table in tables}
        if refused:
            raise refused[0]
