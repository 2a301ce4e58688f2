"""Columns that a task derives itself from those that it reads from files, so that no step of Spark is needed.

These are copies of columns, and the kinds of a changelog's rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from jobs.operators.changes import ADDING, DELETE, INSERT, KIND
from jobs.sources.slice_reading import ScanOfScan


@dataclass(frozen=True, slots=True)
class CopiedColumn:
    """A new column with the values of column `of`, and with `instead` where that is null.

    Without `of` all values are `instead`. Without `instead` a null stays null.
    """

    name: str
    of: str | None
    instead: bool | None = None

    def values(self, rows: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
        """Return the column's values for these rows."""
        if self.of is None:
            return pa.repeat(pa.scalar(self.instead, kind), rows.num_rows)
        found = rows.column(self.of).cast(kind)
        return found if self.instead is None else pc.fill_null(found, self.instead)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingScan(ScanOfScan):
    """A part of a file with copied columns beside its own. `read` has the types of the columns that are copied."""

    copies: tuple[CopiedColumn, ...]
    read: pa.Schema

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises ScanError."""
        copies = {copy.name: copy for copy in self.copies}
        own = [field for field in schema if field.name not in copies]
        names = {field.name for field in own}
        beside = [field for field in self.read if field.name not in names]
        for batch in self.scan.batches(pa.schema([*own, *beside])):
            columns = [
                copies[field.name].values(batch, field.type) if field.name in copies else batch.column(field.name)
                for field in schema
            ]
            yield pa.record_batch(columns, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesScan(ScanOfScan):
    """A part of a file of a changelog. Its rows have kinds, or all are added.

    If the kind is asked for, each row is an insert or a delete. Otherwise the rows that are taken back are left out.
    """

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises ScanError."""
        asked = KIND in schema.names
        inside = schema if asked else schema.append(pa.field(KIND, pa.string()))
        adding = pa.array(ADDING, pa.string())
        for batch in self.scan.batches(inside):
            kinds = batch.column(KIND)
            adds = pc.or_(pc.is_null(kinds), pc.is_in(kinds, adding))
            if asked:
                at = batch.schema.get_field_index(KIND)
                own = pc.if_else(adds, pa.scalar(INSERT, kinds.type), pa.scalar(DELETE, kinds.type))
                yield batch.set_column(at, batch.schema.field(at), own)
            else:
                yield batch.filter(adds).select(schema.names)


# ------------------------------------------------------------------
# Row rules and conditions that a task can judge itself, in the batches that it reads from files.
#
# They are those about which Arrow and Spark surely say the same: null for every type, and comparisons of whole numbers,
# texts, dates and times.


class TaskRule(Protocol):
    """Says which rows are good."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        ...

    def over(self, of: Mapping[str, str]) -> "TaskRule":
        """Return the same rule for rows in which the columns `of` have these names instead."""
        ...

    def good(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it is good. Null is not."""
        ...


@dataclass(frozen=True, slots=True)
class NullRule:
    """A row is good if this column is null, or with `null=False` if it is not."""

    column: str
    null: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def over(self, of: Mapping[str, str]) -> "NullRule":
        """Return the rule for rows in which the column has another name."""
        return replace(self, column=of.get(self.column, self.column))

    def good(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it is good."""
        column = rows.column(self.column)
        return pc.is_null(column) if self.null else pc.is_valid(column)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row is good if a column compares so with another column of its type, or with a constant.

    `compare` is the name of a comparison of Arrow's. With `modulo`, the remainder of the column's whole numbers counts,
    which has the sign of the number as in Spark.
    """

    column: str
    compare: str
    other: str | None = None
    constant: int | str | None = None
    modulo: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (self.column,) if self.other is None else (self.column, self.other)

    def over(self, of: Mapping[str, str]) -> "Comparison":
        """Return the comparison for rows in which columns have other names."""
        column, other = (of.get(name, name) for name in (self.column, self.other or ""))
        return replace(self, column=column, other=other or None)

    def good(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it is good."""
        values = rows.column(self.column)
        if pa.types.is_integer(values.type):
            values = values.cast(pa.int64())
        if self.modulo is not None:
            values = pc.subtract(values, pc.multiply(pc.divide(values, self.modulo), self.modulo))
        with_what = pa.scalar(self.constant, values.type) if self.other is None else rows.column(self.other)
        return pc.call_function(self.compare, [values, with_what])


@dataclass(frozen=True, slots=True)
class OneOf:
    """A row is good if a column has one of these values."""

    column: str
    values: tuple[int, ...] | tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def over(self, of: Mapping[str, str]) -> "OneOf":
        """Return the condition for rows in which the column has another name."""
        return replace(self, column=of.get(self.column, self.column))

    def good(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it is good."""
        values = rows.column(self.column)
        kind = pa.int64() if pa.types.is_integer(values.type) else values.type
        return pc.is_in(values.cast(kind), value_set=pa.array(self.values, kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredScan(ScanOfScan):
    """A part of a file without the rows that fail one of the rules. `tested` are the columns that the rules read."""

    rules: tuple[TaskRule, ...]
    tested: pa.Schema

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the good rows in `schema`. Raises ScanError."""
        beside = [field for field in self.tested if field.name not in schema.names]
        for batch in self.scan.batches(pa.schema([*schema, *beside])):
            kept = batch
            for rule in self.rules:
                kept = kept.filter(rule.good(kept))
            yield kept.select(schema.names)


def marked(rows: pa.RecordBatch, rules: Sequence[tuple[str, NullRule]], column: str) -> pa.RecordBatch:
    """Return the rows with a column more: the names of the rules that a row fails, joined by ', ', null if none."""
    failed = (pc.if_else(rule.good(rows), pa.scalar(None, pa.string()), pa.scalar(name)) for name, rule in rules)
    return rows.append_column(column, reduce(_joined, failed))


def _joined(names: pa.StringArray, more: pa.StringArray) -> pa.StringArray:
    return pc.coalesce(pc.binary_join_element_wise(names, more, ", "), names, more)
