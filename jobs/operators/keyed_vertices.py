"""Builds the specifications of the built-in keyed vertices: aggregates, joins, top rows and the others."""

from collections.abc import Mapping, Sequence
from typing import Final, Required, TypedDict, Unpack

from pyspark.sql.types import StructType

from checkpointing.identifiers import VertexId
from checkpointing.metadata.row_validity import NUMBER_MAX
from checkpointing.state_meaning import BROADCAST, PROCESS, Argument, ColumnMeaning
from jobs.operators.aggregate import Aggregate, KeyedAggregates, Named, needed_columns, output_schema, state_schema
from jobs.operators.applied_changes import (
    DELETES,
    HISTORY,
    SEQUENCE,
    TRUNCATES,
    UNSENT,
    AppliedChanges,
    applied_output,
    applied_state,
)
from jobs.operators.broadcast import Broadcast
from jobs.operators.changelog_aggregates import ROWS, ChangingAggregates, changing_aggregates, changing_state_schema
from jobs.operators.enrich import RIGHT, WAITING, EnrichFunction, enrich_schema, enrich_state_schema, gained_names
from jobs.operators.in_time.joins import AsOfJoin, IntervalJoin, WindowJoin
from jobs.operators.in_time.rows import TopRowsInTime
from jobs.operators.in_time.top import ClosedTopRows
from jobs.operators.in_time.windows import DUE, WindowedAggregates
from jobs.operators.join import LEFT, JoinFunction, JoinType, join_schema, join_state_schema, own_columns
from jobs.operators.join import RIGHT as JOINED_RIGHT
from jobs.operators.process import AnyFunction
from jobs.operators.spec import BroadcastRowsKept, KeyedInput, KeyedSpec, StagedTable, schema_with_kind
from jobs.operators.top_rows import ROWS as TOP_ROWS
from jobs.operators.top_rows import TopRows, top_output, top_state
from jobs.state.backend import Expires, StateBackend

# ------------------------------------------------------------------
# Returns the meaning of a keyed vertex's state columns, for the checkpoint (`checkpointing.state_meaning`).


BROADCAST_ROWS: Final = "_broadcast_rows"
"""Stands in a checkpoint's entry for the columns of broadcast state."""


class InvalidStateVersionError(ValueError):
    """A `state_version` is not a whole number from 1; the message names the declared value."""


def aggregate_meanings(aggregates: Sequence[Named], rows: StructType) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of each aggregate over rows of this schema."""
    return tuple(
        ColumnMeaning(
            column=one.name,
            function=one.function.name,
            arguments=_arguments(rows, one.function.columns),
        )
        for one in aggregates
    )


def window_meanings(function: WindowedAggregates, rows: StructType) -> tuple[ColumnMeaning, ...]:
    """Return what the columns of a window vertex's state mean: those of the aggregates and those of the windows."""
    time = (Argument("clock", "time"),) if function.by_clock else _arguments(rows, [function.late.time.name])
    of = (Argument(function.windows.meaning, "window"), *time)
    return (
        *aggregate_meanings(function.aggregates.aggregates, rows),
        ColumnMeaning(column=DUE, function="windows", arguments=of),
    )


def enrich_meanings(
    right: StructType, right_keys: Sequence[str], latest_by: str | None = None
) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of an enrichment's state: which right row of a key it keeps, and its waiting left rows."""
    function, ordered = ("first_right_row", ()) if latest_by is None else ("latest_right_row", (latest_by,))
    return (
        ColumnMeaning(column=RIGHT, function=function, arguments=_arguments(right, (*right_keys, *ordered))),
        ColumnMeaning(column=WAITING, function="waiting_left_rows"),
    )


def join_meanings(
    left: StructType, right: StructType, keys: Sequence[str], right_keys: Sequence[str]
) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of a join's state: the rows of both sides, by these keys.

    The meaning is the same for all join types.
    """
    return (
        ColumnMeaning(column=LEFT, function="joined_rows", arguments=_arguments(left, keys)),
        ColumnMeaning(column=JOINED_RIGHT, function="joined_rows", arguments=_arguments(right, right_keys)),
    )


def applied_meanings(function: AppliedChanges, rows: StructType) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of the changes that a key holds: all or the newest, of which columns, in which order.

    The meaning also has the number of columns in which a null is ignored, and the number of columns that begin a
    version. It names these columns last. They belong to the meaning because the rows already written to the table
    depend on them.
    """
    kept = "all_changes" if function.history else "newest_change"
    kept = f"{kept}_of_a_database" if function.of_database else kept
    kept = f"{kept}_ignoring_nulls_of_{len(function.ignored)}" if function.ignored else kept
    kept = kept if function.tracked is None else f"{kept}_tracking_{len(function.tracked)}"
    named = (*function.columns, *function.ignored, *(function.tracked or ()))
    arguments = _arguments(rows, (function.sequence_by, *named))
    return (ColumnMeaning(column=HISTORY, function=kept, arguments=arguments),)


