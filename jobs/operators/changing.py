"""Keeps aggregates by key over a changelog, whose rows are added and taken back.

The state of a key holds the number of its rows beside its aggregates. A key without rows has no state and no row. A
change that would take back a row of a key without rows is left out, as Flink does.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import polars as pl
from pyspark.sql.types import LongType, StructField, StructType

from jobs.operators.aggregate import Aggregate, Named, state_schema
from jobs.operators.aggregate_functions import AggregateFunction, fitting_means
from jobs.operators.changes import ADDING, KIND
from jobs.operators.changing_functions import TIMES, ChangingTotal, Kept, Retracts, changing
from jobs.operators.functions import Processed
from jobs.operators.sums import require_fit
from jobs.state.key_joins import join_by_key
from jobs.state.merge import KEY_GROUP

ROWS: Final = "_rows"
"""The state column with the number of a key's rows."""

_ROW: Final = "\0row"
_BEFORE: Final = "\0before "
_LESS: Final = "\0less "
"""Prefixes of columns beside the new ones: no column of a user begins with them."""


@dataclass(frozen=True, slots=True)
class ChangingAggregate:
    """One aggregate of a changelog, by subtraction or from kept rows. `name` is its column."""

    name: str
    function: AggregateFunction | Kept


def changing_aggregates(aggregates: Sequence[Aggregate], rows: StructType) -> tuple[ChangingAggregate, ...]:
    """Return the aggregates in the forms that take rows back, over rows of this schema."""
    return tuple(ChangingAggregate(one.name, changing(one.function, rows)) for one in aggregates)


