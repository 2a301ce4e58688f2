"""Going back to an older cut in place: tables, state and positions, by ONE row under a new id (K2). No Spark.

The row is the commit point. Killed before it, nothing has happened; after it, the next start of anything, a tick
or another rollback, rolls it forward like any committed row. Ids go on rising, so no table's `txn` is in the
way, and the next tick reads again what came after the cut.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from checkpointing.commit.leftovers import referenced
from checkpointing.commit.net import nothing_staged
from checkpointing.commit.recovery import Observed
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics
from jobs.engine_paths import typed
from jobs.holding import claiming
from jobs.holding.boundaries import DISCARD_LEFTOVERS, LEASE, Boundary, around, cross_freely
from jobs.holding.claiming import Claimed
from jobs.holding.failures import RollForwardError, TablesBehindError
from jobs.holding.hold import Hold
from jobs.holding.job_state import must_have_run
from jobs.holding.job_stores import JobStores
from jobs.holding.lease_keeper import LeaseKeeper
from jobs.recovery.held import append_row, held
from jobs.recovery.recovering import RolledForward, roll_forward
from jobs.recovery.rollback_plan import RollbackPlan, RollbackRefusedError, plan_rollback
from jobs.recovery.tables_behind import must_be_mendable, must_have_logs
from jobs.stores.lease import LeaseStore
from jobs.stores.leftovers import delete_leftovers, own_folders
from jobs.stores.warehouse import Warehouse

APPEND_ROW: Final = "AppendRow"
_LEASE_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What was done: the plan as it was carried out, the row that is the newest now, and each table's version."""

    plan: RollbackPlan
    record: CheckpointRecord
    versions: dict[TableName, int]
    notes: tuple[str, ...]


def preview_rollback(warehouse: Warehouse, checkpoint: int) -> RollbackPlan:
    """Return what `roll_back` would do; changes nothing. Raises what it raises before its claim."""
    must_have_run(warehouse)
    stores = JobStores(warehouse, cross_freely, beyond_damage=True)
    seen = stores.observe()
    behind = _to_be_mended(stores, seen)
    if behind:
        raise RollbackRefusedError(
            f"table {behind[0]} shows less than the newest cut, and is to be published again before anything else: "
            f"run 'tidemark run {warehouse.paths.job} --warehouse {typed(warehouse.root)}' first; nothing was changed"
        )
    return plan_rollback(stores, seen, checkpoint, checksums=True)


def _to_be_mended(stores: JobStores, seen: Observed) -> tuple[TableName, ...]:
    """Return the tables that are published again as soon as the job is held; none if that cannot be done."""
    try:
        return tuple(sorted(must_have_logs(stores, must_be_mendable(stores, seen.rows)).mending.tables))
    except TablesBehindError:
        return ()


def roll_back(warehouse: Warehouse, checkpoint: int, *, boundary: Boundary = cross_freely) -> RolledBack:
    """Take all tables, state and positions of a job at rest back to that row, and return what was done.

    Raises NeverRunError, JobHeldError, naming who holds the job, and what `plan_rollback` raises, and then no row
    was appended; ClaimUnsettledError if the outcome cannot be told; RollForwardError and CutsNotRecordedError for a
    rollback that is committed and not yet published: the next start of the job does that.
    """
    must_have_run(warehouse)
    stores = JobStores(warehouse, boundary, beyond_damage=True)
    seen = stores.observe()
    claiming.decide(seen, warehouse, take_over=False)
    if not _to_be_mended(stores, seen):  # else versions that have gone come back first
        plan_rollback(stores, seen, checkpoint, checksums=True)
    with holding(stores, boundary, beyond_behind=True) as (claimed, hold):
        publish_pending(stores, claimed, checkpoint, boundary)
        plan = plan_rollback(stores, stores.observe(), checkpoint, checksums=False)
        if not plan.damaged:  # what cannot be read may name some of it
            discard_behind(stores, claimed, (table.record.table for table in plan.tables), boundary)
        row = _row(plan, claimed, warehouse.now_ms())
        with around(boundary, APPEND_ROW):
            hold.next_id = CheckpointId(row.checkpoint + 1)
            hold.at_version = append_row(stores, row, hold.at_version, plan.turn.dropped, plan.turn.marks)
        done = publish(stores, row, boundary)
    return RolledBack(plan, row, done.versions, done.notes)


@contextmanager
def holding(stores: JobStores, boundary: Boundary, *, beyond_behind: bool = False) -> Iterator[tuple[Claimed, Hold]]:
    """Hold the job, with a lease, while files are looked at and tables published; see `held`."""
    with held(stores, boundary, beyond_behind=beyond_behind) as (claimed, hold):
        with around(boundary, LEASE):
            keeper = LeaseKeeper(LeaseStore(stores.warehouse), claimed.claim, _LEASE_MS)
        with keeper:
            yield claimed, hold


def publish_pending(stores: JobStores, claimed: Claimed, checkpoint: int, boundary: Boundary) -> None:
    """Publish what is committed and not published; raise RollForwardError only if that is what we go back to.

    A checkpoint of which a file is lost can't be published, and is left behind like any other.
    """
    pending = claimed.plan.roll_forward
    if pending is None:
        return
    try:
        publish(stores, pending, boundary)
    except RollForwardError:
        if pending.checkpoint == checkpoint:
            raise


def publish(stores: JobStores, record: CheckpointRecord, boundary: Boundary) -> RolledForward:
    """Publish a committed row of a job of which no pipeline is at hand: all tables of its parent's cut, and its own."""
    tables = dict.fromkeys([*(stores.read_cut(record.parent) or {}), *(table.table for table in record.tables)])
    return roll_forward(stores, tables, stores.told(record, tables), boundary)


def discard_behind(stores: JobStores, claimed: Claimed, tables: Iterable[TableName], boundary: Boundary) -> None:
    """Delete what a tick that died has left: behind a row of this claim nobody could tell that it was never used."""
    warehouse = stores.warehouse
    with around(boundary, DISCARD_LEFTOVERS):
        folders = dict.fromkeys([*own_folders(warehouse), *tables])
        by = referenced(stores.observe().rows)
        delete_leftovers(warehouse, folders, current=claimed.claim.generation, by=by)


def _row(plan: RollbackPlan, claimed: Claimed, at_ms: int) -> CheckpointRecord:
    """Return the cut under its new id: its snapshots, and what takes each table there."""
    return plan.target.model_copy(
        update={
            "kind": RowKind.ROLLBACK,
            "pinned": False,
            "abandoned": False,
            "checkpoint": claimed.claim.first_id,
            "parent": plan.target.checkpoint,
            "generation": claimed.claim.generation,
            "nonce": uuid4().hex,
            "vertices": nothing_staged(plan.target),
            "tables": tuple(table.record for table in plan.tables),
            "statistics": Statistics(triggered_ms=at_ms, committed_ms=at_ms, rows=0),
        }
    )
