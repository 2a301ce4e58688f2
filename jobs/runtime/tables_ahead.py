"""Whether output tables show more than a tick would begin from: then it may not begin, or would fill them twice.

A table's own log says which checkpoint it shows. That one's row is always there, unless the job was
cancelled and its checkpoints deleted (G3), or rows were lost.
"""

from checkpointing.graph import JobGraph, TableMode
from checkpointing.metadata.record import CheckpointRecord
from jobs.runtime.failures import TablesAheadError
from jobs.runtime.job_stores import JobStores


def must_not_be_ahead(stores: JobStores, graph: JobGraph, newest: CheckpointRecord | None) -> None:
    """Raise TablesAheadError, naming the first output table that shows a checkpoint newer than `newest`."""
    begins = newest.checkpoint if newest is not None else None
    for table in graph.tables():
        if table.mode is TableMode.STATE:
            continue  # set to exactly the next checkpoint's files, whatever it shows
        shows = stores.shown(table.name)
        if shows > (begins or 0):
            paths, root = stores.warehouse.paths, stores.warehouse.root
            raise TablesAheadError(paths.job, root, table.name, shows, begins)
