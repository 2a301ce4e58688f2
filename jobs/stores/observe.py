"""What a starting tick must see before it decides anything: one call, no effect."""

from collections.abc import Callable
from dataclasses import dataclass

from checkpointing.commit.fencing import HolderObserved, newest_checkpoint, newest_claim
from checkpointing.commit.recovery import Observed
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import Claim, Row
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.holders import is_alive
from jobs.stores.lease import LeaseStore
from jobs.stores.tables import TableLogs
from jobs.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A table of the newest row: the checkpoint that its log says it shows, and its Delta version."""

    table: TableName
    shows: CheckpointId
    version: int


@dataclass(frozen=True, slots=True)
class Observation:
    """The facts of recovery, and the tables of the newest row (those that exist)."""

    facts: Observed
    tables: tuple[TableSeen, ...]


def observe(
    warehouse: Warehouse,
    checkpoints: CheckpointStore,
    cuts: CutStore,
    tables: TableLogs,
    run_ended: Callable[[str], bool | None] | None = None,
) -> Observation:
    """Gather what recovery needs. Raises what the codec raises for rows that cannot be read."""
    version, rows = checkpoints.observe()
    facts = Observed(
        version=version,
        rows=rows,
        cuts=cuts.recorded(),
        holder=_holder(newest_claim(rows), LeaseStore(warehouse), run_ended),
        now_ms=warehouse.now_ms(),
    )
    return Observation(facts, _tables(rows, tables))


def _holder(claim: Claim | None, leases: LeaseStore, run_ended: Callable[[str], bool | None] | None) -> HolderObserved:
    lease = leases.read()
    alive = is_alive(claim.holder, run_ended) if claim is not None else None
    return HolderObserved(alive=alive, lease=lease.lease() if lease is not None else None)


def _tables(rows: tuple[Row, ...], tables: TableLogs) -> tuple[TableSeen, ...]:
    newest = newest_checkpoint(rows)
    seen = []
    for record in newest.tables if newest is not None else ():
        log = tables.log(record.table)
        if log.exists():
            table = log.current()
            seen.append(TableSeen(record.table, CheckpointId(tables.shown(table, record.table)), table.version()))
    return tuple(seen)
