"""Finds the splits of a pipeline's sources, and checks that a cut can be restored into the pipeline."""

from collections.abc import Collection, Iterable
from itertools import groupby

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.lost_publications import (
    Correction,
    Cuts,
    Doubt,
    Lost,
    Standing,
    decide_repairs,
    known_tables,
    lacks_cuts,
    rebuilt,
)
from checkpointing.identifiers import CheckpointId, JobName, SplitId, TableName
from checkpointing.job.restoring import CutDoesNotFitError, check_fits
from checkpointing.metadata.record import CheckpointRecord, Row, VertexRecord
from jobs.engine_paths import typed
from jobs.pipeline.job_plan import JobPlan
from jobs.sources.hybrid import Part
from jobs.sources.port import Source, in_parts
from jobs.storage.address import Root
from jobs.storage.place import together
from jobs.tick.renaming import Renaming
from jobs.tick.rollback_plan import reachable
from jobs.warehouse.cut_check import TableLogDamagedError
from jobs.warehouse.file_checks import damages
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import TablesAheadError, TablesBehindError, TickRefusedError


def fitting(plan: JobPlan, renaming: Renaming, *, allow_non_restored_state: bool) -> JobPlan:
    """Return the plan with its sources' splits. Raise CutDoesNotFitError unless the cut can be restored into it.

    Raises SourceError and InvalidPipelineError as `JobPlan.with_discovered_splits` does.
    """
    record = renaming.record
    found = plan.with_discovered_splits(record)
    if record is None:
        return found
    check_fits(found.graph, record, plan.config.max_parallelism, allow_non_restored_state=allow_non_restored_state)
    for was in record.vertices:
        if was.vertex in renaming.read_alone:
            _must_be_first(plan.sources[was.vertex], was, record)
    return found


def _must_be_first(source: Source, was: VertexRecord, record: CheckpointRecord) -> None:
    """Raise CutDoesNotFitError unless the first part has all splits of the cut, and knows their positions.

    If the first part were another source, it would not read these splits, and a later part would read their rows again.
    """
    first, own = next(in_parts(source, map(SplitId, was.splits)))
    there = first.splits()
    for split, snapshot in zip(own, was.subtasks, strict=True):
        if split not in there:
            lacks = f"has no split {split!r}"
        elif snapshot.position is not None and isinstance(first, Part) and not first.knows(split, snapshot.position):
            lacks = f"does not know the position of split {split!r}"
        else:
            continue
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} holds positions of source {was.vertex!r}, which has several parts now. "
            f"They go to the first part, but {first} {lacks}. Let the source that was read so far be the first part, "
            "with all its splits (an empty one will do)"
        )


# ------------------------------------------------------------------
# Refuses a tick if an output table shows a newer checkpoint than the one from which the tick would begin.
#
# Such a tick would write the table's rows twice. A table's log says which checkpoint the table shows. The entry of that
# checkpoint exists, unless a cancellation deleted it (G3) or entries were lost.


def must_not_be_ahead(stores: JobStores, tables: Iterable[TableName], rows: tuple[Row, ...]) -> None:
    """Raise TablesAheadError for the first of these tables that shows a checkpoint after the newest entry.

    State tables are not checked, because the next checkpoint sets each of them to exactly that checkpoint's files.
    """
    newest = newest_checkpoint(rows)
    begins = newest.checkpoint if newest is not None else None
    savepoints = [row.checkpoint for row in rows if isinstance(row, CheckpointRecord) and row.is_savepoint]
    warehouse = stores.warehouse
    outputs = [table for table in tables if not table.startswith(f"{warehouse.paths.states}/")]
    for table, shows in zip(outputs, together(warehouse.storage, stores.tables.shown, outputs), strict=True):
        if shows > (begins or 0):
            restore = begins or max(savepoints, default=None)
            raise TablesAheadError(warehouse.paths.job, warehouse.root, table, shows, begins, restore)


# ------------------------------------------------------------------
# Finds tables that show less than a recorded cut, and refuses the start if they cannot be repaired.
#
# `commit.behind` decides what is published again, and the tick door publishes it in order. This module gathers the
# facts, and words the refusals.


def must_be_repairable(stores: JobStores, rows: Collection[Row], tables: Collection[TableName] | None = None) -> Doubt:
    """Return what must be published again.

    Raise TablesBehindError, naming a table that cannot be repaired and a way out.

    `tables` are those of the pipeline (None: all). Other tables are not checked, because the pipeline does not write
    them.
    """
    root, job = stores.warehouse.root, stores.warehouse.paths.job
    try:
        seen = stores.standing(rows, tables)
        told = _lost_cuts(stores, seen, tables)
        if told:
            seen = stores.standing(rows, tables, told=told)
    except TableLogDamagedError as damaged:
        raise TablesBehindError(damaged.table, damaged.what, damaged.way_out) from damaged
    repairs = decide_repairs(seen)
    if repairs.lost:
        lost = repairs.lost[0]
        raise TablesBehindError(lost.table, _what(root, job, lost), _way_out(stores, rows, lost.table))
    for each in repairs.again:
        files = (*each.publication.adds, *each.publication.files)
        damage = next(damages(stores.warehouse.storage, files, checksums=False), None)
        if damage is not None:
            table = each.publication.table
            what = f"table {table} in {root} shows less than the newest cut of {job}, and {damage}"
            raise TablesBehindError(table, what, _way_out(stores, rows, table))
    return Doubt(seen, repairs, told)


