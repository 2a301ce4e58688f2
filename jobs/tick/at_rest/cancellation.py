"""Deletes a cancelled job's checkpoints, if it does not retain them (G3, Flink's CheckpointRetentionPolicy).

The deletion takes three steps: it publishes the committed checkpoint, drops the entries in one commit, and deletes the
files that no remaining entry names. If the process dies, a second cancellation does the remaining steps. Output tables
lose no rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from checkpointing.commit.cleanup import Referenced
from checkpointing.commit.recovery import RecoveryPlan
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord, Row
from checkpointing.tick.attempts import CANCELLATION, CLEANUP
from checkpointing.tick.messages import Work, Worked
from jobs.pipeline.job_plan import JobPlan
from jobs.tick.at_rest.task_at_rest import Task, done_at_rest
from jobs.tick.renaming import find_renaming
from jobs.tick.start_checks import must_not_be_ahead
from jobs.warehouse.boundaries import Boundary, around, cross_freely
from jobs.warehouse.cleanup import delete_leftovers, own_folders
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import ClaimUnsettledError, TablesAheadError
from jobs.warehouse.warehouse import Warehouse

DROP_CUTS: Final = "DropCuts"
DROP_FILES: Final = "DropFiles"


@dataclass(frozen=True, slots=True)
class Deleted:
    """The deleted checkpoints, the number of deleted state files, and the savepoints that stay, oldest first.

    `resumes` is the savepoint from which the next tick in this warehouse begins. None: the tables do not show exactly a
    savepoint.
    """

    checkpoints: tuple[CheckpointId, ...]
    files: int
    kept: tuple[CheckpointRecord, ...]
    resumes: CheckpointRecord | None


def delete_checkpoints(warehouse: Warehouse, plan: JobPlan, *, boundary: Boundary = cross_freely) -> Deleted:
    """Delete every checkpoint of a job at rest, except savepoints. A second call finishes an interrupted first one.

    Raises JobHeldError if another process holds the job, and ClaimUnsettledError if it is unknown whether the claim was
    appended. If a committed checkpoint cannot be published, raises RollForwardError, TableMismatchError and
    CutsNotRecordedError, and deletes nothing.
    """
    stores = JobStores(warehouse, boundary)
    gone = _unpinned(stores.observe().rows)
    if gone:
        gone = _drop_rows(stores, plan, boundary)
    done: list[Deleted] = []

    def dropped(work: Work) -> Worked:
        kept = tuple(_records(work.seen.rows))
        with around(boundary, DROP_CUTS):
            stores.cuts.drop_unneeded()
        with around(boundary, DROP_FILES):
            files = _drop_files(warehouse, kept, work.claim.generation)
        resumes = work.plan.restore if _may_begin(stores, plan, kept) else None
        done.append(Deleted(gone, files, tuple(sorted(kept, key=lambda record: record.checkpoint)), resumes))
        return Worked()

    done_at_rest(stores, Task(errand=CLEANUP, do_work=dropped, keeps_lease=False), boundary)
    return done[0]


def _drop_rows(stores: JobStores, plan: JobPlan, boundary: Boundary) -> tuple[CheckpointId, ...]:
    """Publish the committed checkpoint, then drop the entries in the commit of the release."""
    gone: list[CheckpointId] = []

    def ensure(recovery: RecoveryPlan) -> None:
        if recovery.roll_forward is None:
            return
        renaming = find_renaming(plan.graph, recovery.roll_forward)
        stores.tables.ensure(
            plan.graph.tables(),
            plan.table_schemas,
            renaming.record,
            unsettled=[table.name for table in plan.graph.tables()],
            renamed=renaming.tables.values(),
        )

    def dropped(work: Work) -> Worked:
        gone.extend(_unpinned(work.seen.rows))
        return Worked(tuple(gone))

    task = Task(errand=CANCELLATION, do_work=dropped, ensure=ensure, keeps_lease=False)
    done_at_rest(stores, task, boundary)
    left = set(gone).intersection(_unpinned(stores.observe().rows))
    if left:
        raise ClaimUnsettledError(stores.warehouse.paths.job, f"checkpoint {max(left)} is still there")
    return tuple(gone)


def _drop_files(warehouse: Warehouse, kept: tuple[CheckpointRecord, ...], current: Generation) -> int:
    """Delete files of state and channels that no entry names. Return the number of deleted files."""
    named: frozenset[str] = frozenset().union(*(files_of(record) for record in kept))
    by = Referenced(newest=None, pinned=named)
    return len(delete_leftovers(warehouse, own_folders(warehouse), current=current, by=by))


def _may_begin(stores: JobStores, plan: JobPlan, kept: tuple[CheckpointRecord, ...]) -> bool:
    try:
        must_not_be_ahead(stores, (table.name for table in plan.graph.tables()), kept)
    except TablesAheadError:
        return False
    return True


def _records(rows: tuple[Row, ...]) -> Iterator[CheckpointRecord]:
    return (row for row in rows if isinstance(row, CheckpointRecord))


def _unpinned(rows: tuple[Row, ...]) -> tuple[CheckpointId, ...]:
    return tuple(sorted(row.checkpoint for row in _records(rows) if not row.is_savepoint))