def top_meanings(function: TopRows, rows: StructType) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of a key's kept rows: how many are first, in which order, and whether others are kept too.

    All of this decides which rows were emitted so far. So a pipeline with another number or another order cannot go on
    from this state.
    """
    kept = "all_rows" if function.changelog else "new_rows"
    ordered = (Argument(str(by), rows[by.column].dataType.simpleString()) for by in function.order)
    rest = [name for name in function.columns if name not in {by.column for by in function.order}]
    arguments = (*ordered, *_arguments(rows, rest))
    first = f"first_{function.n}_with_ties" if function.ties else f"first_{function.n}"
    return (ColumnMeaning(column=TOP_ROWS, function=f"{first}_of_{kept}", arguments=arguments),)


def top_in_time_meanings(function: TopRowsInTime, rows: StructType) -> tuple[ColumnMeaning, ...]:
    """Return the same meaning for top rows with a time.

    A pipeline may change how long a key stays: no row depends on it.
    """
    leaves = ColumnMeaning(column=DUE, function="leaves_after", arguments=_arguments(rows, (function.late.time.name,)))
    return (*top_meanings(function.top, rows), leaves)


def closed_top_meanings(function: ClosedTopRows, rows: StructType) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of first rows that close with a window or at a time: which rows, and when they close."""
    of = (Argument(function.meaning, "window"), *_arguments(rows, [function.late.time.name]))
    return (
        *top_meanings(function.first, rows),
        ColumnMeaning(column=DUE, function="first_until_it_closes", arguments=of),
    )


def time_join_meanings(
    function: IntervalJoin | WindowJoin | AsOfJoin, left: StructType, right: StructType
) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of a time join's state: the rows of both sides, their times, and when the join drops them.

    The type of the join belongs to the meaning too, because it decides which rows have been emitted.
    """
    sides = function.sides
    rows = ((LEFT, left, sides.left), (JOINED_RIGHT, right, sides.right))
    ends = ColumnMeaning(
        column=DUE, function=f"{sides.how.value}_join_in_time", arguments=(Argument(function.meaning, "range"),)
    )
    return (
        *(
            ColumnMeaning(column=name, function="rows_in_time", arguments=_arguments(of, (*side.keys, side.time.name)))
            for name, of, side in rows
        ),
        ends,
    )


def process_meanings(function: AnyFunction, state: StructType, keys: Sequence[str]) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of a user function's state columns: that the function wrote them, and its version.

    Raise InvalidStateVersionError if its `state_version` is not a whole number from 1 that an entry may hold.
    """
    version = getattr(function, "state_version", None)
    if version is not None and not _is_version(version):
        raise InvalidStateVersionError(
            f"state_version is {version!r}; declare a whole number from 1 to {NUMBER_MAX}, or leave it out"
        )
    own = [name for name in state.names if name not in keys]
    return tuple(ColumnMeaning(column=name, function=PROCESS, version=version) for name in own)


def broadcast_meaning(kept: Broadcast, rows: StructType) -> ColumnMeaning:
    """Return the meaning of a vertex's broadcast state: which row of a key it keeps.

    One meaning stands for all columns.
    """
    return ColumnMeaning(column=BROADCAST_ROWS, function=BROADCAST, arguments=_arguments(rows, (kept.latest_by,)))


def _is_version(version: object) -> bool:
    return isinstance(version, int) and not isinstance(version, bool) and 1 <= version <= NUMBER_MAX


def _arguments(rows: StructType, columns: Sequence[str]) -> tuple[Argument, ...]:
    return tuple(Argument(name, rows[name].dataType.simpleString()) for name in columns)


class KeyedPlace(TypedDict, total=False):
    """The fields of a `KeyedSpec` that do not depend on its function."""

    vertex: Required[VertexId]
    parallelism: Required[int]
    max_parallelism: Required[int]
    table: StagedTable | None
    emits: bool
    emits_changes: bool
    backend: StateBackend
    columns_renamed_from: Mapping[str, str]
    expires: Expires | None


def aggregate_spec(
    *, rows: StructType, keys: tuple[str, ...], aggregates: tuple[Aggregate, ...], **place: Unpack[KeyedPlace]
) -> KeyedSpec:
    """Return the vertex of these aggregates over rows of schema `rows`. Its output is the new rows of changed keys."""
    return KeyedSpec(
        inputs=(KeyedInput(keys=keys, schema=needed_columns(keys, aggregates, rows)),),
        function=KeyedAggregates(keys, aggregates),
        state=state_schema(keys, aggregates, rows),
        output=output_schema(keys, aggregates, rows),
        meanings=aggregate_meanings(aggregates, rows),
        **place,
    )


