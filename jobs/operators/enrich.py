"""Enriches one stream by another: emits a left row once a right row of its key is known.

The state of a key holds its waiting left rows in `waiting`, and its right row in `right`.

- A key has one right row: either the first one or the latest one by a column. *First*: the first micro-batch with a
  right row decides. If it has several right rows of a key, the row that sorts first by all its columns is used, with
  nulls first. So a repeated run chooses the same row. *Latest*: the row with the greatest value so far is used, however
  rows are split into micro-batches. A null is the least value. Of rows with equal values, the row that sorts last by
  its other columns is used.
- Each left row is emitted once, with the right row that is known then. A later right row does not change it.
- A null in the key matches nothing. Such left rows wait, and such right rows are dropped.
- When the input ends, waiting left rows are emitted without a right row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from pyspark.sql.types import ArrayType, StructField, StructType

from jobs.operators.process import Processed
from jobs.state.key_joins import join_by_key

RIGHT = "right"
WAITING = "waiting"
_KNOWN = "\0right"
"""The column of the known right row. It is beside the columns of left rows, one of which can be `right`."""


@dataclass(frozen=True, slots=True)
class EnrichFunction:
    """The keyed function of two inputs, left and right.

    `keys` and `right_keys` name the same key on both sides. `columns` are the right columns that a left row gains. A
    state row holds the key, `right` (struct of `columns` and `latest_by`, null if unknown) and `waiting` (left rows, or
    null). `latest_by` names the right column whose greatest value decides. None: the first right row is used for ever.
    """

    keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    columns: tuple[str, ...]
    latest_by: str | None = None

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the left rows whose right row is known now, and the rows that still wait."""
        left, right = inputs
        known = self._known(right, state)
        candidates = pl.concat([_released(state, left.columns), left])
        found = join_by_key(candidates, known.rename({RIGHT: _KNOWN}), self.keys, "left", nulls_equal=False)
        is_known = pl.col(_KNOWN).is_not_null()
        gained = [pl.col(_KNOWN).struct.field(name) for name in self.columns]
        output = found.filter(is_known).select(*left.columns, *gained)
        waiting = self._waiting(found.filter(~is_known).drop(_KNOWN), state.schema)
        new = pl.concat([known.with_columns(pl.lit(None, dtype=state.schema[WAITING]).alias(WAITING)), waiting])
        return Processed(state=new, output=output)

    def end_of_input(self, state: pl.DataFrame) -> Processed:
        """Return the waiting left rows, with nulls for the columns of the right row.

        The state keeps known right rows.
        """
        gained = _fields(state.schema[RIGHT])
        nulls = [pl.lit(None, dtype=gained[name]).alias(name) for name in self.columns]
        output = _released(state, _fields(state.schema[WAITING]).names()).with_columns(nulls)
        return Processed(state=state.filter(pl.col(RIGHT).is_not_null()), output=output)

    def _known(self, right: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
        """Return (keys, right) for each touched key with a known right row."""
        before = state.filter(pl.col(RIGHT).is_not_null()).select(*self.keys, RIGHT)
        arrived = right.sort(_sortable(right), nulls_last=False).drop_nulls(list(self.right_keys))
        rows = arrived.select(
            *[pl.col(old).alias(new) for old, new in zip(self.right_keys, self.keys, strict=True)],
            pl.struct(gained_names(self.columns, self.latest_by)).cast(state.schema[RIGHT]).alias(RIGHT),
        )
        if self.latest_by is None:
            first = rows.unique(subset=list(self.keys), keep="first", maintain_order=True)
            return pl.concat([before, first.join(before, on=list(self.keys), how="anti")])
        every = pl.concat([before, rows]).sort(self._by_time(state.schema[RIGHT]), nulls_last=False)
        return every.unique(subset=list(self.keys), keep="last", maintain_order=True)

    def _by_time(self, kind: pl.DataType) -> list[pl.Expr]:
        """Return the order of right rows: by time, then by all other columns that have an order."""
        fields = _fields(kind)
        others = [name for name in fields if name != self.latest_by and not fields[name].is_nested()]
        return [pl.col(RIGHT).struct.field(name) for name in (str(self.latest_by), *others)]

    def _waiting(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return (keys, right = null, waiting) of the rows that wait."""
        grouped = rows.group_by(self.keys).agg(pl.struct(rows.columns).alias(WAITING))
        return grouped.select(
            *self.keys,
            pl.lit(None, dtype=types[RIGHT]).alias(RIGHT),
            pl.col(WAITING).cast(types[WAITING]),
        )


def gained_names(columns: Sequence[str], latest_by: str | None) -> tuple[str, ...]:
    """Return the columns of a right row that the state keeps."""
    return tuple(dict.fromkeys([*columns, *([] if latest_by is None else [latest_by])]))


def enrich_state_schema(
    keys: Sequence[str], left: StructType, right: StructType, columns: Sequence[str], latest_by: str | None = None
) -> StructType:
    """Return the schema of a state row of `EnrichFunction`."""
    gained = StructType([right[name] for name in gained_names(columns, latest_by)])
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
