"""Creates output tables, and checks before each commit that Tidemark may still publish into them.

Other writers may change a table at any time. Each check compares the table with the columns in the newest entry and
with the rules of `table_rules`. So a check finds foreign changes between two ticks and between two checkpoints, and
never mistakes a change by Tidemark for a foreign change. The message names the version of the change from the log.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from checkpointing.columns import TableColumn
from checkpointing.commit.columns import differ, is_one_of
from checkpointing.commit.net_files import keyed_tables, nothing_staged
from checkpointing.graph import TableMode
from checkpointing.handles import UNKNOWN_CRC32, FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName
from checkpointing.metadata.paths import is_data_file, laid_out_otherwise, relative_to_table
from checkpointing.metadata.record import CheckpointRecord, TableRecord
from jobs.sinks.port import NOTHING_SAID, Description
from jobs.warehouse.cuts_table import Cut
from jobs.warehouse.delta_log import DeltaLog
from jobs.warehouse.file_checks import logged_files, not_removable
from jobs.warehouse.table_columns import columns_of_schema, declared_columns, field_of, type_of
from jobs.warehouse.table_rules import (
    Column,
    Problem,
    TableShape,
    described,
    problems_of,
    purge,
)
from jobs.warehouse.table_snapshot import KnownTable, delta_table, paths_with_deletion_vectors
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse

JOB_PROPERTY: Final = "tidemark.job"

CONFIGURATION: Final = {
    "delta.deletedFileRetentionDuration": "interval 3650 days",
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.enableExpiredLogCleanup": "false",
}
"""Readers and rollbacks open old cuts by version, so files and log entries must not be deleted by age.

Ten years is longer than any retention. Only Tidemark's clean-up deletes files and log entries, since it knows the
retained checkpoints.
"""

_RULES: Final = {
    "delta.generationExpression": "generated column",
    "delta.identity.start": "identity column",
    "delta.invariants": "invariant",
}


class TableMismatchError(ValueError):
    """The pipeline cannot write to a table. The message names the table, the column or feature, and the way out."""


Columns = tuple[TableColumn, ...]


@dataclass(frozen=True, slots=True)
class Shows:
    """The columns that a table shows when a tick begins.

    `columns` are the columns in the newest entry, if this entry has the table.

    `mode` says how that entry writes the table. It is None if the entry does not change the table.

    The table is not `settled` while that entry waits to be published, for the first time or again. Then the table may
    lack some of the columns. The table is `renamed` while no entry has it under its present name. Then it gets these
    columns with its first rows. Files may contain values of `dropped` columns. `due` has the new and the old name of
    each column that the next checkpoint renames.
    """

    columns: Columns = ()
    settled: bool = True
    renamed: bool = False
    mode: TableMode | None = None
    dropped: tuple[str, ...] = ()
    due: tuple[tuple[str, str], ...] = ()


NOTHING_YET: Final = Shows()


@dataclass(frozen=True, slots=True)
class _Expected:
    declared: Columns
    mode: TableMode
    shows: Shows
    partitioned_by: tuple[str, ...] = ()

    @property
    def is_unchanged(self) -> bool:
        """Whether the pipeline writes the table just like the newest entry, and this entry is published."""
        shows = self.shows
        as_before = shows.columns and shows.mode is self.mode and not differ(shows.columns, self.declared)
        return bool(as_before) and shows.settled and not shows.renamed


class TableNotCheckedError(RuntimeError):
    """A table's log exists and cannot be read. The message names the table, the cause and the way out."""

    def __init__(self, table: TableName, error: Exception) -> None:
        cause = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        super().__init__(
            f"table {table}: its log cannot be read ({cause}). If it stays so, restore the folder, or start an empty "
            "warehouse"
        )


