"""Keeps aggregates by key: one column of state for each, and a row of results for each changed key.

The aggregates themselves are in `jobs.operators.aggregate_functions` and `jobs.operators.ordered_aggregates`, or a
user's own.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import polars as pl
from pyspark.sql.types import StructField, StructType

from jobs.operators.aggregate_functions import (
    AggregateFunction,
    AggregateMeaning,
    Sum,
    fitting,
    fitting_means,
    may_overflow,
    require_totals_fit,
    sum_of_rows,
)
from jobs.operators.process import Processed
from jobs.state.key_joins import join_by_key
from jobs.state.merge import KEY_GROUP

_BEFORE = "\0"
"""Prefix of the state's columns beside the partials: no column of a user begins with it."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate. `name` is its column, in the state (the accumulator) and in the output (the result)."""

    name: str
    function: AggregateFunction


class Named(Protocol):
    """An aggregate as its schemas and its meaning need it."""

    @property
    def name(self) -> str:
        """The aggregate's column in state and output."""
        ...

    @property
    def function(self) -> AggregateMeaning:
        """The aggregate's name, columns and types."""
        ...


@dataclass(frozen=True, slots=True)
class KeyedAggregates:
    """The keyed function of these aggregates. Its state holds accumulators, and its output results."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the aggregates of the touched keys after these rows, as state and as output.

        Raise SumOverflowError or MeanOverflowError for a sum or a mean that does not fit its type.
        """
        rows = inputs[0].with_columns(pl.lit(0, dtype=pl.Int32).alias(KEY_GROUP))
        new = self.merged(self.partials(rows, state.schema), state)
        return Processed(state=new.drop(KEY_GROUP), output=self.results(new).drop(KEY_GROUP))

    def partials(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return the aggregates of these rows alone, a row per key (see `MergesPartials`).

        Raises the errors that `process` raises.
        """
        checked = {name: column for name, column in self._sums() if may_overflow(rows[column], types[name])}
        sums = (each for one in self.aggregates for each in _of_rows(one, types[one.name], checked=one.name in checked))
        with self._fitting():
            found = rows.group_by(self.keys).agg(pl.col(KEY_GROUP).first(), *sums)
        for name, column in checked.items():
            found = fitting(found, self.keys, column, name, types[name])
        return found

    def merged(self, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the new row of each key of the partials (see `MergesPartials`).

        Raises the errors that `process` raises.
        """
        known = before.select(*self.keys, *(pl.col(one.name).alias(f"{_BEFORE}{one.name}") for one in self.aggregates))
        beside = join_by_key(partials, known, self.keys, "left")
        for name, column in self._sums():
            require_totals_fit(beside, self.keys, column, name, f"{_BEFORE}{name}", before.schema[name])
        new = (_of_two(one, before.schema[one.name]) for one in self.aggregates)
        with self._fitting():
            return beside.select(KEY_GROUP, *self.keys, *new)

    def results(self, state: pl.DataFrame) -> pl.DataFrame:
        """Return the output rows of these state rows."""
        shown = (one.function.result(pl.col(one.name)).alias(one.name) for one in self.aggregates)
        with self._fitting():
            return state.select(KEY_GROUP, *self.keys, *shown)

    def _fitting(self) -> AbstractContextManager[None]:
        return fitting_means((one.name, one.function) for one in self.aggregates)

    def _sums(self) -> Iterator[tuple[str, str]]:
        """Yield for each sum its name and the column that it adds up."""
        for one in self.aggregates:
            if isinstance(one.function, Sum):
                yield one.name, one.function.column


def output_schema(keys: Sequence[str], aggregates: Sequence[Named], rows: StructType) -> StructType:
    """Return the columns of the results by key over rows of this schema."""
    return StructType(
        [*[rows[key] for key in keys], *[StructField(one.name, one.function.returns) for one in aggregates]]
    )


def state_schema(keys: Sequence[str], aggregates: Sequence[Named], rows: StructType) -> StructType:
    """Return the columns of the accumulators by key over rows of this schema."""
    held = [StructField(one.name, one.function.accumulator) for one in aggregates]
    return StructType([*[rows[key] for key in keys], *held])


def needed_columns(keys: Sequence[str], aggregates: Sequence[Named], rows: StructType) -> StructType:
    """Return the columns of the rows' schema that these aggregates read."""
    names = dict.fromkeys([*keys, *(column for one in aggregates for column in one.function.columns)])
    return StructType([rows[name] for name in names])


def _of_rows(one: Aggregate, kind: pl.DataType, *, checked: bool) -> tuple[pl.Expr, ...]:
    """Return the partial aggregate. A checked sum has the form that `fitting` accepts."""
    if checked and isinstance(one.function, Sum):
        return sum_of_rows(one.function.column, one.name, kind, checked=True)
    return (one.function.add().cast(kind).alias(one.name),)


def _of_two(one: Aggregate, kind: pl.DataType) -> pl.Expr:
    """Return the accumulator of the key's earlier rows and of the partial together."""
    before, none = pl.col(f"{_BEFORE}{one.name}"), one.function.init()
    known = before if none is None else pl.coalesce(before, none.cast(kind))
    return one.function.merge(known, pl.col(one.name)).cast(kind).alias(one.name)
