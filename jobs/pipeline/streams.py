"""Streams of rows. Each operation returns a new stream.

A stream is only a description. Its steps run in the Spark job of the vertex that reads it. They must be
deterministic, since each reader runs them itself.
"""
# ruff: noqa: A002 - a vertex has an id and a column a type, and both are called so

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql.types import BooleanType, DataType, LongType, StructField, StructType

from checkpointing.identifiers import VertexId, table_name, vertex_id
from jobs.operators.functions import KeyedFunction
from jobs.operators.spec import FAILED, Chain
from jobs.pipeline.aggregates import AggregateColumn, hashes
from jobs.pipeline.aggregating import aggregate_vertex
from jobs.pipeline.changed_columns import NOTHING, changed_columns
from jobs.pipeline.columns import (
    ALL,
    require_columns,
    require_keys,
    require_keys_alike,
    require_no_key_group,
    require_unique,
)
from jobs.pipeline.declarations import Declarations
from jobs.pipeline.direct import unkept_keyed_vertex, unkept_union, with_append_table, with_table
from jobs.pipeline.enriching import enrich_vertex
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.former_names import former_id, former_table, require_id_of_its_own
from jobs.pipeline.processing import NO_OUTPUTS, Rows, named_output, process_vertex
from jobs.pipeline.quality import good_rows, require_judgeable, row_rules, suite_of
from jobs.pipeline.steps import dropped, selected, with_column
from jobs.pipeline.tables import append_table, description_of, overwrite_table, upsert_table, with_changed_columns
from jobs.pipeline.unions import union_vertex
from jobs.pipeline.updates import changes_taken, require_append_only
from jobs.pipeline.vertices import (
    Declared,
    Input,
    KeyedVertex,
    OutputTable,
    RowCheck,
    StagedVertex,
    Step,
)
from jobs.quality.expectation import Expectation
from jobs.sinks.port import Sink, UpsertSink
from jobs.state.files import NONE_RENAMED