class OutputTables:
    """The tables of one job. Call `ensure` for each at the start of a tick, and `check` before each commit point.

    `ensure` creates a new table, without rows, when a tick first has it. At that time no entry has the table, so no cut
    shows it. Later changes of the table's columns are part of a commit, and not made here (D6).
    """

    def __init__(self, warehouse: Warehouse, tables: TableLogs) -> None:
        """Serve the job's tables."""
        self._warehouse = warehouse
        self._tables = tables
        self._expected: dict[TableName, _Expected] = {}
        self._sound_at: dict[TableName, int] = {}

    def ensure(
        self,
        table: TableName,
        schema: pa.Schema,
        mode: TableMode,
        shows: Shows = NOTHING_YET,
        says: Description = NOTHING_SAID,
        partitioned_by: tuple[str, ...] = (),
    ) -> None:
        """Create the table if it is missing, with the columns of the newest entry, or else those of `schema`.

        The table is partitioned by the columns `partitioned_by` for ever.

        If the comments and properties in `says` differ from the table's metadata, the next publication changes the
        metadata. Raises TableMismatchError, before anything runs, if the pipeline cannot write to the existing table,
        or if others have changed it.
        """
        expected = _Expected(declared_columns(schema), mode, shows, partitioned_by)
        self._expect(table, expected)
        self._tables.describe(table, says)
        if expected.is_unchanged and self._tables.left(table) is not None:
            return  # as the last checkpoint left it, which had checked it: `check` opens it before the next one commits
        log = self._tables.log(table)
        if not shows.columns or shows.renamed:
            self._drop_shell(log, shows.columns or declared_columns(schema))
        made_in = Schema(
            [field_of(column) for column in shows.columns] if shows.columns else Schema.from_arrow(schema).fields
        )
        properties = {**says.properties, **CONFIGURATION, JOB_PROPERTY: str(self._warehouse.paths.job)}
        log.create(described(made_in, says, shows.columns), properties, says.comment, partitioned_by)
        known = log.looked_at()
        self._must_be_ours(known, table, mode, renamed=shows.renamed)
        problems = self._problems(table, known)
        if problems:
            raise TableMismatchError("; ".join(problems))

    def published(self, table: TableName, columns: Columns) -> None:
        """Record that the table shows these columns now, because a commit of Tidemark has added them."""
        known = self._expected.get(table)
        if known is None or not columns:
            return
        shows = replace(known.shows, columns=columns, settled=True, renamed=False, due=())
        if known.shows != shows:
            self._expect(table, replace(known, shows=shows))

    def check(self, tables: Iterable[TableName], leaving: Collection[str] = ()) -> tuple[str, ...]:
        """Return the reasons why these tables cannot be published into now. Each names the table and the way out.

        The publication removes the files `leaving` from these tables. Their paths are warehouse-relative. Raises
        TableNotCheckedError for a log that exists and cannot be read.
        """
        return tuple(problem for table in tables for problem in self._checked(table, leaving))

    def examine(self, table: TableName) -> None:
        """Examine the table at the version that this process knows, so that `check` examines only newer versions.

        Raises the error of delta-rs if the table cannot be read.
        """
        self._problems(table, self._tables.log(table).known())

    def _expect(self, table: TableName, expected: _Expected) -> None:
        self._expected[table] = expected
        self._sound_at.pop(table, None)

    def _checked(self, table: TableName, leaving: Collection[str]) -> tuple[str, ...]:
        try:
            known = self._tables.log(table).current()
            return (*self._problems(table, known), *self._moved(table, known, leaving))
        except Exception as error:
            if not self._tables.log(table).exists():
                return (f"table {table} is gone: restore its folder, or start an empty warehouse",)
            raise TableNotCheckedError(table, error) from error

    def _problems(self, table: TableName, known: KnownTable) -> tuple[str, ...]:
        if self._sound_at.get(table) == known.version():
            return ()
        expected, folder = self._expected[table], str(self._tables.log(table).folder)
        shape = shape_of(known.loaded)
        found = [*problems_of(shape, _due(expected, shape), expected.mode, folder, expected.partitioned_by)]
        found += _vectors(known, expected, folder)
        found += _taken_names(shape, expected.shows, folder)
        if not found:
            self._sound_at[table] = known.version()
        return tuple(f"table {table} {each.what}{_since(known.loaded, each)}: {each.way_out}" for each in found)

    def _moved(self, table: TableName, known: KnownTable, leaving: Collection[str]) -> tuple[str, ...]:
        """Return the problem if another writer has moved rows of files that the publication must remove."""
        inside = [path for path in (relative_to_table(table, file) for file in leaving) if path is not None]
        why_not = not_removable(known, self._tables.log(table).folder, inside) if inside else ""
        return (f"table {table}: {why_not}",) if why_not else ()

    def _drop_shell(self, log: DeltaLog, due: Columns) -> None:
        """Drop a table that an earlier tick created with other columns, if nothing was ever committed to it."""
        if not log.is_open and not log.exists():
            return
        known = log.looked_at()
        ours = known.loaded.metadata().configuration.get(JOB_PROPERTY) == str(self._warehouse.paths.job)
        if ours and known.version() == 0 and differ(columns_of_schema(known.loaded.schema()), due):
            log.drop()

    def _must_be_ours(self, known: KnownTable, table: TableName, mode: TableMode, *, renamed: bool) -> None:
        owner = known.loaded.metadata().configuration.get(JOB_PROPERTY)
        job = str(self._warehouse.paths.job)
        if owner is not None and owner != job:
            raise TableMismatchError(f"table {table} belongs to job {owner}: give job {job} a table of another name")
        if renamed and owner is None:
            raise TableMismatchError(
                f"table {table} is there already, and job {job} did not make it: a table is renamed to a name that is "
                "free. Take another name for it, or move this one away"
            )
        shown = self._tables.shown(known, table)
        if mode is not TableMode.APPEND and owner is None and not shown and known.files:
            raise TableMismatchError(
                f"table {table} holds rows that job {job} never wrote, and an {mode.value} would erase them: "
                "name another table, or move this one away"
            )


