"""Built-in aggregates whose accumulator keeps values: the ordered ones, the lists, and sketches of bounded size."""

import math
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import polars as pl
from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType, StructField, StructType

_VALUE = "value"
_COUNT = "count"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The value of the row that comes first, or last, in the order of other columns. Nulls come first.

    Between rows that are equal in these columns, the value decides in the same direction, if values have an order
    (`by_value`). `skips` are columns that must not be null: other rows do not take part.
    """

    name: str
    column: str
    order: tuple[str, ...]
    last: bool
    by_value: bool
    skips: tuple[str, ...]
    kind: DataType
    order_kinds: tuple[DataType, ...]
    ignores_duplicates: ClassVar[bool] = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The value, then the order."""
        return (self.column, *self.order)

    @property
    def accumulator(self) -> DataType:
        """The chosen row's order and value; null without a row."""
        order = [StructField(f"order_{place}", kind) for place, kind in enumerate(self.order_kinds)]
        return StructType([*order, StructField(_VALUE, self.kind)])

    @property
    def returns(self) -> DataType:
        """The type of the value."""
        return self.kind

    def init(self) -> pl.Expr | None:
        """No row: null."""
        return None

    def add(self) -> pl.Expr:
        """Sort the rows, and take the first or the last."""
        columns = {f"order_{place}": name for place, name in enumerate(self.order)} | {_VALUE: self.column}
        by = [pl.col(columns[name]) for name in self._compared()]
        if not self.skips:
            return pl.struct([self._end(pl.col(name).sort_by(by)).alias(field) for field, name in columns.items()])
        known = pl.all_horizontal(pl.col(name).is_not_null() for name in self.skips)
        by = [each.filter(known) for each in by]
        fields = [self._end(pl.col(name).filter(known).sort_by(by)).alias(field) for field, name in columns.items()]
        return pl.when(known.any()).then(pl.struct(fields))

    def _end(self, sorted_rows: pl.Expr) -> pl.Expr:
        return sorted_rows.last() if self.last else sorted_rows.first()

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Take the row that comes first, or last."""
        earlier, later = (other, one) if self.last else (one, other)
        comes_first = reduce(
            lambda rest, name: _before(earlier.struct.field(name), later.struct.field(name), rest),
            reversed(self._compared()),
            pl.lit(value=True),
        )
        chosen = pl.when(comes_first).then(one).otherwise(other)
        return pl.when(one.is_null()).then(other).when(other.is_null()).then(one).otherwise(chosen)

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Return the chosen value."""
        return accumulator.struct.field(_VALUE)

    def _compared(self) -> tuple[str, ...]:
        names = tuple(f"order_{place}" for place in range(len(self.order)))
        return (*names, _VALUE) if self.by_value else names


def _before(one: pl.Expr, other: pl.Expr, rest: pl.Expr) -> pl.Expr:
    """Return whether one value comes before the other, a null before any value. If both are equal, `rest` decides."""
    less = (one < other).fill_null(one.is_null() & other.is_not_null())
    return less | (one.eq_missing(other) & rest)


@dataclass(frozen=True, slots=True)
class Collected:
    """All values, or each value once, sorted; `counts` returns their number instead. Nulls are left out."""

    name: str
    column: str
    kind: DataType
    once: bool
    counts: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    @property
    def ignores_duplicates(self) -> bool:
        """Whether equal values count once."""
        return self.once

    @property
    def accumulator(self) -> DataType:
        """The sorted values."""
        return ArrayType(self.kind)

    @property
    def returns(self) -> DataType:
        """An array, or a number."""
        return LongType() if self.counts else ArrayType(self.kind)

    def init(self) -> pl.Expr:
        """No values."""
        return pl.lit([])

    def add(self) -> pl.Expr:
        """Collect the values of these rows."""
        values = pl.col(self.column).drop_nulls()
        return (values.unique() if self.once else values).sort().implode()

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Put both together."""
        both = one.list.concat(other)
        return (both.list.unique() if self.once else both).list.sort()

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Return the values, or their number."""
        return accumulator.list.len().cast(pl.Int64) if self.counts else accumulator


