"""Whether output tables show more than a tick would begin from: then it may not begin, or would fill them twice.

A table's own log says which checkpoint it shows. That one's row is always there, unless the job was
cancelled and its checkpoints deleted (G3), or rows were lost.
"""

from collections.abc import Iterable

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.holding.failures import TablesAheadError
from jobs.holding.job_stores import JobStores


def must_not_be_ahead(stores: JobStores, tables: Iterable[TableName], rows: tuple[Row, ...]) -> None:
    """Raise TablesAheadError, naming the first of these tables that shows a checkpoint after the newest row's.

    A state table is set to exactly the next checkpoint's files, so it does not matter what it shows.
    """
    newest = newest_checkpoint(rows)
    begins = newest.checkpoint if newest is not None else None
    savepoints = [row.checkpoint for row in rows if isinstance(row, CheckpointRecord) and row.is_savepoint]
    warehouse = stores.warehouse
    for table in tables:
        if table.startswith(f"{warehouse.paths.states}/"):
            continue
        shows = stores.shown(table)
        if shows > (begins or 0):
            restore = begins or max(savepoints, default=None)
            raise TablesAheadError(warehouse.paths.job, warehouse.root, table, shows, begins, restore)