def must_be_whole(stores: JobStores, rows: Collection[Row], tables: Collection[TableName]) -> None:
    """Raise TickRefusedError if a table shows less than a recorded cut, so that a tick must repair it."""
    if not must_be_repairable(stores, rows, tables).is_none:
        raise TickRefusedError("a table shows less than a recorded cut")


def _lost_cuts(stores: JobStores, seen: Standing, tables: Collection[TableName] | None) -> Cuts:
    """Rebuild cuts whose file is lost, from entries and logs.

    Raise TablesBehindError if the newest cut stays unknown.
    """
    if not lacks_cuts(seen):
        return {}
    found = rebuilt(stores.standing(seen.rows, tables, whole=True), known_tables(seen) if tables is None else tables)
    if found.unknown is not None:
        warehouse = stores.warehouse
        folder = warehouse.place(warehouse.paths.cuts)
        raise TablesBehindError(
            found.unknown,
            f"the newest cut of {warehouse.paths.job} in {warehouse.root} is lost: a file of {folder} is gone or "
            f"damaged, and no retained entry says which version of table {found.unknown} belonged to the cut",
            f"restore the folder {folder} from a backup of the warehouse, or begin anew in an empty warehouse "
            f"('tidemark run {warehouse.paths.job} --warehouse EMPTY_FOLDER')",
        )
    return found.cuts


def must_have_logs(stores: JobStores, doubt: Doubt) -> Doubt:
    """Return the doubt unchanged. Raise TablesBehindError if a table that must be published again has no log.

    Without a pipeline the columns of a new table are unknown, so only a tick can create the table.
    """
    job, root = stores.warehouse.paths.job, stores.warehouse.root
    gone = next((table for table in sorted(doubt.repairs.tables) if doubt.seen.logs[table].version is None), None)
    if gone is not None:
        raise TablesBehindError(
            gone,
            f"table {gone} in {root} has no log any more, and {job} has checkpoints that name it",
            f"run 'tidemark run {job} --warehouse {typed(root)}' first, which makes the table anew if it can",
        )
    return doubt


def _what(root: Root, job: JobName, lost: Lost) -> str:
    shows = f"shows checkpoint {lost.shows}" if lost.shows else "shows no checkpoint"
    if lost.lacks is None:
        lacks = f"is not at the version that the cut of checkpoint {lost.cut} names"
    else:
        lacks = f"lacks what checkpoint {lost.lacks} brought"
    return (
        f"table {lost.table} in {root} {shows} of {job} and {lacks}: entries of its log are gone, and the retained "
        "checkpoint entries do not suffice to publish them again"
    )


def _way_out(stores: JobStores, rows: Collection[Row], table: TableName) -> str:
    warehouse = stores.warehouse
    job, root = warehouse.paths.job, warehouse.root
    backup = f"restore the folder {warehouse.place(table)} from a backup that is as new as the job's newest checkpoint"
    back = reachable(warehouse, rows)
    if back is None:
        return f"{backup}, or start over in an empty warehouse ('tidemark run {job} --warehouse EMPTY_FOLDER')"
    command = f"tidemark rollback {job} {back.checkpoint} --warehouse {typed(root)}"
    return f"{backup}, or go back to {back.kind.value} {back.checkpoint}: '{command}'"


def published_since(stores: JobStores, doubt: Doubt) -> dict[TableName, dict[CheckpointId, int]]:
    """Return table -> checkpoint -> Delta version for the tables in doubt, after they were published again."""
    now = stores.standing(doubt.seen.rows, doubt.repairs.tables, whole=True).logs
    return {
        table: {entry.checkpoint: version for version, entry in sorted(now[table].published.items())}
        for table in doubt.repairs.tables
    }


def repair_lines(doubt: Doubt, correction: Correction) -> tuple[str, ...]:
    """Return a message for each cut and table that was repaired."""
    told = (
        f"the cut of checkpoint {each} was lost: rebuilt from checkpoint entries and logs" for each in doubt.rebuilt
    )
    dropped = (f"the cut of checkpoint {each} is lost: dropped" for each in correction.dropped)
    return (*told, *_told(doubt), *dropped)


def _told(doubt: Doubt) -> list[str]:
    again = doubt.repairs.again
    told = []
    for table, group in groupby(again, key=lambda each: each.publication.table):
        ids = ", ".join(str(each.checkpoint) for each in group)
        shows = doubt.seen.logs[table].shows
        had = f"showed checkpoint {shows}" if shows else "showed no checkpoint"
        told.append(f"table {table} {had}, less than its newest cut: checkpoint {ids} was published again")
    return told
