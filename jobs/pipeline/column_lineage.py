"""Computes column lineage: from which columns of which sources or tables each column of a table comes.

A pipeline declares what its steps and operators do with columns. Only Python functions are opaque: each of their output
columns counts as computed from every column that the function reads. So the lineage may have a column too many, but
lacks none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

import sqlglot
from sqlglot import exp

from checkpointing.identifiers import TableName, VertexId
from jobs.operators.aggregate import Aggregate
from jobs.operators.applied_changes import CURRENT, DELETES, SEQUENCE, TRUNCATES, VALID_FROM, VALID_TO
from jobs.operators.in_time.joins import AsOfJoin, IntervalJoin, WindowJoin
from jobs.operators.in_time.rows import FirstRows, OverRows, TopRowsInTime
from jobs.operators.in_time.top import ClosedTopRows
from jobs.operators.in_time.windows import END, LATE_BY, START, LateRows, PeriodicWindows, WindowedAggregates
from jobs.operators.join import JoinType
from jobs.operators.newest import DELETED, NewestRows
from jobs.operators.spec import FAILED
from jobs.operators.top_rows import TopRows
from jobs.pipeline.vertices import (
    AggregateVertex,
    AppliedVertex,
    Declared,
    EnrichVertex,
    Input,
    JoinVertex,
    ProcessVertex,
    SourceVertex,
    StagedVertex,
    Step,
    TopVertex,
    inputs_of,
)
from jobs.sources.change_rows import KIND
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN


class How(Enum):
    """How a column is used: its values go into another column, or decide which rows there are.

    The names are OpenLineage's. The first three uses are direct, in order from the weakest to the strongest.
    """

    IDENTITY = 0
    TRANSFORMATION = 1
    AGGREGATION = 2
    FILTER = 3
    GROUP_BY = 4
    JOIN = 5
    SORT = 6
    WINDOW = 7

    @property
    def is_direct(self) -> bool:
        """Whether values of the column go into another column."""
        return self.value <= How.AGGREGATION.value


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column of a table, or of a source if `table` is None, and how it is used.

    `vertex` is the source, or the vertex that writes the table.
    """

    vertex: VertexId
    table: TableName | None
    column: str
    how: How


Reads = frozenset[ReadColumn]
_NOTHING: Reads = frozenset()


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """Where the values of each column come from, and which columns decide what `rows` there are."""

    columns: Mapping[str, Reads]
    rows: Reads = _NOTHING

    def every(self) -> Reads:
        """Return all columns from which values come."""
        return frozenset().union(*self.columns.values())

    def of(self, *names: str) -> Reads:
        """Return where the values of these columns come from. Columns that are not there are left out."""
        return frozenset().union(*(self.columns.get(name, _NOTHING) for name in names))

    def decided(self, how: How, *names: str) -> Reads:
        """Return the columns that decide about the rows, with these columns added."""
        return self.rows | _used(self.of(*names), how)


def column_lineage(vertices: Sequence[Declared], *, to_sources: bool) -> dict[TableName, ColumnLineage]:
    """Return a dict from output tables to their lineage. `vertices` are in topological order.

    The lineage ends at the columns of sources. Without `to_sources` it ends at the columns of the nearest table
    upstream.
    """
    own: dict[VertexId, ColumnLineage] = {}
    named: dict[tuple[VertexId, str], ColumnLineage] = {}
    tables: dict[TableName, ColumnLineage] = {}
    for vertex in vertices:
        reads = [_read(each, own, named) for each in inputs_of(vertex)]
        found = _of_vertex(vertex, reads)
        if isinstance(vertex, ProcessVertex):
            for name, schema in vertex.outputs.items():
                named[vertex.id, name] = _of_output(vertex, reads, schema.names)
        tables |= _tables(vertex, found)
        kept = None if isinstance(vertex, SourceVertex) or to_sources else vertex.table
        own[vertex.id] = found if kept is None else _begin(vertex.id, kept.name, vertex.rows.names)
    return tables


