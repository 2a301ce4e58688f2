"""Rolls tables, state and positions back to an older cut, by one entry under a new id (K2). No Spark.

The append of the entry is the commit point. If the process dies before it, nothing has changed. If the process dies
after it, the next tick or command rolls the entry forward. Ids keep rising, so the `txn` in a table's log does not
prevent the publication. The next tick reads the rows after the cut again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick.attempts import ROLLBACK
from checkpointing.tick.messages import RowChosen, Work
from jobs.engine_paths import typed
from jobs.sinks.port import TableSink
from jobs.tick.at_rest.task_at_rest import Task, done_at_rest
from jobs.tick.rollback_plan import RollbackPlan, RollbackRefusedError, plan_rollback
from jobs.tick.start_checks import must_be_repairable, must_have_logs
from jobs.warehouse.boundaries import Boundary, cross_freely
from jobs.warehouse.job_stores import JobStores, must_have_run
from jobs.warehouse.outside_publishing import NO_SINKS, must_not_be_ahead_outside
from jobs.warehouse.refusals import TablesBehindError
from jobs.warehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The outcome of a rollback: plan, new entry, each table's Delta version, and notes of the publication."""

    plan: RollbackPlan
    record: CheckpointRecord
    versions: dict[TableName, int]
    notes: tuple[str, ...]


def preview_rollback(warehouse: Warehouse, checkpoint: int, *, leave_outside: bool = False) -> RollbackPlan:
    """Return what `roll_back` would do, without changing anything.

    Raises the errors of `roll_back` before its claim.
    """
    must_have_run(warehouse)
    stores = JobStores(warehouse, cross_freely, beyond_damage=True)
    seen = stores.observe()
    behind = _to_be_repaired(stores, seen)
    if behind:
        raise RollbackRefusedError(
            f"table {behind[0]} shows less than the newest cut, and is to be published again before anything else: "
            f"run 'tidemark run {warehouse.paths.job} --warehouse {typed(warehouse.root)}' first; nothing was changed"
        )
    return plan_rollback(stores, seen, checkpoint, checksums=True, leave_outside=leave_outside)


def _to_be_repaired(stores: JobStores, seen: Observed) -> tuple[TableName, ...]:
    """Return the tables that will be published again once the job is held. There are none if that is impossible."""
    try:
        return tuple(sorted(must_have_logs(stores, must_be_repairable(stores, seen.rows)).repairs.tables))
    except TablesBehindError:
        return ()


def roll_back(
    warehouse: Warehouse,
    checkpoint: int,
    *,
    sinks: Mapping[TableName, TableSink] = NO_SINKS,
    leave_outside: bool = False,
    boundary: Boundary = cross_freely,
) -> RolledBack:
    """Roll all tables, state and positions of a job at rest back to that checkpoint or savepoint.

    `sinks` are the pipeline's outside sinks. Sinks of upsert tables are rolled back too. With `leave_outside`, all
    sinks stay as they are. Raises NeverRunError, JobHeldError and the errors of `plan_rollback` before an entry is
    appended. Raises ClaimUnsettledError if it is unknown whether the entry was appended. Once the rollback is
    committed, raises RollForwardError if a table cannot be published, and CutsNotRecordedError if the cut cannot be
    recorded. The next tick or command then publishes it.
    """
    must_have_run(warehouse)
    stores = JobStores(warehouse, boundary, beyond_damage=True, sinks=sinks)
    plans: list[RollbackPlan] = []
    undone: list[str] = []

    def possible(seen: Observed, _: RecoveryPlan) -> None:
        if not _to_be_repaired(stores, seen):  # else lost versions are published again first
            plan = plan_rollback(stores, seen, checkpoint, checksums=True, leave_outside=leave_outside)
            must_not_be_ahead_outside(stores.outside.prepare(plan.following), seen.rows)

    def chosen(_: Work) -> RowChosen:
        seen = stores.observe()
        plan = plan_rollback(stores, seen, checkpoint, checksums=False, leave_outside=leave_outside)
        if plan.undo:
            undone.extend(_undone(stores, plan))
            plan = plan_rollback(stores, seen, checkpoint, checksums=False, leave_outside=leave_outside)
        if plan.undo:
            raise RollbackRefusedError(
                f"another writer goes on merging files of table {min(plan.undo)}: stop it, then type the same again"
            )
        _make_durable(stores, plan)
        plans.append(plan)
        return RowChosen(plan.rollback)

    task = Task(errand=ROLLBACK, do_work=chosen, possible=possible, goes_back_to=CheckpointId(checkpoint))
    done = done_at_rest(stores, task, boundary)
    return RolledBack(plans[-1], done.entry, dict(done.published.versions), (*undone, *done.published.notes))


def _undone(stores: JobStores, plan: RollbackPlan) -> Iterator[str]:
    """Undo the file merges of other writers, table by table. Yield a note for each. No table's rows change."""
    for name, undo in plan.undo.items():
        stores.tables.rearrange(name, undo.actions, version=_version(plan, name))
        target = f"{plan.target.kind.value} {plan.target.checkpoint}"
        yield f"{name}: undid {undo}, which had merged rows from before and after {target}"


def _make_durable(stores: JobStores, plan: RollbackPlan) -> None:
    """Make the log entries of all tables durable, up to the versions that they show now.

    The rollback's own entry names only the files that change. For all other files it relies on these log entries. If
    they were not durable, a power cut could destroy another writer's commit, or the undoing of a merge, but not the
    rollback's entry.
    """
    try:
        stores.cuts.make_durable({table.record.table: table.version for table in plan.tables})
    except OSError as error:
        raise RollbackRefusedError(
            f"the log entries of the job's tables could not be made durable ({error}): the job was not rolled back; "
            "remove the cause of this error, then type the same again"
        ) from error


def _version(plan: RollbackPlan, name: TableName) -> int:
    return next(table.version for table in plan.tables if table.record.table == name)
