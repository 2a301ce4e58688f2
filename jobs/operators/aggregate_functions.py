"""The protocol of an aggregate, and the built-in ones that need no order of rows.

Nulls are left out, and NaN is greater than every number, as in Spark SQL. Types are Spark's.
`jobs.operators.sums` handles sums that do not fit their type.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import polars as pl
from pyspark.sql.types import DataType, DecimalType, DoubleType, LongType, StructType

from jobs.operators.sums import sum_of_rows

_DIGITS_MAX = 38
"""The most digits of a decimal, in Spark and in Polars."""


class AggregateMeaning(Protocol):
    """What an aggregate says of itself.

    `name` says what the accumulator and the result mean. Each checkpoint records it with `columns`, which are the input
    columns. Change the name when the meaning changes: old state is then refused instead of being mixed with new values.
    `accumulator` and `returns` are the Spark types of accumulator and result.
    """

    @property
    def name(self) -> str:
        """What the checkpoint calls the function."""
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
    result must depend on the rows only: not on their order, and not on how they were split into micro-batches.

    It may have `retract(one, other)`, which returns the accumulator of the rows of `one` without those of `other`. Over
    changes, an aggregate without it keeps the rows of each key. If equal rows count once, it may then say so with an
    attribute `ignores_duplicates`, which is true.
    """

    def init(self) -> pl.Expr | None:
        """Return the accumulator of no rows. None means a null, and `merge` then gets it (Flink: createAccumulator)."""
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
    """An aggregate whose accumulator is its result; `kind` is the type of both. A null stands for no rows."""

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
    """Takes the least value. NaN is it only among NaNs."""

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
        """Take the lesser. In Polars too, NaN is greater than every number."""
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
        """Take the greater."""
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
    """The exact mean of decimals, rounded half up to four more digits after the point, as Spark's."""

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
        """Four more digits, before and after the point together and after it."""
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
        """Divide as whole numbers of 128 bits, first the digits that the sum has, then the further ones.

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
    """A mean of decimals, or its sum, has more digits than its type; the message names columns and way out."""


@contextmanager
def fitting_means(functions: Iterable[tuple[str, AggregateMeaning]]) -> Iterator[None]:
    """Raise MeanOverflowError where Polars finds a decimal that does not fit, if one of these functions is a mean."""
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
    """The variance or standard deviation as a double, of a sample or of the whole population.

    The accumulator is the number of values, their mean, and `m2`: the sum of the squared distances from the mean. Two
    of them are merged by the rule of Chan, Golub and LeVeque (1979), which Spark uses too. It loses no digits if the
    mean is large and the variance small.
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
        """Move both means to the common one."""
        count, mean, m2 = _fields(one, "count", "mean", "m2")
        more, its_mean, its_m2 = _fields(other, "count", "mean", "m2")
        total, delta = count + more, its_mean - mean
        share = more / total
        both = pl.struct(count=total, mean=mean + delta * share, m2=m2 + its_m2 + delta * delta * count * share)
        return pl.when(count == 0).then(other).when(more == 0).then(one).otherwise(both)

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Divide; null without enough values: one, or two for a sample."""
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
