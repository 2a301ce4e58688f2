"""The vertices of a pipeline as data: sources, streams that are written to files, and keyed operators."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from pyspark.sql.types import StructType

from checkpointing.event_time import EventTime
from checkpointing.graph import TableMode
from checkpointing.identifiers import TableName, VertexId
from checkpointing.metadata.paths import broadcast_of
from jobs.operators.aggregate import Aggregate
from jobs.operators.applied_changes import AppliedChanges
from jobs.operators.broadcast import Broadcast
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.in_time.rows import TopRowsInTime
from jobs.operators.join import JoinType
from jobs.operators.process import AnyFunction, HoldsRows, takes_rows_back
from jobs.operators.spec import Chain, RowRule
from jobs.operators.top_rows import TopRows
from jobs.pipeline.columns import UNCHANGED, ChangedColumns, InvalidPipelineError
from jobs.quality.expectation import Suite
from jobs.sinks.port import NOTHING_SAID, Description, Sink, UpsertSink
from jobs.sources.port import Source
from jobs.state.backend import Expires


@dataclass(frozen=True, slots=True)
class DeclaredTime:
    """The column with the event times of a source's rows, and how to interpret these times (N1)."""

    column: TimeColumn
    means: EventTime


@dataclass(frozen=True, slots=True)
class Derivation:
    """How the columns after a step result from those before it. Columns that are not named here keep values and name.

    `computed` and `conditions` are Spark SQL, or None for a Python function. `renamed` maps new names to old names.
    """

    computed: Mapping[str, str | None] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One stateless step, and the schema after it. All readers of a stream share its step objects."""

    chain: Chain
    schema: StructType
    time: DeclaredTime | None = None
    """The event time that the step declares for the rows. Such a step changes nothing."""
    derives: Derivation | None = None
    """What the step does with columns. None: it is unknown, because a function does it."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a vertex: the rows of `origin` after these steps, with their `schema` then.

    `output` is the named output of `origin` that has the rows. None: they are in its own output.
    """

    origin: VertexId
    steps: tuple[Step, ...]
    schema: StructType
    keys: tuple[str, ...] = ()
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Partitions:
    """The hours, days or weeks of a table, as a scheduler sees them: from the day `start` on, in a zone's local time.

    A row belongs to the partition that has the row's time. This time is `before_ms` before the value of the column
    `by`, so that the time of a window is its last millisecond.
    """

    size: str
    start: str
    zone: str
    by: str
    before_ms: int = 0


@dataclass(frozen=True, slots=True)
class OutputTable:
    """The table that a vertex writes.

    `suite` judges the rows that were added to the table since the last checkpoint.
    """

    name: TableName
    mode: TableMode
    keys: tuple[str, ...] = ()
    suite: Suite | None = None
    renamed_from: TableName | None = None
    sink: Sink | UpsertSink | None = None
    """The outside sink: a `Sink` of an append table, an `UpsertSink` of an upsert table."""
    says: Description = NOTHING_SAID
    """The comments and properties that the table gets."""
    partitioned_by: tuple[str, ...] = ()
    """The columns by which the table is laid out."""
    changed: ChangedColumns = UNCHANGED
    """The declared changes of an append table's existing columns."""
    partitions: Partitions | None = None
    """The hours, days or weeks that are reported to a scheduler when they are complete."""

    def __post_init__(self) -> None:
        """Raise InvalidPipelineError for a sink of the wrong type, or if a table with a sink is renamed.

        The first checkpoint after a rename publishes the whole table, and the sink would get all its rows again.
        """
        wanted = Sink if self.mode is TableMode.APPEND else UpsertSink
        if self.sink is not None and not isinstance(self.sink, wanted):
            raise InvalidPipelineError(
                f"table {self.name}: {self.sink!r} is no sink of {self.mode.value} tables; derive it from "
                f"tidemark.{wanted.__name__}"
            )
        if self.sink is not None and self.renamed_from is not None:
            raise InvalidPipelineError(f"table {self.name}: with a sink it must keep its name {self.renamed_from}")


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Row rules, and the table for rows that fail a rule."""

    rules: tuple[RowRule, ...]
    quarantine: TableName
    renamed_from: TableName | None = None
    """The quarantine's old name."""
    changed: ChangedColumns = UNCHANGED
    """The declared changes of the quarantine's existing columns."""