def _begin(vertex: VertexId, table: TableName | None, names: Iterable[str]) -> ColumnLineage:
    return ColumnLineage({name: frozenset([ReadColumn(vertex, table, name, How.IDENTITY)]) for name in names})


def _tables(vertex: Declared, found: ColumnLineage) -> Iterator[tuple[TableName, ColumnLineage]]:
    """Yield the tables of a vertex. A quarantine has the rows that fail a rule, and the rule's name."""
    if isinstance(vertex, SourceVertex):
        return
    if vertex.table is not None:
        yield vertex.table.name, found
    if isinstance(vertex, StagedVertex) and vertex.check is not None:
        rules = frozenset[ReadColumn]().union(
            *(_computed(found, rule.good if isinstance(rule.good, str) else None) for rule in vertex.check.rules)
        )
        columns = {**found.columns, FAILED: _used(rules, How.TRANSFORMATION)}
        yield vertex.check.quarantine, ColumnLineage(columns, found.rows | _used(rules, How.FILTER))


def _used(reads: Reads, how: How) -> Reads:
    """Return the columns with this use.

    A stronger direct use stays: an aggregate stays one, whatever is computed from it.
    """

    def after(read: ReadColumn) -> ReadColumn:
        stays = how.is_direct and read.how.is_direct and read.how.value > how.value
        return read if stays else replace(read, how=how)

    return frozenset(map(after, reads))


# ------------------------------------------------------------------
# The steps between two vertices.


def _read(
    reads: Input, own: Mapping[VertexId, ColumnLineage], named: Mapping[tuple[VertexId, str], ColumnLineage]
) -> ColumnLineage:
    found = own[reads.origin] if reads.output is None else named[reads.origin, reads.output]
    for step in reads.steps:
        found = _after(found, step)
    return found


def _after(before: ColumnLineage, step: Step) -> ColumnLineage:
    said = step.derives
    if said is None:
        return _opaque(step.schema.names, [before])
    columns = {
        name: _computed(before, said.computed[name])
        if name in said.computed
        else before.of(said.renamed.get(name, name))
        for name in step.schema.names
    }
    rows = before.rows
    for condition in said.conditions:
        rows |= _used(_computed(before, condition), How.FILTER)
    return ColumnLineage(columns, rows)


def _opaque(names: Iterable[str], inputs: Sequence[ColumnLineage]) -> ColumnLineage:
    """Return the lineage of a Python function."""
    every = _used(frozenset().union(*(each.every() for each in inputs)), How.TRANSFORMATION)
    return ColumnLineage(dict.fromkeys(names, every), frozenset().union(*(each.rows for each in inputs)))


def _computed(before: ColumnLineage, sql: str | None) -> Reads:
    """Return from where the values of a Spark SQL expression come.

    If `sql` is None, a Python function computes them.
    """
    parsed = None if sql is None else _parsed(sql)
    if parsed is None or parsed.find(exp.Star) is not None:
        return _used(before.every(), How.TRANSFORMATION)
    if isinstance(parsed, exp.Column) and len(parsed.parts) == 1:
        return _of_name(before, parsed.name)
    found = (_of_name(before, column.parts[0].name) for column in parsed.find_all(exp.Column))
    return _used(frozenset().union(*found), How.TRANSFORMATION)


def _of_name(before: ColumnLineage, name: str) -> Reads:
    """Return the reads of a column, found without regard to case, as in Spark. A variable of a lambda has no reads."""
    return before.of(*(each for each in before.columns if each.casefold() == name.casefold()))


def _parsed(sql: str) -> exp.Expr | None:
    try:
        return sqlglot.parse_one(sql, read="spark")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return None


# ------------------------------------------------------------------
# The operators.


