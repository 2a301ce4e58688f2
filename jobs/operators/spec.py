"""The specifications that the planner gives to the operators, one for each vertex and each of its inputs.

A specification holds user functions, so it is never persisted. Schemas are Spark's, and are declared. No schema is
inferred from files.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from checkpointing.columns import TableColumn
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import TableName, VertexId
from checkpointing.key_groups import range_of
from checkpointing.messages import RunMicroBatch
from checkpointing.state_meaning import ColumnMeaning
from jobs.operators.broadcast import Broadcast
from jobs.operators.changes import KIND
from jobs.operators.derived_scans import NewColumn
from jobs.operators.expressions import Expression
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.process import AnyFunction, HoldsRows
from jobs.sources.slice_reading import SliceReader
from jobs.spark import columns
from jobs.spark.columns import OWN_NAMES
from jobs.spark.versions import to_arrow
from jobs.state.backend import Expires, IncrementalBackend, StateBackend, fits
from jobs.state.worker_copy import Aged

Chain = Callable[[DataFrame], DataFrame]
"""Stateless steps, which run in the Spark job of each consumer. They must be deterministic."""

NUMBER: Final = f"{OWN_NAMES}number"
"""The column with a row's number.

By it a task combines the columns that Spark computes with those that it reads itself.
"""
_BESIDE: Final[ContextVar[tuple[str, ...]]] = ContextVar("columns that steps keep beside those that they name")


@contextmanager
def rows_numbered() -> Iterator[None]:
    """Let steps keep the column `NUMBER` of their rows."""
    token = _BESIDE.set((NUMBER,))
    try:
        yield
    finally:
        _BESIDE.reset(token)


def kept_beside() -> tuple[str, ...]:
    """Return the columns that a step keeps besides the columns that it names."""
    return _BESIDE.get(())


@dataclass(frozen=True, slots=True)
class TaskSteps:
    """Steps that a task can carry out itself while it scans files.

    They choose columns, keep the rows for which all `rules` are true, and then add columns. All steps read columns of
    the file. `chain` has the same effect in Spark.
    """

    chain: Chain
    rules: tuple[Expression, ...] = ()
    added: tuple[NewColumn, ...] = ()

    def __call__(self, rows: DataFrame) -> DataFrame:
        """Return the good rows with the chosen columns."""
        return self.chain(rows)


@dataclass(frozen=True, slots=True)
class TextSteps:
    """Steps that Spark carries out. SQL texts declare them, so they are the same in every micro-batch.

    `sql` has the texts that no task can evaluate itself.
    """

    chain: Chain
    sql: tuple[str, ...]

    def __call__(self, rows: DataFrame) -> DataFrame:
        """Return the rows as they are after the steps."""
        return self.chain(rows)


FAILED = "_failed"
"""The column of a quarantine table that names the failed expectations, joined by ', '."""


class InvalidSpecError(ValueError):
    """No job can run this specification. The message names the vertex, the column and a way out."""


@dataclass(frozen=True, slots=True)
class InputTime:
    """The event time of a source's rows (N1). The steps `before` lead to its column, and the steps `after` follow."""

    column: TimeColumn
    before: Chain | None
    after: Chain | None


@dataclass(frozen=True, slots=True)
class InputPlan:
    """One input of a vertex: the rows of its segments, and the steps before the operator.

    `schema` is the schema of the rows on the channel. `reader` reads source slices. It is None if the upstream vertex
    is not a source. `chain` holds the transformations and the filter of row rules, applied lazily. A channel
    `of_changes` may hold the kinds of changes. An operator that `takes_changes` gets each change with its kind, and
    other operators get the rows that are added. `output` is the named output that this input reads. `outputs` are the
    names of all outputs of the upstream vertex. `time` says where the event times of a source's rows are measured.
    """

    schema: StructType
    reader: SliceReader | None = None
    chain: Chain | None = None
    of_changes: bool = False
    takes_changes: bool = False
    output: str | None = None
    outputs: tuple[str, ...] = ()
    time: InputTime | None = None


