"""Aggregates over changes: subtract rows that are taken back if that is exact enough, else keep the key's rows.

Sums, means and variances of doubles count NaN and the infinities separately, because no subtraction could remove them
from a sum.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, runtime_checkable

import polars as pl
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    IntegralType,
    LongType,
    StructField,
    StructType,
)

from jobs.operators.aggregate import Aggregate, Named, state_schema
from jobs.operators.aggregate_functions import AggregateFunction, Average, Sum, Variance, fitting_means, require_fit
from jobs.operators.changes import ADDING, KIND
from jobs.operators.process import Processed
from jobs.state.key_joins import join_by_key
from jobs.state.merge import KEY_GROUP

_DIGITS_MAX: Final = 38

TIMES: Final = "times"
"""The field of a kept row that says how many equal rows it stands for."""


@runtime_checkable
class Retracts(Protocol):
    """Optional for an `AggregateFunction` that can take rows back (Flink: `retract`).

    Without it, the state keeps the rows of each key, and the aggregate is computed from all of them at each change.
    """

    def retract(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Return the accumulator of the rows of `one` without the rows of `other`. `one` has all rows of `other`."""
        ...


def changing(function: AggregateFunction, rows: StructType) -> "AggregateFunction | Kept":
    """Return the aggregate in the form that takes rows back, over rows of this schema."""
    match function:
        case Sum():
            return ChangingTotal("sum_of_changes", function.column, rows[function.column].dataType, function.kind)
        case Average():
            return ChangingTotal(
                "avg_of_changes", function.column, rows[function.column].dataType, DoubleType(), mean=True
            )
        case Variance():
            return ChangingVariance(function)
        case Retracts():
            return function
        case _:
            return Kept(function, tuple(dict.fromkeys(function.columns)), rows)


