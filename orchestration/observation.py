"""What a warehouse says of a job once a tick is over: its newest checkpoint, and what each table shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import JobName, TableName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.observe import TableSeen, observe
from jobs.stores.tables import TableLogs
from jobs.stores.warehouse import Warehouse
from orchestration.epochs import Epoch


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands: its newest checkpoint with its cut (None before the first), and the tables as they are."""

    epoch: Epoch | None
    tables: Mapping[TableName, TableSeen]


def standing(root: Path, job: JobName) -> Standing:
    """Observe a job that has run there. Raises what the codec raises for rows of another version."""
    warehouse = Warehouse(root.absolute(), ProtocolPaths(job))
    cuts = CutStore(warehouse)
    seen = observe(warehouse, CheckpointStore(warehouse), cuts, TableLogs(warehouse))
    newest = newest_checkpoint(seen.facts.rows)
    epoch = None if newest is None else Epoch(newest, (), cuts.read(newest.checkpoint) or {})
    return Standing(epoch, {table.table: table for table in seen.tables})
