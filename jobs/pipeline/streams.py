"""Streams of rows. Each operation returns a new stream.

A stream is only a description. Its steps run in the Spark job of the vertex that reads it. They must be
deterministic, since each reader runs them itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import BooleanType, DataType, StructField, StructType, TimestampType

from checkpointing.event_time import EventTime
from checkpointing.graph import TableMode
from checkpointing.identifiers import VertexId, table_name, vertex_id
from jobs.distribution import DISTRIBUTION
from jobs.operators import expressions
from jobs.operators.aggregate import output_schema
from jobs.operators.changelog_aggregates import ROWS
from jobs.operators.changes import KIND
from jobs.operators.derived_scans import NewColumn
from jobs.operators.enrich import RIGHT, WAITING, enrich_schema
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.in_time.timers import HasTimers
from jobs.operators.in_time.windows import END, LATE, Windows
from jobs.operators.process import KeyedFunction
from jobs.operators.spec import FAILED, Chain, RowRule, TaskSteps, TextSteps, left_to_spark, quoted
from jobs.operators.stateless_job import failed_rules, in_task
from jobs.pipeline.aggregates import AggregateColumn, derived_columns, named_aggregates
from jobs.pipeline.columns import (
    ALL,
    FAIL,
    NOTHING,
    InvalidPipelineError,
    changed_columns,
    duration,
    former_columns,
    former_id,
    former_table,
    require_columns,
    require_free,
    require_id_of_its_own,
    require_keys,
    require_keys_alike,
    require_no_key_group,
    require_ordered,
    require_unique,
    time_column,
)
from jobs.pipeline.plain_expressions import plain_condition
from jobs.pipeline.processing import NO_OUTPUTS, Rows, named_output, of_user, process_vertex, time_to_live
from jobs.pipeline.steps import dropped, filtered, selected, unchanged, with_column
from jobs.pipeline.tables import (
    append_table,
    description_of,
    overwrite_table,
    partitions_of,
    unkept_keyed_vertex,
    unkept_union,
    upsert_table,
    windows_of,
    with_append_table,
    with_changed_columns,
    with_table,
)
from jobs.pipeline.vertices import (
    AggregateVertex,
    Declarations,
    Declared,
    DeclaredTime,
    Derivation,
    EnrichVertex,
    Input,
    KeyedVertex,
    OutputTable,
    Partitions,
    RowCheck,
    SourceVertex,
    StagedVertex,
    Step,
    deletes_rows,
)
from jobs.pipeline.windows import Window, emission, window_vertex
from jobs.quality.expectation import Expectation, InvalidExpectationError, Suite
from jobs.quality.rules import compile_row_rule
from jobs.sinks.port import Sink, UpsertSink
from jobs.state.backend import Expires
from jobs.state.files import NONE_RENAMED

# ------------------------------------------------------------------
# Declares the vertex that keeps aggregates by key.


def with_derived(where: str, rows: "Stream", columns: Mapping[str, AggregateColumn]) -> "Stream":
    """Return the rows with the further columns that these aggregates need. Raises InvalidPipelineError."""
    for name, (sql, kind) in derived_columns(where, rows.schema, columns).items():
        rows = rows.with_column(name, sql, kind)
    return rows


def aggregate_vertex(
    name: str,
    reads: Input,
    columns: Mapping[str, AggregateColumn],
    changes_of: tuple[VertexId, ...],
    renamed_from: str | None,
    expires: Expires | None,
) -> AggregateVertex:
    """Return the vertex.

    Raises InvalidNameError, and InvalidPipelineError for a column that an aggregate cannot take.
    """
    where = f"vertex {name}"
    aggregates = named_aggregates(where, reads.keys, reads.schema, columns)
    was = {column: one.renamed_from for column, one in columns.items() if one.renamed_from is not None}
    return AggregateVertex(
        vertex_id(name),
        (reads,),
        output_schema(reads.keys, aggregates, reads.schema),
        aggregates,
        renamed_from=former_id(renamed_from),
        columns_renamed_from=former_columns(where, reads.keys, columns, was),
        changes_of=changes_of,
        expires=expires,
    )


# ------------------------------------------------------------------
# Expectations on a stream: as row rules, which split it, or as a suite, which judges its table (J3).


_NAMING = ("column", "column_A", "column_B")
"""The arguments in which Great Expectations names a column."""


def row_rules(where: str, rows: StructType, expectations: Sequence[Expectation]) -> tuple[RowRule, ...]:
    """Return the expectations as row rules. Raise InvalidPipelineError for one that does not judge single rows."""
    if not expectations:
        raise InvalidPipelineError(f"{where}: check_rows needs at least one expectation")
    _require_expected_columns(where, rows, expectations)
    try:
        said = [(str(one), compile_row_rule(one)) for one in expectations]
    except InvalidExpectationError as error:
        raise InvalidPipelineError(f"{where}: {error}") from error
    return tuple(RowRule(name, good, plain_condition(good, rows)) for name, good in said)


def good_rows(rules: Sequence[RowRule]) -> Chain:
    """Return the step that drops the rows which fail a rule. A task runs the step if it can judge all rules."""

    def keep(rows: DataFrame) -> DataFrame:
        return rows.filter(failed_rules(rules).isNull())

    by_spark = left_to_spark(rules)
    return TextSteps(keep, by_spark) if by_spark else TaskSteps(keep, tuple(rule for _, rule in in_task(rules)))


def sql_of(expression: str | Callable[[], Column]) -> str | None:
    """Return the Spark SQL of an expression. None: a function builds it."""
    return expression if isinstance(expression, str) else None


def suite_of(name: str, table: str, rows: StructType, expectations: tuple[Expectation, ...]) -> Suite:
    """Return the suite of a table.

    Raise InvalidPipelineError if the suite is empty or names a missing column, or if the extra `suites` is not
    installed.
    """
    if find_spec("great_expectations") is None:
        raise InvalidPipelineError(
            f"table {table}: great_expectations, which judges its suite, is not installed: "
            f"pip install '{DISTRIBUTION}[suites]'"
        )
    _require_expected_columns(f"table {table}", rows, expectations)
    try:
        return Suite(name, table, expectations)
    except InvalidExpectationError as error:
        raise InvalidPipelineError(f"table {table}: {error}") from error


def _require_expected_columns(where: str, rows: StructType, expectations: Iterable[Expectation]) -> None:
    for expectation in expectations:
        named = (expectation.kwargs.get(argument) for argument in _NAMING)
        require_columns(f"{where}, {expectation}", rows, [name for name in named if isinstance(name, str)])


def require_judgeable(table: OutputTable) -> None:
    """Raise InvalidPipelineError for a table that no suite can judge, or that already has a suite."""
    if table.mode is TableMode.UPSERT:
        raise InvalidPipelineError(
            f"table {table.name}: a suite judges rows as they are appended, and this table is upserted; "
            "judge the stream that feeds it"
        )
    if table.suite is not None:
        raise InvalidPipelineError(f"table {table.name}: it has a suite already; put all expectations into one")


EVENT_TIME: Final = "_event_time"
"""The column with a row's event time, null for a misfit. Only the table of misfits shows it."""