def _of_vertex(vertex: Declared, reads: Sequence[ColumnLineage]) -> ColumnLineage:
    """Return the lineage of the rows that a vertex emits, from the lineage of the rows that it reads."""
    match vertex:
        case SourceVertex():
            begins = _begin(vertex.id, None, vertex.rows.names).columns
            return ColumnLineage({**begins, SPLIT_COLUMN: _NOTHING, POSITION_COLUMN: _NOTHING})
        case StagedVertex():
            return _passed(vertex.rows.names, reads, {}, _rows(reads), merged=True)
        case AggregateVertex():
            keys = vertex.inputs[0].keys
            return _passed(
                vertex.rows.names,
                reads,
                _aggregated(reads[0], vertex.aggregates),
                reads[0].decided(How.GROUP_BY, *keys),
            )
        case EnrichVertex():
            left, right = vertex.inputs
            rows = reads[0].decided(How.JOIN, *left.keys) | reads[1].decided(How.JOIN, *right.keys)
            latest = () if vertex.latest_by is None else (vertex.latest_by,)
            return _passed(vertex.rows.names, reads, {}, rows | reads[1].decided(How.SORT, *latest))
        case JoinVertex():
            return _joined(vertex.rows.names, reads, vertex.how, *(each.keys for each in vertex.inputs))
        case AppliedVertex():
            return _applied(vertex, reads[0])
        case TopVertex():
            return _top(vertex.rows.names, reads, vertex.function)
        case ProcessVertex():
            return _processed(vertex, reads)
        case _ as unreachable:
            assert_never(unreachable)


def _rows(reads: Sequence[ColumnLineage]) -> Reads:
    return frozenset().union(*(each.rows for each in reads))


def _passed(
    names: Iterable[str],
    reads: Sequence[ColumnLineage],
    computed: Mapping[str, Reads],
    rows: Reads,
    *,
    merged: bool = False,
) -> ColumnLineage:
    """Return the lineage of columns that keep the input's columns of the same name.

    The first input with a column of that name is used, or all inputs if `merged`.
    """

    def of(name: str) -> Reads:
        if name in computed:
            return computed[name]
        having = [each for each in reads if name in each.columns]
        return frozenset().union(*(each.of(name) for each in (having if merged else having[:1])))

    return ColumnLineage({name: of(name) for name in names}, rows)


def _aggregated(before: ColumnLineage, aggregates: Sequence[Aggregate]) -> dict[str, Reads]:
    return {
        each.name: _used(before.of(*(name for name in each.function.columns if name)), How.AGGREGATION)
        for each in aggregates
    }


def _joined(names: Iterable[str], reads: Sequence[ColumnLineage], how: JoinType, *keys: Sequence[str]) -> ColumnLineage:
    """Return the lineage of joined rows. If the left row may be missing, a key may have the right row's value."""
    (left, right), (of_left, of_right) = reads, keys
    found: dict[str, Reads] = {}
    if how in (JoinType.RIGHT, JoinType.FULL):
        found = {one: left.of(one) | right.of(other) for one, other in zip(of_left, of_right, strict=True)}
    return _passed(names, reads, found, left.decided(How.JOIN, *of_left) | right.decided(How.JOIN, *of_right))


def _applied(vertex: AppliedVertex, changes: ColumnLineage) -> ColumnLineage:
    order = changes.of(SEQUENCE)
    history = dict.fromkeys((VALID_FROM, VALID_TO, CURRENT), _used(order, How.TRANSFORMATION))
    rows = changes.decided(How.GROUP_BY, *vertex.function.keys) | changes.decided(How.SORT, SEQUENCE)
    computed = history if vertex.function.history else {}
    return _passed(vertex.rows.names, [changes], computed, rows | changes.decided(How.FILTER, DELETES, TRUNCATES))


def _top(names: Iterable[str], reads: Sequence[ColumnLineage], top: TopRows) -> ColumnLineage:
    order = [each.column for each in top.order]
    numbers = _used(reads[0].of(*order), How.TRANSFORMATION)
    computed = {name: numbers for name in (top.number, top.place) if name is not None}
    return _passed(names, reads, computed, reads[0].decided(How.WINDOW, *top.keys, *order))