@dataclass(frozen=True, slots=True)
class SourceVertex:
    """A source. `rows` has its columns, split and position included."""

    id: VertexId
    source: Source
    rows: StructType
    rows_per_epoch: int | None = None
    renamed_from: VertexId | None = None


@dataclass(frozen=True, slots=True)
class StagedVertex:
    """A stream, or a union of streams, that is written to files once. All later vertices read these files.

    A union passes changes on: `changes_of` are the vertices among its inputs that emit changes. `takes_back` is true if
    one of these takes rows back.
    """

    id: VertexId
    inputs: tuple[Input, ...]
    rows: StructType
    table: OutputTable | None = None
    check: RowCheck | None = None
    renamed_from: VertexId | None = None
    changes_of: tuple[VertexId, ...] = ()
    takes_back: bool = False


@dataclass(frozen=True, slots=True)
class AggregateVertex:
    """Aggregates by key. `columns_renamed_from` maps new names of its columns to the old ones.

    If the input is a changelog, such as another aggregate or a join, the vertex takes its changes.
    """

    id: VertexId
    inputs: tuple[Input, ...]
    rows: StructType
    aggregates: tuple[Aggregate, ...]
    table: OutputTable | None = None
    renamed_from: VertexId | None = None
    expires: Expires | None = None
    columns_renamed_from: Mapping[str, str] = field(default_factory=dict)
    changes_of: tuple[VertexId, ...] = ()
    """The vertex whose changes this one takes, if its input is a changelog."""


@dataclass(frozen=True, slots=True)
class EnrichVertex:
    """The first input's rows, with these columns of the first or the latest row of the same key in the second input."""

    id: VertexId
    inputs: tuple[Input, ...]
    rows: StructType
    columns: tuple[str, ...]
    latest_by: str | None = None
    table: OutputTable | None = None
    renamed_from: VertexId | None = None
    expires: Expires | None = None


@dataclass(frozen=True, slots=True)
class ProcessVertex:
    """A keyed process function. `state` has the key columns, then the function's own. `outputs` are its named outputs.

    If there is a `broadcast`, the last input is that broadcast, and `broadcast` says which of its rows are kept.
    `columns_renamed_from` maps new names of columns of the state and the output to the old names.
    """

    id: VertexId
    inputs: tuple[Input, ...]
    rows: StructType
    function: AnyFunction
    state: StructType
    table: OutputTable | None = None
    renamed_from: VertexId | None = None
    expires: Expires | None = None
    columns_renamed_from: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, StructType] = field(default_factory=dict)
    broadcast: Broadcast | None = None


@dataclass(frozen=True, slots=True)
class JoinVertex:
    """The joined rows of two inputs. `changes_of` are the vertices among its inputs whose changes it takes."""

    id: VertexId
    inputs: tuple[Input, ...]
    rows: StructType
    how: JoinType
    table: OutputTable | None = None
    renamed_from: VertexId | None = None
    expires: Expires | None = None
    changes_of: tuple[VertexId, ...] = ()


@dataclass(frozen=True, slots=True)
class AppliedVertex:
    """The table that results from the changes of its input: one row for each key, or one for each version of a key."""

    id: VertexId
    inputs: tuple[Input, ...]
    rows: StructType
    function: AppliedChanges
    table: OutputTable | None = None
    renamed_from: VertexId | None = None


@dataclass(frozen=True, slots=True)
class TopVertex:
    """The first rows of each key. `changes_of` is the vertex whose changes it takes, if its input is a changelog."""

    id: VertexId
    inputs: tuple[Input, ...]
    rows: StructType
    function: TopRows
    table: OutputTable | None = None
    renamed_from: VertexId | None = None
    expires: Expires | None = None
    changes_of: tuple[VertexId, ...] = ()


