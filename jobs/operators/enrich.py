"""Enriching one stream by another: a left row goes on once the right row of its key is known.

Whichever comes first waits in keyed state: left rows in `waiting`, the right row in `right`, for good.
A key has one right row: the first micro-batch that brings one decides, and among several in one
micro-batch the smallest by its columns, nulls first, so that a repeated run chooses the same. A null
in the key matches nothing: such left rows wait, such right rows are dropped. When the input ends, who
waits goes on without a right row; one that comes later meets no such left row any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from pyspark.sql.types import ArrayType, StructField, StructType

from jobs.operators.functions import Processed

RIGHT = "right"
WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class EnrichFunction:
    """The keyed function of two inputs, left and right.

    `keys` and `right_keys` name the same key on both sides, `columns` what a left row gains. A state row
    holds the key, `right` (struct of `columns`, null if unknown) and `waiting` (left rows, or null).
    """

    keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    columns: tuple[str, ...]

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the left rows whose right row is known now, and who still waits."""
        left, right = inputs
        known = self._known(right, state)
        candidates = pl.concat([_released(state, left.columns), left])
        found = candidates.join(known, on=list(self.keys), how="left", nulls_equal=False)
        is_known = pl.col(RIGHT).is_not_null()
        output = found.filter(is_known).unnest(RIGHT)
        waiting = self._waiting(found.filter(~is_known).drop(RIGHT), state.schema)
        new = pl.concat([known.with_columns(pl.lit(None, dtype=state.schema[WAITING]).alias(WAITING)), waiting])
        return Processed(state=new, output=output)

    def end_of_input(self, state: pl.DataFrame) -> Processed:
        """Return the left rows that still wait, null in what a right row would have given them; `right` stays."""
        gained = _fields(state.schema[RIGHT])
        nulls = [pl.lit(None, dtype=kind).alias(name) for name, kind in gained.items()]
        output = _released(state, _fields(state.schema[WAITING]).names()).with_columns(nulls)
        return Processed(state=state.filter(pl.col(RIGHT).is_not_null()), output=output)

    def _known(self, right: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
        """Return (keys, right) of every touched key whose right row is known."""
        before = state.filter(pl.col(RIGHT).is_not_null()).select(*self.keys, RIGHT)
        first = right.sort(_sortable(right), nulls_last=False).unique(
            subset=list(self.right_keys), keep="first", maintain_order=True
        )
        arrived = first.drop_nulls(list(self.right_keys)).select(
            *[pl.col(old).alias(new) for old, new in zip(self.right_keys, self.keys, strict=True)],
            pl.struct(self.columns).cast(state.schema[RIGHT]).alias(RIGHT),
        )
        return pl.concat([before, arrived.join(before, on=list(self.keys), how="anti")])

    def _waiting(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return (keys, right = null, waiting) of the rows that wait."""
        grouped = rows.group_by(self.keys).agg(pl.struct(rows.columns).alias(WAITING))
        return grouped.select(
            *self.keys,
            pl.lit(None, dtype=types[RIGHT]).alias(RIGHT),
            pl.col(WAITING).cast(types[WAITING]),
        )


def enrich_state_schema(keys: Sequence[str], left: StructType, right: StructType, columns: Sequence[str]) -> StructType:
    """Return the schema of a state row of `EnrichFunction`."""
    gained = StructType([right[name] for name in columns])
    return StructType([*[left[key] for key in keys], StructField(RIGHT, gained), StructField(WAITING, ArrayType(left))])


def enrich_schema(left: StructType, right: StructType, columns: Sequence[str]) -> StructType:
    """Return the schema of an enriched row; raise ValueError if a column is in both."""
    both = sorted(set(columns) & set(left.names))
    if both:
        raise ValueError(f"columns {both} are in the left rows too; rename them in one of the inputs")
    return StructType([*left.fields, *[right[name] for name in columns]])


def _released(state: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    rows = state.filter(pl.col(WAITING).list.len() > 0).select(WAITING).explode(WAITING).unnest(WAITING)
    return rows.select(columns)


def _fields(kind: pl.DataType) -> pl.Schema:
    """Return names and types of the fields of a struct, or of the structs in a list."""
    inner = kind.inner if isinstance(kind, pl.List) else kind
    return pl.Schema(inner.to_schema() if isinstance(inner, pl.Struct) else {})


def _sortable(rows: pl.DataFrame) -> list[str]:
    return [name for name, kind in rows.schema.items() if not kind.is_nested()]
