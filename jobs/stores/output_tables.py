"""Makes output tables once, and checks before each commit that Tidemark may still publish into them.

Other writers may change a table at any time. Each check compares it with the columns that the newest row says and with
the rules of `table_rules`. So it finds foreign changes between two ticks and between two checkpoints, and never takes a
change of Tidemark's own for one. The log tells the version that brought the change.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from checkpointing.columns import TableColumn
from checkpointing.commit.columns import differ
from checkpointing.graph import TableMode
from checkpointing.identifiers import TableName
from checkpointing.metadata.paths import relative_to_table
from jobs.stores.delta_log import DeltaLog, active_paths, paths_with_deletion_vectors
from jobs.stores.lost_files import not_removable
from jobs.stores.table_columns import columns_of_schema, declared_columns, field_of, type_of
from jobs.stores.table_rules import Column, Problem, TableShape, problems_of, purge
from jobs.stores.tables import TableLogs
from jobs.stores.warehouse import Warehouse

JOB_PROPERTY: Final = "tidemark.job"

CONFIGURATION: Final = {
    "delta.deletedFileRetentionDuration": "interval 3650 days",
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.enableExpiredLogCleanup": "false",
}
"""Old cuts are read and rolled back to by version, so neither their files nor their log entries may go
by age: ten years is beyond any retention, and only Tidemark's own clean-up, which knows the retained
checkpoints, deletes."""

_RULES: Final = {
    "delta.generationExpression": "generated column",
    "delta.identity.start": "identity column",
    "delta.invariants": "invariant",
}


class TableMismatchError(ValueError):
    """A table that the pipeline cannot write: names table, column or feature, and the way out."""


Columns = tuple[TableColumn, ...]


@dataclass(frozen=True, slots=True)
class Shows:
    """What a table shows when a tick begins: the `columns` of the newest row, none if no row speaks of the table.

    It is not `settled` while that row waits to be published, or to be published again: the table may have its columns
    or not. It is `renamed` while no row speaks of it under its name: then these columns are due with its first rows.
    """

    columns: Columns = ()
    settled: bool = True
    renamed: bool = False


NOTHING_YET: Final = Shows()


@dataclass(frozen=True, slots=True)
class _Expected:
    declared: Columns
    mode: TableMode
    shows: Shows


class TableNotCheckedError(RuntimeError):
    """A table's log is there and could not be read: names the table, the cause and the way out."""

    def __init__(self, table: TableName, error: Exception) -> None:
        cause = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        super().__init__(
            f"table {table}: its log cannot be read ({cause}). If it stays so, restore the folder, or start an empty "
            "warehouse"
        )