# ------------------------------------------------------------------
# Refuses the updates of an aggregate for vertices that would treat each update as a separate row.


def changes_taken(where: str, declarations: Declarations, reads: Input, columns: Iterable[str]) -> tuple[VertexId, ...]:
    """Return the vertex whose changes an aggregate, a join or top rows take. Empty: the rows are append-only.

    `columns` are the columns of the result. Raise InvalidPipelineError for updates that came through another vertex:
    that vertex passes on only new rows, so each would be added to the row that it replaces. Raise InvalidPipelineError
    also for a column with a name that Tidemark reserves.
    """
    if declarations.is_changelog(reads):
        require_unique(where, [*reads.keys, *columns, ROWS])
        for names in (declarations.vertex(reads.origin).rows.names, reads.schema.names):
            require_unique(where, [*names, KIND])
        return (reads.origin,)
    upstream = declarations.updates_of(reads)
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of the {declarations.kind_of(upstream)} {upstream!r}, and vertex "
            f"{reads.origin!r} between the two passes on new rows only, not those that they replace. Aggregate the "
            f"stream of {upstream!r} itself: call key_by on it, or after transform, select, drop and with_column, "
            "which pass changes on"
        )
    return ()


def require_append_only_right(where: str, declarations: Declarations, right: Input) -> None:
    """Raise InvalidPipelineError if the first right row of a key is an update that later rows replace."""
    upstream = declarations.updates_of(right)
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its right rows are updates of the aggregate {upstream!r}, and the first one of a key would "
            "count for ever: a partial result. Name the column that is greatest in the newest update, as in "
            'enrich(..., latest_by="rows")'
        )


def require_append_only(where: str, declarations: Declarations, reads: Input) -> None:
    """Raise InvalidPipelineError if rows are updates of others, because the table would also show the replaced rows."""
    upstream = declarations.updates_of(reads)
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of the {declarations.kind_of(upstream)} {upstream!r}, and an overwrite "
            "table would show each update beside the one that it replaces. Write the stream with upsert, or overwrite "
            f"the table from the rows before {upstream!r}"
        )


# ------------------------------------------------------------------
# Declares the vertex that adds columns of the right row of its key to each left row.


def enrich_vertex(
    id: str,
    inputs: tuple[Input, Input],
    columns: tuple[str, ...],
    latest_by: str | None,
    declarations: Declarations,
    renamed_from: str | None,
    *,
    expires: Expires | None = None,
) -> EnrichVertex:
    """Return the vertex that enriches the first input's rows. Raises as `ConnectedStreams.enrich` says."""
    name, where, (left, right) = vertex_id(id), f"vertex {id}", inputs
    require_keys(where, right.schema, columns)
    require_unique(where, [*left.keys, RIGHT, WAITING])
    require_free(where, left.keys)
    if latest_by is None:
        require_append_only_right(where, declarations, right)
    else:
        require_ordered(where, right.schema, latest_by)
    try:
        schema = enrich_schema(left.schema, right.schema, columns)
    except ValueError as error:
        raise InvalidPipelineError(f"{where}: {error}") from error
    return EnrichVertex(name, inputs, schema, columns, latest_by, renamed_from=former_id(renamed_from), expires=expires)


