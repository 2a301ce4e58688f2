"""Our tables in a world of other writers: made once, and compared with what the pipeline writes before each commit.

The comparison is against what the pipeline declares and the rules of `table_rules`, not against a saved
fingerprint: the table's own log keeps its history, so a change between two ticks is found as well as
one between two checkpoints, and the log tells the version that brought it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema

from checkpointing.graph import TableMode
from checkpointing.identifiers import TableName
from jobs.stores.deletion_vectors import paths_with_deletion_vectors
from jobs.stores.delta_log import METADATA_KEY, NO_HOOKS, active_paths
from jobs.stores.table_rules import Column, Problem, TableShape, problems_of, purge
from jobs.stores.tables import TableLogs
from jobs.stores.warehouse import Warehouse

JOB_PROPERTY: Final = "tidemark.job"
TRIES: Final = 5

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


@dataclass(frozen=True, slots=True)
class _Declared:
    fields: tuple[Field, ...]
    columns: tuple[Column, ...]
    mode: TableMode


class OutputTables:
    """The tables of one job: `ensure` each at the start of a tick, `check` them before each commit point."""

    def __init__(self, warehouse: Warehouse, tables: TableLogs) -> None:
        """Watch over the job's tables."""
        self._warehouse = warehouse
        self._tables = tables
        self._declared: dict[TableName, _Declared] = {}
        self._sound_at: dict[TableName, int] = {}
        self._before: dict[TableName, tuple[Column, ...]] = {}
        """Columns of state tables at the tick's first check: theirs until all their files have the declared ones."""

    def ensure(self, table: TableName, schema: pa.Schema, mode: TableMode) -> None:
        """Create the table if it is missing and add nullable columns that it lacks (D6).

        A state table keeps its columns here: it gets others when all its files are published in them.
        Raises TableMismatchError, before anything runs, if a table is there that the pipeline cannot write.
        """
        declared = _declared(schema, mode)
        self._declared[table] = declared
        log = self._tables.log(table)
        log.create(schema, {**CONFIGURATION, JOB_PROPERTY: str(self._warehouse.paths.job)})
        loaded = log.current()
        self._must_be_ours(loaded, table, mode)
        if mode is not TableMode.STATE:
            self._add_missing(table, declared)
        problems = self._problems(table)
        if mode is TableMode.STATE:
            self._before.pop(table, None)
            self._sound_at.pop(table, None)
        if problems:
            raise TableMismatchError("; ".join(problems))

    def check(self, tables: Iterable[TableName]) -> tuple[str, ...]:
        """Return what forbids publishing into these tables now: each text names the table and the way out."""
        return tuple(problem for table in tables for problem in self._checked(table))

    def _checked(self, table: TableName) -> tuple[str, ...]:
        try:
            return self._problems(table)
        except Exception as error:  # noqa: BLE001 - a table that was dropped or whose log is unreadable
            met = f"{type(error).__name__}: {error}"
            return (f"table {table}: its log cannot be read ({met}). Restore the folder, or start an empty warehouse",)

    def _problems(self, table: TableName) -> tuple[str, ...]:
        loaded = self._tables.log(table).current()
        if self._sound_at.get(table) == loaded.version():
            return ()
        declared = self._declared[table]
        folder = self._tables.log(table).folder
        shape = shape_of(loaded)
        found = [*problems_of(shape, declared.columns, declared.mode, str(folder))]
        if found and declared.mode is TableMode.STATE:
            before = self._before.setdefault(table, shape.columns)
            found = [*problems_of(shape, before, declared.mode, str(folder))]
        found += _vectors(loaded, declared.mode, str(folder))
        if not found:
            self._sound_at[table] = loaded.version()
        return tuple(f"table {table} {each.what}{_since(loaded, each)}: {each.way_out}" for each in found)

    def _must_be_ours(self, loaded: DeltaTable, table: TableName, mode: TableMode) -> None:
        owner = loaded.metadata().configuration.get(JOB_PROPERTY)
        job = str(self._warehouse.paths.job)
        if owner is not None and owner != job:
            raise TableMismatchError(f"table {table} belongs to job {owner}: give job {job} a table of another name")
        shown = self._tables.shown(loaded, table)
        if mode is not TableMode.APPEND and owner is None and not shown and active_paths(loaded):
            raise TableMismatchError(
                f"table {table} holds rows that job {job} never wrote, and an {mode.value} would erase them: "
                "name another table, or move this one away"
            )

    def _add_missing(self, table: TableName, declared: _Declared) -> None:
        log = self._tables.log(table)
        for turn in range(TRIES):
            loaded = log.current()
            there = {field.name for field in loaded.schema().fields}
            missing = [field for field in declared.fields if field.name not in there]
            if not missing:
                return
            self._must_be_nullable(table, missing)
            says = {METADATA_KEY: {"job": str(self._warehouse.paths.job), "columns": [f.name for f in missing]}}
            try:
                loaded.alter.add_columns(
                    missing,
                    commit_properties=CommitProperties(custom_metadata=says, max_commit_retries=0),
                    post_commithook_properties=NO_HOOKS,
                )
            except Exception:
                if turn == TRIES - 1:
                    raise
            log.reopen()

    def _must_be_nullable(self, table: TableName, missing: list[Field]) -> None:
        for field in missing:
            if not field.nullable:
                raise TableMismatchError(
                    f"table {table} has no column {field.name} yet, and old rows can only be null there: "
                    "declare the column nullable"
                )


def fitting_problems(loaded: DeltaTable, table: TableName, schema: pa.Schema, mode: TableMode) -> tuple[str, ...]:
    """Return why a table's files, restored elsewhere, could not be read as the declared columns; changes nothing.

    A column that the table lacks is null in its rows, so it must be nullable; what else a writer minds is no matter.
    """
    declared = _declared(schema, mode)
    there = {column.name: column for column in shape_of(loaded).columns}
    found = []
    for column in declared.columns:
        stored = there.get(column.name)
        if stored is None and not column.nullable:
            found.append(
                f"table {table} has no column {column.name}, and old rows can only be null there: make it nullable"
            )
        elif stored is not None and stored.type != column.type:
            what = f"table {table} has column {column.name} as {stored.type}, and the pipeline declares {column.type}"
            found.append(f"{what}: change it back, or give the column another name")
    return tuple(found)


def shape_of(table: DeltaTable) -> TableShape:
    """Return what of a loaded table decides whether we may publish into it."""
    protocol, metadata = table.protocol(), table.metadata()
    return TableShape(
        features=frozenset([*(protocol.writer_features or ()), *(protocol.reader_features or ())]),
        properties=frozenset(metadata.configuration.items()),
        columns=tuple(_column(field) for field in table.schema().fields),
        partitioned_by=tuple(metadata.partition_columns),
    )


def columns_of(schema: Schema) -> frozenset[tuple[str, str]]:
    """Return names and types: what two schemas of one table must agree on, in whatever order."""
    return frozenset((column.name, column.type) for column in map(_column, schema.fields))


def _declared(schema: pa.Schema, mode: TableMode) -> _Declared:
    fields = tuple(Schema.from_arrow(schema).fields)
    return _Declared(fields, tuple(_column(field) for field in fields), mode)


def _column(field: Field) -> Column:
    kind: Any = json.loads(field.to_json())["type"]
    rules = [name for key, name in _RULES.items() if key in (field.metadata or {})]
    text = kind if isinstance(kind, str) else json.dumps(kind, sort_keys=True)
    return Column(field.name, text, field.nullable, ", ".join(rules))


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