def _due(expected: _Expected, shape: TableShape) -> tuple[Column, ...]:
    """Return the pipeline's columns that the table must have now.

    The table must have the columns that it shows. A column that is only declared is added by a later commit. If others
    have added such a column already, the column must have the pipeline's type. While an entry waits to be published, no
    column is checked.
    """
    if not expected.shows.settled or expected.shows.renamed:
        return shape.columns
    shows, there = expected.shows, {column.name: column for column in shape.columns}
    ours = {column.name: column for column in (*expected.declared, *shows.columns)}
    shown = {column.name for column in shows.columns}
    return tuple(Column(name, ours[name].type, nullable=True) for name in ours if name in shown or name in there)


def shape_of(table: DeltaTable) -> TableShape:
    """Return the part of a loaded table that decides whether Tidemark may publish into it."""
    protocol, metadata = table.protocol(), table.metadata()
    return TableShape(
        features=frozenset([*(protocol.writer_features or ()), *(protocol.reader_features or ())]),
        properties=frozenset(metadata.configuration.items()),
        columns=tuple(_column(field) for field in table.schema().fields),
        partitioned_by=tuple(metadata.partition_columns),
    )


def first_problem(table: DeltaTable, mode: TableMode, folder: str) -> str:
    """Return why a table with these columns forbids publishing, and the way out, or an empty text."""
    shape = shape_of(table)
    problems = problems_of(shape, shape.columns, mode, folder, shape.partitioned_by)
    return f"{problems[0].what}: {problems[0].way_out}" if problems else ""


def _column(field: Field) -> Column:
    rules = [name for key, name in _RULES.items() if key in (field.metadata or {})]
    return Column(field.name, type_of(field), field.nullable, ", ".join(rules))