TakesChanges = AggregateVertex | JoinVertex | TopVertex
KeyedVertex = TakesChanges | AppliedVertex | EnrichVertex | ProcessVertex
Declared = SourceVertex | StagedVertex | KeyedVertex


def inputs_of(vertex: Declared) -> tuple[Input, ...]:
    """Return the inputs of a vertex. A source has none."""
    return () if isinstance(vertex, SourceVertex) else vertex.inputs


def named_outputs_of(vertex: Declared) -> Mapping[str, StructType]:
    """Return the columns of a vertex's named outputs."""
    return vertex.outputs if isinstance(vertex, ProcessVertex) else {}


def former_names_of_columns(vertex: Declared) -> Mapping[str, str]:
    """Return the old names of a vertex's renamed columns by the new ones, also for columns of its tables."""
    own = vertex.columns_renamed_from if isinstance(vertex, AggregateVertex | ProcessVertex) else {}
    return dict(own) | {new: old for each in changes_of_tables(vertex) for new, old in each.renamed_from.items()}


def changes_of_tables(vertex: Declared) -> Iterator[ChangedColumns]:
    """Yield the declared changes of the existing columns of a vertex's tables.

    All append tables of a vertex get the same rows, so the changes are the same for all of them.
    """
    if not isinstance(vertex, SourceVertex) and vertex.table is not None:
        yield vertex.table.changed
    if isinstance(vertex, StagedVertex) and vertex.check is not None:
        yield vertex.check.changed


def tables_of(vertex: Declared) -> Iterator[tuple[TableName, TableName | None]]:
    """Yield the output tables that a vertex writes, each with the name that it had before it was renamed."""
    if isinstance(vertex, SourceVertex):
        return
    if vertex.table is not None:
        yield vertex.table.name, vertex.table.renamed_from
    if isinstance(vertex, StagedVertex) and vertex.check is not None:
        yield vertex.check.quarantine, vertex.check.renamed_from


def deletes_rows(vertex: Declared) -> bool:
    """Return whether this vertex may take back a row without emitting a new row in its place."""
    match vertex:
        case AggregateVertex():
            return bool(vertex.changes_of)
        case AppliedVertex() | TopVertex():
            return True
        case JoinVertex():
            return bool(vertex.changes_of) or vertex.how.takes_back
        case StagedVertex():
            return vertex.takes_back
        case ProcessVertex():
            return takes_rows_back(vertex.function)
        case _:
            return False


def puts_out_changes(vertex: Declared) -> bool:
    """Return whether a vertex can emit changes. An aggregate can, and any other vertex that may take a row back."""
    return isinstance(vertex, AggregateVertex) or deletes_rows(vertex) or is_union_of_changes(vertex)


def is_union_of_changes(vertex: Declared) -> bool:
    """Return whether a vertex is a union of which one stream is a changelog."""
    return isinstance(vertex, StagedVertex) and bool(vertex.changes_of)


def keys_of_rows(vertex: KeyedVertex) -> tuple[str, ...]:
    """Return the key columns of a keyed vertex's rows, unless the user names others."""
    if isinstance(vertex, ProcessVertex) and isinstance(vertex.function, HoldsRows):
        return (*vertex.inputs[0].keys, *vertex.function.rows_by)
    top = _top_of(vertex)
    named = vertex.function.table_keys if isinstance(vertex, AppliedVertex) else () if top is None else top.table_keys
    return named or vertex.inputs[0].keys


def _top_of(vertex: Declared) -> TopRows | None:
    """Return the function of top rows, with or without a time. None: it is another vertex."""
    if isinstance(vertex, TopVertex):
        return vertex.function
    of = vertex.function if isinstance(vertex, ProcessVertex) else None
    return of.top if isinstance(of, TopRowsInTime) else None