class OutputTables:
    """The tables of one job: `ensure` each at the start of a tick, `check` them before each commit point.

    A table is made here, empty, when a tick first has it. No row speaks of it then, so no cut shows it. Later changes
    of its columns are part of a commit, and no business of this class (D6).
    """

    def __init__(self, warehouse: Warehouse, tables: TableLogs) -> None:
        """Watch over the job's tables."""
        self._warehouse = warehouse
        self._tables = tables
        self._expected: dict[TableName, _Expected] = {}
        self._sound_at: dict[TableName, int] = {}

    def ensure(self, table: TableName, schema: pa.Schema, mode: TableMode, shows: Shows = NOTHING_YET) -> None:
        """Create the table if it is missing, in the columns of the newest row, or in the declared ones (`schema`).

        Raises TableMismatchError, before anything runs, if the pipeline cannot write the existing table, or others have
        changed it.
        """
        self._expect(table, _Expected(declared_columns(schema), mode, shows))
        log = self._tables.log(table)
        if not shows.columns or shows.renamed:
            self._drop_shell(log, shows.columns or declared_columns(schema))
        made_in = Schema([field_of(column) for column in shows.columns]) if shows.columns else schema
        log.create(made_in, {**CONFIGURATION, JOB_PROPERTY: str(self._warehouse.paths.job)})
        loaded = log.current()
        self._must_be_ours(loaded, table, mode, renamed=shows.renamed)
        problems = self._problems(table, loaded)
        if problems:
            raise TableMismatchError("; ".join(problems))

    def published(self, table: TableName, columns: Columns) -> None:
        """Take note that the table shows these columns now: a commit of ours has given them to it."""
        known = self._expected.get(table)
        if known is not None and columns and (known.shows != Shows(columns)):
            self._expect(table, replace(known, shows=Shows(columns)))

    def check(self, tables: Iterable[TableName], leaving: Collection[str] = ()) -> tuple[str, ...]:
        """Return what forbids publishing into these tables now: each text names the table and the way out.

        The publication takes the files `leaving` out of these tables; the paths begin in the warehouse.

        Raises TableNotCheckedError for a log that is there and cannot be read.
        """
        return tuple(problem for table in tables for problem in self._checked(table, leaving))

    def _expect(self, table: TableName, expected: _Expected) -> None:
        self._expected[table] = expected
        self._sound_at.pop(table, None)

    def _checked(self, table: TableName, leaving: Collection[str]) -> tuple[str, ...]:
        try:
            loaded = self._tables.log(table).current()
            return (*self._problems(table, loaded), *self._moved(table, loaded, leaving))
        except Exception as error:
            if not self._tables.log(table).exists():
                return (f"table {table} is gone: restore its folder, or start an empty warehouse",)
            raise TableNotCheckedError(table, error) from error

    def _problems(self, table: TableName, loaded: DeltaTable) -> tuple[str, ...]:
        if self._sound_at.get(table) == loaded.version():
            return ()
        expected, folder = self._expected[table], str(self._tables.log(table).folder)
        shape = shape_of(loaded)
        found = [*problems_of(shape, _due(expected, shape), expected.mode, folder)]
        found += _vectors(loaded, expected.mode, folder)
        if not found:
            self._sound_at[table] = loaded.version()
        return tuple(f"table {table} {each.what}{_since(loaded, each)}: {each.way_out}" for each in found)

    def _moved(self, table: TableName, loaded: DeltaTable, leaving: Collection[str]) -> tuple[str, ...]:
        """Return the problem of a table if another writer has moved the rows of files that must leave it."""
        inside = [path for path in (relative_to_table(table, file) for file in leaving) if path is not None]
        why_not = not_removable(loaded, self._tables.log(table).folder, inside) if inside else ""
        return (f"table {table}: {why_not}",) if why_not else ()

    def _drop_shell(self, log: DeltaLog, due: Columns) -> None:
        """Drop a table that an earlier tick made with other columns, if no commit has ever reached it."""
        if not log.is_open and not log.exists():
            return
        loaded = log.current()
        ours = loaded.metadata().configuration.get(JOB_PROPERTY) == str(self._warehouse.paths.job)
        if ours and loaded.version() == 0 and differ(columns_of_schema(loaded.schema()), due):
            log.drop()

    def _must_be_ours(self, loaded: DeltaTable, table: TableName, mode: TableMode, *, renamed: bool) -> None:
        owner = loaded.metadata().configuration.get(JOB_PROPERTY)
        job = str(self._warehouse.paths.job)
        if owner is not None and owner != job:
            raise TableMismatchError(f"table {table} belongs to job {owner}: give job {job} a table of another name")
        if renamed and owner is None:
            raise TableMismatchError(
                f"table {table} is there already, and job {job} did not make it: a table is renamed to a name that is "
                "free. Take another name for it, or move this one away"
            )
        shown = self._tables.shown(loaded, table)
        if mode is not TableMode.APPEND and owner is None and not shown and active_paths(loaded):
            raise TableMismatchError(
                f"table {table} holds rows that job {job} never wrote, and an {mode.value} would erase them: "
                "name another table, or move this one away"
            )


def _due(expected: _Expected, shape: TableShape) -> tuple[Column, ...]:
    """Return the pipeline's columns that the table must have now.

    It must have those that it shows. A column that the pipeline declares comes with a later commit. If others have
    added such a column already, it must have the pipeline's type. While a row waits to be published, none is judged.
    """
    if not expected.shows.settled or expected.shows.renamed:
        return shape.columns
    shows, there = expected.shows, {column.name: column for column in shape.columns}
    ours = {column.name: column for column in (*expected.declared, *shows.columns)}
    shown = {column.name for column in shows.columns}
    return tuple(Column(name, ours[name].type, nullable=True) for name in ours if name in shown or name in there)


def shape_of(table: DeltaTable) -> TableShape:
    """Return what of a loaded table decides whether we may publish into it."""
    protocol, metadata = table.protocol(), table.metadata()
    return TableShape(
        features=frozenset([*(protocol.writer_features or ()), *(protocol.reader_features or ())]),
        properties=frozenset(metadata.configuration.items()),
        columns=tuple(_column(field) for field in table.schema().fields),
        partitioned_by=tuple(metadata.partition_columns),
    )


def first_problem(table: DeltaTable, mode: TableMode, folder: str) -> str:
    """Return what forbids publishing into a table with the columns that it has, and the way out; empty if nothing."""
    shape = shape_of(table)
    problems = problems_of(shape, shape.columns, mode, folder)
    return f"{problems[0].what}: {problems[0].way_out}" if problems else ""


def _column(field: Field) -> Column:
    rules = [name for key, name in _RULES.items() if key in (field.metadata or {})]
    return Column(field.name, type_of(field), field.nullable, ", ".join(rules))


def _vectors(loaded: DeltaTable, mode: TableMode, folder: str) -> list[Problem]:
    if mode is TableMode.APPEND:
        return []
    marked = paths_with_deletion_vectors(loaded).intersection(active_paths(loaded))
    if not marked:
        return []
    return [Problem(f"has deletion vectors on {len(marked)} files", "DELETE", purge(folder))]


def _since(loaded: DeltaTable, problem: Problem) -> str:
    """Name the oldest log entry that speaks of what is wrong, if one does."""
    marker = problem.marker.lower()
    for entry in reversed(loaded.history()):
        speaks = json.dumps([entry.get("operation"), entry.get("operationParameters")], default=str).lower()
        if entry["version"] > 0 and marker in speaks:
            return f" (since version {entry['version']}, {entry.get('operation', 'a commit')})"
    return ""