def _taken_names(shape: TableShape, shows: Shows, folder: str) -> Iterator[Problem]:
    """Yield each column of others that has the new name of a column, or the name of a dropped column."""
    ours = {column.name for column in shows.columns}
    for column in shape.columns:
        restore = f"run RESTORE TABLE delta.`{folder}` TO VERSION AS OF the one before the column came"
        if column.name in ours or not shows.settled:
            continue
        if column.name in {new for new, _ in shows.due}:
            what = f"has a column {column.name} of somebody else, and the pipeline gives this name to another column"
            yield Problem(what, column.name, f"{restore}, or take another name")
        elif is_one_of(column.name, shows.dropped):
            what = f"has a dropped column {column.name} again, added by somebody else, and shows its old values"
            yield Problem(what, column.name, restore)


def _vectors(known: KnownTable, expected: _Expected, folder: str) -> list[Problem]:
    if expected.mode is TableMode.APPEND and not expected.shows.due:
        return []
    marked = known.with_deletion_vectors()
    if not marked:
        return []
    return [Problem(f"has deletion vectors on {len(marked)} files", "DELETE", purge(folder))]


def _since(loaded: DeltaTable, problem: Problem) -> str:
    """Return words that name the oldest log entry with the problem, or an empty text."""
    marker = problem.marker.lower()
    for entry in reversed(loaded.history()):
        speaks = json.dumps([entry.get("operation"), entry.get("operationParameters")], default=str).lower()
        if entry["version"] > 0 and marker in speaks:
            return f" (since version {entry['version']}, {entry.get('operation', 'a commit')})"
    return ""


# ------------------------------------------------------------------
# Completes the tables of an entry: finds all files of the tables, and not only the files that the entry adds.
#
# For an upsert or state table, the entry has all files, because its snapshots name all live files. For an append table,
# there are two parts: the files at the newest published cut among the entry and its ancestors, and the files that the
# entries since then add.


Records = Mapping[CheckpointId, CheckpointRecord]


class TableNotCopyableError(ValueError):
    """The files of a table cannot be found. The message names the table, the obstacle and the way out."""


@dataclass(frozen=True, slots=True)
class Base:
    """The basis for append tables: the newest published cut, its checkpoint, and the entries since, oldest first."""

    checkpoint: CheckpointId
    cut: Mapping[TableName, int]
    rows: tuple[CheckpointRecord, ...]

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables of the cut, then other tables that the entries name."""
        return tuple(dict.fromkeys([*self.cut, *(table.table for row in self.rows for table in row.tables)]))

    def renamed(self, table: TableName) -> tuple[tuple[str, str], ...]:
        """Return the columns that the entries since rename. Files of the cut may still have the old names."""
        tables = (each for row in self.rows for each in row.tables if each.table == table)
        return tuple(dict.fromkeys(pair for each in tables for pair in each.renamed))

    def after_rows(self, table: TableName, files: dict[str, FileHandle]) -> dict[str, FileHandle]:
        """Return a dict from paths to an append table's files: the files of the cut, as later entries changed them."""
        for each in (each for row in self.rows for each in row.tables if each.table == table):
            gone = {file.path for file in each.removes}
            files = {path: file for path, file in files.items() if path not in gone}
            files |= {file.path: file for file in each.adds}
        return files


def whole_record(
    warehouse: Warehouse, record: CheckpointRecord, records: Records, cuts: Mapping[CheckpointId, Cut]
) -> CheckpointRecord:
    """Return the entry in a form that needs no other entry: tables with all their files, nothing staged, no parent.

    Only logs are read. Raises TableNotCopyableError, which names a table with deletion vectors, with another
    partitioning or with files outside of its folder, or an entry whose parent's cut is gone.
    """
    base = base_of(record, records, cuts)
    keyed = dict(keyed_tables(record, warehouse.paths.job))
    said = {each.table for each in record.columns}
    modes = {table.table: table.mode for row in records.values() for table in row.tables}
    known = known_files(records)
    # The entry does not have a renamed table under its old name.
    names = (name for name in base.tables if not said or name in said)
    appended = (
        TableRecord(
            table=name,
            mode=TableMode.APPEND,
            adds=_appended(warehouse, name, base, known),
            renamed=base.renamed(name),
            parent_version=0,
        )
        for name in names
        if name not in keyed and modes.get(name, TableMode.APPEND) is TableMode.APPEND
    )
    tables = [*appended, *keyed.values()]
    return record.model_copy(
        update={
            "parent": NO_CHECKPOINT,
            "vertices": nothing_staged(record),
            "tables": tuple(table for table in tables if table.adds or table.files),
        }
    )