# ------------------------------------------------------------------
# Declares the vertex that unites streams of the same columns.


def union_vertex(
    name: str, inputs: Sequence[Input], declarations: Declarations, renamed_from: str | None
) -> StagedVertex:
    """Return the vertex. It passes on the changes of the inputs that are changelogs.

    Raises InvalidNameError for the id. Raises InvalidPipelineError if there is only one input, if an input has other
    columns than the first, or if one input is a changelog and another one has updates that lost their kind.
    """
    first, *others = inputs
    if not others:
        raise InvalidPipelineError(f"vertex {name}: a union needs another stream, as in orders.union(returns, id=...)")
    columns = _columns(first)
    for other in others:
        for column in [*columns, *_columns(other)]:
            have, its = columns.get(column), _columns(other).get(column)
            if have != its:
                raise InvalidPipelineError(
                    f"vertex {name}: column {column!r} is {_shown(have)} in {first.origin} and {_shown(its)} in "
                    f"{other.origin}; give both streams the same columns, with with_column, drop or select"
                )
    origins = _changelogs(name, inputs, declarations)
    return StagedVertex(
        vertex_id(name),
        tuple(inputs),
        first.schema,
        renamed_from=former_id(renamed_from),
        changes_of=origins,
        takes_back=any(deletes_rows(declarations.vertex(origin)) for origin in origins),
    )


def _changelogs(name: str, inputs: Sequence[Input], declarations: Declarations) -> tuple[VertexId, ...]:
    if not any(declarations.is_changelog(each) for each in inputs):
        return ()
    taken = (changes_taken(f"vertex {name}", declarations, each, ()) for each in inputs)
    return tuple(dict.fromkeys(origin for origins in taken for origin in origins))


def _columns(reads: Input) -> dict[str, DataType]:
    return {field.name: field.dataType for field in reads.schema.fields}


def _shown(kind: DataType | None) -> str:
    return "missing" if kind is None else kind.simpleString()


# ruff: noqa: A002 - a vertex has an id and a column a type, and both are called so


