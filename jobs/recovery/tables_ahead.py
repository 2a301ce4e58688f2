"""Refuses a tick if an output table shows a newer checkpoint than the one from which the tick would begin.

The tick would write the table's rows twice. A table's log says which checkpoint it shows. The entry of that checkpoint
exists, unless a cancellation deleted it (G3) or entries were lost.
"""

from collections.abc import Iterable

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.holding.failures import TablesAheadError
from jobs.holding.job_stores import JobStores
from jobs.storage.together import together


def must_not_be_ahead(stores: JobStores, tables: Iterable[TableName], rows: tuple[Row, ...]) -> None:
    """Raise TablesAheadError for the first of these tables that shows a checkpoint after the newest entry.

    State tables do not count, since the next checkpoint sets them to exactly its files.
    """
    newest = newest_checkpoint(rows)
    begins = newest.checkpoint if newest is not None else None
    savepoints = [row.checkpoint for row in rows if isinstance(row, CheckpointRecord) and row.is_savepoint]
    warehouse = stores.warehouse
    outputs = [table for table in tables if not table.startswith(f"{warehouse.paths.states}/")]
    for table, shows in zip(outputs, together(warehouse.storage, stores.shown, outputs), strict=True):
        if shows > (begins or 0):
            restore = begins or max(savepoints, default=None)
            raise TablesAheadError(warehouse.paths.job, warehouse.root, table, shows, begins, restore)