def changing_aggregate_spec(
    *, rows: StructType, keys: tuple[str, ...], aggregates: tuple[Aggregate, ...], **place: Unpack[KeyedPlace]
) -> KeyedSpec:
    """Return the vertex of these aggregates over changes of rows of schema `rows`. A key without rows has no row."""
    changing = changing_aggregates(aggregates, rows)
    needed = needed_columns(keys, changing, rows)
    return KeyedSpec(
        inputs=(KeyedInput(keys=keys, schema=schema_with_kind(needed)),),
        function=ChangingAggregates(keys, changing),
        state=changing_state_schema(keys, changing, rows),
        output=output_schema(keys, changing, rows),
        meanings=(*aggregate_meanings(changing, rows), ColumnMeaning(column=ROWS, function="rows")),
        **place,
    )


def enrich_spec(
    *,
    left: StructType,
    right: StructType,
    keys: tuple[str, ...],
    right_keys: tuple[str, ...],
    columns: Sequence[str],
    latest_by: str | None = None,
    **place: Unpack[KeyedPlace],
) -> KeyedSpec:
    """Return the vertex that gives left rows (input 0) the `columns` of the right row (input 1) of their key.

    `latest_by` is the right column whose greatest value decides which right row is used. None: the first right row of a
    key is used for ever.
    """
    needed = StructType([right[name] for name in dict.fromkeys([*right_keys, *gained_names(columns, latest_by)])])
    return KeyedSpec(
        inputs=(KeyedInput(keys=keys, schema=left), KeyedInput(keys=right_keys, schema=needed)),
        function=EnrichFunction(keys, right_keys, tuple(columns), latest_by),
        state=enrich_state_schema(keys, left, right, columns, latest_by),
        output=enrich_schema(left, right, columns),
        meanings=enrich_meanings(right, right_keys, latest_by),
        **place,
    )


def join_spec(
    *,
    left: StructType,
    right: StructType,
    keys: tuple[str, ...],
    right_keys: tuple[str, ...],
    how: JoinType,
    changelogs: tuple[bool, bool],
    **place: Unpack[KeyedPlace],
) -> KeyedSpec:
    """Return the vertex that joins left rows (input 0) and right rows (input 1) by key.

    `changelogs` say which of the inputs are changelogs.
    """
    sides = zip((left, right), (keys, right_keys), changelogs, strict=True)
    return KeyedSpec(
        inputs=tuple(
            KeyedInput(keys=of, schema=schema_with_kind(rows) if changes else rows) for rows, of, changes in sides
        ),
        function=JoinFunction(keys, right_keys, own_columns(left, keys), own_columns(right, right_keys), how),
        state=join_state_schema(left, right, keys, right_keys),
        output=join_schema(left, right, keys, right_keys, how),
        meanings=join_meanings(left, right, keys, right_keys),
        **place,
    )


def applied_changes_spec(*, rows: StructType, function: AppliedChanges, **place: Unpack[KeyedPlace]) -> KeyedSpec:
    """Return the vertex that applies changes of schema `rows`. Its output is the table's new rows."""
    keys, columns = function.keys, function.columns
    told = [name for name, there in ((UNSENT, function.of_database), (TRUNCATES, function.truncates)) if there]
    needed = StructType([rows[name] for name in (*keys, *columns, SEQUENCE, DELETES, *told)])
    kept = None
    if function.truncates and not function.of_database:
        kept = BroadcastRowsKept(StructType([rows[SEQUENCE]]), Broadcast((SEQUENCE,), SEQUENCE))
    return KeyedSpec(
        inputs=(KeyedInput(keys=keys, schema=needed, to_all=TRUNCATES if function.truncates else None),),
        broadcast=kept,
        function=function,
        state=applied_state(rows, keys, columns),
        output=applied_output(rows, keys, columns, history=function.history),
        meanings=applied_meanings(function, rows),
        **place,
    )


def top_spec(*, rows: StructType, function: TopRows, **place: Unpack[KeyedPlace]) -> KeyedSpec:
    """Return the vertex of the first rows of each key. Its output is the rows that become first."""
    return KeyedSpec(
        inputs=(KeyedInput(keys=function.keys, schema=schema_with_kind(rows) if function.changelog else rows),),
        function=function,
        state=top_state(rows, function.keys),
        output=top_output(rows, function.keys, function.number, function.place),
        meanings=top_meanings(function, rows),
        **place,
    )
