"""Declares the vertices that join two streams by key: as tables, within a time range, by window, or as of a time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pyspark.sql import Column
from pyspark.sql.types import BooleanType, StructType

from checkpointing.identifiers import vertex_id
from jobs.operators.changes import TIMES
from jobs.operators.in_time.joins import (
    DELETES,
    OWN_COLUMNS,
    AsOfJoin,
    IntervalJoin,
    JoinedSides,
    JoinSide,
    WindowJoin,
    as_of_state,
    joined_rows,
    kept_rows_state,
    late_join_rows,
)
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.in_time.windows import END, LATE, START, PeriodicWindows
from jobs.operators.join import LEFT, RIGHT, JoinType, join_schema, own_columns
from jobs.pipeline.columns import FAIL, InvalidPipelineError, duration, former_id, require_late, require_unique
from jobs.pipeline.processing import Rows, process_vertex, time_to_live
from jobs.pipeline.streams import KeyedStream, Stream, WindowedStream, changes_taken
from jobs.pipeline.vertices import JoinVertex
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, UNDECODED_COLUMN
from jobs.state.backend import Expires
from jobs.state.files import NONE_RENAMED

# ruff: noqa: A002 - a vertex has an id, and it is called so

How = Literal["inner", "left", "right", "full", "semi", "anti"]


def join(  # noqa: PLR0913 - each says one thing of the join
    left: KeyedStream | WindowedStream,
    right: KeyedStream | WindowedStream,
    id: str,
    *,
    how: How = "inner",
    within: tuple[str, str] | None = None,
    late: str | None = None,
    ttl: str | Expires | None = None,
    renamed_from: str | None = None,
) -> Stream:
    """Return the joined rows of two streams, as Spark SQL's `JOIN ... USING` does over all rows so far.

    A row has the keys with their left names, then the other columns of the left rows, then those of the right rows.
    Columns that sources add, such as `_split`, come from the left rows if both sides have them. A semi join has the
    left rows with a match, and an anti join the left rows without one. Both have no right columns. State keeps the rows
    of both sides. An inner or semi join of append-only streams is append-only. All others are changelogs: only
    `aggregate`, `join`, `top` and `union` can take their rows. `renamed_from` is the id that the vertex had before.
    With `ttl`, the state drops the rows of a key this long after the key's last row was added or taken back (see
    `expires`).

    With `within=("-5m", "1h")`, rows join only if the right row's event time minus the left row's lies in this range,
    both ends included. Two streams with the same `window` join window by window, when the window closes. For both ways,
    the streams need event times, and must have no updates. The state then keeps a row only as long as a partner can
    arrive, and every join is append-only: an outer row without a partner is emitted once no partner can arrive any
    more. Late rows go only to the table `late`, with `late_side` and `late_by_ms`. The vertex `<id>_late` writes this
    table. With `late="fail"` they fail their micro-batch.

    Raises InvalidNameError, and InvalidPipelineError for a column that both sides have, keys of different types,
    streams that cannot be joined like this, or updates that lost their kind.
    """
    where = f"vertex {id}"
    if how not in [each.value for each in JoinType]:
        types = ", ".join(each.value for each in JoinType)
        raise InvalidPipelineError(f"{where}: no join is called {how!r}; choose one of {types}")
    kind = JoinType(how)
    if ttl is not None and (within is not None or isinstance(left, WindowedStream)):
        raise InvalidPipelineError(f"{where}: a join in time forgets rows once no partner can come; leave ttl out")
    if isinstance(left, WindowedStream) and isinstance(right, WindowedStream):
        if within is not None:
            raise InvalidPipelineError(f"{where}: streams in windows join by window; leave within out")
        windows, rows = _windows(where, left, right), _without_added(left.rows, right.rows)
        function = WindowJoin(_sides(where, left.rows, rows, kind, late), windows)
        joined = _in_time(id, left.rows, rows, function, late, renamed_from)
        return replace(joined, time=TimeColumn(END, left.time.kind, before_ms=1))
    if isinstance(left, WindowedStream) or isinstance(right, WindowedStream):
        raise InvalidPipelineError(f"{where}: only one of its streams has windows; give both the same, or none")
    right = _without_added(left, right) if within is not None or not kind.has_left_alone else right
    if within is not None:
        sides = _sides(where, left, right, kind, late)
        joined = _in_time(id, left, right, IntervalJoin(sides, *_bounds(where, within)), late, renamed_from)
        return replace(joined, time=_time_of(kind, left.stream.time, right.stream.time))
    if late is not None:
        raise InvalidPipelineError(f"{where}: no row is late for a join of all rows; leave late out, or add within")
    return _of_tables(id, left, right, kind, ttl, renamed_from)


def as_of(
    left: KeyedStream,
    right: KeyedStream,
    id: str,
    *,
    late: str,
    how: Literal["inner", "left"] = "left",
    deletes: str | Callable[[], Column] | None = None,
    renamed_from: str | None = None,
) -> Stream:
    """Return each left row with the right row of its key that is valid at its event time.

    The right rows are versions: each is valid from its event time until the event time of the key's next version. A
    left row is emitted once the watermark has passed its time, so no version is missed. A left row without a version
    has nulls, or is left out with `how="inner"`. If `deletes` is true for a version, as in `deletes="op = 'd'"`, the
    key has no version from then on. The state keeps a key's newest version before the watermark, all versions after it,
    and the left rows that wait.

    Late rows go to the table `late`, with `late_side` and `late_by_ms`. The vertex `<id>_late` writes this table. With
    `late="fail"` they fail their micro-batch. A late version is still used for left rows that come later. Both streams
    need event times and no updates. Raises InvalidNameError, InvalidPipelineError.
    """
    where = f"vertex {id}"
    if how not in ("inner", "left"):
        raise InvalidPipelineError(f"{where}: an as-of join is inner or left, not {how!r}")
    right = _without_added(left, right)
    sides = _sides(where, left, right, JoinType(how), late)
    if deletes is not None:
        right = KeyedStream(right.stream.with_column(DELETES, deletes, BooleanType()), right.keys)
        sides = replace(sides, right=replace(sides.right, beside=(DELETES,)))
    return replace(_in_time(id, left, right, AsOfJoin(sides), late, renamed_from), time=left.stream.time)


def _without_added(left: KeyedStream, right: KeyedStream) -> KeyedStream:
    """Return the right rows without the columns that sources add to their rows, if the left rows have them too.

    A joined row comes from two positions in sources. It keeps the position of its left row.
    """
    both = [
        name
        for name in (SPLIT_COLUMN, POSITION_COLUMN, UNDECODED_COLUMN)
        if all(name in each.stream.schema.names and name not in each.keys for each in (left, right))
    ]
    return replace(right, stream=right.stream.drop(*both)) if both else right


def _of_tables(
    id: str, left: KeyedStream, right: KeyedStream, how: JoinType, ttl: str | Expires | None, renamed_from: str | None
) -> Stream:
    """Declare a join of all rows. Either stream is append-only or a changelog."""
    name, where, connected = vertex_id(id), f"vertex {id}", left.connect(right)
    declarations, inputs = left.stream.declarations, (connected.left.as_input(), connected.right.as_input())
    schema = _joined_rows(where, left, right, how)
    for each in inputs:
        require_unique(where, [*each.schema.names, LEFT, RIGHT, TIMES])
    taken = (changes_taken(where, declarations, each, ()) for each in inputs)
    changes_of = tuple(dict.fromkeys(name for names in taken for name in names))
    vertex = JoinVertex(
        name,
        inputs,
        schema,
        how,
        renamed_from=former_id(renamed_from),
        changes_of=changes_of,
        expires=time_to_live(id, ttl, declarations, inputs),
    )
    declarations.add(vertex)
    return Stream(declarations, vertex.id, (), vertex.rows)


def _joined_rows(where: str, left: KeyedStream, right: KeyedStream, how: JoinType) -> StructType:
    """Return the columns of a joined row. Raises InvalidPipelineError for a column that both sides have."""
    try:
        return join_schema(left.stream.schema, right.stream.schema, left.keys, right.keys, how)
    except ValueError as error:
        raise InvalidPipelineError(f"{where}: {error}") from error


# ------------------------------------------------------------------
# Declares joins in event time. A row may be late, and the state drops rows that can find no more partners.


def _in_time(
    id: str,
    left: KeyedStream,
    right: KeyedStream,
    function: IntervalJoin | WindowJoin | AsOfJoin,
    late: str | None,
    renamed_from: str | None,
) -> Stream:
    """Declare the vertex, and another vertex that writes its late rows to the table `late`."""
    where, sides, declarations = f"vertex {id}", function.sides, left.stream.declarations
    left.connect(right)
    require_late(where, id, late)
    rows = left.stream.schema, right.stream.schema
    state = as_of_state(sides, *rows) if isinstance(function, AsOfJoin) else kept_rows_state(function, *rows)
    inputs = (left.as_input(), right.as_input())
    outputs = {} if sides.late_fails else {LATE: late_join_rows(sides, *rows)}
    said = Rows(state, joined_rows(function, *rows), NONE_RENAMED, outputs)
    vertex = process_vertex(inputs, id, function, said, renamed_from)
    declarations.add(vertex)
    joined = Stream(declarations, vertex.id, (), vertex.rows)
    if late is not None and not sides.late_fails:
        joined.output(LATE).table(late, id=f"{id}_late")
    return joined


def _windows(where: str, left: WindowedStream, right: WindowedStream) -> PeriodicWindows:
    """Return the windows of both streams. Raises InvalidPipelineError."""
    windows = left.windows
    if left.by_clock or right.by_clock:
        raise InvalidPipelineError(
            f"{where}: by the clock, which rows meet depends on when they are read; join windows of event time"
        )
    for each in (left, right):
        require_unique(where, [*each.rows.stream.schema.names, START, END])
    if left.windows != right.windows or left.time.kind != right.time.kind:
        raise InvalidPipelineError(f"{where}: its streams have different windows; give both the same, of the same type")
    if not isinstance(windows, PeriodicWindows):
        raise InvalidPipelineError(
            f"{where}: sessions have no end that both streams know; join them within a time range, as in "
            'within=("-5m", "5m")'
        )
    return windows


def _sides(where: str, left: KeyedStream, right: KeyedStream, how: JoinType, late: str | None) -> JoinedSides:
    """Return what a join in time must know about its streams.

    Raises InvalidPipelineError for a stream that it cannot take.
    """
    both = [_side(where, each) for each in (left, right)]
    _joined_rows(where, left, right, JoinType.FULL)
    names = [*left.keys, *both[0].columns, *both[1].columns]
    require_unique(where, [*names, *OWN_COLUMNS])
    return JoinedSides(both[0], both[1], how, late_fails=late == FAIL)


def _side(where: str, keyed: KeyedStream) -> JoinSide:
    stream = keyed.stream
    time = stream.event_times(where)
    if time.name in keyed.keys:
        raise InvalidPipelineError(f"{where}: the event time {time.name} is a key; key the stream by other columns")
    updates = stream.declarations.updates_of(keyed.as_input())
    if updates is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of the {stream.declarations.kind_of(updates)} {updates!r}, and a join in "
            "time takes each row as new. Join the rows before it"
        )
    return JoinSide(keyed.keys, own_columns(stream.schema, keyed.keys), time)


def _time_of(how: JoinType, left: TimeColumn | None, right: TimeColumn | None) -> TimeColumn | None:
    """Return the event time of rows joined within a time range. It comes from a side that every joined row has."""
    return None if how is JoinType.FULL else right if how is JoinType.RIGHT else left


def _bounds(where: str, within: object) -> tuple[int, int]:
    """Return the range in ms. Raises InvalidPipelineError."""
    if not isinstance(within, tuple) or [str, str] != [type(each) for each in within]:
        raise InvalidPipelineError(f'{where}: within is {within!r}; write two durations, as in within=("-5m", "1h")')
    lower_ms, upper_ms = (_signed_ms(where, each) for each in within)
    if lower_ms > upper_ms:
        raise InvalidPipelineError(f'{where}: within begins after its end; write it as in within=("-5m", "1h")')
    return lower_ms, upper_ms


def _signed_ms(where: str, text: str) -> int:
    sign, written = (-1, text[1:]) if text.startswith("-") else (1, text)
    return sign * duration(f"{where}: within", written)
