"""Aggregates that take rows back: by subtraction where that is exact enough, else from the rows themselves.

Sums, means and variances of doubles count NaN and the infinities apart, since these could never be subtracted again.
"""

from collections.abc import Mapping
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

from jobs.operators.aggregate_functions import AggregateFunction, Average, Sum, Variance

_DIGITS_MAX: Final = 38

TIMES: Final = "times"
"""The field of a kept row that says how often it is there."""


@runtime_checkable
class Retracts(Protocol):
    """Optional for an `AggregateFunction`: it can take rows back (Flink: `retract`).

    Without it, the state keeps the rows of each key, and the aggregate is computed from all of them at each change.
    """

    def retract(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Return the accumulator of the rows of `one` without those of `other`, which are all among them."""
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
        """The sum of finite values, the number of values, and of NaNs and infinities among them."""
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
        """The type that the sum must fit, None if it cannot be too large."""
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
    """A variance that rows are taken out of, by the rule of `Variance` solved for one of both parts."""

    of: Variance
    returns: ClassVar[DataType] = DoubleType()
    accumulator: ClassVar[DataType] = StructType().add("finite", Variance.accumulator).add("other", LongType())

    @property
    def name(self) -> str:
        """Spark's name, of changes."""
        return f"{self.of.name}_of_changes"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return self.of.columns

    def init(self) -> pl.Expr:
        """No values."""
        return pl.struct(finite=self.of.init(), other=pl.lit(0, dtype=pl.Int64))

    def add(self) -> pl.Expr:
        """Take the finite values' mean and squared distances, and count the others."""
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
        """Merge the finite values, and add up the number of the others."""
        finite = self.of.merge(_field(one, "finite"), _field(other, "finite"))
        return pl.struct(finite=finite, other=_field(one, "other") + _field(other, "other"))

    def retract(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Move the common mean back to that of the rest."""
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
    """An aggregate that keeps the rows of each key, each different one once with its number (`KeptRows`)."""

    function: AggregateFunction
    columns: tuple[str, ...]
    rows: StructType

    @property
    def name(self) -> str:
        """The function's name: its rows are kept."""
        return f"{self.function.name}_of_kept"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a kept row, by place, so that a renamed column keeps them."""
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
