"""Finds damaged files before a tick restores from them, and names an older checkpoint that is undamaged (K2).

A tick checks that all files that it begins from exist and have the right size. If the files are small and lie in a
folder, the tick compares checksums too. From an object store it would have to download the files, and a store keeps
checksums of its own. Each file is verified again when it is read. A rollback verifies all files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from checkpointing.commit.at_rest import Rollback, held_cut, waits_for_approval
from checkpointing.commit.fencing import Turn, newest_checkpoint, restorable, turn_back
from checkpointing.commit.lost_publications import Standing, wanted
from checkpointing.commit.net_files import keyed_tables
from checkpointing.commit.outside_sinks import beyond_recall, sinks_after
from checkpointing.commit.recovery import Observed, RecoveryPlan, unpublished
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import JobName, SplitId, TableName, VertexId
from checkpointing.metadata.codec import UnreadableRowError
from checkpointing.metadata.files import handles_to_restore
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind
from jobs.engine_paths import typed
from jobs.sources.position_words import positions_of
from jobs.storage.folder import Folder
from jobs.suggestions import NotThereError
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.checkpoints import DamagedRow
from jobs.warehouse.cut_check import TableLogDamagedError
from jobs.warehouse.file_checks import damages
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.output_tables import TableNotCopyableError, base_of
from jobs.warehouse.refusals import TickRefusedError
from jobs.warehouse.rollback_tables import (
    History,
    TableBack,
    TableNotRolledBackError,
    tables_back,
    with_columns_back,
)
from jobs.warehouse.undo_optimize import Undo
from jobs.warehouse.warehouse import Warehouse

CHECKSUM_BYTES_MAX: Final = 64 * 1024 * 1024
"""If the files have at most so many bytes together, a starting tick compares checksums too.

This takes less than 0.1 s.
"""


class DamagedCheckpointError(TickRefusedError):
    """The checkpoint from which a tick would begin is damaged. The message names the file, and how to roll back."""


def observe_sound(stores: JobStores, run_ended: Callable[[str], bool | None] | None = None) -> Observed:
    """Return the observed facts that a starting tick needs. Raise DamagedCheckpointError for an unreadable entry."""
    try:
        return stores.observe(run_ended)
    except UnreadableRowError as error:
        raise DamagedCheckpointError(f"{error}. {way_out(stores.warehouse)}") from error


def must_be_sound(warehouse: Warehouse, plan: RecoveryPlan) -> None:
    """Raise DamagedCheckpointError if a file that the tick would restore from, or would publish, is damaged."""
    row = plan.restore
    if row is None:
        return
    needed = tuple({file.path: file for file in _needed(row, publish=plan.roll_forward is not None)}.values())
    few = isinstance(warehouse.storage, Folder) and sum(file.bytes for file in needed) <= CHECKSUM_BYTES_MAX
    found = next(damages(warehouse.storage, needed, checksums=few), None)
    if found is not None:
        raise DamagedCheckpointError(
            f"{row.kind.value} {row.checkpoint} of {row.job} is damaged: {found}. {way_out(warehouse, besides=row)}"
        )


def _needed(row: CheckpointRecord, *, publish: bool) -> Iterator[FileHandle]:
    yield from handles_to_restore(row)
    for table in row.tables if publish else ():
        yield from (*table.adds, *table.files)


def way_out(warehouse: Warehouse, *, besides: CheckpointRecord | None = None) -> str:
    """Return how to go on: the command that rolls back to the newest undamaged entry. This reads every file."""
    job, root = warehouse.paths.job, warehouse.root
    good = newest_sound(warehouse, besides=besides)
    if good is None:
        return (
            "No other retained checkpoint is whole: restore the file from a backup, or start over in an empty "
            f"warehouse ('tidemark run {job} --warehouse EMPTY_FOLDER')"
        )
    where = "" if str(root).rpartition("/")[2] == "warehouse" else f" --warehouse {typed(root)}"
    return (
        f"Restore it from a backup, or go back to {good.kind.value} {good.checkpoint}, the next that is whole: "
        f"'tidemark rollback {job} {good.checkpoint}{where}' (first with --dry-run to see what that changes)"
    )


def newest_sound(warehouse: Warehouse, *, besides: CheckpointRecord | None = None) -> CheckpointRecord | None:
    """Return the newest entry that can be read and restored, comparing checksums. None: there is no such entry."""
    try:
        rows = JobStores(warehouse, cross_freely, beyond_damage=True).observe().rows
    except UnreadableRowError:
        return None
    records = [row for row in rows if isinstance(row, CheckpointRecord) and row != besides]
    return next((row for row in restorable(records) if is_sound(warehouse, row)), None)


def is_sound(warehouse: Warehouse, row: CheckpointRecord) -> bool:
    """Return whether every file that a restore of this entry reads agrees with its handle."""
    files: Iterable[FileHandle] = _needed(row, publish=not row.commits)
    return next(damages(warehouse.storage, files, checksums=True), None) is None


# ------------------------------------------------------------------
# Plans a rollback: refuses it, or decides what happens to each table and each split (K2).


class RollbackRefusedError(Exception):
    """A rollback or reset is refused, and no entry was appended. The message says why, and what to do."""


class NoSuchRowError(RollbackRefusedError, NotThereError):
    """A rollback or reset names a checkpoint, source or split that does not exist."""


@dataclass(frozen=True, slots=True)
class SplitBack:
    """A split's present and new position, as the source writes them. None stands for the split's start."""

    source: VertexId
    split: SplitId
    now: str | None
    then: str | None


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """A rollback: the newest entry, the target, and what happens to entries, tables and splits."""

    job: JobName
    newest: CheckpointRecord | None
    target: CheckpointRecord
    turn: Turn
    tables: tuple[TableBack, ...]
    splits: tuple[SplitBack, ...]
    pending: CheckpointRecord | None
    """A checkpoint that is committed and not yet published. It is published first."""
    damaged: tuple[DamagedRow, ...]
    """Entries that cannot be read. The rollback drops them."""
    sinks: tuple[TableName, ...]
    """The tables with outside sinks, as the rollback's entry will name them."""
    rows_since: tuple[int, int] | None = None
    """The rows of the checkpoints since the target, and how many of these are estimates.

    None: some of these checkpoints no longer exist.
    """

    @property
    def rollback(self) -> Rollback:
        """The description from which the entry is made."""
        return Rollback(self.target, tuple(table.record for table in self.tables), self.sinks)

    @property
    def undo(self) -> Mapping[TableName, Undo]:
        """The tables in which merges of another writer must be undone before the entry is appended."""
        return {table.record.table: table.undo for table in self.tables if table.undo is not None}

    @property
    def following(self) -> tuple[TableName, ...]:
        """The upsert tables whose outside sinks are rolled back too."""
        upserts = (table.record.table for table in self.tables if table.record.mode is TableMode.UPSERT)
        return tuple(table for table in upserts if table in self.sinks)