# ------------------------------------------------------------------
# A pipeline as data: its vertices, in the order in which rows pass through them.
#
# A stream can only be used after its declaration, so the order of declaration is topological.


class Declarations:
    """The vertices of one pipeline. Each vertex is found by its id."""

    def __init__(self, pipeline: str) -> None:
        """Begin without vertices."""
        self.pipeline = pipeline
        self._vertices: dict[VertexId, Declared] = {}

    def vertices(self) -> tuple[Declared, ...]:
        """Return all vertices in topological order."""
        return tuple(self._vertices.values())

    def vertex(self, name: VertexId) -> Declared:
        """Return a declared vertex."""
        return self._vertices[name]

    def add(self, vertex: Declared) -> None:
        """Declare a vertex. Raise InvalidPipelineError if its id or a table of it is taken."""
        if vertex.id in self._vertices:
            raise InvalidPipelineError(f"pipeline {self.pipeline}: two vertices have the id {vertex.id!r}; rename one")
        self._put(vertex)

    def amend(self, vertex: Declared) -> None:
        """Replace a declared vertex by an extended one. Raise InvalidPipelineError if a table of it is taken."""
        self._put(vertex)

    def is_changelog(self, reads: Input) -> bool:
        """Return whether an input can have changes. Named outputs are append-only."""
        return reads.output is None and puts_out_changes(self._vertices[reads.origin])

    def has_times(self, reads: Input) -> bool:
        """Return whether rows of an input have event times. Then a vertex that reads it has a watermark (N1)."""
        upstream = self._vertices[reads.origin]
        said = any(step.time is not None for step in reads.steps)
        return said or any(self.has_times(each) for each in inputs_of(upstream))

    def kind_of(self, name: VertexId) -> str:
        """Return the word for a vertex that emits changes, as it is used in messages."""
        return _kind(self._vertices[name])

    def updates_of(self, reads: Input) -> VertexId | None:
        """Return the vertex whose updates an input has, or None if the input is append-only.

        An aggregate emits a key's new row whenever the key changed. The rows stay updates if they are written to files,
        checked, enriched or united. The output of a user's process function counts as append-only, because only its
        author knows what it means.
        """
        vertex = self._vertices[reads.origin]
        if reads.output is not None:
            return None
        match vertex:
            case AggregateVertex() | AppliedVertex() | TopVertex():
                return vertex.id
            case JoinVertex():
                return vertex.id if deletes_rows(vertex) else None
            case StagedVertex():
                found = (self.updates_of(each) for each in vertex.inputs)
                return next((upstream for upstream in found if upstream is not None), None)
            case EnrichVertex():
                return self.updates_of(vertex.inputs[0])
            case ProcessVertex():
                return vertex.id if deletes_rows(vertex) else None
            case SourceVertex():
                return None
            case _ as unreachable:
                assert_never(unreachable)

    def _put(self, vertex: Declared) -> None:
        rest = [other for other in self._vertices.values() if other.id != vertex.id]
        others = {table: other.id for other in rest for table, _ in tables_of(other)}
        own = [table for table, _ in tables_of(vertex)]
        for table in own:
            writer = others.get(table, vertex.id if own.count(table) > 1 else None)
            if writer is not None:
                raise InvalidPipelineError(
                    f"vertex {vertex.id}: table {table} is written by vertex {writer} already; "
                    "give each stream a table of its own"
                )
        self._require_names_of_broadcasts(vertex, rest)
        self._require_deletes_taken(vertex)
        self._vertices[vertex.id] = vertex

    def _require_names_of_broadcasts(self, vertex: Declared, rest: Iterable[Declared]) -> None:
        """Raise InvalidPipelineError if a vertex has the name under which another vertex's broadcast state is read."""
        for one, other in ((vertex, other) for other in rest):
            for seeing, named in ((one, other), (other, one)):
                if isinstance(seeing, ProcessVertex) and seeing.broadcast and named.id == broadcast_of(seeing.id):
                    raise InvalidPipelineError(
                        f"pipeline {self.pipeline}: {named.id!r} is the name of the broadcast state of {seeing.id!r}; "
                        "rename one of the two vertices"
                    )

    def _require_deletes_taken(self, vertex: Declared) -> None:
        """Raise InvalidPipelineError if rows can be deleted, and this vertex or its table cannot take them back."""
        if isinstance(vertex, StagedVertex) and vertex.takes_back and (vertex.table or vertex.check):
            raise InvalidPipelineError(_unkept(vertex))
        for reads in () if isinstance(vertex, TakesChanges) or is_union_of_changes(vertex) else inputs_of(vertex):
            if reads.output is None and deletes_rows(self._vertices[reads.origin]):
                raise InvalidPipelineError(_untaken(vertex, self._vertices[reads.origin]))
        if (
            isinstance(vertex, SourceVertex | StagedVertex | EnrichVertex)
            or vertex.table is None
            or not deletes_rows(vertex)
        ):
            return
        table, own, named = vertex.table, keys_of_rows(vertex), f"{_kind(vertex)} {vertex.id!r}"
        if not _can_be_upserted(vertex):
            raise InvalidPipelineError(f"table {table.name}: {named} takes rows back, and {_way_to_a_table(vertex)}")
        why = "takes rows back" if _top_of(vertex) is not None else "takes changes and so deletes rows"
        if table.mode is TableMode.APPEND:
            raise InvalidPipelineError(
                f"table {table.name}: {named} {why}, which an append table cannot do; write it with upsert"
            )
        if set(table.keys) != set(own):
            raise InvalidPipelineError(
                f"table {table.name}: {named} {why}, and finds them by its "
                f"keys {list(own)} only; leave out keys={list(table.keys)}"
            )


