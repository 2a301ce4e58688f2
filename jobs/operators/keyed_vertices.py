"""Builds the specifications of the built-in keyed vertices: aggregates and enrichments."""

from collections.abc import Sequence

from pyspark.sql.types import StructType

from checkpointing.identifiers import VertexId
from jobs.operators.aggregate import Aggregate, AggregateFunction, aggregate_schema, needed_columns
from jobs.operators.enrich import EnrichFunction, enrich_schema, enrich_state_schema, gained_names
from jobs.operators.meanings import aggregate_meanings, enrich_meanings
from jobs.operators.spec import KeyedInput, KeyedSpec, StagedTable


def aggregate_spec(  # noqa: PLR0913 - what an aggregate vertex is
    *,
    vertex: VertexId,
    rows: StructType,
    keys: Sequence[str],
    aggregates: Sequence[Aggregate],
    parallelism: int,
    max_parallelism: int,
    table: StagedTable | None = None,
    emits: bool = False,
) -> KeyedSpec:
    """Return the vertex of these aggregates over rows of schema `rows`. Its output is the new rows of changed keys."""
    by, what = tuple(keys), tuple(aggregates)
    schema = aggregate_schema(by, what, rows)

    return KeyedSpec(
        vertex=vertex,
        inputs=(KeyedInput(keys=by, schema=needed_columns(by, what, rows)),),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        function=AggregateFunction(by, what),
        state=schema,
        output=schema,
        table=table,
        emits=emits,
        meanings=aggregate_meanings(what, rows),
    )


def enrich_spec(  # noqa: PLR0913 - what an enriching vertex is
    *,
    vertex: VertexId,
    left: StructType,
    right: StructType,
    keys: Sequence[str],
    right_keys: Sequence[str],
    columns: Sequence[str],
    latest_by: str | None = None,
    parallelism: int,
    max_parallelism: int,
    table: StagedTable | None = None,
    emits: bool = True,
) -> KeyedSpec:
    """Return the vertex that gives left rows (input 0) the `columns` of the right row (input 1) of their key.

    `latest_by` is the right column whose greatest value counts; None: the first right row of a key counts for ever.
    """
    kept = gained_names(columns, latest_by)
    needed = StructType([right[name] for name in dict.fromkeys([*right_keys, *kept])])
    return KeyedSpec(
        vertex=vertex,
        inputs=(KeyedInput(keys=tuple(keys), schema=left), KeyedInput(keys=tuple(right_keys), schema=needed)),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        function=EnrichFunction(tuple(keys), tuple(right_keys), tuple(columns), latest_by),
        state=enrich_state_schema(keys, left, right, columns, latest_by),
        output=enrich_schema(left, right, columns),
        table=table,
        emits=emits,
        meanings=enrich_meanings(right, right_keys, latest_by),
    )