@dataclass(frozen=True, slots=True)
class StagedTable:
    """An output table as a task writes it. `keys` are an upsert table's key or an overwrite table's version column.

    Each of its files has rows of one partition by the columns `partitioned_by`.
    """

    name: TableName
    mode: TableMode
    schema: StructType
    keys: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()

    @property
    def version(self) -> str | None:
        """The version column of an overwrite table. None for any other table."""
        return self.keys[0] if self.mode is TableMode.OVERWRITE else None


@dataclass(frozen=True, slots=True)
class RowRule:
    """A row rule (J3). `good` is a boolean expression in Spark SQL, or a function that returns one.

    A row for which the expression is null passes. `in_task` is the same expression for a task that scans files. None:
    no task can judge the rule.
    """

    name: str
    good: str | Callable[[], Column]
    in_task: Expression | None = None


def left_to_spark(rules: Iterable[RowRule]) -> tuple[str, ...]:
    """Return the names of the rules that no task can judge."""
    return tuple(rule.name for rule in rules if rule.in_task is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessSpec:
    """A vertex that writes its rows to files. All rows go to `table`, the failing rows also to `quarantine`.

    `schema` is the schema of these rows. If the vertex `emits`, downstream vertices read all rows. They read the
    table's own files if there is a table with all rows. An overwrite table has only some of the rows. Downstream
    vertices drop the failing rows in their chain. A union that `emits_changes` takes the changes of its streams and
    sends them to its channels. Then only added rows go to the tables.
    """

    vertex: VertexId
    schema: StructType
    table: StagedTable | None = None
    rules: tuple[RowRule, ...] = ()
    quarantine: StagedTable | None = None
    emits: bool = True
    emits_changes: bool = False

    def __post_init__(self) -> None:
        """Raise InvalidSpecError if the tables can't hold the rows."""
        if self.table is not None:
            _require_schema(self.vertex, self.table, self.schema)
        if self.quarantine is not None:
            _require_schema(self.vertex, self.quarantine, quarantine_schema(self.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedInput:
    """One input of a keyed vertex. `schema` is the schema of the rows that the function gets.

    Every subtask gets the rows in which the column `to_all` is true. A broadcast input has no keys: every subtask gets
    all its rows.
    """

    keys: tuple[str, ...]
    schema: StructType
    to_all: str | None = None

    @property
    def is_broadcast(self) -> bool:
        """Whether every subtask gets all rows."""
        return not self.keys


@dataclass(frozen=True, slots=True)
class BroadcastRowsKept:
    """The broadcast state of a vertex: the schema of the rows, and which rows are `kept`."""

    schema: StructType
    kept: Broadcast


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSpec:
    """A vertex with keyed state: one exchange into ranges of key groups, and one keyed function.

    `state` is the schema of a state row: the key columns (named as in the first input), then the function's own.
    `output` is the schema of the rows that the function emits. `outputs` has the schemas of its named outputs, which
    downstream vertices read. The rows of `output` go to `table` if there is one, and to the downstream channels if
    `emits` is true. With `emits_changes` the channels get the changes of these rows. An upsert table's keys must
    include the vertex's keys, under the same names, so that all rows of a table key meet in one subtask. `outdated` are
    the paths of restored state and upsert files that have other columns. A subtask that holds such a file rewrites its
    range. `meanings` say how the function's own state columns are computed. `columns_renamed_from` is a dict from new
    to old column names of state and output. A vertex with a `broadcast` keeps broadcast state: rows of its broadcast
    input, or the truncates among changes. Without `expires` no row of the state expires. `lapsed` says how rows expired
    up to the restored cut, if rows do not expire any more.
    """

    vertex: VertexId
    inputs: tuple[KeyedInput, ...]
    parallelism: int
    max_parallelism: int
    function: AnyFunction
    state: StructType
    output: StructType
    table: StagedTable | None = None
    emits: bool = True
    emits_changes: bool = False
    backend: StateBackend = field(default_factory=IncrementalBackend)
    outdated: frozenset[str] = frozenset()
    meanings: tuple[ColumnMeaning, ...] = ()
    columns_renamed_from: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, StructType] = field(default_factory=dict)
    broadcast: BroadcastRowsKept | None = None
    expires: Expires | None = None
    lapsed: Aged | None = None

    @property
    def stored(self) -> pa.Schema:
        """The state's columns in its files, without the columns that every state file has."""
        touched = [] if self.expires is None else [pa.field(Aged(self.expires.expiry, None).column, pa.int64())]
        return pa.schema([*arrow_schema(self.state), *touched])

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns in the state."""
        return self.inputs[0].keys

    @property
    def state_keys(self) -> tuple[str, ...]:
        """The columns that distinguish the rows of the state: the keys, and for rows of one key further columns."""
        return (*self.keys, *(self.function.rows_by if isinstance(self.function, HoldsRows) else ()))

    @property
    def upserted(self) -> StagedTable | None:
        """The table that takes the output by upsert; None without one."""
        return self.table if self.table is not None and self.table.mode is TableMode.UPSERT else None

    def __post_init__(self) -> None:
        """Raise InvalidSpecError, naming the vertex and the part that doesn't fit."""
        if not 1 <= self.parallelism <= self.max_parallelism:
            raise InvalidSpecError(
                f"vertex {self.vertex}: parallelism {self.parallelism} must lie in 1..{self.max_parallelism}"
            )
        _require_equal_keys(self)
        _require_state(self)
        if self.table is not None:
            _require_schema(self.vertex, self.table, self.output)
        if self.upserted is not None:
            _require_upsert_keys(self, self.upserted)


Spec = StatelessSpec | KeyedSpec


@dataclass(frozen=True, slots=True)
class VertexPlan:
    """A planned vertex: its specification, and its inputs in order of the edges' ordinals."""

    spec: Spec
    inputs: tuple[InputPlan, ...]


def quarantine_schema(schema: StructType) -> StructType:
    """Return the schema of a quarantine table for rows of `schema`: the rows' columns and `_failed`."""
    return StructType([*schema.fields, StructField(FAILED, StringType())])


def _require_schema(vertex: VertexId, table: StagedTable, rows: StructType) -> None:
    have = [(field.name, field.dataType) for field in table.schema.fields]
    want = [(field.name, field.dataType) for field in rows.fields]
    if have != want:
        raise InvalidSpecError(
            f"vertex {vertex}: table {table.name} has columns {table.schema.simpleString()} but its rows are "
            f"{rows.simpleString()}; give the table the schema of its rows"
        )


def _require_equal_keys(spec: KeyedSpec) -> None:
    """Equal keys of different types hash to different key groups in Spark."""
    inputs = [keyed for keyed in spec.inputs if not keyed.is_broadcast]
    types = [[keyed.schema[key].dataType for key in keyed.keys] for keyed in inputs]
    for (one, first), (other, second) in combinations(enumerate(types), 2):
        if first != second:
            raise InvalidSpecError(
                f"vertex {spec.vertex}: keys of input {one} are {_names(first)}, those of input {other} "
                f"{_names(second)}; cast them to the same types"
            )
    for keyed in spec.inputs:
        for column in keyed.schema.fields:
            if _holds_map(column.dataType):
                raise InvalidSpecError(
                    f"vertex {spec.vertex}: column {column.name} holds a map, which a keyed function can't take; "
                    "turn it into an array with map_entries"
                )


def _require_state(spec: KeyedSpec) -> None:
    have = [(field.name, field.dataType) for field in spec.state.fields[: len(spec.keys)]]
    want = [(key, spec.inputs[0].schema[key].dataType) for key in spec.keys]
    if have != want:
        raise InvalidSpecError(
            f"vertex {spec.vertex}: its state {spec.state.simpleString()} must begin with the key columns {want}"
        )


def _require_upsert_keys(spec: KeyedSpec, table: StagedTable) -> None:
    missing = [key for key in spec.keys if key not in table.keys]
    if missing:
        raise InvalidSpecError(
            f"vertex {spec.vertex}: the keys {list(table.keys)} of upsert table {table.name} lack {missing}; "
            "rows of one table key must meet in one subtask"
        )
    for key in spec.keys:
        if table.schema[key].dataType != spec.inputs[0].schema[key].dataType:
            raise InvalidSpecError(
                f"vertex {spec.vertex}: key {key} of upsert table {table.name} has another type than in the input"
            )


def _names(types: Sequence[DataType]) -> list[str]:
    return [kind.simpleString() for kind in types]


def _holds_map(kind: DataType) -> bool:
    match kind:
        case MapType():
            return True
        case ArrayType():
            return _holds_map(kind.elementType)
        case StructType():
            return any(_holds_map(field.dataType) for field in kind.fields)
        case _:
            return False


# ------------------------------------------------------------------
# Converts schemas between Spark, Arrow and SQL text.
#
# Each conversion happens once, on the driver, so that tasks write exactly the declared types.


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of these columns. Timestamps are microseconds in UTC, and all columns are nullable."""
    return pa.schema([pa.field(field.name, field.type) for field in to_arrow(schema)])


def nullable_schema(schema: StructType) -> StructType:
    """Return the same columns, nullable at every depth: stored rows may hold nulls."""
    return StructType([StructField(field.name, _nullable(field.dataType)) for field in schema.fields])


def schema_with_kind(schema: StructType) -> StructType:
    """Return the columns of a changelog whose rows have this schema."""
    return StructType([*schema.fields, StructField(KIND, StringType())])


def delta_columns(schema: pa.Schema) -> tuple[TableColumn, ...]:
    """Return the columns as an entry of `checkpoints` lists them, with a Delta log's types (`stores.table_columns`).

    The types have Spark's names, so that a pipeline can be planned without a Delta library.
    """
    fields = from_arrow_schema(schema, prefer_timestamp_ntz=True).jsonValue()["fields"]
    return tuple(TableColumn(field["name"], _persisted(field["type"])) for field in fields)


def _persisted(kind: str | dict[str, Any]) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind, sort_keys=True)


def quoted(names: Iterable[str]) -> str:
    """Return column names as a list in Spark SQL, each quoted."""
    return ", ".join(map(columns.quoted, names))


def _nullable(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return nullable_schema(kind)
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
        case _:
            return kind


# ------------------------------------------------------------------
# Finds the files of the upsert table that each subtask holds.


def range_files(spec: KeyedSpec, effect: RunMicroBatch) -> tuple[tuple[KeyedFile, ...], ...]:
    """Return for each subtask the live files of the upsert table. Return an empty tuple if there is no such table."""
    if spec.upserted is None:
        return ()
    name, by_subtask = spec.upserted.name, effect.ranges or ((),) * spec.parallelism
    return tuple(
        tuple(file for entry in ranges if entry.table == name for file in entry.files) for ranges in by_subtask
    )


def misfits(spec: KeyedSpec, effect: RunMicroBatch) -> tuple[FileHandle, ...]:
    """Return the files of the upsert table that were written for ranges of another parallelism."""
    found = {
        file.file.path: file.file
        for subtask, files in enumerate(range_files(spec, effect))
        if not fits_range(spec, subtask, files)
        for file in files
    }
    return tuple(found.values())


def fits_range(spec: KeyedSpec, subtask: int, files: tuple[KeyedFile, ...]) -> bool:
    """Return whether these files were written for exactly the range of this subtask."""
    own = range_of(subtask=subtask, parallelism=spec.parallelism, max_parallelism=spec.max_parallelism)
    return fits(files, own)
