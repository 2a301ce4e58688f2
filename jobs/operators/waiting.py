"""Reads which left rows wait in an enrichment's state at one cut, from its files, without Spark."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from checkpointing.handles import KeyedFile
from checkpointing.key_groups import KeyGroupRange, key_group_ranges
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators.enrich import WAITING, EnrichFunction
from jobs.operators.schemas import arrow_schema
from jobs.operators.spec import KeyedSpec, VertexPlan
from jobs.state.backend import state_file_schema
from jobs.state.compaction import live_files
from jobs.state.files import read_verified
from jobs.state.frames import empty_frame, frame_of
from jobs.state.merge import DELETED, StateChange, apply_change, in_range

ROWS = "rows_waiting"
"""The column of `waiting_rows` that counts them."""


def waits_in(planned: VertexPlan) -> KeyedSpec | None:
    """Return the vertex's specification if it is an enrichment, in whose state rows may wait; else None."""
    spec = planned.spec
    return spec if isinstance(spec, KeyedSpec) and isinstance(spec.function, EnrichFunction) else None


def waiting_rows(root: Path, record: CheckpointRecord, spec: KeyedSpec) -> pl.DataFrame:
    """Return each key with waiting rows at that cut, and their number.

    Raises StateFileError for a state file that is missing or damaged.
    """
    snapshots = next((each.subtasks for each in record.vertices if each.vertex == spec.vertex), ())
    if not snapshots:
        return _nobody(spec)
    ranges = key_group_ranges(parallelism=len(snapshots), max_parallelism=record.max_parallelism)
    owned = [_waiting(root, spec, snapshot.state, own) for snapshot, own in zip(snapshots, ranges, strict=True)]
    return pl.concat([_nobody(spec), *owned])


def still_waiting(then: pl.DataFrame, now: pl.DataFrame, keys: Sequence[str]) -> int:
    """Return how many rows that waited then still wait now. All rows of a key are released together."""
    rows = then.join(now.select(keys), on=list(keys), how="semi", nulls_equal=True)
    return int(rows[ROWS].sum())


def _waiting(root: Path, spec: KeyedSpec, files: Sequence[KeyedFile], own: KeyGroupRange) -> pl.DataFrame:
    schema = state_file_schema(arrow_schema(spec.state), spec.keys)
    rows = empty_frame(schema).drop(DELETED)
    for file in live_files(files):
        content = in_range(frame_of(read_verified(str(root), spec.vertex, file.file, schema)), own)
        change = StateChange(file.kind, file.key_groups, content)
        rows = apply_change(rows, change, spec.keys)
    return _counted(rows, spec)


def _nobody(spec: KeyedSpec) -> pl.DataFrame:
    return _counted(empty_frame(arrow_schema(spec.state)), spec)


def _counted(rows: pl.DataFrame, spec: KeyedSpec) -> pl.DataFrame:
    counted = rows.select(*spec.keys, pl.col(WAITING).list.len().cast(pl.Int64).alias(ROWS))
    return counted.filter(pl.col(ROWS) > 0)