@dataclass(frozen=True, slots=True)
class ChangingTotal:
    """A sum, or a mean as a double. Whole numbers and decimals are added up exactly, in 38 digits."""

    name: str
    column: str
    kind: DataType
    returns: DataType
    mean: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    @property
    def accumulator(self) -> DataType:
        """The sum of the finite values, the number of all values, and the numbers of NaNs and of infinities."""
        exact = self._exact
        total = DoubleType() if exact is None else DecimalType(_DIGITS_MAX, exact)
        known = StructType().add("sum", total).add("count", LongType())
        return (
            known if exact is not None else known.add("nan", LongType()).add("up", LongType()).add("down", LongType())
        )

    def init(self) -> pl.Expr:
        """No values."""
        zero = pl.lit(0.0) if self._exact is None else pl.lit(0, dtype=pl.Int64).cast(self._sum)
        fields = {"sum": zero} | {name: pl.lit(0, dtype=pl.Int64) for name in self._counts}
        return _struct(fields)

    def add(self) -> pl.Expr:
        """Add up and count."""
        values = pl.col(self.column).cast(self._sum)
        if self._exact is not None:
            return pl.struct(sum=values.sum(), count=values.count().cast(pl.Int64))
        finite = values.filter(values.is_finite()).sum()
        found = {"count": values.count(), "nan": values.is_nan().sum()}
        found |= {"up": (values == float("inf")).sum(), "down": (values == float("-inf")).sum()}
        return _struct({"sum": finite} | {name: number.cast(pl.Int64) for name, number in found.items()})

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Add up both."""
        return _struct({name: _field(one, name) + _field(other, name) for name in self._fields})

    def retract(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Subtract. Without values, no rounding error stays behind."""
        left = {name: _field(one, name) - _field(other, name) for name in self._fields}
        empty = left["count"] == 0
        return _struct(left | {"sum": pl.when(empty).then(_field(self.init(), "sum")).otherwise(left["sum"])})

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Return the sum, or the mean; null without values."""
        total, count = _field(accumulator, "sum"), _field(accumulator, "count")
        if self._exact is None:
            nan, up, down = (_field(accumulator, name) for name in ("nan", "up", "down"))
            total = (
                pl.when((nan > 0) | ((up > 0) & (down > 0)))
                .then(float("nan"))
                .when(up > 0)
                .then(float("inf"))
                .when(down > 0)
                .then(float("-inf"))
                .otherwise(total)
            )
        return pl.when(count > 0).then(total.cast(pl.Float64) / count if self.mean else total)

    @property
    def limit(self) -> pl.DataType | None:
        """The type that the sum must fit. None: the sum cannot be too large."""
        match self.returns:
            case LongType():
                return pl.Int64()
            case DecimalType():
                return pl.Decimal(self.returns.precision, self.returns.scale)
            case _:
                return None

    @property
    def _exact(self) -> int | None:
        """The digits after the point of exact sums, None for doubles."""
        if isinstance(self.kind, DecimalType):
            return self.kind.scale
        return 0 if isinstance(self.kind, IntegralType) else None

    @property
    def _sum(self) -> pl.DataType:
        return pl.Float64() if self._exact is None else pl.Decimal(_DIGITS_MAX, self._exact)

    @property
    def _counts(self) -> tuple[str, ...]:
        return ("count",) if self._exact is not None else ("count", "nan", "up", "down")

    @property
    def _fields(self) -> tuple[str, ...]:
        return ("sum", *self._counts)


@dataclass(frozen=True, slots=True)
class ChangingVariance:
    """A variance over changes. To take rows back, it solves the merge rule of `Variance` for one of the two parts."""

    of: Variance
    returns: ClassVar[DataType] = DoubleType()
    accumulator: ClassVar[DataType] = StructType().add("finite", Variance.accumulator).add("other", LongType())

    @property
    def name(self) -> str:
        """Spark's name, marked as over changes."""
        return f"{self.of.name}_of_changes"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return self.of.columns

    def init(self) -> pl.Expr:
        """No values."""
        return pl.struct(finite=self.of.init(), other=pl.lit(0, dtype=pl.Int64))

    def add(self) -> pl.Expr:
        """Compute the mean and the squared distances of the finite values, and count the other values."""
        values = pl.col(self.of.column).cast(pl.Float64)
        finite = values.filter(values.is_finite())
        mean = finite.mean()
        parts = {
            "count": finite.count().cast(pl.Int64),
            "mean": mean.fill_null(0.0),
            "m2": ((finite - mean) ** 2).sum(),
        }
        return pl.struct(finite=_struct(parts), other=(values.count() - finite.count()).cast(pl.Int64))

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Merge the accumulators of the finite values, and add up the numbers of the other values."""
        finite = self.of.merge(_field(one, "finite"), _field(other, "finite"))
        return pl.struct(finite=finite, other=_field(one, "other") + _field(other, "other"))

    def retract(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Compute the mean and the squared distances of the remaining rows."""
        whole, part = _field(one, "finite"), _field(other, "finite")
        count, mean, m2 = (_field(whole, name) for name in ("count", "mean", "m2"))
        less, its_mean, its_m2 = (_field(part, name) for name in ("count", "mean", "m2"))
        rest = count - less
        its_share = less / rest
        new_mean = mean - (its_mean - mean) * its_share
        new_m2 = m2 - its_m2 - (its_mean - new_mean) ** 2 * less * rest / count
        left = pl.struct(count=rest, mean=new_mean, m2=new_m2.clip(lower_bound=0.0))
        finite = pl.when(less == 0).then(whole).when(rest <= 0).then(self.of.init()).otherwise(left)
        return pl.struct(finite=finite, other=_field(one, "other") - _field(other, "other"))

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Divide; NaN if a value is not finite, null without enough values."""
        finite, others = _field(accumulator, "finite"), _field(accumulator, "other")
        enough = _field(finite, "count") + others > (0 if self.of.population else 1)
        return pl.when((others > 0) & enough).then(float("nan")).otherwise(self.of.result(finite))


@dataclass(frozen=True, slots=True)
class Kept:
    """An aggregate that keeps the rows of each key: each different row once, with its count (`KeptRows`)."""

    function: AggregateFunction
    columns: tuple[str, ...]
    rows: StructType

    @property
    def name(self) -> str:
        """The function's name, marked as kept rows."""
        return f"{self.function.name}_of_kept"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a kept row. They are named by position, so that a renamed column keeps its field."""
        return tuple(f"value_{place}" for place in range(len(self.columns)))

    @property
    def accumulator(self) -> DataType:
        """The kept rows."""
        kinds = zip(self.fields, self.columns, strict=True)
        return ArrayType(
            StructType(
                [
                    *(StructField(name, self.rows[column].dataType) for name, column in kinds),
                    StructField(TIMES, LongType()),
                ]
            )
        )

    @property
    def returns(self) -> DataType:
        """The function's result."""
        return self.function.returns

    @property
    def ignores_duplicates(self) -> bool:
        """Whether equal rows count once."""
        return bool(getattr(self.function, "ignores_duplicates", False))


