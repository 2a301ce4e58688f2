"""Joins two streams by key, and emits the changes of the joined table. Each stream is append-only or a changelog.

The state of a key holds the rows of both sides that were added and not taken back. Of a changelog, each different row
is kept once, with its count. So are the rows of an append-only side if many of them are equal. A micro-batch joins only
the rows that it changes: new left rows with the kept right rows, and the other way round. So its cost grows with the
rows of the touched keys and with the emitted changes, never with the whole state.

- A null in the key matches nothing, as in SQL.
- A row of an outer side without a match is emitted with nulls. The first match of its key takes that row back. When the
  last match goes, the row is emitted again.
- A semi join emits the left rows that have a match. An anti join emits the left rows that have none. So an anti join
  keeps a left row with a null in its key.
- A change that would take back a row that is not there is left out, as in Flink.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import polars as pl
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

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

LEFT: Final = "_left"
RIGHT: Final = "_right"
"""The state columns: the kept rows of each side."""
_FIRST_ROWS: Final = 1_000


class JoinType(Enum):
    """Which rows a join has: matching rows, also rows of a side without a match, or left rows alone."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"

    @property
    def has_left_alone(self) -> bool:
        """Return whether the joined rows have the columns of the left side only."""
        return self in (JoinType.SEMI, JoinType.ANTI)

    @property
    def takes_back(self) -> bool:
        """Return whether the join may take back a row although both sides are append-only."""
        return self not in (JoinType.INNER, JoinType.SEMI)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side in a micro-batch: its kept rows before and after, and the difference."""

    before: pl.DataFrame
    after: pl.DataFrame
    difference: pl.DataFrame


@dataclass(frozen=True, slots=True)
class JoinFunction:
    """The keyed function of two inputs. `keys` and `right_keys` name the same key.

    `left` and `right` are the other columns of each side.

    The rows of an input have the column `_change_kind` if it is a changelog.
    """

    keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    how: JoinType

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the new state, and as output the changes of the joined table, with their kinds."""
        on = list(self.keys)
        left, right = (
            weighed(rows, keys, self.keys, others)
            for rows, keys, others in zip(inputs, (self.keys, self.right_keys), (self.left, self.right), strict=True)
        )
        only_adds = not any(KIND in rows.columns for rows in inputs)
        side = _grown if only_adds else _changed
        sides = (
            side(state, LEFT, [*on, *self.left], left),
            side(state, RIGHT, [*on, *self.right], right),
        )
        columns = [*on, *self.left, *(() if self.how.has_left_alone else self.right)]
        parts = self._changes(*sides, on)
        found = pl.concat([part.select(*_present(part, columns), TIMES) for part in parts], how="diagonal")
        output = as_inserts if only_adds and self.how is JoinType.INNER else as_changes
        return Processed(state=self._kept(sides[0].after, sides[1].after, state), output=output(found, columns))

    def _changes(self, left: _Side, right: _Side, on: Sequence[str]) -> list[pl.DataFrame]:
        """Return the counted rows by which the joined table changes. Parts may lack the columns of one side."""
        if self.how is JoinType.ANTI:
            return [_unmatched(left, right, on)]
        if self.how is JoinType.SEMI:
            return [left.difference, _unmatched(left, right, on).with_columns(-pl.col(TIMES))]
        parts = [_matches(left.difference, right.before, on), _matches(left.after, right.difference, on)]
        if self.how in (JoinType.LEFT, JoinType.FULL):
            parts.append(_unmatched(left, right, on))
        if self.how in (JoinType.RIGHT, JoinType.FULL):
            parts.append(_unmatched(right, left, on))
        return parts

    def _kept(self, left: pl.DataFrame, right: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
        """Return the state rows of the keys that have rows on either side."""
        on = list(self.keys)
        found = pl.concat([left.select(on), right.select(on)]).unique()
        for name, rows in ((LEFT, left), (RIGHT, right)):
            found = join_by_key(found, as_lists(rows, on, name, state.schema[name]), on, "left")
        return found.select(state.columns)


def join_schema(
    left: StructType, right: StructType, keys: Sequence[str], right_keys: Sequence[str], how: JoinType
) -> StructType:
    """Return the schema of a joined row: the keys with their left names, the other left columns, the other right ones.

    A semi or an anti join has no right columns. Raise ValueError if a column is in both.
    """
    rest = list(_others(left, keys).fields)
    if not how.has_left_alone:
        rest += _others(right, right_keys).fields
    names = [*keys, *(field.name for field in rest)]
    both = sorted({name for name in names if names.count(name) > 1})
    if both:
        raise ValueError(f"columns {both} are on both sides; rename them in one of the inputs")
    return StructType([*(left[key] for key in keys), *rest])


def join_state_schema(
    left: StructType, right: StructType, keys: Sequence[str], right_keys: Sequence[str]
) -> StructType:
    """Return the schema of a state row of `JoinFunction`."""
    count = StructField(TIMES, LongType())
    lists = (
        StructField(name, ArrayType(StructType([*_others(rows, of).fields, count])))
        for name, rows, of in ((LEFT, left, keys), (RIGHT, right, right_keys))
    )
    return StructType([*(left[key] for key in keys), *lists])


def own_columns(rows: StructType, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a side beside its keys."""
    return tuple(_others(rows, keys).names)


def _present(rows: pl.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the columns that the rows have. An outer row without a match lacks the columns of the other side."""
    return [name for name in columns if name in rows.columns]


def _others(rows: StructType, keys: Sequence[str]) -> StructType:
    return StructType([field for field in rows.fields if field.name not in keys])


def _changed(state: pl.DataFrame, name: str, columns: Sequence[str], arrived: pl.DataFrame) -> _Side:
    """Return a side whose rows are added and taken back."""
    before = kept(state, name, columns).cast(arrived.schema)
    after = counted([before, arrived], columns).filter(pl.col(TIMES) > 0)
    gone = before.with_columns(-pl.col(TIMES))
    return _Side(before, after, counted([after, gone], columns).filter(pl.col(TIMES) != 0))


def _grown(state: pl.DataFrame, name: str, columns: Sequence[str], arrived: pl.DataFrame) -> _Side:
    """Return a side whose rows are only added. Equal rows are counted only if there are many.

    Counting takes longer than a join. The rows of a key lie together in the state. So the first rows of the state show
    whether rows repeat.
    """
    before = kept(state, name, columns).cast(arrived.schema)
    after = [before, arrived]
    if any(_repeat(rows.head(_FIRST_ROWS), columns) for rows in after):
        return _Side(before, counted(after, columns), arrived)
    return _Side(before, pl.concat(after), arrived)


def _repeat(rows: pl.DataFrame, columns: Sequence[str]) -> bool:
    """Return whether more than a tenth of the rows are equal to others."""
    return 10 * counted([rows], columns).height < 9 * rows.height


def _matches(left: pl.DataFrame, right: pl.DataFrame, on: Sequence[str]) -> pl.DataFrame:
    found = join_by_key(left, right.rename({TIMES: "\0times"}), on, "inner", nulls_equal=False)
    return found.with_columns(pl.col(TIMES) * pl.col("\0times")).drop("\0times")


def _unmatched(side: _Side, other: _Side, on: Sequence[str]) -> pl.DataFrame:
    """Return the changes of the side's rows that have no match."""
    keys = list(on)
    had, has = other.before.select(keys).unique(), other.after.select(keys).unique()
    began = has.join(had, on=keys, how="anti", nulls_equal=True)
    ended = had.join(has, on=keys, how="anti", nulls_equal=True)
    ever = pl.concat([had, has]).unique()
    lost = side.before.join(began, on=keys, how="semi", nulls_equal=False)
    return pl.concat(
        [
            side.difference.join(ever, on=keys, how="anti", nulls_equal=False),
            side.after.join(ended, on=keys, how="semi", nulls_equal=False),
            lost.with_columns(-pl.col(TIMES)),
        ]
    )
