"""The protocol of an aggregate, and the built-in ones that need no order of rows.

Nulls are left out, and NaN is greater than every number, as in Spark SQL. Types are Spark's. This module also raises
the error for a sum that does not fit its type.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import ClassVar, Final, Protocol

import polars as pl
from pyspark.sql.types import DataType, DecimalType, DoubleType, LongType, StructType

# ------------------------------------------------------------------
# Finds sums that do not fit their type, so that a total never silently wraps around.
#
# Whole numbers and decimals are added up exactly. The sum of one micro-batch's rows must fit its type, and so must the
# new total. Polars checks neither of them: its sums wrap around. Doubles follow IEEE 754 and never fail.


_ROUGHLY: Final = "\0~"
"""Prefix of a column that holds a decimal's sum as a double, beside the exact sum, which may have wrapped around."""

_WRAPS_BEYOND: Final = 1.5e38
"""A decimal of 38 digits (1e38) lies in 128 bits, which wrap at 1.7e38. A double beside it shows whether it wrapped."""

"""The most digits of a decimal, in Spark and in Polars."""

_EXACT: Final = Context(prec=100)


class SumOverflowError(ArithmeticError):
    """A sum does not fit its type. The message names the column, the key, the type and a way to solve the problem."""

    def __init__(self, name: str, column: str, key: Sequence[object], kind: pl.DataType) -> None:
        keys = ", ".join(map(str, key))
        super().__init__(
            f"column {name}: the sum of {column} for the key ({keys}) does not fit {_shown(kind)}; "
            + _way_out(column, kind)
        )


def may_overflow(values: pl.Series, kind: pl.DataType) -> bool:
    """Return whether a sum of some of these values may be too large for the type. If False, every sum fits."""
    if not _is_exact(kind):
        return False
    lowest, highest = values.min(), values.max()
    if lowest is None or highest is None:
        return False
    largest = max(abs(_unscaled(lowest, kind)), abs(_unscaled(highest, kind)))
    return largest * len(values) > _unscaled(_largest(kind), kind)


def sum_of_rows(column: str, name: str, kind: pl.DataType, *, checked: bool) -> tuple[pl.Expr, ...]:
    """Return the sum of a column, null if all values are null.

    If `checked`, the sum has the form that `fitting` takes.
    """
    values, some = pl.col(column).cast(kind), pl.col(column).count() > 0
    if checked and kind == pl.Int64:
        return (pl.when(some).then(values.cast(pl.Int128).sum()).alias(name),)
    exact = pl.when(some).then(values.sum()).alias(name)
    return (exact, values.cast(pl.Float64).sum().alias(f"{_ROUGHLY}{name}")) if checked else (exact,)


def fitting(sums: pl.DataFrame, keys: Sequence[str], column: str, name: str, kind: pl.DataType) -> pl.DataFrame:
    """Return checked sums in their type. Raise SumOverflowError for a sum that does not fit."""
    found = pl.col(name)
    outside = (found > _literal(_largest(kind), kind)) | (found < _literal(_least(kind), kind))
    rough = f"{_ROUGHLY}{name}"
    if isinstance(kind, pl.Decimal):
        outside |= pl.col(rough).abs() > _WRAPS_BEYOND / 10**kind.scale
    _require_none(sums.filter(outside), keys, column, name, kind)
    return sums.drop(rough, strict=False).with_columns(found.cast(kind))


def require_totals_fit(
    beside: pl.DataFrame, keys: Sequence[str], column: str, name: str, before: str, kind: pl.DataType
) -> None:
    """Raise SumOverflowError unless every sum in `name`, added to the total in `before`, fits the type.

    The check compares the total with the limit minus the sum, so that the comparison itself cannot overflow.
    """
    if not _is_exact(kind):
        return
    total, more = (_wide(pl.col(each), kind).fill_null(_zero(kind)) for each in (before, name))
    up, down = pl.max_horizontal(more, _zero(kind)), pl.min_horizontal(more, _zero(kind))
    outside = (total > _literal(_largest(kind), kind) - up) | (total < _literal(_least(kind), kind) - down)
    _require_none(beside.filter(outside), keys, column, name, kind)


def require_fit(
    rows: pl.DataFrame, keys: Sequence[str], column: str, name: str, sums: pl.Expr, kind: pl.DataType
) -> None:
    """Raise SumOverflowError for a sum that does not fit the type. The sums are exact, as decimals of 38 digits."""
    largest, least = _largest(kind), _least(kind)
    wide = pl.Decimal(_DIGITS_MAX, kind.scale if isinstance(kind, pl.Decimal) else 0)
    _require_none(
        rows.filter((sums > pl.lit(largest, dtype=wide)) | (sums < pl.lit(least, dtype=wide))), keys, column, name, kind
    )


