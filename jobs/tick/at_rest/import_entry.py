"""Finds the entry that `--from` names: in the tick's own warehouse, in another one, or in a savepoint's copy.

This part changes nothing.
"""

from dataclasses import dataclass, replace
from typing import Final

from checkpointing.commit.at_rest import Imported, waits_for_approval
from checkpointing.commit.columns import table_changes
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import CheckpointId, Generation, JobName
from checkpointing.job.renaming import relocated
from checkpointing.job.restoring import coordinators_left
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row, RowKind
from checkpointing.metadata.row_validity import NUMBER_MAX
from checkpointing.state_evolution import first_refused
from checkpointing.tick.attempts import IMPORT
from checkpointing.tick.messages import RowChosen, Work
from jobs.pipeline.job_plan import JobPlan
from jobs.storage.address import Root, absolute, is_same, parsed
from jobs.storage.copy_folder import delete_at_once
from jobs.tick.at_rest.task_at_rest import Task, done_at_rest
from jobs.tick.renaming import Renaming, find_renaming
from jobs.warehouse.boundaries import Boundary, around, cross_freely
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobStores, has_run
from jobs.warehouse.output_tables import whole_record
from jobs.warehouse.outside_publishing import after_import
from jobs.warehouse.refusals import NoSuchSavepointError, SavepointRefusedError
from jobs.warehouse.savepoint_copy import (
    Told,
    checked_record,
    copy_files,
    must_be_there,
    named_files,
    nobody,
    read_manifest,
)
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse

_IDS_MAX: Final = NUMBER_MAX // 2
"""The greatest id that may be restored. New generations and ids are higher, and must still fit the entries' numbers."""


@dataclass(frozen=True, slots=True)
class OwnRow:
    """An entry of the warehouse in which the tick runs. If `is_newest`, the tick would begin from this entry anyway."""

    record: CheckpointRecord
    is_newest: bool


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """An entry of another warehouse, which names all its files. `is_copy`: that warehouse is a savepoint's copy."""

    warehouse: Warehouse
    record: CheckpointRecord
    last_generation: Generation
    last_id: CheckpointId
    is_copy: bool


Origin = OwnRow | ForeignRow


def find_origin(text: str, root: Root, job: JobName) -> Origin:
    """Return the entry that `--from TEXT` names for a tick in the warehouse `root`: `N`, `DIR` or `DIR@N`.

    Raises NoSuchSavepointError naming the savepoints that exist, TableNotCopyableError for a table whose files are not
    all known, and the codec's errors for entries of another version.
    """
    folder, number = _parsed(text)
    own = Warehouse(root, ProtocolPaths(job))
    if folder is None or is_same(folder, root):
        return _own(own, number, text)
    return _foreign(Warehouse(folder, ProtocolPaths(job)), number, text)


def _last_id(row: Row) -> int:
    """Return the highest id that was given out, or may have been given out, according to the entry."""
    match row:
        case CheckpointRecord():
            return row.checkpoint
        case Claim():
            return row.first_id
        case Release():
            return row.next_id - 1


def _parsed(text: str) -> tuple[Root | None, int | None]:
    if text.isdigit():
        return None, int(text)
    folder, at, number = text.rpartition("@")
    if at and number.isdigit() and folder:
        return parsed(folder), int(number)
    return parsed(text), None


def _own(warehouse: Warehouse, number: int | None, text: str) -> OwnRow:
    job, root = warehouse.paths.job, warehouse.root
    if not has_run(warehouse):
        raise NoSuchSavepointError(
            f"--from {text}: {job} has never run in {root}, so it has no checkpoint there; "
            "name the folder of a savepoint, or another warehouse as DIR@N"
        )
    _, rows = CheckpointStore(warehouse).observe()
    newest = newest_checkpoint(rows)
    record = _chosen(rows, newest, number, text, root)
    return OwnRow(record, newest is not None and record.checkpoint == newest.checkpoint)


