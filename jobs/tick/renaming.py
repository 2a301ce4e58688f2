"""Links the files of renamed tables into their new folders, after the claim and before the first epoch (G2).

`checkpointing.job.renaming` decides which names change. Readers see no change until the first checkpoint publishes the
tables. If a tick dies before that, the next tick deletes the links like other leftovers.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from checkpointing.commit.columns import Pairs
from checkpointing.commit.net_files import Renamed
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.job.polling import in_first_part, parts_of, read_alone
from checkpointing.job.renaming import (
    due_renames,
    new_append_tables,
    relocated,
    relocated_files,
    renamed_tables,
    under_new_names,
)
from checkpointing.metadata.paths import laid_out_otherwise, staging_folder
from checkpointing.metadata.record import CheckpointRecord, Rename
from jobs.operators.spec import KeyedSpec
from jobs.pipeline.job_plan import JobPlan
from jobs.warehouse.boundaries import LINK_RENAMED, RENAME_COLUMNS, Boundary, around
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.output_tables import TableNotCopyableError, appended_files
from jobs.warehouse.renamed_files import TakenNameError
from jobs.warehouse.savepoint_copy import FileNotCopiedError, link_files


@dataclass(frozen=True, slots=True)
class Renaming:
    """The renames of a starting tick: the entry with the old names (`was`) and with the new ones.

    No file has moved yet.
    """

    was: CheckpointRecord | None = None
    record: CheckpointRecord | None = None
    due: tuple[Rename, ...] = ()
    read_alone: tuple[VertexId, ...] = ()
    """The sources whose positions become those of their first part (`checkpointing.job.polling`)."""

    @property
    def tables(self) -> Mapping[TableName, TableName]:
        """Old name -> new name of each renamed table, state tables included."""
        return renamed_tables(self.due, JobName(self.was.job)) if self.was is not None else {}

    def tables_then(self, graph: JobGraph) -> tuple[TableName, ...]:
        """Return the names that the tables of the graph have at the cut."""
        before = {now: was for was, now in self.tables.items()}
        return tuple(before.get(table.name, table.name) for table in graph.tables())


def find_renaming(graph: JobGraph, restored: CheckpointRecord | None) -> Renaming:
    """Return the renames of a restored cut. Raise CutDoesNotFitError for an unclear rename."""
    if restored is None:
        return Renaming()
    due = due_renames(graph, restored)
    record, parts = under_new_names(graph, restored, due) if due else restored, parts_of(graph)
    return Renaming(restored, in_first_part(record, parts), due, read_alone(record, parts))


class RenameFailedError(Exception):
    """A table cannot take its new name. The message says why. The old table is unchanged."""


@dataclass(frozen=True, slots=True)
class Linked:
    """The start of a job door: the entry with the linked files, the renamed tables, and the plan.

    The plan's vertices have the new paths of the files.
    """

    record: CheckpointRecord | None
    renamed: Mapping[TableName, Renamed]
    plan: JobPlan


def link_renamed(
    stores: JobStores, plan: JobPlan, renaming: Renaming, generation: Generation, boundary: Boundary
) -> Linked:
    """Link the files of renamed tables into their new folders, as the claimed `generation`. The folders have logs.

    An append table keeps all files that its old log shows, including those of other writers. If the folder of a new
    append table belonged to another table of the job before, the new table begins empty. Raises RenameFailedError if
    files of the old log are unknown or missing, and OSError.
    """
    if renaming.record is None:
        return Linked(None, {}, plan)
    if not renaming.due:
        return Linked(renaming.record, _new_tables(stores, plan, renaming.record), plan)
    folders, job = renaming.tables, plan.job
    moved = relocated(renaming.record, folders, generation)
    links, before = dict(moved.links), {now: was for was, now in folders.items()}
    renamed = _new_tables(stores, plan, renaming.record)
    for table in (each for each in plan.graph.tables() if each.name in before):
        if table.mode is TableMode.APPEND:
            files, more = relocated_files(_shown(stores, before[table.name]), job, folders, generation)
            links |= more
            _must_be_laid_out(table, before[table.name], files)
            renamed[table.name] = replace(_emptied(stores, table.name), files=files)
        else:
            renamed[table.name] = Renamed(columns=_columns(stores, table.name))
    with around(boundary, LINK_RENAMED):
        try:
            link_files(stores.warehouse.storage, links)
        except FileNotCopiedError as error:
            raise RenameFailedError(f"renamed tables cannot take their files along: {error}") from error
    return Linked(moved.record, renamed, _with_paths(plan, links))


def _must_be_laid_out(table: Table, was: TableName, files: tuple[FileHandle, ...]) -> None:
    if laid_out_otherwise(table.partitioned_by, (file.path for file in files)) is not None:
        raise RenameFailedError(
            f"table {table.name} was {was}, and has another partition_by now. A table keeps its layout: put "
            "partition_by back, or begin a new table"
        )


def _new_tables(stores: JobStores, plan: JobPlan, record: CheckpointRecord) -> dict[TableName, Renamed]:
    """Return the append tables that the cut does not have, and whose logs still show a checkpoint.

    The job once wrote such a table, and then renamed it or stopped writing it. The rows and columns that it still has
    belong to older cuts.
    """
    return {
        table: _emptied(stores, table) for table in new_append_tables(plan.graph, record) if stores.tables.shown(table)
    }


def _emptied(stores: JobStores, table: TableName) -> Renamed:
    """Return the change that removes the earlier rows and columns from an append table."""
    removes = _of_ours(table, _shown(stores, table))
    return Renamed((), removes, _columns(stores, table), planned_on=stores.tables.shown(table))


def _columns(stores: JobStores, table: TableName) -> tuple[str, ...]:
    with stores.tables.newest(table) as known:
        return tuple(field.name for field in known.loaded.schema().fields)


def _shown(stores: JobStores, table: TableName) -> tuple[FileHandle, ...]:
    rows = {row.checkpoint: row for row in stores.entries.rows() if isinstance(row, CheckpointRecord)}
    try:
        return appended_files(stores.warehouse, table, rows)
    except TableNotCopyableError as error:
        raise RenameFailedError(f"the rows that table {table} has from before cannot be told: {error}") from error


def _of_ours(table: TableName, files: tuple[FileHandle, ...]) -> tuple[FileHandle, ...]:
    """Return the files to remove from an earlier table of that name.

    Raise RenameFailedError for another writer's file.
    """
    foreign = next((file.path for file in files if staging_folder(file.path) != table), None)
    if foreign is not None:
        raise RenameFailedError(
            f"a table {table} is there from before, and others have added rows to it ({foreign}), which would stay in "
            "the table that takes its name: take another name"
        )
    return files


def _with_paths(plan: JobPlan, links: Mapping[str, str]) -> JobPlan:
    """Return the plan whose vertices have the new paths of their outdated files."""
    now = {old: path for path, old in links.items()}
    vertices = dict(plan.vertices)
    for name, planned in vertices.items():
        if isinstance(planned.spec, KeyedSpec) and planned.spec.outdated:
            outdated = frozenset(now.get(path, path) for path in planned.spec.outdated)
            vertices[name] = replace(planned, spec=replace(planned.spec, outdated=outdated))
    return replace(plan, vertices=vertices)


# ------------------------------------------------------------------
# Rewrites files of append tables with new column names, after the claim and before the first epoch (G2).
#
# No reader sees these files until the first checkpoint publishes the table. If the tick dies before that, they are
# leftovers. The publication checks the table again. So this step only does most of the work early, so that it does not
# fall between commit and publication.


SILENT_S: Final = 2.0
"""If a table takes longer, its progress is reported, and again each time that so many seconds have passed."""

Told = Callable[[TableName, int, int], None]
"""A function that gets a table's progress: the bytes done, and all its bytes."""


def rename_columns(
    stores: JobStores, renamed: Mapping[TableName, Pairs], generation: Generation, told: Told, boundary: Boundary
) -> None:
    """Rewrite the files of these tables, as the claimed `generation`.

    `renamed` has for each table its new and old column names. Raises RenameFailedError for a file that cannot be
    rewritten with the new names, and OSError.
    """
    for table, pairs in renamed.items():
        progress = _Progress(table, told)
        with around(boundary, f"{RENAME_COLUMNS}:{table}"):
            try:
                stores.tables.rename_files(table, pairs, generation, progress)
            except (TakenNameError, pa.ArrowException) as error:
                names = ", ".join(f"{old} to {new}" for new, old in pairs)
                raise RenameFailedError(f"table {table} cannot rename {names}: {error}") from error


@dataclass(slots=True)
class _Progress:
    """Reports from time to time how many bytes of a table are done."""

    table: TableName
    told: Told
    last: float = 0.0

    def __post_init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= SILENT_S:
            self.last = now
            self.told(self.table, done, total)