@dataclass(frozen=True, slots=True)
class ChangingAggregates:
    """The keyed function of these aggregates. Rows have the column `_change_kind` beside the aggregates' own."""

    keys: tuple[str, ...]
    aggregates: tuple[ChangingAggregate, ...]

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the aggregates of the touched keys that have rows, as state and as output."""
        rows = inputs[0].with_columns(pl.lit(0, dtype=pl.Int32).alias(KEY_GROUP))
        new = self.merged(self.partials(rows, state.schema), state)
        return Processed(state=new.drop(KEY_GROUP), output=self.results(new).drop(KEY_GROUP))

    def partials(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return a row per key of these rows: what they add, and what they take back (see `MergesPartials`)."""
        adds = pl.col(KIND).is_in(ADDING)
        weighed = rows.with_columns(pl.when(adds).then(1).otherwise(-1).cast(pl.Int64).alias(TIMES + _ROW))
        found = weighed.group_by(self.keys).agg(pl.col(KEY_GROUP).first(), pl.col(TIMES + _ROW).sum().alias(ROWS))
        sides = ((rows.filter(adds), ""), (rows.filter(~adds), _LESS))
        for side, prefix in sides:
            sums = (function.add().cast(types[name]).alias(prefix + name) for name, function in self._retracting())
            with self._fitting():
                added = side.group_by(self.keys).agg(pl.lit(value=True).alias(prefix + _ROW), *sums)
            found = join_by_key(found, added, self.keys, "left")
        for name, kept in self._keeping():
            lists = _kept_rows(weighed, self.keys, kept, name, types[name])
            found = join_by_key(found, lists, self.keys, "left")
        return found

    def merged(self, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the new row of each key of the partials that has rows. Raise SumOverflowError for a sum too large."""
        held = [ROWS, *(one.name for one in self.aggregates)]
        known = before.select(*self.keys, *(pl.col(name).alias(_BEFORE + name) for name in held))
        beside = join_by_key(partials, known, self.keys, "left")
        count = (pl.col(ROWS) + pl.col(_BEFORE + ROWS).fill_null(0)).alias(ROWS)
        live = beside.with_columns(count).filter(pl.col(ROWS) > 0)
        with self._fitting():
            more = live.with_columns(_merged(name, of, before.schema[name]) for name, of in self._retracting())
            less = more.with_columns(_retracted(name, of, before.schema[name]) for name, of in self._retracting())
        both = (_put_together(name, before.schema[name]) for name, _ in self._keeping())
        new = less.with_columns(both).select(KEY_GROUP, *self.keys, *held)
        for name, _ in self._keeping():
            new = _counted_together(new, name)
        self._require_fit(new)
        return new.select(KEY_GROUP, *before.drop(KEY_GROUP, strict=False).columns)

    def results(self, state: pl.DataFrame) -> pl.DataFrame:
        """Return the output rows of these state rows."""
        with self._fitting():
            shown = state.with_row_index(_ROW).with_columns(
                function.result(pl.col(name)).alias(name) for name, function in self._retracting()
            )
        for name, kept in self._keeping():
            shown = shown.drop(name).join(_of_kept(state, name, kept), on=_ROW, how="left")
        return shown.select(KEY_GROUP, *self.keys, *(one.name for one in self.aggregates))

    def _fitting(self) -> AbstractContextManager[None]:
        return fitting_means(self._retracting())

    def _retracting(self) -> Iterator[tuple[str, AggregateFunction]]:
        for one in self.aggregates:
            if not isinstance(one.function, Kept):
                yield one.name, one.function

    def _keeping(self) -> Iterator[tuple[str, Kept]]:
        for one in self.aggregates:
            if isinstance(one.function, Kept):
                yield one.name, one.function

    def _require_fit(self, state: pl.DataFrame) -> None:
        for name, function in self._retracting():
            if isinstance(function, ChangingTotal) and function.limit is not None:
                total = pl.col(name).struct.field("sum")
                require_fit(state, self.keys, function.column, name, total, function.limit)


def changing_state_schema(keys: Sequence[str], aggregates: Sequence[Named], rows: StructType) -> StructType:
    """Return the columns of the state of `ChangingAggregates` over rows of this schema."""
    return StructType([*state_schema(keys, aggregates, rows).fields, StructField(ROWS, LongType())])


def _merged(name: str, function: AggregateFunction, kind: pl.DataType) -> pl.Expr:
    """Return the accumulator before, with what was added."""
    none = function.init()
    known = pl.col(_BEFORE + name) if none is None else pl.coalesce(_BEFORE + name, none.cast(kind))
    both = function.merge(known, pl.col(name)).cast(kind)
    return pl.when(pl.col(_ROW).is_null()).then(known).otherwise(both).alias(name)


def _retracted(name: str, function: AggregateFunction, kind: pl.DataType) -> pl.Expr:
    """Return the accumulator without what was taken back."""
    if not isinstance(function, Retracts):
        raise TypeError(f"aggregate {name}: {function.name} cannot take rows back")
    less = function.retract(pl.col(name), pl.col(_LESS + name)).cast(kind)
    return pl.when(pl.col(_LESS + _ROW).is_null()).then(name).otherwise(less).alias(name)


def _put_together(name: str, kind: pl.DataType) -> pl.Expr:
    """Return the kept rows before and those of the changes."""
    none = pl.lit([]).cast(kind)
    return pl.coalesce(_BEFORE + name, none).list.concat(pl.coalesce(name, none)).alias(name)


def _kept_rows(weighed: pl.DataFrame, keys: Sequence[str], kept: Kept, name: str, kind: pl.DataType) -> pl.DataFrame:
    """Return the different rows of each key in these changes, each with how often it is added more than taken back."""
    fields = dict(zip(kept.fields, kept.columns, strict=True))
    held = [pl.col(column).alias(_ROW + field) for field, column in fields.items()]
    times = pl.col(TIMES + _ROW)
    counted = weighed.select(*keys, *held, times).group_by(*keys, *(_ROW + field for field in fields)).agg(times.sum())
    one = pl.struct(*(pl.col(_ROW + field).alias(field) for field in fields), times.alias(TIMES))
    return counted.group_by(list(keys)).agg(one.alias(name).cast(kind.inner if isinstance(kind, pl.List) else kind))


def _counted_together(state: pl.DataFrame, name: str) -> pl.DataFrame:
    """Add up the numbers of equal kept rows, and leave out the rows that are not there any more."""
    numbered = state.with_row_index(_ROW)
    rows = _unfolded(numbered, name)
    fields = [each for each in rows.columns if each not in (_ROW, TIMES)]
    counted = rows.group_by(_ROW, *fields).agg(pl.col(TIMES).sum()).filter(pl.col(TIMES) > 0)
    lists = counted.group_by(_ROW).agg(pl.struct(*fields, TIMES).alias(name))
    return numbered.drop(name).join(lists, on=_ROW, how="left").drop(_ROW)


def _of_kept(state: pl.DataFrame, name: str, kept: Kept) -> pl.DataFrame:
    """Compute an aggregate of kept rows: a result for each row of the state, under its number."""
    rows = _unfolded(state.with_row_index(_ROW), name)
    if not kept.ignores_duplicates:
        numbers = rows.select(pl.int_range(pl.len()).repeat_by(pl.col(TIMES)).explode()).to_series()
        rows = rows[numbers]
    named = rows.select(
        _ROW, *(pl.col(field).alias(column) for field, column in zip(kept.fields, kept.columns, strict=True))
    )
    function = kept.function
    return named.group_by(_ROW).agg(function.add().alias(name)).select(_ROW, function.result(pl.col(name)).alias(name))


def _unfolded(numbered: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return each kept row, with the number of its state row."""
    lists = numbered.select(_ROW, name).filter(pl.col(name).list.len() > 0)
    return lists.explode(name).unnest(name)
