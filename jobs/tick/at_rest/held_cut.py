"""Settles a job's held cut, which waits for a person: approval publishes it, rejection discards it. No Spark.

The core decides which cut may be settled (`checkpointing.commit.at_rest`). The append of the approved entry is the
commit point. If the process dies before it, the cut still waits. If the process dies after it, the next tick or command
publishes the entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkpointing.commit.at_rest import Approved, to_settle
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import NO_CHECKPOINT, TableName
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick.attempts import APPROVAL, REJECTION
from checkpointing.tick.messages import RolledForward, RowChosen, Work, Worked
from jobs.engine_paths import typed
from jobs.sinks.port import TableSink
from jobs.suggestions import NotThereError
from jobs.tick.at_rest.task_at_rest import Task, done_at_rest
from jobs.tick.rollback_plan import is_sound
from jobs.warehouse.boundaries import Boundary, cross_freely
from jobs.warehouse.job_stores import JobStores, must_have_run
from jobs.warehouse.outside_publishing import NO_SINKS
from jobs.warehouse.refusals import ClaimUnsettledError, TickRefusedError
from jobs.warehouse.warehouse import Warehouse


class NothingToSettleError(TickRefusedError, NotThereError):
    """No cut waits for approval, or the waiting cut cannot be approved. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Approval:
    """The outcome of an approval: the held cut, its entry as a checkpoint, and its publication."""

    held: CheckpointRecord
    record: CheckpointRecord
    published: RolledForward


def approve(
    warehouse: Warehouse,
    boundary: Boundary = cross_freely,
    *,
    sinks: Mapping[TableName, TableSink] = NO_SINKS,
) -> Approval:
    """Commit the waiting cut of a job at rest, and publish it. Return the outcome.

    `sinks` are the pipeline's outside sinks. If a sink is missing, the next tick of the pipeline publishes to it.
    Raises NeverRunError, JobHeldError, and NothingToSettleError if no cut waits or if files of the cut are damaged.
    Then no entry was appended. Raises ClaimUnsettledError if it is unknown whether the entry was appended. Once the
    entry is committed, raises RollForwardError if a table cannot be published, and CutsNotRecordedError if the cut
    cannot be recorded. Then the next tick or command publishes and records it.
    """
    must_have_run(warehouse)
    settled: list[CheckpointRecord] = []

    def possible(seen: Observed, _: RecoveryPlan) -> None:
        held = _to_settle(warehouse, seen, approve=True)
        if not is_sound(warehouse, held):
            raise NothingToSettleError(
                f"files of cut {held.checkpoint} of {held.job} are missing or damaged, so it cannot be published: "
                f"'tidemark reject {held.job} --warehouse {typed(warehouse.root)}' discards it, and the next tick "
                "reads its rows again"
            )

    def chosen(work: Work) -> RowChosen:
        settled.append(_to_settle(warehouse, work.seen, approve=True))
        return RowChosen(Approved(settled[-1]))

    task = Task(errand=APPROVAL, do_work=chosen, possible=possible)
    done = done_at_rest(JobStores(warehouse, boundary, sinks=sinks), task, boundary)
    return Approval(settled[-1], done.entry, done.published)


def reject(warehouse: Warehouse, boundary: Boundary = cross_freely) -> CheckpointRecord:
    """Discard the waiting cut of a job at rest, and return it. The next tick reads the cut's rows again.

    The next tick also deletes the cut's files. Raises NeverRunError, JobHeldError, NothingToSettleError, and
    ClaimUnsettledError if it is not known whether the cut still waits.
    """
    must_have_run(warehouse)
    stores = JobStores(warehouse, boundary)
    settled: list[CheckpointRecord] = []

    def possible(seen: Observed, _: RecoveryPlan) -> None:
        _to_settle(warehouse, seen, approve=False)

    def dropped(work: Work) -> Worked:
        settled.append(_to_settle(warehouse, work.seen, approve=False))
        return Worked((settled[-1].checkpoint,))

    done_at_rest(stores, Task(errand=REJECTION, do_work=dropped, possible=possible), boundary)
    held, rows = settled[-1], stores.observe().rows
    newest = newest_checkpoint(rows)
    stands = newest.checkpoint if newest is not None else NO_CHECKPOINT
    if held in rows or stands != held.parent:  # another process took over, and may have approved it
        raise ClaimUnsettledError(warehouse.paths.job, f"another process may have settled cut {held.checkpoint} first")
    return held


def _to_settle(warehouse: Warehouse, seen: Observed, *, approve: bool) -> CheckpointRecord:
    settlement = to_settle(seen.rows, warehouse.paths.job, approve=approve)
    if settlement.held is None:
        raise NothingToSettleError(settlement.why_not)
    return settlement.held