def _foreign(warehouse: Warehouse, number: int | None, text: str) -> ForeignRow:
    job, root = warehouse.paths.job, warehouse.root
    if not has_run(warehouse):
        held = "no such folder" if not warehouse.place("").is_folder() else f"no savepoint and no warehouse of {job}"
        raise NoSuchSavepointError(
            f"--from {text}: {root} is {held}; make one with 'tidemark savepoint {job} --to DIR', "
            "or name a checkpoint id of this warehouse, a folder DIR, or DIR@N"
        )
    _, rows = CheckpointStore(warehouse).observe()
    record = _chosen(rows, newest_checkpoint(rows), number, text, root)
    records = {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}
    generation, last_id = max(row.generation for row in rows), max(_last_id(row) for row in rows)
    if max(generation, last_id) > _IDS_MAX:
        raise SavepointRefusedError(
            f"--from {text}: the entries in {root} count generations or checkpoints up to {max(generation, last_id)}, "
            "which no job has reached: name another savepoint"
        )
    manifest = read_manifest(warehouse)
    return ForeignRow(
        warehouse=warehouse,
        record=whole_record(warehouse, record, records, CutStore(warehouse).all()),
        last_generation=generation,
        last_id=CheckpointId(last_id),
        is_copy=manifest is not None and list(records) == [manifest.savepoint],
    )


def _chosen(
    rows: tuple[Row, ...], newest: CheckpointRecord | None, number: int | None, text: str, root: Root
) -> CheckpointRecord:
    records = {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}
    found = newest if number is None else records.get(CheckpointId(number))
    if found is None:
        there = ", ".join(f"{each} ({records[each].kind.value})" for each in sorted(records)) or "none yet"
        what = "no checkpoint" if number is None else f"no checkpoint or savepoint {number}"
        raise NoSuchSavepointError(f"--from {text}: there is {what} in {root}; there are: {there}")
    if found.kind is RowKind.HELD:
        raise SavepointRefusedError(f"--from {text}: nobody may begin from it yet: {waits_for_approval(found)}")
    return found


# ------------------------------------------------------------------
# Restores an entry of another warehouse into an empty one: copies its files, then appends one entry (G1, G3).
#
# The append is the commit point. If the process dies before it, the warehouse holds a claim and files that no entry
# names. The next tick deletes those files. It starts from the beginning, or with `--from` copies the files again. If
# the process dies after the append, the next tick rolls the entry forward like any other entry.


COPY_FILES: Final = "CopyFiles"
APPEND_IMPORTED: Final = "AppendImported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """What to restore, and into which warehouse.

    With `claim` the files of a savepoint's copy are moved, and its folder is deleted.
    """

    origin: ForeignRow
    root: Root
    plan: JobPlan
    claim: bool = False
    allow_non_restored_state: bool = False


def restorable(wanted: Import) -> Renaming:
    """Return the entry under the pipeline's new names, without vertices and tables that the pipeline no longer has.

    This changes nothing. Raises SavepointRefusedError, naming the table, column or warehouse that prevents the restore,
    and CutDoesNotFitError for an unclear rename. `check_fits` makes the other checks.
    """
    _must_be_empty(wanted.root, wanted.plan.job)
    if wanted.claim and not wanted.origin.is_copy:
        raise SavepointRefusedError(
            f"--claim would delete {wanted.origin.warehouse.root}, which is no copy of one savepoint but a warehouse "
            "in use: leave --claim out, and its files are copied"
        )
    known = {vertex.id for vertex in wanted.plan.graph.vertices}
    tables = wanted.plan.modes
    renaming = find_renaming(wanted.plan.graph, wanted.origin.record)
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
    """Return what happens to each outside sink, without changing anything.

    Raises SinkRefusedError if a sink would get rows twice or never.
    """
    plan, regardless = wanted.plan, wanted.allow_non_restored_state
    return tuple(after_import(plan.job, plan.sinks, wanted.origin.record, regardless=regardless))


def import_row(wanted: Import, *, told: Told = nobody, boundary: Boundary = cross_freely) -> CheckpointRecord:
    """Copy the entry's files, append the entry under a new id, and return it. The next tick publishes it.

    Raises the errors of `restorable` and `sinks_after`, FileNotCopiedError, OSError, JobHeldError and
    ClaimUnsettledError.
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

    # The claim's generation and ids are above those of the origin, so that no name is ever used twice.
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
    """Refuse columns that the pipeline cannot take, and tables that already exist in the target with rows."""
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
