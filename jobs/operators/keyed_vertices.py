"""Builds the specifications of the built-in keyed vertices: aggregates, joins, top rows and the others."""

from collections.abc import Mapping, Sequence
from typing import Required, TypedDict, Unpack

from pyspark.sql.types import StructType

from checkpointing.identifiers import VertexId
from checkpointing.state_meaning import ColumnMeaning
from jobs.operators.aggregate import Aggregate, KeyedAggregates, needed_columns, output_schema, state_schema
from jobs.operators.applied_changes import DELETES, SEQUENCE, AppliedChanges, applied_output, applied_state
from jobs.operators.broadcast import Broadcast
from jobs.operators.changing import ROWS, ChangingAggregates, changing_aggregates, changing_state_schema
from jobs.operators.enrich import EnrichFunction, enrich_schema, enrich_state_schema, gained_names
from jobs.operators.join import JoinFunction, JoinType, join_schema, join_state_schema, own_columns
from jobs.operators.meanings import aggregate_meanings, applied_meanings, enrich_meanings, join_meanings, top_meanings
from jobs.operators.schemas import schema_with_kind
from jobs.operators.spec import BroadcastRowsKept, KeyedInput, KeyedSpec, StagedTable
from jobs.operators.top_rows import TopRows, top_output, top_state
from jobs.operators.truncates import TRUNCATES
from jobs.operators.unsent import UNSENT
from jobs.state.backends import StateBackend


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

    `latest_by` is the right column whose greatest value counts; None: the first right row of a key counts for ever.
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
    """Return the vertex of the first rows of each key. Its output is the rows that come among them."""
    return KeyedSpec(
        inputs=(KeyedInput(keys=function.keys, schema=schema_with_kind(rows) if function.changelog else rows),),
        function=function,
        state=top_state(rows, function.keys),
        output=top_output(rows, function.keys, function.number),
        meanings=top_meanings(function, rows),
        **place,
    )
