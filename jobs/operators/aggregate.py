"""Aggregates by key: count, sum, min, max, with nulls as in SQL.

Nulls are left out. The sum, min or max of only nulls is null. NaN is greater than every number, as in Spark, so it can
be a max, and a min only among NaNs. `jobs.operators.sums` handles sums that do not fit their type.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

import polars as pl
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FractionalType,
    IntegralType,
    LongType,
    StructField,
    StructType,
)

from jobs.operators.functions import Processed
from jobs.operators.sums import fitting, may_overflow, require_totals_fit, sum_of_rows
from jobs.state.merge import KEY_GROUP

_BEFORE = "\0"
"""Prefix of the state's columns beside the partials: no column of a user begins with it."""


class Kind(Enum):
    """What an aggregate computes."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate. `column` is its input (None: rows, for COUNT only), `name` is its output column."""

    kind: Kind
    column: str | None
    name: str

    def __post_init__(self) -> None:
        """Raise ValueError if the column is missing; only COUNT works without one."""
        if self.column is None and self.kind is not Kind.COUNT:
            raise ValueError(f"aggregate {self.name}: {self.kind.value} needs a column")


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """The keyed function of these aggregates: state and output are alike, a row per key."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the aggregates of the touched keys after these rows, as state and as output.

        Raise SumOverflowError for a sum that does not fit its type.
        """
        rows = inputs[0].with_columns(pl.lit(0, dtype=pl.Int32).alias(KEY_GROUP))
        new = self.merged(self.partials(rows, state.schema), state).drop(KEY_GROUP)
        return Processed(state=new, output=new)

    def partials(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return the aggregates of these rows alone, a row per key (see `MergesPartials`); raises as `process` does."""
        checked = {name: column for name, column in self._sums() if may_overflow(rows[column], types[name])}
        found = rows.group_by(self.keys).agg(
            pl.col(KEY_GROUP).first(),
            *(each for one in self.aggregates for each in _of_rows(one, types[one.name], checked=one.name in checked)),
        )
        for name, column in checked.items():
            found = fitting(found, self.keys, column, name, types[name])
        return found

    def merged(self, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the new row of each key of the partials (see `MergesPartials`); raises as `process` does."""
        known = before.select(*self.keys, *(pl.col(one.name).alias(f"{_BEFORE}{one.name}") for one in self.aggregates))
        beside = partials.join(known, on=list(self.keys), how="left", nulls_equal=True)
        for name, column in self._sums():
            require_totals_fit(beside, self.keys, column, name, f"{_BEFORE}{name}", before.schema[name])
        new = (
            _of_two(one, pl.col(f"{_BEFORE}{one.name}"), pl.col(one.name)).cast(before.schema[one.name])
            for one in self.aggregates
        )
        return beside.select(KEY_GROUP, *self.keys, *new)

    def _sums(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the column of each sum."""
        for one in self.aggregates:
            if one.kind is Kind.SUM and one.column is not None:
                yield one.name, one.column


def aggregate_schema(keys: Sequence[str], aggregates: Sequence[Aggregate], rows: StructType) -> StructType:
    """Return the columns of the aggregates by key over rows of this schema; types are Spark's.

    Raise ValueError for a sum over what is no number.
    """
    return StructType([*[rows[key] for key in keys], *[StructField(one.name, _type(one, rows)) for one in aggregates]])


def needed_columns(keys: Sequence[str], aggregates: Sequence[Aggregate], rows: StructType) -> StructType:
    """Return the columns of the rows' schema that these aggregates read."""
    names = dict.fromkeys([*keys, *(one.column for one in aggregates if one.column is not None)])
    return StructType([rows[name] for name in names])


def _type(one: Aggregate, rows: StructType) -> DataType:
    if one.kind is Kind.COUNT or one.column is None:
        return LongType()
    kind = rows[one.column].dataType
    return _sum_type(one, kind) if one.kind is Kind.SUM else kind


def _sum_type(one: Aggregate, kind: DataType) -> DataType:
    match kind:
        case IntegralType():
            return LongType()
        case DecimalType():
            return DecimalType(min(38, kind.precision + 10), kind.scale)
        case FractionalType():
            return DoubleType()
        case _:
            raise ValueError(f"aggregate {one.name}: can't sum column {one.column} of type {kind.simpleString()}")


def _of_rows(one: Aggregate, kind: pl.DataType, *, checked: bool) -> tuple[pl.Expr, ...]:
    """Return the partial aggregate. Values are first widened to the type of the sum."""
    if one.column is None:
        return (pl.len().cast(pl.Int64).alias(one.name),)
    column = pl.col(one.column)
    match one.kind:
        case Kind.COUNT:
            return (column.count().cast(pl.Int64).alias(one.name),)
        case Kind.SUM:
            return sum_of_rows(one.column, one.name, kind, checked=checked)
        case Kind.MIN:
            return (column.min().alias(one.name),)
        case Kind.MAX:
            return (column.nan_max().alias(one.name),)
        case _ as unreachable:
            assert_never(unreachable)


def _of_two(one: Aggregate, before: pl.Expr, partial: pl.Expr) -> pl.Expr:
    """Return both combined; if one is null, the other counts. In Polars too, NaN is greater than every number."""
    match one.kind:
        case Kind.SUM | Kind.COUNT:
            both = before + partial
        case Kind.MIN:
            both = pl.when(before <= partial).then(before).when(partial < before).then(partial)
        case Kind.MAX:
            both = pl.when(before >= partial).then(before).when(partial > before).then(partial)
        case _ as unreachable:
            assert_never(unreachable)
    return pl.coalesce(both, before, partial).alias(one.name)