@dataclass(frozen=True, slots=True)
class Stream:
    """The rows of vertex `origin` after `steps`, with their `schema`. Made by a Pipeline.

    The rows are those of the vertex's output `named`, or of its own output.
    """

    declarations: Declarations
    origin: VertexId
    steps: tuple[Step, ...]
    schema: StructType
    named: str | None = None
    time: TimeColumn | None = None
    """The column with the event times of the rows, as long as the stream has this column."""

    # -------------------------------------------------------------- stateless steps

    def transform(self, chain: Chain, schema: StructType | None = None) -> "Stream":
        """Apply a function of a DataFrame that is deterministic and row by row.

        `schema` is the result's (None: unchanged).
        """
        return self.after(chain, schema)

    def after(self, chain: Chain, schema: StructType | None = None, derives: Derivation | None = None) -> "Stream":
        """Return the rows after a step, as `transform` does. `derives` says what the step does with columns."""
        if schema is not None:
            require_unique(f"a transformation of {self.origin}", schema.names)
        after = self.schema if schema is None else schema
        kept = self.time is not None and self.time.name in after.names and after[self.time.name].dataType
        time = self.time if self.time is not None and kept == self.time.kind else None
        return replace(self, steps=(*self.steps, Step(chain, after, None, derives)), schema=after, time=time)

    def where(self, condition: str | Callable[[], Column]) -> "Stream":
        """Keep the rows for which a condition is true. It is Spark SQL, or a function that returns a Column."""
        return self.after(filtered(condition, self.schema), None, Derivation(conditions=(sql_of(condition),)))

    def select(self, *columns: str) -> "Stream":
        """Keep these columns, in this order. Raise InvalidPipelineError for a column that is not there."""
        where = f"select on {self.origin}"
        require_keys(where, self.schema, columns)
        return self.after(selected(columns), StructType([self.schema[name] for name in columns]), Derivation())

    def drop(self, *columns: str) -> "Stream":
        """Keep all but these columns. Raise InvalidPipelineError for a column that is not there."""
        require_columns(f"drop on {self.origin}", self.schema, columns)
        kept = [field for field in self.schema.fields if field.name not in columns]
        require_keys(f"drop on {self.origin}", self.schema, [field.name for field in kept])
        return self.after(dropped(columns), StructType(kept), Derivation())

    def with_column(self, name: str, expression: str | Callable[[], Column], type: DataType) -> "Stream":
        """Add a column, or replace it in its place.

        `expression` is Spark SQL, or a function that returns a Column. Its values are cast to `type`.
        """
        fields = {field.name: field for field in self.schema.fields} | {name: StructField(name, type)}
        if self.time is not None and self.time.name == name:
            raise InvalidPipelineError(
                f"with_column on {self.origin}: column {name} has the event times, and watermarks follow it; write "
                "event_time after with_column, or give the new column another name"
            )
        require_unique(f"with_column on {self.origin}", fields)
        derives = Derivation(computed={name: sql_of(expression)})
        steps = with_column(name, expression, type, self.schema)
        return self.after(steps, StructType(list(fields.values())), derives)

    def rename(self, columns: Mapping[str, str]) -> "Stream":
        """Rename columns. The keys are the old names, and the values the new ones: `rename({"at": "paid_at"})`.

        A renamed event time stays the event time. Raises InvalidPipelineError for a column that is not there.
        """
        where, said = f"rename on {self.origin}", dict(columns)
        require_columns(where, self.schema, said)
        fields = [StructField(said.get(each.name, each.name), each.dataType) for each in self.schema.fields]
        require_unique(where, [each.name for each in fields])
        added = tuple(NewColumn(new, expressions.Column(old)) for old, new in said.items())
        steps = TaskSteps(lambda rows: rows.withColumnsRenamed(said), added=added)
        after = self.after(steps, StructType(fields), Derivation(renamed={new: old for old, new in said.items()}))
        time = self.time
        return after if time is None else replace(after, time=replace(time, name=said.get(time.name, time.name)))

    def event_time(  # noqa: PLR0913 - each says one thing of the times
        self,
        column: str,
        *,
        delay: str,
        idle_after: str | None = None,
        close_after: str | None = None,
        hold_back: str | None = None,
        ahead_at_most: str | None = None,
        misfits: str | None = None,
        misfits_id: str | None = None,
    ) -> "Stream":
        """Declare which column has a row's event time, and that a row may arrive up to `delay` behind later ones (N1).

        Each cut then has a watermark: as far as Tidemark knows, all rows up to that time have arrived. A split without
        new rows holds the watermark back, or with `idle_after` only for this long. Once no split has had rows for
        `close_after`, time goes on from the greatest row's time at the pace of the clock, so that windows close without
        further rows. A row that arrives for such a window is late. Write `event_time` on a source's stream, before
        tables and keys. `column` is a timestamp, or a timestamp without a time zone, which counts as UTC. With
        `hold_back`, a split that is ahead of another split by more than this time is not read until the other one has
        caught up. This bounds the state while a backlog is read. All streams with `hold_back` wait for each other. A
        split that has nothing to read holds no other split back. `hold_back` changes no result. Durations are like
        "30s" or "2h". Rows without a time, and rows more than `ahead_at_most` ahead of the clock when the source
        offered them, move no watermark. They go to the table `misfits`. The vertex that writes this table has the id
        `misfits_id`, by default `<source>_timed`. Without that table, a time too far ahead is an error, and windows
        refuse rows without a time. Raises InvalidPipelineError.
        """
        where = f"event_time on {self.origin}"
        if not isinstance(self.declarations.vertex(self.origin), SourceVertex):
            raise InvalidPipelineError(f"{where}: write it on the stream of a source, before tables, keys and unions")
        if any(step.time is not None for step in self.steps):
            raise InvalidPipelineError(f"{where}: the stream has event times already")
        time = time_column(where, self.schema, column)
        if ahead_at_most is not None:
            time = replace(time, ahead_ms=duration(f"{where}: ahead_at_most", ahead_at_most))
        schema = self.schema
        if misfits is not None:
            time = replace(time, kept_in=EVENT_TIME)
            schema = StructType([*schema.fields, StructField(EVENT_TIME, time.kind)])
            require_unique(where, schema.names)
        idle_ms = None if idle_after is None else duration(f"{where}: idle_after", idle_after)
        hold_ms = None if hold_back is None else duration(f"{where}: hold_back", hold_back)
        close_ms = None if close_after is None else duration(f"{where}: close_after", close_after)
        delay_ms = duration(f"{where}: delay", delay)
        try:
            means = EventTime(delay_ms, idle_ms, hold_ms, close_ms)
        except ValueError as error:
            raise InvalidPipelineError(f"{where}: {error}") from None
        said = DeclaredTime(time, means)
        kept = {} if misfits is None else {EVENT_TIME: quoted([column])}
        step = Step(unchanged(), schema, said, Derivation(computed=kept))
        timed = replace(self, steps=(*self.steps, step), schema=schema, time=TimeColumn(column, time.kind))
        if misfits is None:
            return timed
        named = misfits_id or f"{self.origin}_timed"
        has_time = Expectation("expect_column_values_to_not_be_null", {"column": EVENT_TIME})
        return timed.check_rows(has_time, quarantine=misfits, id=named).drop(EVENT_TIME)

    def union(self, *others: "Stream", id: str, renamed_from: str | None = None) -> "Stream":
        """Return the rows of this stream and of the others together. Vertex `id` writes them to files once.

        All streams need the same columns, in any order. If one stream is a changelog, the union is a changelog too:
        `aggregate`, `join`, `top` and another union take its changes. Raises InvalidNameError, and InvalidPipelineError
        for streams of other columns or of another pipeline. `renamed_from` is the id that the vertex had before.
        """
        if any(other.declarations is not self.declarations for other in others):
            raise InvalidPipelineError(f"vertex {id}: the streams belong to two pipelines")
        vertex = union_vertex(id, [each.as_input() for each in (self, *others)], self.declarations, renamed_from)
        time = self.time if all(other.time == self.time for other in others) and not vertex.changes_of else None
        return replace(_declared(self.declarations, vertex), time=time)

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
        """Append the rows to a table, and return exactly the rows that the table holds.

        Right after a keyed vertex or a union, that vertex writes the table. Elsewhere a new vertex with this `id`
        writes it. `sink` gets each checkpoint's rows too. `partition_by` lays the table out by these columns for ever.
        `renamed_from` is the table's old name, and `id_renamed_from` the old id. Raises InvalidNameError,
        InvalidPipelineError if the id is missing, if the name is taken, or if `sink` or `partition_by` does not fit.
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
        """Keep one row per key in a table: the newest one. `keys` default to the keys of the keyed vertex.

        The vertex's own keys must be among them, so that all rows of a table key meet in one subtask. `sink` shows the
        table too. `partition_by` lays the table out by these columns for ever. `renamed_from` is the table's old name:
        the table keeps its rows. Raises InvalidNameError, InvalidPipelineError if the stream is not the output of a
        keyed vertex, or if `sink` or `partition_by` does not fit.
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

        A newer version replaces the earlier rows, and rows of an older version that arrive late are not shown. The
        returned stream has all rows, as they arrived. Vertex `id` writes the table, laid out by `partition_by` for
        ever. A row without a version fails its micro-batch. `renamed_from` and `id_renamed_from` are the old names.
        Raises InvalidNameError, InvalidPipelineError for a column that does not fit, and for updates of an aggregate.
        """
        require_append_only(f"table {name}", self.declarations, self.as_input())
        table = overwrite_table(name, self.schema, version, partition_by, renamed_from)
        return self._staged(id, table, None, id_renamed_from)

    def describe_table(
        self, comment: str = "", *, columns: Mapping[str, str] = NOTHING, properties: Mapping[str, str] = NOTHING
    ) -> "Stream":
        """Give the table a comment, comments for its columns, and properties. Must follow a call that writes the table.

        An existing table gets them with the next checkpoint that changes it. Other comments and properties of the table
        stay as they are. Raises InvalidPipelineError for a column that the table lacks, and for a property of Delta or
        Tidemark.
        """
        vertex, table = with_table(self._direct, f"describe_table on {self.origin}: it describes a table")
        says = description_of(table, self.schema, comment, columns, properties)
        self.declarations.amend(replace(vertex, table=replace(table, says=says)))
        return self

    def partitions(self, size: str, *, start: str, tz: str = "UTC", by: str | None = None) -> "Stream":
        """Show Dagster the table's days (`1d`), hours (`1h`) or weeks (`1w`), from the day `start` on (N8).

        They are in local time of a time zone, and weeks begin on Mondays. Dagster materialises each when a cut is
        complete until its end, and again when a later cut changes its rows. Must follow a call that writes the table. A
        row belongs to the day that has its time in column `by`. By default this is the event time, and for a window the
        last millisecond before `window_end`. Raises InvalidPipelineError, also for a `by` with which rows may be
        emitted after their day was complete, such as sessions by `window_start`. A table without event times is refused
        when the pipeline is planned.
        """
        vertex, table = with_table(self._direct, f"partitions on {self.origin}: they are those of a table")
        event_time = "" if self.time is None else self.time.name
        column = by or (END if END in self.schema.names else event_time)
        before_ms = self.time.before_ms if self.time is not None and column == event_time else int(column == END)
        said = Partitions(size, start, tz, column, before_ms)
        partitions = partitions_of(table, self.schema, said, windows_of(self.declarations, vertex))
        self.declarations.amend(replace(vertex, table=replace(table, partitions=partitions)))
        return self

    def change_columns(
        self, *, renamed_from: Mapping[str, str] = NOTHING, drop: Sequence[str] = (), reorder: bool = False
    ) -> "Stream":
        """Rename, drop or reorder existing columns of the append table. Must follow `table` or `check_rows`.

        `renamed_from` maps new names to old names. These columns keep their values, and the next checkpoint rewrites
        the table's files. The columns of `drop` are removed from the table. With `reorder` the table's columns get the
        order of the rows' columns. A quarantine of the same vertex changes in the same way. You may leave the
        declaration in the code: once the change has happened, it has no effect. Raises InvalidNameError,
        InvalidPipelineError for a change that makes no sense.
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
        """Split each micro-batch (J3).

        Failing rows go to `quarantine` with the names of their failed rules, others pass.

        Right after `table(..., id=...)`, the vertex that writes the table splits the rows, and the table holds all
        rows. Elsewhere a new vertex with this `id` splits them. `quarantine_renamed_from` and `id_renamed_from` are the
        old names of the quarantine and the vertex. Raises InvalidNameError, and InvalidPipelineError for an expectation
        that does not judge single rows or names no column.
        """
        require_id_of_its_own(f"quarantine {quarantine}", id, id_renamed_from)
        place = id or self.origin
        rules = row_rules(f"vertex {place}", self.schema, expectations)
        check = RowCheck(rules, table_name(quarantine), former_table(quarantine_renamed_from))
        require_unique(f"vertex {place}", [*self.schema.names, FAILED])
        if id is not None:
            return self._staged(id, None, check, id_renamed_from).passing(check.rules)
        vertex = self._direct
        if not isinstance(vertex, StagedVertex) or vertex.check is not None:
            raise InvalidPipelineError(
                f"quarantine {quarantine}: rows are checked right after table(..., id=...), once; "
                "elsewhere by a vertex of its own, as in check_rows(..., id=...)"
            )
        self.declarations.amend(replace(vertex, check=check))
        return self.passing(check.rules)

    def passing(self, rules: Sequence[RowRule]) -> "Stream":
        """Keep the rows that fail no rule."""
        return self.after(good_rows(rules), None, Derivation(conditions=tuple(sql_of(rule.good) for rule in rules)))

    def expect(self, *expectations: Expectation, suite: str | None = None) -> "Stream":
        """Judge, at each barrier, all rows that came into the table since the last checkpoint (J3).

        If an expectation fails, nothing of the epoch becomes visible and the tick ends. Must follow `table` or
        `overwrite`. Rows that an overwrite table will not show are not judged. `suite` is the name for all these
        expectations together. None means the table's name. The method needs the extra `suites`. Raises
        InvalidPipelineError.
        """
        vertex, table = with_table(self._direct, f"expect on {self.origin}: a suite judges a table")
        require_judgeable(table)
        named = suite_of(suite or table.name.replace("/", "_"), table.name, self.schema, expectations)
        self.declarations.amend(replace(vertex, table=replace(table, suite=named)))
        return self

    # -------------------------------------------------------------- named outputs and keys

    def output(self, name: str) -> "Stream":
        """Return the rows that a process function emits under this name, as declared with `process(outputs=)`.

        Call it on the stream that `process` returns. Raises InvalidPipelineError for a name that was not declared.
        """
        return Stream(self.declarations, self.origin, (), named_output(self._direct, self.origin, name), name)

    def key_by(self, *keys: str) -> "KeyedStream":
        """Key the rows by these columns. Raise InvalidPipelineError unless each column exists and is named once."""
        require_keys(f"key_by on {self.origin}", self.schema, keys)
        require_no_key_group(f"key_by on {self.origin}", self.schema.names)
        return KeyedStream(self, keys)

    def aggregate(
        self,
        id: str,
        /,
        *,
        ttl: str | Expires | None = None,
        renamed_from: str | None = None,
        **columns: AggregateColumn,
    ) -> "Stream":
        """Keep aggregates of all rows, as `KeyedStream.aggregate` does by key: one row, whose key `_all` is true.

        One subtask keeps this row, whatever the parallelism is. Raises InvalidPipelineError if the rows have a column
        `_all`.
        """
        require_unique(f"vertex {id}", [*self.schema.names, ALL])
        return self._as_one_key().aggregate(id, ttl=ttl, renamed_from=renamed_from, **columns)

    def window(self, window: Window) -> "WindowedStream":
        """Divide all rows into windows, as `KeyedStream.window` does by key. The key `_all` is true in every row.

        One subtask keeps the windows, whatever the parallelism is. Raises InvalidPipelineError if the rows have that
        column.
        """
        require_unique(f"window on {self.origin}", [*self.schema.names, ALL])
        return self._as_one_key().window(window)

    def _as_one_key(self) -> "KeyedStream":
        kind = BooleanType()
        steps = with_column(ALL, "true", kind, self.schema)
        schema = StructType([*self.schema.fields, StructField(ALL, kind)])
        return self.after(steps, schema, Derivation(computed={ALL: "true"})).key_by(ALL)

    def event_times(self, where: str, else_: str = "") -> TimeColumn:
        """Return the column with the event times of the rows. Raises InvalidPipelineError if they have none."""
        if self.time is not None:
            return self.time
        if self.declarations.has_times(self.as_input()):
            raise InvalidPipelineError(
                f"{where}: the rows of {self.origin} have no event times any more. Keep the column of event_time on "
                f"the way, and read the rows before an operator that puts out rows without times{else_}"
            )
        raise InvalidPipelineError(
            f"{where}: the rows of {self.origin} have no event times: declare event_time on their source{else_}"
        )

    def as_input(self, keys: tuple[str, ...] = ()) -> Input:
        """Return the stream as the input of a vertex."""
        return Input(self.origin, self.steps, self.schema, keys, self.named)

    @property
    def _direct(self) -> Declared | None:
        """The vertex whose own output this stream is, or None if there are steps after the vertex."""
        return self.declarations.vertex(self.origin) if not self.steps and self.named is None else None

    def _staged(self, id: str, table: OutputTable | None, check: RowCheck | None, renamed_from: str | None) -> "Stream":
        name, before = vertex_id(id), former_id(renamed_from)
        self.declarations.add(StagedVertex(name, (self.as_input(),), self.schema, table, check, before))
        return Stream(self.declarations, name, (), self.schema, time=self.time)


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A stream and the columns that its rows are keyed by."""

    stream: Stream
    keys: tuple[str, ...]

    def aggregate(
        self,
        id: str,
        /,
        *,
        ttl: str | Expires | None = None,
        renamed_from: str | None = None,
        **columns: AggregateColumn,
    ) -> Stream:
        """Keep aggregates by key: `aggregate("per_user", orders=count(), spent=sum_of("amount"))`.

        The returned stream has updates: the new row of each key that a micro-batch touched. So `upsert` shows each key
        once. `table` gets a row for each key and each micro-batch that touched the key, so the number of rows depends
        on how the input was split into micro-batches. `process` gets every update as a row. Another `aggregate` takes
        back the row that an update replaces. `renamed_from` is the vertex's old id: the vertex keeps its state. A
        column's old name is given with `count(renamed_from=)`. With `ttl`, as in ttl="30d", the state drops a key this
        long after the key's last row (see `expires`). The key's next row begins anew, and its row in a table stays
        until then. Raises InvalidNameError, InvalidPipelineError for a column that cannot be aggregated like this, and
        for updates that lost their kind.
        """
        where = f"vertex {vertex_id(id)}"
        if isinstance(renamed_from, AggregateColumn):
            raise InvalidPipelineError(f"{where}: no column may be called 'renamed_from'; it says the id of before")
        for of_windows in ("late", "emit", "lateness"):
            if isinstance(columns.get(of_windows), str):
                raise InvalidPipelineError(f"{where}: {of_windows}= is for windows: write window(...) before aggregate")
        if isinstance(ttl, AggregateColumn):
            raise InvalidPipelineError(f"{where}: no column may be called 'ttl'; it says when a key is forgotten")
        stream = self.stream
        changes_of = changes_taken(where, stream.declarations, self.as_input(), columns)
        reads = with_derived(where, stream, columns).as_input(self.keys)
        lives = time_to_live(id, ttl, stream.declarations, [reads])
        vertex = aggregate_vertex(id, reads, columns, changes_of, renamed_from, lives)
        return _declared(self.stream.declarations, vertex)

    def process(  # noqa: PLR0913 - each says one thing of the function
        self,
        id: str,
        function: KeyedFunction | HasTimers,
        *,
        state: StructType,
        output: StructType,
        outputs: Mapping[str, StructType] = NO_OUTPUTS,
        time: str | None = None,
        ttl: str | Expires | None = None,
        renamed_from: str | None = None,
        columns_renamed_from: Mapping[str, str] = NONE_RENAMED,
    ) -> Stream:
        """Run a keyed function. `state` has the function's own columns (the keys come before them).

        After an aggregate, the function's input rows are updates: each replaces the row before of its key. The
        function's output counts as append-only. So a function that adds updates up must add only the difference to the
        row before. A function that holds rows back also needs `end_of_input` (see `EndsInput`), which a drain calls. A
        function that sets timers needs `on_time` (see `HasTimers`), and rows with event times or an attribute
        `by_clock`. `outputs` are the columns of further outputs by name: see `Stream.output`. With `ttl`, as in
        ttl="1d", the state of a key is dropped this long after the function's last change of it (see `expires`). `time`
        is the output's column with its event time, which windows or other steps in time after this one need.
        `renamed_from` is the id that the vertex had before: the vertex keeps its state. `columns_renamed_from` maps new
        names to old names, for columns of the state, of the table and of named outputs. These columns keep their
        values.
        """
        inputs, rows = (self.as_input(),), Rows(state, output, columns_renamed_from, outputs)
        return _processed(self.stream.declarations, inputs, id, function, rows, time, ttl, renamed_from)

    def window(self, window: Window) -> "WindowedStream":
        """Divide the rows of each key into windows of event time, such as `tumbling("1d")` or `session("30m")`.

        Raises InvalidPipelineError if the rows have no event times, or if they are updates of other rows.
        """
        where = f"window on {self.stream.origin}"
        if not isinstance(window, Window):
            raise InvalidPipelineError(f'{where}: {window!r} is no window; write one such as tumbling("1d")')
        clock = ', or write by="clock" in the window'
        time = TimeColumn("", TimestampType()) if window.by_clock else self.stream.event_times(where, clock)
        require_append_only(where, self.stream.declarations, self.as_input())
        return WindowedStream(self, window.of(where, time), time, window.by_clock)

    def connect(self, other: "KeyedStream") -> "ConnectedStreams":
        """Connect two streams by key. Raise InvalidPipelineError unless the types of the keys are equal."""
        where = f"connect of {self.stream.origin} and {other.stream.origin}"
        if self.stream.declarations is not other.stream.declarations:
            raise InvalidPipelineError(f"{where}: the streams belong to two pipelines")
        require_keys_alike(where, self.stream.schema, self.keys, other.stream.schema, other.keys)
        return ConnectedStreams(self, other)

    def as_input(self) -> Input:
        """Return the keyed stream as the input of a vertex."""
        return self.stream.as_input(self.keys)


@dataclass(frozen=True, slots=True)
class WindowedStream:
    """The rows of a stream by key and window of event time."""

    rows: KeyedStream
    windows: Windows
    time: TimeColumn
    by_clock: bool = False

    def aggregate(
        self,
        id: str,
        /,
        *,
        late: str | None = None,
        emit: Literal["final", "updating"] = "final",
        lateness: str = "0s",
        late_id: str | None = None,
        renamed_from: str | None = None,
        **columns: AggregateColumn,
    ) -> Stream:
        """Aggregate each window, and emit it once, when the watermark has passed its end.

        A row has the keys, `window_start`, `window_end` and the aggregates. With a `lateness` the state keeps a window
        for this much longer, and the window is emitted again if late rows change it. With `emit="updating"` a window is
        emitted whenever it changes. In both cases the stream is a changelog, which `upsert` shows. If all windows of a
        row have been dropped, the row goes to the table `late`, with `late_by_ms`, and changes no window. A vertex
        `<id>_late` writes this table, or `late_id`. With `late="fail"` such a row fails its micro-batch. `renamed_from`
        is the id that the vertex had before. In windows by the clock no row is late, so they have no `late`. Raises
        InvalidNameError, and InvalidPipelineError for a column that cannot be aggregated like this.
        """
        stream, where = self.rows.stream, f"vertex {vertex_id(id)}"
        emits = emission(
            where, self.windows, self.time, by_clock=self.by_clock, emit=emit, lateness=lateness, late=late
        )
        reads = with_derived(where, stream, columns).as_input(self.rows.keys)
        vertex = window_vertex(reads, id, emits, columns, stream.schema.names, renamed_from)
        stream = _declared(stream.declarations, vertex)
        if late is not None and late != FAIL:
            stream.output(LATE).table(late, id=late_id or f"{id}_late")
        timed = emits.is_append_only and not self.by_clock
        return replace(stream, time=TimeColumn(END, self.time.kind, before_ms=1) if timed else None)


@dataclass(frozen=True, slots=True)
class ConnectedStreams:
    """Two streams with keys of the same types. Each is an input of its own, and their barriers are aligned."""

    left: KeyedStream
    right: KeyedStream

    def enrich(
        self,
        id: str,
        *columns: str,
        latest_by: str | None = None,
        ttl: str | Expires | None = None,
        renamed_from: str | None = None,
    ) -> Stream:
        """Add these columns of the right row of its key to each left row, whichever of the two arrives first.

        Without `latest_by` the FIRST right row of a key is used for ever. With it, as in `latest_by="updated_at"`, the
        right row with the greatest value of that column is used, so an older row that arrives late does not replace it.
        Either way each left row is emitted once, with the right row that is known then. A left row without a right row
        waits in keyed state, until a right row arrives or a drain emits it with nulls. `renamed_from` is the id that
        the vertex had before: the vertex keeps its state. With `ttl`, the state drops a right row this long after the
        row arrived, and the waiting left rows of a key this long after the last of them arrived (see `expires`). Raises
        InvalidNameError, and InvalidPipelineError for a column that the right rows lack or the left rows have, and for
        a `latest_by` without an order. Raises it too if the right rows are an aggregate's updates and there is no
        `latest_by`, because the first update is only a partial result.
        """
        declarations, inputs = self.left.stream.declarations, (self.left.as_input(), self.right.as_input())
        lives = time_to_live(id, ttl, declarations, inputs)
        vertex = enrich_vertex(id, inputs, columns, latest_by, declarations, renamed_from, expires=lives)
        return _declared(self.left.stream.declarations, vertex)

    def process(  # noqa: PLR0913 - each says one thing of the function
        self,
        id: str,
        function: KeyedFunction | HasTimers,
        *,
        state: StructType,
        output: StructType,
        outputs: Mapping[str, StructType] = NO_OUTPUTS,
        time: str | None = None,
        ttl: str | Expires | None = None,
        renamed_from: str | None = None,
        columns_renamed_from: Mapping[str, str] = NONE_RENAMED,
    ) -> Stream:
        """Run a keyed function of two inputs. `state` has the function's own columns (the left keys come before them).

        A function that holds rows back also needs `end_of_input` (see `EndsInput`), which a drain calls.
        `outputs`, `time`, `ttl`, `renamed_from` and `columns_renamed_from` are as in `KeyedStream.process`.
        """
        inputs, rows = (self.left.as_input(), self.right.as_input()), Rows(state, output, columns_renamed_from, outputs)
        return _processed(self.left.stream.declarations, inputs, id, function, rows, time, ttl, renamed_from)


def _processed(  # noqa: PLR0913, PLR0917 - each says one thing of the function
    declarations: Declarations,
    inputs: tuple[Input, ...],
    name: str,
    function: KeyedFunction | HasTimers,
    rows: Rows,
    time: str | None,
    ttl: str | Expires | None,
    renamed_from: str | None,
) -> Stream:
    """Declare the vertex of a user's function. Raises InvalidNameError, InvalidPipelineError."""
    runs, held = of_user(name, function, rows, declarations, inputs)
    lives = time_to_live(name, ttl, declarations, inputs)
    stream = _declared(declarations, process_vertex(inputs, name, runs, held, renamed_from, expires=lives))
    return stream if time is None else replace(stream, time=time_column(f"vertex {name}, time", stream.schema, time))


def _declared(declarations: Declarations, vertex: StagedVertex | KeyedVertex) -> Stream:
    declarations.add(vertex)
    return Stream(declarations, vertex.id, (), vertex.rows)