def appended_files(warehouse: Warehouse, name: TableName, records: Records) -> tuple[FileHandle, ...]:
    """Return the files that an append table shows now, as handles. Raises TableNotCopyableError like `whole_record`."""
    known = known_files(records)
    return tuple(known.get(file.path, file) for file in _in_log(warehouse, name, None))


def known_files(records: Records) -> Mapping[str, FileHandle]:
    """Return a dict from paths to the files that these entries add to append tables. Compactions add files too."""
    tables = [table for row in records.values() for table in row.tables]
    added = {file.path: file for table in tables for file in table.adds}
    return added | {each.into.path: each.into for table in tables for each in table.compactions}


def load(warehouse: Warehouse, table: TableName, version: int | None = None) -> DeltaTable:
    """Return a table at that version. Raise TableNotCopyableError if its log cannot be read there."""
    folder = warehouse.place(warehouse.paths.table(table))
    try:
        return delta_table(folder, version)
    except Exception as error:
        raise TableNotCopyableError(
            f"table {table} cannot be read at version {version} ({type(error).__name__}: {error}): "
            "restore its folder from a backup"
        ) from error


def base_of(record: CheckpointRecord, records: Records, cuts: Mapping[CheckpointId, Cut]) -> Base:
    """Return the basis for an entry's append tables. Raise TableNotCopyableError if its parent's cut is gone."""
    rows: list[CheckpointRecord] = []
    at = record
    while at.checkpoint not in cuts:
        rows.append(at)
        if at.parent == NO_CHECKPOINT or at.parent in cuts:
            return Base(at.parent, cuts.get(at.parent, {}), tuple(reversed(rows)))
        if at.parent not in records:
            raise TableNotCopyableError(
                f"{record.kind.value} {record.checkpoint} builds on checkpoint {at.parent}, of which neither the "
                "entry nor the cut exists any more: take a new savepoint"
            )
        at = records[at.parent]
    return Base(at.checkpoint, cuts[at.checkpoint], tuple(reversed(rows)))


def _appended(
    warehouse: Warehouse, name: TableName, base: Base, known: Mapping[str, FileHandle]
) -> tuple[FileHandle, ...]:
    logged = _in_log(warehouse, name, base.cut[name]) if name in base.cut else ()
    return tuple(base.after_rows(name, {file.path: known.get(file.path, file) for file in logged}).values())


def _in_log(warehouse: Warehouse, name: TableName, version: int | None) -> Iterator[FileHandle]:
    table = load(warehouse, name, version)
    folder = str(warehouse.place(name))
    partitioned_by = table.metadata().partition_columns
    files = logged_files(table)
    marked = paths_with_deletion_vectors(table).intersection(files)
    if marked:
        raise TableNotCopyableError(
            f"table {name} has deletion vectors on {len(marked)} files ({min(marked)}), which a copy would lose: "
            f"{purge(folder)}, let the job complete a checkpoint, and try again"
        )
    for path, file in files.items():
        if not is_data_file(path):
            raise TableNotCopyableError(
                f"table {name} names a file outside its folder ({path}), as a shallow clone does: copy the table whole"
            )
        if laid_out_otherwise(partitioned_by, [f"{name}/{path}"]) is not None:
            raise TableNotCopyableError(
                f"table {name} is laid out by {', '.join(partitioned_by)}, and others have added {path}, whose "
                "partition no entry tells: move its rows into the pipeline's input, or name another table"
            )
        yield FileHandle(f"{name}/{path}", file.rows or 0, file.bytes, UNKNOWN_CRC32, file.statistics)