@dataclass(frozen=True, slots=True)
class ApproximateDistinct:
    """The approximate number of distinct values, from the `size` smallest of their 64-bit hashes (the KMV sketch).

    Source: Bar-Yossef and others, "Counting Distinct Elements in a Data Stream" (2002). With fewer than `size` distinct
    values the number is exact. With more, its standard error is 1 / sqrt(size - 2). The accumulator depends on the
    values only.
    """

    column: str
    size: int = 1024
    ignores_duplicates: ClassVar[bool] = True
    accumulator: ClassVar[DataType] = ArrayType(LongType())
    returns: ClassVar[DataType] = LongType()

    @property
    def name(self) -> str:
        """The function and the size of its sketch."""
        return f"approx_count_distinct_{self.size}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of hashes."""
        return (self.column,)

    def init(self) -> pl.Expr:
        """No values."""
        return pl.lit([])

    def add(self) -> pl.Expr:
        """Keep the `size` smallest hashes."""
        return pl.col(self.column).drop_nulls().unique().sort().head(self.size).implode()

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Keep the `size` smallest hashes of both accumulators."""
        return one.list.concat(other).list.unique().list.sort().list.head(self.size)

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Return the number of hashes if it is below `size`, or else an estimate from the greatest of these hashes."""
        share = accumulator.list.last().cast(pl.Float64) / 2.0**64 + 0.5
        found = accumulator.list.len()
        return pl.when(found < self.size).then(found).otherwise(((self.size - 1) / share).round()).cast(pl.Int64)


@dataclass(frozen=True, slots=True)
class ApproximatePercentile:
    """A percentile, from counts of values that were rounded by at most `relative_error` (DDSketch).

    Source: Masson, Rim and Lee, "DDSketch" (VLDB 2019). A positive value v is rounded to 2 g^i / (g + 1) with
    g = (1 + e) / (1 - e) and i = ceil(log(v) / log(g)). The accumulator depends on the values only.
    """

    column: str
    percentage: float
    relative_error: float
    accumulator: ClassVar[DataType] = ArrayType(StructType().add(_VALUE, DoubleType()).add(_COUNT, LongType()))
    returns: ClassVar[DataType] = DoubleType()

    @property
    def name(self) -> str:
        """The function and its parameters."""
        return f"approx_percentile_{self.percentage}_{self.relative_error}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def init(self) -> pl.Expr:
        """No values."""
        return pl.lit([])

    def add(self) -> pl.Expr:
        """Count the rounded values."""
        runs = self._rounded(pl.col(self.column).cast(pl.Float64).drop_nulls()).sort().rle()
        count = runs.struct.field("len").cast(pl.Int64)
        return pl.struct(runs.struct.field("value").alias(_VALUE), count.alias(_COUNT)).implode()

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Add up the counts of equal values."""
        value, count = _counted_value()
        counted = pl.struct(value, count.sum().over(value)).unique()
        return one.list.concat(other).list.eval(counted).list.sort()

    def retract(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Subtract the counts of equal values."""
        value, count = _counted_value()
        rest = self.merge(one, other.list.eval(pl.struct(value, -count)))
        return rest.list.eval(pl.element().filter(count > 0))

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        """Return the least value such that at least this share of all values is not greater."""
        value, count = _counted_value()
        rank = (count.sum() * self.percentage).ceil().clip(1)
        return accumulator.list.eval(value.filter(count.cum_sum() >= rank).first()).list.first()

    def _rounded(self, values: pl.Expr) -> pl.Expr:
        growth = (1 + self.relative_error) / (1 - self.relative_error)
        steps = (values.abs().log() / math.log(growth)).ceil()
        size = (steps * math.log(growth)).exp() * (2 / (growth + 1))
        return pl.when(values == 0).then(0.0).otherwise(size * values.sign())


def _counted_value() -> tuple[pl.Expr, pl.Expr]:
    """Return the value and the count in an element of an accumulator."""
    return pl.element().struct.field(_VALUE), pl.element().struct.field(_COUNT)