def _struct(fields: Mapping[str, pl.Expr]) -> pl.Expr:
    return pl.struct([value.alias(name) for name, value in fields.items()])


def _field(accumulator: pl.Expr, name: str) -> pl.Expr:
    return accumulator.struct.field(name)


# ------------------------------------------------------------------
# Keeps aggregates by key over a changelog, whose rows are added and taken back.
#
# The state of a key holds the number of its rows beside its aggregates. A key without rows has no state and no row. A
# change that would take back a row of a key without rows is left out, as in Flink.


ROWS: Final = "_rows"
"""The state column with the number of a key's rows."""

_ROW: Final = "\0row"
_BEFORE: Final = "\0before "
_LESS: Final = "\0less "
"""Prefixes of helper columns: no column of a user begins with them."""


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
        """Return the new state row of each key of the partials that still has rows.

        Raise SumOverflowError for a sum that is too large.
        """
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
    """Return the state columns of `ChangingAggregates` for rows with this schema."""
    return StructType([*state_schema(keys, aggregates, rows).fields, StructField(ROWS, LongType())])


def _merged(name: str, function: AggregateFunction, kind: pl.DataType) -> pl.Expr:
    """Return the accumulator of the key's earlier rows and of the rows that the changes add."""
    none = function.init()
    known = pl.col(_BEFORE + name) if none is None else pl.coalesce(_BEFORE + name, none.cast(kind))
    both = function.merge(known, pl.col(name)).cast(kind)
    return pl.when(pl.col(_ROW).is_null()).then(known).otherwise(both).alias(name)


def _retracted(name: str, function: AggregateFunction, kind: pl.DataType) -> pl.Expr:
    """Return the accumulator without the rows that were taken back."""
    if not isinstance(function, Retracts):
        raise TypeError(f"aggregate {name}: {function.name} cannot take rows back")
    less = function.retract(pl.col(name), pl.col(_LESS + name)).cast(kind)
    return pl.when(pl.col(_LESS + _ROW).is_null()).then(name).otherwise(less).alias(name)


def _put_together(name: str, kind: pl.DataType) -> pl.Expr:
    """Return the rows that were kept before, followed by the rows of the changes."""
    none = pl.lit([]).cast(kind)
    return pl.coalesce(_BEFORE + name, none).list.concat(pl.coalesce(name, none)).alias(name)


def _kept_rows(weighed: pl.DataFrame, keys: Sequence[str], kept: Kept, name: str, kind: pl.DataType) -> pl.DataFrame:
    """Return the different rows of each key in these changes, each with its net count.

    The net count is how often the row was added, minus how often it was taken back.
    """
    fields = dict(zip(kept.fields, kept.columns, strict=True))
    held = [pl.col(column).alias(_ROW + field) for field, column in fields.items()]
    times = pl.col(TIMES + _ROW)
    counted = weighed.select(*keys, *held, times).group_by(*keys, *(_ROW + field for field in fields)).agg(times.sum())
    one = pl.struct(*(pl.col(_ROW + field).alias(field) for field in fields), times.alias(TIMES))
    return counted.group_by(list(keys)).agg(one.alias(name).cast(kind.inner if isinstance(kind, pl.List) else kind))


def _counted_together(state: pl.DataFrame, name: str) -> pl.DataFrame:
    """Add up the counts of equal kept rows, and drop the rows whose count is not above zero."""
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