@dataclass(frozen=True, slots=True)
class Stream:
    """The rows of vertex `origin` after `steps`; `schema` is theirs. Made by a Pipeline.

    They are those of its output `named`, or of its own output.
    """

    declarations: Declarations
    origin: VertexId
    steps: tuple[Step, ...]
    schema: StructType
    named: str | None = None

    # -------------------------------------------------------------- stateless steps

    def transform(self, chain: Chain, schema: StructType | None = None) -> "Stream":
        """Apply a function of a DataFrame, deterministic and row by row; `schema` is its result's (None: unchanged)."""
        if schema is not None:
            require_unique(f"a transformation of {self.origin}", schema.names)
        after = self.schema if schema is None else schema
        return replace(self, steps=(*self.steps, Step(chain, after)), schema=after)

    def select(self, *columns: str) -> "Stream":
        """Keep these columns, in this order; raise InvalidPipelineError for one that is not there."""
        where = f"select on {self.origin}"
        require_keys(where, self.schema, columns)
        return self.transform(selected(columns), StructType([self.schema[name] for name in columns]))

    def drop(self, *columns: str) -> "Stream":
        """Keep all but these columns; raise InvalidPipelineError for one that is not there."""
        require_columns(f"drop on {self.origin}", self.schema, columns)
        kept = [field for field in self.schema.fields if field.name not in columns]
        require_keys(f"drop on {self.origin}", self.schema, [field.name for field in kept])
        return self.transform(dropped(columns), StructType(kept))

    def with_column(self, name: str, expression: str | Callable[[], Column], type: DataType) -> "Stream":
        """Add a column, or replace it in its place; `expression` is Spark SQL or builds a Column, cast to `type`."""
        fields = {field.name: field for field in self.schema.fields} | {name: StructField(name, type)}
        require_unique(f"with_column on {self.origin}", fields)
        return self.transform(with_column(name, expression, type), StructType(list(fields.values())))

    def union(self, *others: "Stream", id: str, renamed_from: str | None = None) -> "Stream":
        """Return the rows of this stream and the others together. Vertex `id` writes them to files once.

        All streams need the same columns, in any order. If one is a changelog, the union is one too: `aggregate`,
        `join`, `top` and another union take its changes. Raises InvalidNameError, and InvalidPipelineError for streams
        of other columns or of another pipeline. `renamed_from` is the id that the vertex had before.
        """
        if any(other.declarations is not self.declarations for other in others):
            raise InvalidPipelineError(f"vertex {id}: the streams belong to two pipelines")
        vertex = union_vertex(id, [each.as_input() for each in (self, *others)], self.declarations, renamed_from)
        return _declared(self.declarations, vertex)

    # -------------------------------------------------------------- tables

    def table(
        self,
        name: str,
        *,
        id: str | None = None,
        sink: Sink | None = None,
        partition_by: Sequence[str] = (),
        renamed_from: str | None = None,
        id_renamed_from: str | None = None,
    ) -> "Stream":
        """Append the rows to a table and go on with exactly what was written to it.

        Right after a keyed vertex or a union, that vertex writes the table. Elsewhere a new vertex with this `id` does.
        `sink` gets each checkpoint's rows too. `partition_by` lays the table out by these columns for ever.
        `renamed_from` is the table's old name, `id_renamed_from` the old id. Raises InvalidNameError,
        InvalidPipelineError if the id is missing, the name taken, or `sink` or `partition_by` does not fit.
        """
        require_id_of_its_own(f"table {name}", id, id_renamed_from)
        table = append_table(name, self.schema, partition_by, sink, renamed_from)
        vertex = unkept_union(self._direct) or unkept_keyed_vertex(self._direct)
        if id is None and vertex is not None:
            self.declarations.amend(replace(vertex, table=table))
            return self
        if id is None:
            raise InvalidPipelineError(
                f"table {name}: the vertex that writes it needs an id of its own, as in table({name!r}, id=...)"
            )
        return self._staged(id, table, None, id_renamed_from)

    def upsert(
        self,
        name: str,
        keys: Sequence[str] = (),
        *,
        sink: UpsertSink | None = None,
        partition_by: Sequence[str] = (),
        renamed_from: str | None = None,
    ) -> "Stream":
        """Keep one row per key in a table: the newest; `keys` default to those of the keyed vertex.

        The vertex's own keys must be among them, so that all rows of a table key meet in one subtask.
        `sink` shows the table too. `partition_by` lays it out by these columns for ever. `renamed_from` is its old
        name: it keeps its rows. Raises InvalidNameError, InvalidPipelineError if no keyed vertex puts this out, or
        `sink` or `partition_by` does not fit.
        """
        name = table_name(name)
        vertex = unkept_keyed_vertex(self._direct)
        if vertex is None:
            raise InvalidPipelineError(
                f"table {name}: only the direct output of a keyed vertex that writes no table yet can be upserted; "
                "key the stream and aggregate or process it first"
            )
        table = upsert_table(name, vertex, self.schema, keys, partition_by, sink=sink, renamed_from=renamed_from)
        self.declarations.amend(replace(vertex, table=table))
        return self

    def overwrite(
        self,
        name: str,
        *,
        version: str,
        id: str,
        partition_by: Sequence[str] = (),
        renamed_from: str | None = None,
        id_renamed_from: str | None = None,
    ) -> "Stream":
        """Show the rows with the greatest `version` in a table, or with `partition_by` those of each partition.

        A newer version takes the place of the rows before, and rows of an older one that come late are not shown. The
        stream goes on with all rows, as they came. Vertex `id` writes the table, laid out by `partition_by` for ever.
        A row without a version fails its micro-batch. `renamed_from` and `id_renamed_from` are the old names. Raises
        InvalidNameError, InvalidPipelineError for a column that does not fit, and for updates of an aggregate.
        """
        require_append_only(f"table {name}", self.declarations, self.as_input())
        table = overwrite_table(name, self.schema, version, partition_by, renamed_from)
        return self._staged(id, table, None, id_renamed_from)

    def describe_table(
        self, comment: str = "", *, columns: Mapping[str, str] = NOTHING, properties: Mapping[str, str] = NOTHING
    ) -> "Stream":
        """Give the table a comment, comments for its columns, and properties. Must follow a call that writes it.

        A table that exists gets them with the next checkpoint that changes it. Others that it has stay as they are.
        Raises InvalidPipelineError for a column that the table lacks, and for a property of Delta or Tidemark.
        """
        vertex, table = with_table(self._direct, f"describe_table on {self.origin}: it describes a table")
        says = description_of(table, self.schema, comment, columns, properties)
        self.declarations.amend(replace(vertex, table=replace(table, says=says)))
        return self

    def change_columns(
        self, *, renamed_from: Mapping[str, str] = NOTHING, drop: Sequence[str] = (), reorder: bool = False
    ) -> "Stream":
        """Rename, drop or reorder columns that the append table has from before. Must follow `table` or `check_rows`.

        `renamed_from` are old names by the new ones: these columns keep their values, and the next checkpoint writes
        the table's files again. The columns of `drop` leave the table. With `reorder` the columns come in the order of
        the rows. A quarantine of the same vertex changes alike. Leave the declaration in the code: once the change has
        happened, it has no effect. Raises InvalidNameError, InvalidPipelineError for a change that can mean nothing.
        """
        vertex, told = with_append_table(self.declarations.vertex(self.origin), len(self.steps), self.named)
        changed = changed_columns(told, vertex.rows, renamed_from, drop, in_order=reorder)
        self.declarations.amend(with_changed_columns(vertex, changed))
        return self

    # -------------------------------------------------------------- quality

    def check_rows(
        self,
        *expectations: Expectation,
        quarantine: str,
        id: str | None = None,
        quarantine_renamed_from: str | None = None,
        id_renamed_from: str | None = None,
    ) -> "Stream":
        """Split each micro-batch (J3): failing rows go to `quarantine` with their failed rules, the others go on.

        Right after `table(..., id=...)`, the vertex that writes the table does it, and the table holds
        all rows. Elsewhere a new vertex with this `id` does it. `quarantine_renamed_from` and `id_renamed_from` are
        what the two were called before. Raises InvalidNameError, and InvalidPipelineError for an expectation that says
        nothing of single rows or names no column.
        """
        require_id_of_its_own(f"quarantine {quarantine}", id, id_renamed_from)
        place = id or self.origin
        rules = row_rules(f"vertex {place}", self.schema, expectations)
        check = RowCheck(rules, table_name(quarantine), former_table(quarantine_renamed_from))
        require_unique(f"vertex {place}", [*self.schema.names, FAILED])
        if id is not None:
            return self._staged(id, None, check, id_renamed_from).transform(good_rows(check.rules))
        vertex = self._direct
        if not isinstance(vertex, StagedVertex) or vertex.check is not None:
            raise InvalidPipelineError(
                f"quarantine {quarantine}: rows are checked right after table(..., id=...), once; "
                "elsewhere by a vertex of its own, as in check_rows(..., id=...)"
            )
        self.declarations.amend(replace(vertex, check=check))
        return self.transform(good_rows(check.rules))

    def expect(self, *expectations: Expectation, suite: str | None = None) -> "Stream":
        """Judge, at each barrier, all rows that came into the table since the last checkpoint (J3).

        If one fails, nothing of the epoch becomes visible and the tick ends. Must follow `table` or `overwrite`; rows
        that an overwrite table will not show are not judged. `suite` is the name of the expectations together; None
        means the table's name. Raises InvalidPipelineError.
        """
        vertex, table = with_table(self._direct, f"expect on {self.origin}: a suite judges a table")
        require_judgeable(table)
        named = suite_of(suite or table.name.replace("/", "_"), table.name, self.schema, expectations)
        self.declarations.amend(replace(vertex, table=replace(table, suite=named)))
        return self

    # -------------------------------------------------------------- named outputs and keys

    def output(self, name: str) -> "Stream":
        """Return the rows that a process function puts out under this name, as declared with `process(outputs=)`.

        Call it on the stream that `process` returns. Raises InvalidPipelineError for a name that was not declared.
        """
        return Stream(self.declarations, self.origin, (), named_output(self._direct, self.origin, name), name)

    def key_by(self, *keys: str) -> "KeyedStream":
        """Key the rows by these columns; raise InvalidPipelineError unless each is there, once."""
        require_keys(f"key_by on {self.origin}", self.schema, keys)
        require_no_key_group(f"key_by on {self.origin}", self.schema.names)
        return KeyedStream(self, keys)

    def aggregate(self, id: str, /, *, renamed_from: str | None = None, **columns: AggregateColumn) -> "Stream":
        """Keep aggregates of all rows, as `KeyedStream.aggregate` does by key: one row, whose key `_all` is true.

        One subtask keeps it, whatever the parallelism is. Raises InvalidPipelineError if the rows have a column `_all`.
        """
        require_unique(f"vertex {id}", [*self.schema.names, ALL])
        keyed = self.with_column(ALL, "true", BooleanType()).key_by(ALL)
        return keyed.aggregate(id, renamed_from=renamed_from, **columns)

    def as_input(self, keys: tuple[str, ...] = ()) -> Input:
        """Return the stream as what a vertex reads."""
        return Input(self.origin, self.steps, self.schema, keys, self.named)

    @property
    def _direct(self) -> Declared | None:
        """The vertex whose own output this is, without a step."""
        return self.declarations.vertex(self.origin) if not self.steps and self.named is None else None

    def _staged(self, id: str, table: OutputTable | None, check: RowCheck | None, renamed_from: str | None) -> "Stream":
        name, before = vertex_id(id), former_id(renamed_from)
        self.declarations.add(StagedVertex(name, (self.as_input(),), self.schema, table, check, before))
        return Stream(self.declarations, name, (), self.schema)


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A stream and the columns that its rows are keyed by."""

    stream: Stream
    keys: tuple[str, ...]

    def aggregate(self, id: str, /, *, renamed_from: str | None = None, **columns: AggregateColumn) -> Stream:
        """Keep aggregates by key: `aggregate("per_user", orders=count(), spent=sum_of("amount"))`.

        The stream after it has updates: the new row of each key that a micro-batch touched. So `upsert` shows each
        key once. `table` holds a row for each key and each micro-batch that touched it; their number depends on how the
        rows were split into micro-batches. `process` gets every update as a row. Another `aggregate` takes back what an
        update replaces. `renamed_from` is the vertex's old id: it keeps its state; `count(renamed_from=)` is a column's
        Raises InvalidNameError, InvalidPipelineError for a column that it cannot take, or updates that lost their kind.
        """
        where = f"vertex {vertex_id(id)}"
        if isinstance(renamed_from, AggregateColumn):
            raise InvalidPipelineError(f"{where}: no column may be called 'renamed_from'; it says the id of before")
        stream = self.stream
        changes_of = changes_taken(where, stream.declarations, self.as_input(), columns)
        for name_of_hash, hashed in hashes(where, stream.schema, columns).items():
            stream = stream.with_column(name_of_hash, hashed, LongType())
        vertex = aggregate_vertex(id, stream.as_input(self.keys), columns, changes_of, renamed_from)
        return _declared(self.stream.declarations, vertex)

    def process(
        self,
        id: str,
        function: KeyedFunction,
        *,
        state: StructType,
        output: StructType,
        outputs: Mapping[str, StructType] = NO_OUTPUTS,
        renamed_from: str | None = None,
        columns_renamed_from: Mapping[str, str] = NONE_RENAMED,
    ) -> Stream:
        """Run a keyed function; `state` has its own columns (the keys come before them).

        After an aggregate its input rows are updates: each replaces the row before of its key. Its output counts as
        append-only. So a function that adds updates up must add only the difference to the row before.
        A function that holds rows back also needs `end_of_input` (see `EndsInput`), which a drain calls.
        `outputs` are the columns of further outputs by name: see `Stream.output`.
        `renamed_from` is the id that the vertex had before: it keeps its state. `columns_renamed_from` are old names by
        the new ones, of columns of the state, of the table and of named outputs: they keep their values.
        """
        rows = Rows(state, output, columns_renamed_from, outputs)
        vertex = process_vertex((self.as_input(),), id, function, rows, renamed_from)
        return _declared(self.stream.declarations, vertex)

    def connect(self, other: "KeyedStream") -> "ConnectedStreams":
        """Join two streams by key; raise InvalidPipelineError unless the keys' types are equal."""
        where = f"connect of {self.stream.origin} and {other.stream.origin}"
        if self.stream.declarations is not other.stream.declarations:
            raise InvalidPipelineError(f"{where}: the streams belong to two pipelines")
        require_keys_alike(where, self.stream.schema, self.keys, other.stream.schema, other.keys)
        return ConnectedStreams(self, other)

    def as_input(self) -> Input:
        """Return the keyed stream as what a vertex reads."""
        return self.stream.as_input(self.keys)