def records_of(seen: Observed) -> tuple[CheckpointRecord, ...]:
    """Return the checkpoints and savepoints among the entries."""
    return tuple(row for row in seen.rows if isinstance(row, CheckpointRecord))


def plan_rollback(
    stores: JobStores, seen: Observed, checkpoint: int, *, checksums: bool, leave_outside: bool = False
) -> RollbackPlan:
    """Return the plan of a rollback, without changing anything.

    `stores` were opened with `beyond_damage`, and `seen` is their latest observation. Raises RollbackRefusedError,
    naming other entries, if the target does not exist, is the present entry, or is damaged. Raises RollbackRefusedError
    also if an outside sink has rows that the rollback takes back, unless `leave_outside`. Raises
    TableNotRolledBackError for a table that cannot be rolled back, and TableNotCopyableError for a table that cannot be
    copied.
    """
    rows = records_of(seen)
    newest, held = newest_checkpoint(rows), held_cut(rows)
    if held is not None:
        raise RollbackRefusedError(f"{waits_for_approval(held)}; nothing was changed")
    target = _target(stores, rows, newest, checkpoint)
    pending = unpublished(rows, seen.cuts)
    history = _history(stores, rows, pending)
    _must_be_as_published(stores, target, history)
    tables = tables_back(stores.warehouse, target, history)
    tables = with_columns_back(stores.warehouse, tables, target, newest, pending)
    _must_be_sound(stores, target, tables, checksums=checksums)
    plan = RollbackPlan(
        job=stores.warehouse.paths.job,
        newest=newest,
        target=target,
        turn=turn_back(rows, target),
        tables=tables,
        splits=splits_back(newest, target),
        pending=pending,
        damaged=stores.entries.damaged,
        sinks=sinks_after(rows, target, leave_outside=leave_outside),
        rows_since=_rows_since(rows, newest, target),
    )
    if not leave_outside:
        _must_stay_true_outside(rows, plan.rollback, pending)
    return plan


def _rows_since(
    rows: tuple[CheckpointRecord, ...], newest: CheckpointRecord | None, target: CheckpointRecord
) -> tuple[int, int] | None:
    """Add up the rows of all checkpoints after the target, if an unbroken line of parents leads back to the target."""
    known = {row.checkpoint: row for row in rows}
    read = estimated = 0
    row = newest
    while row is not None and row.checkpoint != target.checkpoint:
        if row.kind is not RowKind.CHECKPOINT:
            return None
        read += row.statistics.rows
        estimated += row.statistics.rows_estimated
        row = known.get(row.parent)
    return None if row is None else (read, estimated)