def _can_be_upserted(vertex: Declared) -> bool:
    """Return whether the rows of a vertex that takes rows back have known key columns."""
    top = _top_of(vertex)
    return not isinstance(vertex, JoinVertex | StagedVertex) and (top is None or bool(top.table_keys))


def _way_to_a_table(vertex: Declared) -> str:
    """Return the advice how to write rows without known key columns to a table."""
    top = _top_of(vertex)
    if top is not None:
        return (
            f"no column of its {top.n} rows of a key is known to be unique. Number them, as in "
            'row_number="nth", and write them with upsert'
        )
    return (
        "no column of it is known to be unique. Aggregate or deduplicate the joined rows by the columns that are, and "
        "write the result with upsert"
    )


def _unkept(union: StagedVertex) -> str:
    """Return the message why a union cannot write a table or check rows."""
    return (
        f"vertex {union.id}: a stream of this union takes rows back, and neither an append table nor a quarantine can. "
        "Aggregate, join or deduplicate its rows, and write the result with upsert"
    )


def _untaken(vertex: Declared, upstream: Declared) -> str:
    """Return the message why a vertex cannot read from another vertex that deletes rows."""
    if not _can_be_upserted(upstream):
        return (
            f"vertex {vertex.id}: its rows are those of {_kind(upstream)} {upstream.id!r}, which takes rows back, and "
            f"this step cannot. Only aggregate, join, top and union can: aggregate the stream of {upstream.id!r} first"
        )
    why = "takes rows back" if _top_of(upstream) is not None else "takes changes and so deletes rows"
    return (
        f"vertex {vertex.id}: its rows are those of {_kind(upstream)} {upstream.id!r}, which {why}, and this step "
        "cannot take a row back. Only upsert, aggregate, join, top and union can: write the "
        f"stream of {upstream.id!r} with upsert, or aggregate it"
    )


def _kind(vertex: Declared) -> str:
    if _top_of(vertex) is not None:
        return "top"
    match vertex:
        case AppliedVertex():
            return "apply_changes"
        case JoinVertex():
            return "join"
        case StagedVertex():
            return "union"
        case ProcessVertex():
            return "aggregate of windows"
        case _:
            return "aggregate"