@dataclass(frozen=True, slots=True)
class ConnectedStreams:
    """Two streams with keys of the same types. Each is an input of its own, and their barriers are aligned."""

    left: KeyedStream
    right: KeyedStream

    def enrich(self, id: str, *columns: str, latest_by: str | None = None, renamed_from: str | None = None) -> Stream:
        """Give each left row these columns of the right row of its key, whichever of the two comes first.

        Without `latest_by` the FIRST right row of a key counts for ever. With it, as in `latest_by="updated_at"`, the
        right row with the greatest value of that column counts, so a late older row does not replace it. Either way
        each left row is emitted once, with the right row that is known then. A left row without a right row waits in
        keyed state, until a drain emits it with nulls. `renamed_from` is the id that the vertex had before: it keeps
        its state. Raises InvalidNameError, InvalidPipelineError for a column that the right rows lack or the left rows
        have, a `latest_by` without an order, and for the first of an aggregate's updates, which is a partial result.
        """
        declarations, inputs = self.left.stream.declarations, (self.left.as_input(), self.right.as_input())
        vertex = enrich_vertex(id, inputs, columns, latest_by, declarations, renamed_from)
        return _declared(self.left.stream.declarations, vertex)

    def process(
        self,
        id: str,
        function: KeyedFunction,
        *,
        state: StructType,
        output: StructType,
        outputs: Mapping[str, StructType] = NO_OUTPUTS,
        renamed_from: str | None = None,
        columns_renamed_from: Mapping[str, str] = NONE_RENAMED,
    ) -> Stream:
        """Run a keyed function of two inputs; `state` has its own columns (the left keys come before them).

        A function that holds rows back also needs `end_of_input` (see `EndsInput`), which a drain calls.
        `outputs`, `renamed_from` and `columns_renamed_from` are as in `KeyedStream.process`.
        """
        inputs = (self.left.as_input(), self.right.as_input())
        vertex = process_vertex(inputs, id, function, Rows(state, output, columns_renamed_from, outputs), renamed_from)
        return _declared(self.left.stream.declarations, vertex)


def _declared(declarations: Declarations, vertex: StagedVertex | KeyedVertex) -> Stream:
    declarations.add(vertex)
    return Stream(declarations, vertex.id, (), vertex.rows)