def _require_none(rows: pl.DataFrame, keys: Sequence[str], column: str, name: str, kind: pl.DataType) -> None:
    if not rows.is_empty():
        raise SumOverflowError(name, column, rows.select(keys).row(0), kind)


def _is_exact(kind: pl.DataType) -> bool:
    return kind == pl.Int64 or isinstance(kind, pl.Decimal)


def _largest(kind: pl.DataType) -> int | Decimal:
    if isinstance(kind, pl.Decimal):
        return Decimal(10**kind.precision - 1).scaleb(-kind.scale, _EXACT)
    return 2**63 - 1


def _least(kind: pl.DataType) -> int | Decimal:
    largest = _largest(kind)
    return largest.copy_negate() if isinstance(largest, Decimal) else -largest - 1


def _unscaled(value: object, kind: pl.DataType) -> int:
    if isinstance(kind, pl.Decimal):
        return int(Decimal(str(value)).scaleb(kind.scale, _EXACT))
    return int(str(value))


def _wide(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return the column in the widest type of its scale. The limit minus the sum always fits into that type."""
    return column.cast(pl.Decimal(_DIGITS_MAX, kind.scale)) if isinstance(kind, pl.Decimal) else column


def _literal(value: int | Decimal, kind: pl.DataType) -> pl.Expr:
    return pl.lit(value, dtype=pl.Decimal(_DIGITS_MAX, kind.scale)) if isinstance(kind, pl.Decimal) else pl.lit(value)


def _zero(kind: pl.DataType) -> pl.Expr:
    return _literal(Decimal(0) if isinstance(kind, pl.Decimal) else 0, kind)


def _shown(kind: pl.DataType) -> str:
    return f"decimal({kind.precision},{kind.scale})" if isinstance(kind, pl.Decimal) else "bigint"


def _way_out(column: str, kind: pl.DataType) -> str:
    """Return the advice in the message.

    State and upsert tables accept a wider decimal, but a double needs a new column.
    """
    if isinstance(kind, pl.Decimal) and kind.precision == _DIGITS_MAX:
        return f"cast {column} to double before the aggregate, and give the sum another name, which begins anew"
    scale = kind.scale if isinstance(kind, pl.Decimal) else 0
    return (
        f"cast {column} to decimal({_DIGITS_MAX},{scale}) before the aggregate: its state and its upsert table follow"
    )


_DIGITS_MAX = 38
"""The most digits of a decimal, in Spark and in Polars."""


class AggregateMeaning(Protocol):
    """The names and types that describe an aggregate.

    `name` says what the accumulator and the result mean. Each checkpoint records `name` and `columns`, the input
    columns. Change the name when the meaning changes. A tick then refuses the old state instead of mixing it with new
    values. `accumulator` and `returns` are the Spark types of accumulator and result.
    """

    @property
    def name(self) -> str:
        """The function's name in the checkpoint."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns."""
        ...

    @property
    def accumulator(self) -> DataType:
        """The type of the accumulator."""
        ...

    @property
    def returns(self) -> DataType:
        """The type of the result."""
        ...


class AggregateFunction(AggregateMeaning, Protocol):
    """An aggregate, written as Polars expressions (Flink: `AggregateFunction`).

    An accumulator is a value that stands for rows of one key. It lies in the state, in the column of the aggregate. The
    result must depend on the rows only, neither on their order nor on how they were split into micro-batches.

    An aggregate may have a method `retract(one, other)`, which returns the accumulator of the rows of `one` without the
    rows of `other`. Without that method, an aggregate over changes keeps the rows of each key. If equal rows count once
    in such an aggregate, it may declare this with an attribute `ignores_duplicates` that is true.
    """

    def init(self) -> pl.Expr | None:
        """Return the accumulator of no rows. If None, `merge` gets a null in its place (Flink: createAccumulator)."""
        ...

    def add(self) -> pl.Expr:
        """Return the accumulator of new rows. The expression aggregates the rows of one key to one value."""
        ...

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Return the accumulator of the rows of two accumulators."""
        ...

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Return the aggregate of the accumulator's rows (Flink: getValue)."""
        ...


class _ShowsAccumulator:
    """An aggregate whose accumulator is its result; `kind` is the type of both. Null stands for no rows."""

    __slots__ = ()
    kind: DataType

    @property
    def accumulator(self) -> DataType:
        return self.kind

    @property
    def returns(self) -> DataType:
        return self.kind

    def init(self) -> pl.Expr | None:
        return None

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        return accumulator


@dataclass(frozen=True, slots=True)
class Count(_ShowsAccumulator):
    """Counts rows, or the rows in which the column is not null."""

    column: str | None = None
    name: ClassVar[str] = "count"
    kind: DataType = field(default_factory=LongType)

    @property
    def columns(self) -> tuple[str, ...]:
        """The column, or none."""
        return () if self.column is None else (self.column,)

    def add(self) -> pl.Expr:
        """Count."""
        return (pl.len() if self.column is None else pl.col(self.column).count()).cast(pl.Int64)

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Add up."""
        return pl.coalesce(one + other, one, other)

    def retract(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Subtract."""
        return one - other


@dataclass(frozen=True, slots=True)
class Sum(_ShowsAccumulator):
    """Adds up a column. The sum of only nulls is null. `KeyedAggregates` checks that sums fit their type."""

    column: str
    kind: DataType
    name: ClassVar[str] = "sum"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def add(self) -> pl.Expr:
        """Add up values, widened to the type of the sum."""
        return sum_of_rows(self.column, self.column, self._widened(), checked=False)[0]

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Add up."""
        return pl.coalesce(one + other, one, other)

    def _widened(self) -> pl.DataType:
        if isinstance(self.kind, DecimalType):
            return pl.Decimal(self.kind.precision, self.kind.scale)
        return pl.Int64() if isinstance(self.kind, LongType) else pl.Float64()


@dataclass(frozen=True, slots=True)
class Min(_ShowsAccumulator):
    """Takes the least value. The result is NaN only if all values are NaN."""

    column: str
    kind: DataType
    name: ClassVar[str] = "min"
    ignores_duplicates: ClassVar[bool] = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def add(self) -> pl.Expr:
        """Take the least."""
        return pl.col(self.column).min()

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Take the lesser of both. In Polars too, NaN is greater than every number."""
        return pl.coalesce(pl.when(one <= other).then(one).when(other < one).then(other), one, other)


@dataclass(frozen=True, slots=True)
class Max(_ShowsAccumulator):
    """Takes the greatest value."""

    column: str
    kind: DataType
    name: ClassVar[str] = "max"
    ignores_duplicates: ClassVar[bool] = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def add(self) -> pl.Expr:
        """Take the greatest."""
        return pl.col(self.column).nan_max()

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Take the greater of both."""
        return pl.coalesce(pl.when(one >= other).then(one).when(other > one).then(other), one, other)


@dataclass(frozen=True, slots=True)
class Average:
    """The mean of numbers as a double: the sum, rounded by IEEE 754, and the number of values."""

    column: str
    name: ClassVar[str] = "avg"
    accumulator: ClassVar[DataType] = StructType().add("sum", DoubleType()).add("count", LongType())
    returns: ClassVar[DataType] = DoubleType()

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def init(self) -> pl.Expr:
        """No values."""
        return pl.struct(sum=pl.lit(0.0), count=pl.lit(0, dtype=pl.Int64))

    def add(self) -> pl.Expr:
        """Add up and count."""
        values = pl.col(self.column).cast(pl.Float64)
        return pl.struct(sum=values.sum(), count=values.count().cast(pl.Int64))

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Add up both."""
        return _added(one, other)

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Divide; null without values."""
        total, count = _fields(accumulator, "sum", "count")
        return pl.when(count > 0).then(total / count)


@dataclass(frozen=True, slots=True)
class DecimalAverage:
    """The exact mean of decimals, rounded half up to four more digits after the point, as in Spark."""

    column: str
    kind: DecimalType
    name: ClassVar[str] = "avg"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    @property
    def accumulator(self) -> DataType:
        """The exact sum, and the number of values."""
        total = DecimalType(min(_DIGITS_MAX, self.kind.precision + 10), self.kind.scale)
        return StructType().add("sum", total).add("count", LongType())

    @property
    def returns(self) -> DecimalType:
        """A decimal with four more digits after the point: precision and scale grow by four."""
        kind = self.kind
        return DecimalType(min(_DIGITS_MAX, kind.precision + 4), min(_DIGITS_MAX, kind.scale + 4))

    def init(self) -> pl.Expr:
        """No values."""
        return pl.struct(sum=pl.lit(0, dtype=pl.Int64).cast(self._sum), count=pl.lit(0, dtype=pl.Int64))

    def add(self) -> pl.Expr:
        """Add up and count. Polars raises an error if the sum has more than 38 digits."""
        values = pl.col(self.column).cast(self._sum)
        return pl.struct(sum=values.sum(), count=values.count().cast(pl.Int64))

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Add up both."""
        return _added(one, other)

    def retract(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Subtract both."""
        (total, count), (less, fewer) = _fields(one, "sum", "count"), _fields(other, "sum", "count")
        return pl.struct(sum=total - less, count=count - fewer)

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Divide as whole numbers of 128 bits: first the digits that the sum has, then the four additional digits.

        Polars raises an error if the mean does not fit its type, as Spark does in ANSI mode.
        """
        total, count = _fields(accumulator, "sum", "count")
        whole, count = total.to_physical().abs(), pl.when(count > 0).then(count).cast(pl.Int128)
        more = 10 ** (self.returns.scale - self.kind.scale)
        quotient = whole // count
        digits = ((whole - quotient * count) * (2 * more) + count) // (2 * count)
        sign, kind = total.to_physical().sign(), pl.Decimal(_DIGITS_MAX, self.returns.scale)
        further: pl.Expr = (digits * sign).reinterpret(dtype=kind)
        return further + (quotient * sign).reinterpret(dtype=self._sum).cast(kind)

    @property
    def _sum(self) -> pl.DataType:
        return pl.Decimal(_DIGITS_MAX, self.kind.scale)


class MeanOverflowError(ArithmeticError):
    """A mean of decimals, or its sum, has more digits than its type. The message names the columns and a way out."""


@contextmanager
def fitting_means(functions: Iterable[tuple[str, AggregateMeaning]]) -> Iterator[None]:
    """Raise MeanOverflowError if Polars finds a decimal too large for its type and one of these functions is a mean."""
    try:
        yield
    except (pl.exceptions.ComputeError, pl.exceptions.InvalidOperationError) as error:
        means = [(name, function) for name, function in functions if isinstance(function, DecimalAverage)]
        if not means or "decimal" not in str(error):
            raise
        name, mean = means[0]
        names = " or ".join(each for each, _ in means)
        raise MeanOverflowError(
            f"column {names}: the mean of {mean.column}, or its sum, does not fit {mean.returns.simpleString()}; cast "
            f"{mean.column} to double or to a decimal with fewer digits before the aggregate, and give {name} another "
            "name, which begins anew"
        ) from error


@dataclass(frozen=True, slots=True)
class Variance:
    """The variance or standard deviation, as a double. It is computed for a sample or for the whole population.

    The accumulator is the number of values, their mean, and `m2`: the sum of the squared distances from the mean. Two
    accumulators are merged by the rule of Chan, Golub and LeVeque (1979), which Spark uses too. This rule loses no
    digits if the mean is large and the variance small.
    """

    column: str
    root: bool
    population: bool
    accumulator: ClassVar[DataType] = (
        StructType().add("count", LongType()).add("mean", DoubleType()).add("m2", DoubleType())
    )
    returns: ClassVar[DataType] = DoubleType()

    @property
    def name(self) -> str:
        """Spark's name."""
        return f"{'stddev' if self.root else 'var'}_{'pop' if self.population else 'samp'}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def init(self) -> pl.Expr:
        """No values."""
        return pl.struct(count=pl.lit(0, dtype=pl.Int64), mean=pl.lit(0.0), m2=pl.lit(0.0))

    def add(self) -> pl.Expr:
        """Count, take the mean, and add up the squared distances from it."""
        values = pl.col(self.column).cast(pl.Float64)
        mean = values.mean()
        return pl.struct(count=values.count().cast(pl.Int64), mean=mean.fill_null(0.0), m2=((values - mean) ** 2).sum())

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Combine both: the common mean, and the squared distances from it."""
        count, mean, m2 = _fields(one, "count", "mean", "m2")
        more, its_mean, its_m2 = _fields(other, "count", "mean", "m2")
        total, delta = count + more, its_mean - mean
        share = more / total
        both = pl.struct(count=total, mean=mean + delta * share, m2=m2 + its_m2 + delta * delta * count * share)
        return pl.when(count == 0).then(other).when(more == 0).then(one).otherwise(both)

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Divide. The result is null if there are too few values: less than one, or less than two for a sample."""
        count, m2 = _fields(accumulator, "count", "m2")
        degrees = count if self.population else count - 1
        variance = pl.when(degrees > 0).then(m2 / degrees)
        result: pl.Expr = variance.sqrt() if self.root else variance
        return result


def _fields(accumulator: pl.Expr, *names: str) -> tuple[pl.Expr, ...]:
    return tuple(accumulator.struct.field(name) for name in names)


def _added(one: pl.Expr, other: pl.Expr) -> pl.Expr:
    """Return the accumulator in which the sums and the counts of both are added up."""
    (total, count), (more, further) = _fields(one, "sum", "count"), _fields(other, "sum", "count")
    return pl.struct(sum=total + more, count=count + further)
