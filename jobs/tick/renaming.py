"""Links the files of renamed tables into their new folders, after the claim and before the first epoch (G2).

`checkpointing.job.renaming` decides which names change. Readers see nothing of it until the first checkpoint publishes
the tables. If a tick dies before that, the next one deletes the links like other leftovers.
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
    """The renames of a starting tick: the entry under the old names (`was`) and the new ones. No file has moved."""

    was: CheckpointRecord | None = None
    record: CheckpointRecord | None = None
    due: tuple[Rename, ...] = ()
    read_alone: tuple[VertexId, ...] = ()
    """The sources whose positions went to the first of their parts (`checkpointing.job.polling`)."""

    @property
    def tables(self) -> Mapping[TableName, TableName]:
        """Old name -> new name of each renamed table, state tables included."""
        return renamed_tables(self.due, JobName(self.was.job)) if self.was is not None else {}

    def tables_then(self, graph: JobGraph) -> tuple[TableName, ...]:
        """Return the tables of the graph under the names that they have at the cut."""
        before = {now: was for was, now in self.tables.items()}
        return tuple(before.get(table.name, table.name) for table in graph.tables())


def find_renaming(graph: JobGraph, restored: CheckpointRecord | None) -> Renaming:
    """Return the renames of a restored cut; raise CutDoesNotFitError for a rename that is not clear."""
    if restored is None:
        return Renaming()
    due = due_renames(graph, restored)
    record, parts = under_new_names(graph, restored, due) if due else restored, parts_of(graph)
    return Renaming(restored, in_first_part(record, parts), due, read_alone(record, parts))


class RenameFailedError(Exception):
    """A table cannot take its new name. The message says why. The old table is unchanged."""


@dataclass(frozen=True, slots=True)
class Linked:
    """What a job door begins from: the entry with the linked files, the renamed tables, and the plan.

    The plan's vertices have the new paths of the files.
    """

    record: CheckpointRecord | None
    renamed: Mapping[TableName, Renamed]
    plan: JobPlan


def link_renamed(
    stores: JobStores, plan: JobPlan, renaming: Renaming, generation: Generation, boundary: Boundary
) -> Linked:
    """Link the files of renamed tables into their new folders, as the claimed `generation`. The folders have logs.

    An append table takes along all files that its old log shows, also those of other writers. A new append table whose
    folder was another table of the job begins empty. Raises RenameFailedError if files of the old log are unknown or
    missing, and OSError.
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

    The job wrote such a table once, and gave it another name or up. Its rows and columns belong to cuts from before.
    """
    return {
        table: _emptied(stores, table) for table in new_append_tables(plan.graph, record) if stores.tables.shown(table)
    }


def _emptied(stores: JobStores, table: TableName) -> Renamed:
    """Return what takes the rows and columns of before out of an append table."""
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
    """Return the files to remove from an earlier table of that name; raise RenameFailedError for another writer's."""
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
# Writes files of append tables under new names of columns, after the claim and before the first epoch (G2).
#
# Nobody sees these files until the first checkpoint publishes the table. If the tick dies before, they are leftovers.
# The publication looks at the table again, so this step only takes the work out of the time between commit and
# publication.


SILENT_S: Final = 2.0
"""A table that takes longer is told of, and again each time that so many seconds have passed."""

Told = Callable[[TableName, int, int], None]
"""A function that hears how many of how many bytes of a table are done."""


def rename_columns(
    stores: JobStores, renamed: Mapping[TableName, Pairs], generation: Generation, told: Told, boundary: Boundary
) -> None:
    """Write the files of these tables again, as the claimed `generation`. `renamed` has their new and old names.

    Raises RenameFailedError for a file that cannot be written under new names, and OSError.
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
    """Tells how many bytes of a table are done, now and then."""

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
