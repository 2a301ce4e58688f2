"""Going back to an older cut in place: tables, state and positions, by ONE row under a new id (K2). No Spark.

The row is the commit point. Killed before it, nothing has happened; after it, the next start of anything, a tick
or another rollback, rolls it forward like any committed row. Ids go on rising, so no table's `txn` is in the
way, and the next tick reads again what came after the cut.
"""

from dataclasses import dataclass

from checkpointing.commit.at_rest import Rollback
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick.errand import ROLLBACK
from checkpointing.tick.messages import RowChosen, Work
from jobs.engine_paths import typed
from jobs.holding.boundaries import Boundary, cross_freely
from jobs.holding.failures import TablesBehindError
from jobs.holding.job_state import must_have_run
from jobs.holding.job_stores import JobStores
from jobs.recovery.at_rest import Task, done_at_rest
from jobs.recovery.rollback_plan import RollbackPlan, RollbackRefusedError, plan_rollback
from jobs.recovery.tables_behind import must_be_mendable, must_have_logs
from jobs.stores.warehouse import Warehouse


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
    plans: list[RollbackPlan] = []

    def possible(seen: Observed, _: RecoveryPlan) -> None:
        if not _to_be_mended(stores, seen):  # else versions that have gone come back first
            plan_rollback(stores, seen, checkpoint, checksums=True)

    def chosen(_: Work) -> RowChosen:
        plan = plan_rollback(stores, stores.observe(), checkpoint, checksums=False)
        plans.append(plan)
        return RowChosen(Rollback(plan.target, tuple(table.record for table in plan.tables)))

    task = Task(errand=ROLLBACK, do_work=chosen, possible=possible, goes_back_to=CheckpointId(checkpoint))
    done = done_at_rest(stores, task, boundary)
    return RolledBack(plans[-1], done.entry, dict(done.published.versions), done.published.notes)
