"""Reads which rows of the left side wait in an enrichment's state at a cut, from the state's files, without Spark."""

from collections.abc import Sequence

import polars as pl

from checkpointing.identifiers import JobName
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators.enrich import WAITING, EnrichFunction
from jobs.operators.spec import KeyedSpec, VertexPlan, arrow_schema
from jobs.reading.operator_state import opened_state
from jobs.state.files import empty_frame
from jobs.storage.address import Root
from jobs.storage.place import place_in
from jobs.warehouse.table_snapshot import delta_table

ROWS = "rows_waiting"
"""The column of `waiting_rows` with the number of rows."""


def waits_in(planned: VertexPlan) -> KeyedSpec | None:
    """Return the vertex's specification if it is an enrichment, in whose state rows may wait, or else None."""
    spec = planned.spec
    return spec if isinstance(spec, KeyedSpec) and isinstance(spec.function, EnrichFunction) else None


def waiting_rows(root: Root, record: CheckpointRecord, spec: KeyedSpec) -> pl.DataFrame:
    """Return each key with waiting rows at that cut, and their number.

    Raises StateFileError for a state file that is missing or damaged.
    """
    if any(each.vertex == spec.vertex for each in record.vertices):
        table = delta_table(place_in(root, table_of_state(JobName(record.job), spec.vertex)))
        state = opened_state(root, record, spec.vertex, table).polars()
    else:  # the pipeline got the vertex after that checkpoint
        state = empty_frame(arrow_schema(spec.state)).lazy()
    counted = state.select(*spec.keys, pl.col(WAITING).list.len().cast(pl.Int64).alias(ROWS))
    return counted.filter(pl.col(ROWS) > 0).collect()


def still_waiting(then: pl.DataFrame, now: pl.DataFrame, keys: Sequence[str]) -> int:
    """Return how many of the rows that waited at an older cut still wait. All rows of a key are released together."""
    rows = then.join(now.select(keys), on=list(keys), how="semi", nulls_equal=True)
    return int(rows[ROWS].sum())
