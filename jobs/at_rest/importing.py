"""Restores an entry of another warehouse into an empty one: copies its files, then appends one entry (G1, G3).

The append is the commit point. If the process dies before it, the warehouse holds a claim and files that no entry
names. The next tick deletes those files and starts from the beginning, or another `--from` copies them again. If the
process dies after it, the next tick rolls the entry forward like any other one.
"""

from dataclasses import dataclass, replace
from typing import Final

from checkpointing.commit.at_rest import Imported
from checkpointing.commit.columns import table_changes
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.evolution import first_refused
from checkpointing.identifiers import CheckpointId, Generation, JobName
from checkpointing.job.renaming import relocated
from checkpointing.job.restoring import coordinators_left
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Row
from checkpointing.tick.errand import IMPORT
from checkpointing.tick.messages import RowChosen, Work
from jobs.at_rest.restore_origin import ForeignRow
from jobs.holding.boundaries import Boundary, around, cross_freely
from jobs.holding.failures import SavepointRefusedError
from jobs.holding.job_state import has_run
from jobs.holding.job_stores import JobStores
from jobs.holding.outside import after_import
from jobs.planner import JobPlan
from jobs.recovery.at_rest import Task, done_at_rest
from jobs.recovery.renaming import Renaming, renaming_in
from jobs.storage.address import Root, absolute
from jobs.storage.whole import delete_at_once
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.file_copies import Told, copy_files, must_be_there, nobody
from jobs.stores.savepoint_copy import checked_record, named_files
from jobs.stores.tables import TableLogs
from jobs.stores.warehouse import Warehouse

COPY_FILES: Final = "CopyFiles"
APPEND_IMPORTED: Final = "AppendImported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """What to restore, and into which warehouse. With `claim` the savepoint's copy is moved, and its folder deleted."""

    origin: ForeignRow
    root: Root
    plan: JobPlan
    claim: bool = False
    allow_non_restored_state: bool = False


def restorable(wanted: Import) -> Renaming:
    """Return the entry without what the pipeline no longer has, under its new names; changes nothing.

    Raises SavepointRefusedError, naming the table, column or warehouse that is in the way, and CutDoesNotFitError for a
    rename that is not clear. `check_fits` judges the rest.
    """
    _must_be_empty(wanted.root, wanted.plan.job)
    if wanted.claim and not wanted.origin.is_copy:
        raise SavepointRefusedError(
            f"--claim would delete {wanted.origin.warehouse.root}, which is no copy of one savepoint but a warehouse "
            "in use: leave --claim out, and its files are copied"
        )
    known = {vertex.id for vertex in wanted.plan.graph.vertices}
    tables = wanted.plan.modes
    renaming = renaming_in(wanted.origin.warehouse, wanted.plan.graph, wanted.origin.record)
    record = renaming.record or wanted.origin.record
    left = [table.table for table in record.tables if table.table not in tables]
    if left and not wanted.allow_non_restored_state:
        raise SavepointRefusedError(
            f"the savepoint holds table {left[0]}, which the pipeline no longer writes: put it back, say "
            f"renamed_from={left[0]!r} where it has its new name, or leave it behind with --allow-non-restored-state"
        )
    _must_fit_tables(wanted, record)
    left_states = coordinators_left(wanted.plan.graph, record)
    taken = record.model_copy(
        update={
            "vertices": tuple(
                vertex.model_copy(update={"coordinator": None}) if vertex.vertex in left_states else vertex
                for vertex in record.vertices
                if vertex.vertex in known
            ),
            "tables": tuple(table for table in record.tables if table.table in tables),
            "columns": tuple(each for each in record.columns if each.table in tables),
            "hooks": tuple(each for each in record.hooks if each.hook in wanted.plan.hooks),
        }
    )
    return replace(renaming, record=taken)


def sinks_after(wanted: Import) -> tuple[str, ...]:
    """Return what happens to each outside sink; changes nothing. Raises SinkRefusedError for rows twice or never."""
    plan, regardless = wanted.plan, wanted.allow_non_restored_state
    return tuple(after_import(plan.job, plan.sinks, wanted.origin.record, regardless=regardless))


def import_row(wanted: Import, *, told: Told = nobody, boundary: Boundary = cross_freely) -> CheckpointRecord:
    """Copy the entry's files, append the entry under a new id, and return it. The next tick publishes it.

    Raises what `restorable` and `sinks_after` raise, FileNotCopiedError, OSError, JobHeldError and ClaimUnsettledError.
    """
    renaming = restorable(wanted)
    sinks_after(wanted)
    record = renaming.record or wanted.origin.record
    must_be_there(wanted.origin.warehouse.storage, named_files(record).values())
    warehouse = Warehouse(absolute(wanted.root), ProtocolPaths(wanted.plan.job))
    stores = JobStores(warehouse, boundary)

    def possible(seen: Observed, _: RecoveryPlan) -> None:
        _must_hold_no_checkpoint(seen.rows, warehouse)

    def copied(work: Work) -> RowChosen:
        with around(boundary, COPY_FILES):
            moved = relocated(record, renaming.tables, work.claim.generation)
            source, files = wanted.origin.warehouse.storage, named_files(moved.record).values()
            handles = copy_files(source, warehouse.storage, files, link=wanted.claim, links=moved.links, told=told)
        return RowChosen(Imported(checked_record(moved.record, handles)))

    # The claim is above every generation and id of the origin, so that no name is ever used twice.
    above = (Generation(wanted.origin.last_generation), CheckpointId(wanted.origin.last_id))
    task = Task(errand=IMPORT, do_work=copied, possible=possible, above=above, entry_boundary=APPEND_IMPORTED)
    imported = done_at_rest(stores, task, boundary).entry
    stores.outside.take_over(wanted.plan.sinks)
    if wanted.claim:
        delete_at_once(wanted.origin.warehouse.root)
    return imported


def _must_be_empty(root: Root, job: JobName) -> None:
    warehouse = Warehouse(root, ProtocolPaths(job))
    if has_run(warehouse):
        _, rows = CheckpointStore(warehouse).observe()
        _must_hold_no_checkpoint(rows, warehouse)


def _must_hold_no_checkpoint(rows: tuple[Row, ...], warehouse: Warehouse) -> None:
    held = [row for row in rows if isinstance(row, CheckpointRecord)]
    if not held:
        return
    newest = newest_checkpoint(rows) or held[0]
    raise SavepointRefusedError(
        f"{warehouse.root} already holds {warehouse.paths.job} up to {newest.kind.value} {newest.checkpoint}, and its "
        "tables cannot be two histories at once: restore into an empty warehouse, --warehouse OTHER, or leave --from "
        "out to go on from there"
    )


def _must_fit_tables(wanted: Import, record: CheckpointRecord) -> None:
    """Refuse columns that the pipeline cannot take, and tables that exist in the target and have rows."""
    target = Warehouse(wanted.root, ProtocolPaths(wanted.plan.job))
    logs = TableLogs(target)
    modes = wanted.plan.modes
    for table in modes:
        log = logs.log(table)
        if log.exists() and (log.current().files or logs.shown(log.current(), table)):
            raise SavepointRefusedError(
                f"table {table} is already in {wanted.root} and holds rows: restore into an empty warehouse, or move "
                "the table away"
            )
    misfit = first_refused(table_changes(wanted.plan.graph, record))
    if misfit is not None:
        raise SavepointRefusedError(f"the savepoint does not fit the pipeline: {misfit}")
