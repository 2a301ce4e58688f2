"""Keeps the first rows of each key in an order, and emits the changes of these rows.

Of an append-only stream, the state of a key holds only its first rows, because no later row can make another row first
again. Of a changelog, the state holds all rows of the key: when a first row is taken back, the next row moves up. Each
different row is kept once, with its count. A change that would take back a row that is not there is left out, as in
joins.

If two rows have the same place in the order, their other columns decide, in ascending order. So which rows are first
depends neither on the arrival of rows nor on the number of subtasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
from pyspark.sql.types import ArrayType, IntegerType, LongType, StructField, StructType

from jobs.operators.changes import (
    KIND,
    TIMES,
    as_changes,
    as_inserts,
    as_lists,
    counted,
    kept,
    weighed,
)
from jobs.operators.process import Processed
from jobs.state.key_joins import join_by_key

ROWS: Final = "_top_rows"
"""The state column with the kept rows."""

_AHEAD: Final = "\0ahead"
"""The column with the number of rows before a row. No column of a user begins with this character."""
_ABOVE: Final = "\0above"
"""The column with the number of rows before all that have the same place in the order."""


@dataclass(frozen=True, slots=True)
class Order:
    """A column by which rows are ordered. Nulls come first, or last if the order is descending, as in Spark SQL."""

    column: str
    descending: bool = False

    def __str__(self) -> str:
        """Return the order as a user writes it."""
        return f"{self.column} desc" if self.descending else self.column


@dataclass(frozen=True, slots=True)
class TopRows:
    """The keyed function. `columns` are the columns besides the keys.

    `number` is the column of a row's number, if any.

    With `ties`, rows with the same place as the last of the first `n` rows count as first too. `place` is the column of
    a row's place, if any. Rows have the column `_change_kind` if the input is a `changelog`.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order: tuple[Order, ...]
    n: int
    number: str | None
    changelog: bool
    ties: bool = False
    place: str | None = None

    @property
    def table_keys(self) -> tuple[str, ...]:
        """Return the key columns of the first rows. There are none if a key may have several rows without numbers."""
        if self.number is not None:
            return (*self.keys, self.number)
        return self.keys if self.n == 1 and not self.ties else ()

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the new state, and as output the changes of the first rows, with their kinds."""
        before, after = self._grown(inputs[0], state)
        was, first = self._first(before), self._first(after)
        kept_rows = after if self.changelog else first.drop(_AHEAD, _ABOVE)
        held = as_lists(kept_rows, self.keys, ROWS, state.schema[ROWS])
        is_new = join_by_key(first.select(self.keys).unique(), was.select(self.keys), self.keys, "anti")
        again, new = (self._shown(join_by_key(first, is_new, self.keys, how)) for how in ("anti", "semi"))
        changed = pl.concat([again, self._shown(was).with_columns(-pl.col(TIMES))])
        columns = changed.drop(TIMES).columns
        output = pl.concat([as_changes(changed, columns), as_inserts(new, columns)])
        return Processed(state=held.select(state.columns), output=output)

    def held(self, rows: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
        """Return the new state of these rows' keys, over an append-only stream: the lists of the keys' first rows."""
        first = self._first(self._grown(rows, state)[1]).drop(_AHEAD, _ABOVE)
        return as_lists(first, self.keys, ROWS, state.schema[ROWS])

    def shown_of(self, state: pl.DataFrame) -> pl.DataFrame:
        """Return the first rows that the state keeps, in the form of the output. Equal rows are counted."""
        return self._shown(self._first(kept(state, ROWS, [*self.keys, *self.columns])))

    def _grown(self, rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows that the state keeps, and these rows together with the new ones. Equal rows are counted."""
        columns = [*self.keys, *self.columns]
        arrived = weighed(rows, self.keys, self.keys, self.columns)
        before = kept(state, ROWS, columns).cast(arrived.schema)
        if not self.changelog:
            return before, pl.concat([before, arrived])
        return before, counted([before, arrived], columns).filter(pl.col(TIMES) > 0)

    def _first(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the first rows of each key in order.

        `_AHEAD` and `_ABOVE` have the numbers of rows before each row.
        """
        rest = [name for name in self.columns if name not in {by.column for by in self.order}]
        falling = [by.descending for by in self.order] + [False] * len(rest)
        # If there are only key columns, all rows of a key are equal.
        by = [*(order.column for order in self.order), *rest] or list(self.keys)
        falling = falling or [False] * len(by)
        ordered = self._near(rows).sort(by, descending=falling, nulls_last=falling)
        ahead = (pl.col(TIMES).cum_sum() - pl.col(TIMES)).over(self.keys).alias(_AHEAD)
        above = pl.col(_AHEAD).min().over([*self.keys, *(order.column for order in self.order)]).alias(_ABOVE)
        placed = ordered.with_columns(ahead).with_columns(above)
        if self.ties:
            return placed.filter(pl.col(_ABOVE) < self.n)
        first = placed.filter(pl.col(_AHEAD) < self.n)
        return first.with_columns(pl.min_horizontal(pl.col(TIMES), self.n - pl.col(_AHEAD)))

    def _near(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that may be first by the first column of the order. So only few rows are sorted."""
        if not self.order:
            return rows
        by = self.order[0]
        values, kind = rows[by.column], rows.schema[by.column]
        if values.null_count() or not (kind.is_integer() or kind.is_temporal()):
            return rows
        if self.n == 1:
            best = pl.col(by.column).max() if by.descending else pl.col(by.column).min()
            return rows.filter(pl.col(by.column) == best.over(self.keys))
        return rows.filter(pl.col(by.column).rank("min", descending=by.descending).over(self.keys) <= self.n)

    def _shown(self, first: pl.DataFrame) -> pl.DataFrame:
        """Return these rows in the form of the output."""
        if self.place is not None:
            first = first.with_columns((pl.col(_ABOVE) + 1).cast(pl.Int32).alias(self.place))
        first = first.drop(_ABOVE)
        if self.number is None:
            return first.drop(_AHEAD)
        numbers = pl.int_ranges(pl.col(_AHEAD) + 1, pl.col(_AHEAD) + 1 + pl.col(TIMES)).alias(self.number)
        numbered = first.with_columns(numbers).explode(self.number).with_columns(pl.col(self.number).cast(pl.Int32))
        one = pl.lit(1, dtype=pl.Int64).alias(TIMES)
        return numbered.select(*self.keys, *self.columns, *([self.place] if self.place else []), self.number, one)


def top_state(rows: StructType, keys: Sequence[str]) -> StructType:
    """Return the state columns of `TopRows` for rows with this schema."""
    others = [field for field in rows.fields if field.name not in (*keys, KIND)]
    held = StructType([*others, StructField(TIMES, LongType())])
    return StructType([*(rows[key] for key in keys), StructField(ROWS, ArrayType(held))])


def top_output(rows: StructType, keys: Sequence[str], number: str | None, place: str | None = None) -> StructType:
    """Return the columns of the first rows: the keys, the other columns, their place and their number."""
    others = [field for field in rows.fields if field.name not in keys]
    numbers = [StructField(name, IntegerType()) for name in (place, number) if name is not None]
    return StructType([*(rows[key] for key in keys), *others, *numbers])
