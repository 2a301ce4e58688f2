"""Deleting a cancelled job's checkpoints, unless it retains them (G3, Flink's CheckpointRetentionPolicy).

Three steps, each of which a second cancellation finishes if the process dies: publish what is committed,
drop the rows in one commit, and then delete what no remaining row names. Output tables lose nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from checkpointing.commit.leftovers import Referenced
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.holding.boundaries import Boundary, around, cross_freely
from jobs.holding.failures import ClaimUnsettledError, TablesAheadError
from jobs.holding.job_stores import JobStores
from jobs.planner import JobPlan
from jobs.recovery.held import held
from jobs.recovery.recovering import roll_forward
from jobs.recovery.renaming import find_renaming, names_before
from jobs.recovery.tables_ahead import must_not_be_ahead
from jobs.stores.leftovers import delete_leftovers, own_folders
from jobs.stores.warehouse import Warehouse

DROP_CUTS: Final = "DropCuts"
DROP_FILES: Final = "DropFiles"


@dataclass(frozen=True, slots=True)
class Deleted:
    """The checkpoints that went, how many files of state with them, and the savepoints that stay, oldest first.

    `resumes` is the savepoint that the next tick in this warehouse begins from, if its tables show just that one.
    """

    checkpoints: tuple[CheckpointId, ...]
    files: int
    kept: tuple[CheckpointRecord, ...]
    resumes: CheckpointRecord | None


def delete_checkpoints(warehouse: Warehouse, plan: JobPlan, *, boundary: Boundary = cross_freely) -> Deleted:
    """Delete every checkpoint of a job at rest that is no savepoint; asked again, finish what was begun.

    Raises JobHeldError, naming who holds the job; RollForwardError, TableMismatchError and CutsNotRecordedError
    if a committed checkpoint cannot be published, and then nothing is deleted; ClaimUnsettledError.
    """
    stores = JobStores(warehouse, boundary)
    gone = _unpinned(stores.observe().rows)
    if gone:
        gone = _drop_rows(stores, plan, boundary)
    with held(stores, boundary) as (claimed, _):
        kept = tuple(_records(claimed.seen.rows))
        with around(boundary, DROP_CUTS):
            stores.drop_cuts()
        with around(boundary, DROP_FILES):
            files = _drop_files(warehouse, kept, claimed.claim.generation)
        resumes = claimed.plan.restore if _may_begin(stores, plan, kept) else None
    return Deleted(gone, files, tuple(sorted(kept, key=lambda record: record.checkpoint)), resumes)


def _drop_rows(stores: JobStores, plan: JobPlan, boundary: Boundary) -> tuple[CheckpointId, ...]:
    """Publish what is committed, then drop the rows together with the release."""
    with held(stores, boundary) as (claimed, hold):
        pending = claimed.plan.roll_forward
        if pending is not None:
            renaming = find_renaming(plan.graph, stores.told(pending, names_before(plan.graph)))
            stores.ensure(
                plan.graph.tables(),
                plan.table_schemas,
                renaming.record,
                unsettled=[table.name for table in plan.graph.tables()],
                renamed=renaming.tables.values(),
            )
            roll_forward(stores, renaming.tables_then(plan.graph), renaming.was or pending, boundary)
        gone = _unpinned(claimed.seen.rows)
        hold.drop(gone)
    left = set(gone).intersection(_unpinned(stores.observe().rows))
    if left:
        raise ClaimUnsettledError(stores.warehouse.paths.job, f"checkpoint {max(left)} is still there")
    return gone


def _drop_files(warehouse: Warehouse, kept: tuple[CheckpointRecord, ...], current: Generation) -> int:
    """Delete what vertices staged for themselves and no row names; return how many files that were."""
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