def _processed(vertex: ProcessVertex, reads: Sequence[ColumnLineage]) -> ColumnLineage:
    """Return the lineage of a function's own output.

    Built-in functions have a known lineage, and a user's is opaque.
    """
    names, first, keys = vertex.rows.names, reads[0], vertex.inputs[0].keys
    match vertex.function:
        case WindowedAggregates() as windowed:
            time = () if windowed.by_clock else (windowed.late.time.name,)
            computed = {**_bounds(first, *time), **_aggregated(first, windowed.aggregates.aggregates)}
            rows = first.decided(How.GROUP_BY, *keys) | first.decided(How.WINDOW, *time)
            return _passed(names, reads, computed, rows)
        case IntervalJoin() | AsOfJoin() | WindowJoin() as joins:
            return _joined_in_time(names, reads, joins)
        case TopRowsInTime(top=top):
            return _top(names, reads, top)
        case ClosedTopRows() as closed:
            bounds = _bounds(first, closed.late.time.name) if isinstance(closed.windows, PeriodicWindows) else {}
            found = _top(names, reads, closed.first)
            return replace(
                found, columns={**found.columns, **bounds}, rows=found.rows | first.decided(How.WINDOW, *keys)
            )
        case FirstRows(late=late):
            return _passed(names, reads, {}, first.decided(How.WINDOW, *keys, late.time.name))
        case OverRows(late=late, aggregates=over):
            computed = _aggregated(first, over.aggregates)
            return _passed(names, reads, computed, first.decided(How.WINDOW, *keys, late.time.name))
        case NewestRows():
            computed = {DELETED: _used(first.of(KIND), How.TRANSFORMATION)}
            rows = first.decided(How.GROUP_BY, *keys) | first.decided(How.SORT, POSITION_COLUMN)
            return _passed(names, reads, computed, rows)
        case _:
            return _opaque(names, reads)


def _bounds(before: ColumnLineage, *time: str) -> dict[str, Reads]:
    return dict.fromkeys((START, END), _used(before.of(*time), How.TRANSFORMATION))


def _joined_in_time(
    names: Iterable[str], reads: Sequence[ColumnLineage], joins: IntervalJoin | AsOfJoin | WindowJoin
) -> ColumnLineage:
    sides = joins.sides
    found = _joined(names, reads, sides.how, sides.left.keys, sides.right.keys)
    times = (
        each.decided(How.JOIN, side.time.name, *side.beside)
        for each, side in zip(reads, (sides.left, sides.right), strict=True)
    )
    bounds: dict[str, Reads] = {}
    if isinstance(joins, WindowJoin):
        begun = reads[0].of(sides.left.time.name) | reads[1].of(sides.right.time.name)
        bounds = dict.fromkeys((START, END), _used(begun, How.TRANSFORMATION))
    return ColumnLineage({**found.columns, **bounds}, found.rows.union(*times))


def _of_output(vertex: ProcessVertex, reads: Sequence[ColumnLineage], names: Iterable[str]) -> ColumnLineage:
    """Return the lineage of a named output. The late rows of built-in functions keep their columns."""
    function = vertex.function
    match function:
        case IntervalJoin(sides=sides) | AsOfJoin(sides=sides) | WindowJoin(sides=sides):
            times = reads[0].of(sides.left.time.name) | reads[1].of(sides.right.time.name)
            both = {
                one: reads[0].of(one) | reads[1].of(other)
                for one, other in zip(sides.left.keys, sides.right.keys, strict=True)
            }
        case (
            WindowedAggregates(late=LateRows() as late)
            | TopRowsInTime(late=late)
            | ClosedTopRows(late=late)
            | FirstRows(late=late)
            | OverRows(late=late)
        ):
            times, both = reads[0].of(late.time.name), {}
        case _:
            return _opaque(names, reads)
    by = {LATE_BY: _used(times, How.TRANSFORMATION)}
    return _passed(names, reads, {**both, **by}, _rows(reads) | _used(times, How.FILTER))