def _must_stay_true_outside(
    rows: tuple[CheckpointRecord, ...], rollback: Rollback, pending: CheckpointRecord | None
) -> None:
    """Raise RollbackRefusedError if an append table's outside sink would then have other rows than the table."""
    tables = sorted(beyond_recall(rows, rollback, pending))
    if tables:
        job, target = rollback.target.job, rollback.target.checkpoint
        has = "has rows of later checkpoints"
        if pending is not None and pending.checkpoint != target:
            has = f"may have rows of checkpoint {pending.checkpoint}"
        raise RollbackRefusedError(
            f"{job} cannot go back to {target}: the sink of table {tables[0]} {has}, and does not give them back; "
            f"nothing was changed. 'tidemark rollback {job} {target} --leave-outside' goes back "
            "without it: the sink keeps these rows, and gets those that the next ticks read again"
        )


def _target(
    stores: JobStores, rows: tuple[CheckpointRecord, ...], newest: CheckpointRecord | None, checkpoint: int
) -> CheckpointRecord:
    job = stores.warehouse.paths.job
    found = next((row for row in rows if row.checkpoint == checkpoint), None)
    others = _offered(row for row in rows if row != newest)
    if found is None:
        lost = next((row for row in stores.entries.damaged if row.checkpoint == checkpoint), None)
        said = f"{lost}" if lost is not None else f"{job} has no checkpoint or savepoint {checkpoint}"
        refused = NoSuchRowError if lost is None else RollbackRefusedError
        raise refused(f"{said}: it can go back to {others}")
    if found == newest and not stores.entries.damaged:
        raise RollbackRefusedError(
            f"{job} stands at {found.kind.value} {checkpoint} already: it can go back to {others}"
        )
    return found


def _offered(rows: Iterable[CheckpointRecord]) -> str:
    named = [f"{row.checkpoint} (savepoint)" if row.is_savepoint else str(row.checkpoint) for row in restorable(rows)]
    return ", ".join(named) or "none: no other entry is retained"


def _history(stores: JobStores, rows: tuple[CheckpointRecord, ...], pending: CheckpointRecord | None) -> History:
    cuts = stores.cuts.all()
    shown = newest_checkpoint(tuple(row for row in rows if row.checkpoint in cuts))
    now = cuts[shown.checkpoint] if shown is not None else {}
    return History({row.checkpoint: row for row in rows}, cuts, now, pending)


def _must_be_as_published(stores: JobStores, target: CheckpointRecord, history: History) -> None:
    """Raise RollbackRefusedError unless append tables still have the versions that the target's cut names.

    An upsert or state table needs no old version, because the target's entry names all its files.
    """
    seen = _standing(stores, history)
    base = base_of(target, history.records, history.cuts)
    keyed = {table for row in history.records.values() for table in dict(keyed_tables(row, seen.job))}
    for table, version in sorted(base.cut.items()):
        if table in keyed or seen.logs[table].is_as_published(version, wanted(seen, base.checkpoint, table)):
            continue
        raise RollbackRefusedError(
            f"{target.job} cannot go back to {target.kind.value} {target.checkpoint}: table {table} no longer has "
            f"version {version}, which its cut names, as it was published; nothing was changed. Restore the folder "
            f"{stores.warehouse.place(table)} from a backup of the warehouse, or go back to another checkpoint"
        )


def _standing(stores: JobStores, history: History) -> Standing:
    try:
        return stores.standing(history.records.values(), None)
    except TableLogDamagedError as damaged:
        raise RollbackRefusedError(f"{damaged}; nothing was changed") from damaged


def reachable(warehouse: Warehouse, rows: Iterable[Row]) -> CheckpointRecord | None:
    """Return the newest entry that the job could be rolled back to, checking every file. None: there is none."""
    known = tuple(rows)
    newest = newest_checkpoint(known)
    stores = JobStores(warehouse, cross_freely, beyond_damage=True)
    seen = stores.observe()
    for row in restorable(row for row in records_of(seen) if row != newest):
        try:
            return plan_rollback(stores, seen, row.checkpoint, checksums=True, leave_outside=True).target
        except (RollbackRefusedError, TableNotRolledBackError, TableNotCopyableError):
            continue
    return None


def _must_be_sound(
    stores: JobStores, target: CheckpointRecord, tables: tuple[TableBack, ...], *, checksums: bool
) -> None:
    """Raise RollbackRefusedError if a file that tables will show, or that ticks will restore, is damaged."""
    found = next(damages(stores.warehouse.storage, _files(target, tables), checksums=checksums), None)
    if found is not None:
        raise RollbackRefusedError(
            f"{target.kind.value} {target.checkpoint} of {target.job} is damaged: {found}; nothing was changed. "
            f"{way_out(stores.warehouse, besides=target)}"
        )


def _files(target: CheckpointRecord, tables: tuple[TableBack, ...]) -> Iterator[FileHandle]:
    yield from handles_to_restore(target)
    for table in tables:
        yield from (*table.record.files, *table.adds, *table.kept)


def splits_back(now: CheckpointRecord | None, then: CheckpointRecord) -> tuple[SplitBack, ...]:
    """Return the present and the new position of every split in either of the two entries."""
    before, after = positions_of(now), positions_of(then)
    return tuple(
        SplitBack(source, split, before.get((source, split)), after.get((source, split)))
        for source, split in dict.fromkeys([*after, *before])
    )
