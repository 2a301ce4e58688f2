"""Declares vertices in time that emit rows: the first rows of each key, and aggregates over preceding rows.

Their output is append-only: each row is emitted once (N6).
"""

from typing import Final

from pyspark.sql.types import LongType, StructField, StructType

from checkpointing.identifiers import vertex_id
from checkpointing.metadata.row_validity import NUMBER_MAX
from jobs.operators.aggregate import KeyedAggregates, output_schema, state_schema
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.in_time.rows import BEFORE, ROW, WAITING, FirstRows, OverRows, first_state, over_state
from jobs.operators.in_time.windows import DUE, LATE, LATE_BY, LateRows, late_rows
from jobs.operators.process import AnyFunction
from jobs.operators.spec import arrow_schema
from jobs.pipeline.aggregates import AggregateColumn, named_aggregates
from jobs.pipeline.columns import FAIL, InvalidPipelineError, duration, require_late, require_unique
from jobs.pipeline.processing import Rows, process_vertex
from jobs.pipeline.streams import KeyedStream, Stream, with_derived
from jobs.pipeline.vertices import Input, deletes_rows
from jobs.state.files import NONE_RENAMED

# ruff: noqa: A002 - a vertex has an id, and it is called so

_ROWS_MAX: Final = 100_000
"""The most rows over which `last=` may aggregate. The state keeps so many rows of each key."""


def distinct(
    rows: KeyedStream,
    id: str,
    *,
    within: str,
    late: str = FAIL,
    late_id: str | None = None,
    renamed_from: str | None = None,
) -> Stream:
    """Return the first row of each key, and drop other rows of the key that are less than `within` before or after it.

    `distinct(clicks.key_by("click_id"), "once", within="1d")` emits a click as soon as its epoch ends. The state keeps
    the key and the time until the watermark is a day after that time. The first row of an epoch is the one with the
    earliest time. Of rows with the same time, it is the least row by the other columns. A row is late if its time is
    not after the watermark of the last barrier. It goes to the table `late`, with `late_by_ms`. A vertex `<id>_late`
    writes this table, or `late_id`. Without `late`, a late row fails its micro-batch. `renamed_from` is the id that the
    vertex had before. Raises InvalidNameError, and InvalidPipelineError for rows without event times and for updates of
    other rows.
    """
    where = f"vertex {vertex_id(id)}"
    within_ms, time = positive(where, "within", within), event_time_of(where, rows)
    reads = rows.stream.as_input(rows.keys)
    columns = tuple(name for name in reads.schema.names if name not in rows.keys)
    function = FirstRows(rows.keys, columns, LateRows(tuple(reads.schema.names), time, late == FAIL), within_ms)
    output = StructType([*(reads.schema[name] for name in (*rows.keys, *columns))])
    return declared_with_late(
        rows, id, function, (reads, first_state(function, reads.schema), output), (late, late_id), renamed_from
    )


def over(
    rows: KeyedStream,
    id: str,
    /,
    *,
    last: int | None = None,
    within: str | None = None,
    late: str = FAIL,
    late_id: str | None = None,
    renamed_from: str | None = None,
    **columns: AggregateColumn,
) -> Stream:
    """Return each row with aggregates over this row and preceding rows of its key, as SQL's `OVER` does.

    `over(trades.key_by("sku"), "moving", within="10m", mean=avg_of("price"))` aggregates over ten minutes (SQL: `RANGE
    BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW`). With `last=10` it aggregates over the last ten rows (SQL:
    `ROWS BETWEEN 9 PRECEDING AND CURRENT ROW`). Rows are ordered by event time, and those with the same time by their
    other columns, ascending. A row is emitted when the watermark has passed its time. `late`, `late_id` and
    `renamed_from` are as in `distinct`. Raises the errors of `distinct`, and InvalidPipelineError for a column that
    cannot be computed.
    """
    where = f"vertex {vertex_id(id)}"
    if (last is None) == (within is None):
        raise InvalidPipelineError(f'{where}: say how far a row looks back: last=10 rows, or within="10m"')
    if last is not None and (type(last) is not int or not 1 <= last <= _ROWS_MAX):
        raise InvalidPipelineError(f"{where}: last is {last!r}; write a whole number of rows from 1 to {_ROWS_MAX}")
    within_ms, time = None if within is None else positive(where, "within", within), event_time_of(where, rows)
    reads = with_derived(where, rows.stream, columns).as_input(rows.keys)
    aggregates = KeyedAggregates((ROW,), named_aggregates(where, rows.keys, reads.schema, columns))
    require_unique(where, [*reads.schema.names, *columns, ROW, BEFORE, WAITING])
    with_row = StructType([StructField(ROW, LongType()), *reads.schema.fields])
    own = rows.stream.schema.names
    function = OverRows(
        keys=rows.keys,
        columns=tuple(name for name in reads.schema.names if name not in rows.keys),
        shown=tuple(name for name in own if name not in rows.keys),
        late=LateRows(tuple(own), time, late == FAIL),
        aggregates=aggregates,
        held=arrow_schema(state_schema((ROW,), aggregates.aggregates, with_row)),
        rows_max=last,
        within_ms=within_ms,
    )
    found = output_schema((ROW,), aggregates.aggregates, with_row).fields[1:]
    output = StructType([*(reads.schema[name] for name in (*rows.keys, *function.shown)), *found])
    return declared_with_late(
        rows, id, function, (reads, over_state(function, reads.schema), output), (late, late_id), renamed_from
    )


def event_time_of(where: str, rows: KeyedStream) -> TimeColumn:
    """Return the event time of the rows. Raise InvalidPipelineError if the rows have no event time or are updates."""
    stream, declarations = rows.stream, rows.stream.declarations
    time = stream.event_times(where)
    if time.name in rows.keys:
        raise InvalidPipelineError(f"{where}: the event time {time.name} is a key: key the rows by other columns")
    upstream = declarations.updates_of(stream.as_input())
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of {upstream!r}, and each would count as a row of its own: read the rows "
            f"before {upstream!r}"
        )
    require_unique(where, [*stream.schema.names, DUE, LATE_BY])
    return time


def positive(where: str, name: str, said: str) -> int:
    """Return a duration in ms.

    Raise InvalidPipelineError for a text that is no duration, and for a duration of zero.
    """
    ms = duration(f"{where}: {name}", said)
    if not 0 < ms <= NUMBER_MAX:
        raise InvalidPipelineError(f"{where}: {name} is {said}; write one such as 1d")
    return ms


def declared_with_late(
    rows: KeyedStream,
    id: str,
    function: AnyFunction,
    schemas: tuple[Input, StructType, StructType],
    late: tuple[str, str | None],
    renamed_from: str | None,
) -> Stream:
    """Declare the vertex, and the vertex that writes its late rows.

    `schemas` are the vertex's input, its state and its output. The returned rows have the event times of the rows read,
    unless rows are taken back.
    """
    (reads, state, output), (table, table_id), declarations = schemas, late, rows.stream.declarations
    require_late(f"vertex {id}", id, table)
    outputs = {} if table == FAIL else {LATE: late_rows(rows.stream.schema.names, rows.stream.schema)}
    vertex = process_vertex((reads,), id, function, Rows(state, output, NONE_RENAMED, outputs), renamed_from)
    declarations.add(vertex)
    stream = Stream(declarations, vertex.id, (), vertex.rows)
    if table != FAIL:
        stream.output(LATE).table(table, id=table_id or f"{id}_late")
    return Stream(declarations, vertex.id, (), vertex.rows, time=None if deletes_rows(vertex) else rows.stream.time)
