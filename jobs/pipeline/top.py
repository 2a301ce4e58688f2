"""Declares the vertex that keeps the first rows of each key in an order. The input is append-only or a changelog."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal

from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from checkpointing.identifiers import vertex_id
from checkpointing.metadata.row_validity import NUMBER_MAX
from jobs.operators.changes import KIND, TIMES
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.in_time.rows import TopRowsInTime
from jobs.operators.in_time.top import ClosedTopRows, closed_top_output, closed_top_state
from jobs.operators.in_time.windows import DUE, END, LATE_BY, START, LateRows, PeriodicWindows
from jobs.operators.newest import DELETED, NewestRows
from jobs.operators.top_rows import ROWS, Order, TopRows, top_output, top_state
from jobs.pipeline.columns import (
    FAIL,
    InvalidPipelineError,
    former_id,
    require_columns,
    require_free,
    require_ordered,
    require_unique,
    time_column,
)
from jobs.pipeline.processing import time_to_live
from jobs.pipeline.rows_in_time import declared_with_late, event_time_of, positive
from jobs.pipeline.streams import KeyedStream, Stream, WindowedStream, changes_taken
from jobs.pipeline.vertices import TopVertex
from jobs.sources.change_rows import HEAD, LSN, UNCHANGED
from jobs.sources.change_rows import KIND as CHANGE_KIND
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.state.backend import Expires

_DIRECTIONS: Final = {" desc": True, " asc": False}


def top(  # noqa: PLR0913 - each says one thing of the rows
    rows: KeyedStream | WindowedStream,
    id: str,  # noqa: A002 - its name
    *,
    n: int,
    order_by: str | Sequence[str],
    ties: bool = False,
    place: str | None = None,
    row_number: str | None = None,
    ttl: str | Expires | None = None,
    within: str | None = None,
    until: str | None = None,
    late: str | None = None,
    late_id: str | None = None,
    renamed_from: str | None = None,
) -> Stream:
    """Return the first `n` rows of each key, as Spark SQL's `row_number() <= n` does over all rows so far.

    `order_by` names one or more columns. Write "total desc" for the greatest value first. Nulls come first, or last
    with desc. If rows are equal in these columns, their other columns decide, in ascending order. `row_number` is the
    name of a column for the number of a row, from 1. With `ties`, rows that are equal to the last one in `order_by` are
    returned too, as with `rank() <= n`. `place` is the name of a column for that rank. Equal rows have the same rank.
    The stream is a changelog. With a `row_number`, or with n=1 without ties, `upsert` can keep it. `renamed_from` is
    the id that the vertex had before. With `ttl`, the state drops the rows of a key this long after the last change of
    the key's first rows (see `expires`). Dropped rows are not taken back: a table keeps them until the key has new
    rows. With `within` the state drops a key's rows once the watermark is that long after the latest event time of the
    key. So as long as no pause of a key is longer, the result is the top rows of all rows. After a longer pause, a key
    begins anew. With `within`, a row is late if its time is not after the watermark of the last barrier. It goes to the
    table `late`, with `late_by_ms`. A vertex `<id>_late` writes this table, or `late_id`. Without `late`, a late row
    fails its micro-batch.

    In two ways the result is append-only: each row is emitted once and then dropped from the state. From a stream with
    a `window`, the first rows of each key and window are emitted when the window closes. With `until`, a timestamp
    column such as `until="expires"`, the first rows of a key are emitted once the watermark has reached the time in
    that column. Rows of a key with different times there are ranked separately. In both ways `late` has no default.
    Raises InvalidNameError, and InvalidPipelineError for an `n` that is no number of rows, a column that is not there
    or has no order, updates that lost their kind, and `within` for rows without event times or for updates.
    """
    name, where = vertex_id(id), f"vertex {id}"
    _require_number(where, n)
    keyed = rows.rows if isinstance(rows, WindowedStream) else rows
    bounds = (START, END) if isinstance(rows, WindowedStream) else () if until is None else (until,)
    function = replace(_first_rows(where, keyed, bounds, order_by, (place, row_number)), n=n, ties=ties)
    if bounds:
        closes = _closing(where, rows, until, late, [within, ttl])
        return _closed(keyed, id, function, closes, (late or FAIL, late_id), renamed_from)
    reads, declarations = keyed.as_input(), keyed.stream.declarations
    changes_of = changes_taken(where, declarations, reads, ())
    function = replace(function, changelog=bool(changes_of))
    output = top_output(reads.schema, keyed.keys, row_number, place)
    if within is not None:
        in_time = _forgotten(where, keyed, function, within, late, ttl)
        schemas = reads, _state_in_time(keyed), output
        return declared_with_late(keyed, id, in_time, schemas, (late or FAIL, late_id), renamed_from)
    if late is not None or late_id is not None:
        raise InvalidPipelineError(f"{where}: rows are late only with within=, until= or a window: leave late out")
    was, lives = former_id(renamed_from), time_to_live(id, ttl, declarations, [reads])
    vertex = TopVertex(name, (reads,), output, function, renamed_from=was, changes_of=changes_of, expires=lives)
    declarations.add(vertex)
    return Stream(declarations, vertex.id, (), output)


def deduplicate(  # noqa: PLR0913 - each says one thing of the rows
    rows: KeyedStream,
    id: str,  # noqa: A002 - its name
    *,
    order_by: str,
    keep: Literal["first", "last"] = "first",
    ttl: str | Expires | None = None,
    within: str | None = None,
    late: str | None = None,
    late_id: str | None = None,
    renamed_from: str | None = None,
) -> Stream:
    """Return one row of each key: the first or the last by the column `order_by`. It is `top` with n=1.

    A row without a value in `order_by` comes first. It is the last only if the key has no other row. `ttl`, `within`,
    `late` and `late_id` are as in `top`. With `within`, and with the event time in `order_by`, the last row of each key
    is the last of all its rows, however long its pauses are, because a row after a pause is newer. Raises the errors of
    `top`, and InvalidPipelineError for another word in `keep`.
    """
    if keep not in ("first", "last"):
        raise InvalidPipelineError(f'vertex {id}: keep is {keep!r}; write "first" or "last"')
    by = f"{order_by} desc" if keep == "last" else f"{order_by} asc"
    return top(
        rows, id, n=1, order_by=by, ttl=ttl, within=within, late=late, late_id=late_id, renamed_from=renamed_from
    )


def _forgotten(
    where: str, rows: KeyedStream, top: TopRows, within: str, late: str | None, ttl: object
) -> TopRowsInTime:
    """Return the function that drops keys which have had no rows for `within`. Raises InvalidPipelineError.

    The error is raised for changes of rows, because they have no event times. It is also raised for a `ttl`, because
    that would be a second rule for when to drop a key.
    """
    if top.changelog:
        raise InvalidPipelineError(
            f"{where}: its rows are changes of {rows.stream.origin!r}, which have no event times for within=: write "
            f'ttl=expires("1d", by="clock"), or read the rows before {rows.stream.origin!r}'
        )
    if ttl is not None:
        raise InvalidPipelineError(f"{where}: within= and ttl= both say when a key is forgotten: write one of them")
    of_late = LateRows(tuple(rows.stream.schema.names), event_time_of(where, rows), late in (None, FAIL))
    return TopRowsInTime(top, of_late, positive(where, "within", within))


def _state_in_time(rows: KeyedStream) -> StructType:
    """Return the columns of the state of `TopRowsInTime`, without the keys."""
    held = top_state(rows.stream.schema, rows.keys).fields[len(rows.keys) :]
    return StructType([*held, StructField(DUE, LongType())])


def _closing(
    where: str, rows: KeyedStream | WindowedStream, until: str | None, late: str | None, others: Sequence[object]
) -> tuple[PeriodicWindows | None, TimeColumn]:
    """Return the windows, if there are any, and the time by which rows are late. Raises InvalidPipelineError."""
    if any(each is not None for each in others):
        raise InvalidPipelineError(f"{where}: its rows are forgotten once they are put out; leave within and ttl out")
    if late is None:
        raise InvalidPipelineError(
            f"{where}: say where late rows go, as in late='late/rows'. With late='fail' they are an error"
        )
    if isinstance(rows, WindowedStream):
        if until is not None:
            raise InvalidPipelineError(f"{where}: its window says when rows are put out; leave until out")
        if rows.by_clock or not isinstance(rows.windows, PeriodicWindows):
            raise InvalidPipelineError(f"{where}: first rows need windows at fixed times of event time, as tumbling's")
        return rows.windows, rows.time
    stream, time = rows.stream, time_column(f"{where}, until", rows.stream.schema, until or "")
    if time.name in rows.keys:
        raise InvalidPipelineError(f"{where}: until names {time.name!r}, a key; key the stream by other columns")
    if not stream.declarations.has_times(rows.as_input()):
        raise InvalidPipelineError(f"{where}: its rows have no event times: declare event_time on a source of it")
    upstream = stream.declarations.updates_of(rows.as_input())
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of {upstream!r}, and each would count as a row of its own: leave until "
            f"out, or read the rows before {upstream!r}"
        )
    return None, time


def _closed(
    rows: KeyedStream,
    id: str,  # noqa: A002 - its name
    first: TopRows,
    closing: tuple[PeriodicWindows | None, TimeColumn],
    late: tuple[str, str | None],
    renamed_from: str | None,
) -> Stream:
    """Declare the vertex that emits first rows once, and the vertex that writes its late rows."""
    reads, (windows, time) = rows.as_input(), closing
    require_unique(f"vertex {id}", [*reads.schema.names, DUE, LATE_BY])
    function = ClosedTopRows(rows.keys, first, windows, LateRows(tuple(reads.schema.names), time, late[0] == FAIL))
    schemas = reads, closed_top_state(function, reads.schema), closed_top_output(function, reads.schema)
    stream = declared_with_late(rows, id, function, schemas, late, renamed_from)
    return replace(stream, time=time if windows is None else TimeColumn(END, time.kind, before_ms=1))


def _first_rows(
    where: str,
    rows: KeyedStream,
    bounds: Sequence[str],
    order_by: str | Sequence[str],
    beside: tuple[str | None, str | None],
) -> TopRows:
    """Return the function that keeps one first row for each key and these bounds.

    `beside` has the names of the columns for place and number.

    Raises InvalidPipelineError.
    """
    place, number = beside
    by = [order_by] if isinstance(order_by, str) else order_by
    schema, keys = rows.stream.schema, (*rows.keys, *bounds)
    others = tuple(column for column in schema.names if column not in keys)
    names = [*keys, *others, *(each for each in beside if each is not None)]
    require_unique(where, [*names, ROWS, TIMES, KIND])
    require_free(where, names)
    order = tuple(_orders(where, schema, by, keys))
    return TopRows(keys, others, order, 1, number, changelog=False, place=place)


def _require_number(where: str, n: object) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= NUMBER_MAX:
        raise InvalidPipelineError(f"{where}: n is {n!r}; write a whole number of rows from 1 to {NUMBER_MAX}")


def _orders(where: str, rows: StructType, order_by: Sequence[str], keys: Sequence[str]) -> Iterator[Order]:
    """Yield the columns of the order.

    Raise InvalidPipelineError for a column that is missing, is a key, or has no order.
    """
    if not order_by:
        raise InvalidPipelineError(f'{where}: order_by names no column; write one, as in order_by=["total desc"]')
    for text in order_by:
        column, falls = next(
            ((text[: -len(end)].rstrip(), falls) for end, falls in _DIRECTIONS.items() if text.lower().endswith(end)),
            (text, False),
        )
        require_ordered(where, rows, column, "order_by")
        if column in keys:
            raise InvalidPipelineError(
                f"{where}: order_by names {column!r}, a key, and all rows of a key are alike in it; name another column"
            )
        yield Order(column, falls)


# ------------------------------------------------------------------
# Declares the vertex that keeps the newest row of each key of a table's changes.


def newest_rows(
    changes: KeyedStream,
    id: str,  # noqa: A002 - its name
    *,
    truncates: Literal["fail", "ignore"] = "fail",
    ttl: str | Expires | None = None,
    renamed_from: str | None = None,
) -> Stream:
    """Return the newest row of each key of a table's changes. Keep it with `upsert`.

    The rows have the table's columns, then `_lsn`, `_position`, `_unchanged` and `_is_deleted`. A deleted key keeps its
    row with `_is_deleted` true, and its other columns are null unless the server sends the whole old row. `truncates`
    says whether a truncate of the table is an error or is ignored. `renamed_from` is the id that the vertex had before.
    With `ttl` the state drops a key that long after its last change (see `expires`). Raises InvalidPipelineError for
    rows that are not a table's changes.
    """
    rows = changes.stream.schema
    require_columns(f"newest_rows {id}", rows, [CHANGE_KIND, LSN, UNCHANGED, POSITION_COLUMN])
    added = {*HEAD.names, SPLIT_COLUMN, POSITION_COLUMN}
    own = [field for field in rows.fields if field.name not in added and field.name not in changes.keys]
    state = StructType(
        [
            *own,
            StructField(LSN, LongType()),
            StructField(POSITION_COLUMN, LongType()),
            StructField(UNCHANGED, ArrayType(StringType())),
            StructField(DELETED, BooleanType()),
        ]
    )
    output = StructType([*(rows[key] for key in changes.keys), *state.fields])
    function = NewestRows(changes.keys, tuple(field.name for field in own), truncates == "ignore")
    return changes.process(id, function, state=state, output=output, ttl=ttl, renamed_from=renamed_from)
