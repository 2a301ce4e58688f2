"""Steps that a task carries out itself on the rows that it reads from files, so that Spark has none to do.

A task adds columns, handles the kinds of a changelog's rows, and filters rows by conditions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from jobs.operators.changes import ADDING, DELETE, INSERT, KIND
from jobs.operators.expressions import Expression, Memo, evaluated
from jobs.sources.slice_reading import ScanOfScan


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A column that a task adds, or that replaces one."""

    name: str
    values: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingScan(ScanOfScan):
    """A part of a file with new columns beside its own. `read` has the types of the columns that the new ones read."""

    added: tuple[NewColumn, ...]
    read: pa.Schema

    def stored(self, columns: Sequence[str]) -> pa.Schema | None:
        """Return the schema of the other scan's file, unless one of these columns is new. Raises ScanError."""
        return None if {column.name for column in self.added} & {*columns} else ScanOfScan.stored(self, columns)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises ScanError."""
        added = {column.name: column.values for column in self.added}
        own = [field for field in schema if field.name not in added]
        names = {field.name for field in own}
        beside = [field for field in self.read if field.name not in names]
        for batch in self.scan.batches(pa.schema([*own, *beside])):
            memo: Memo = {}
            columns = [
                evaluated(added[field.name], batch, field.type, memo)
                if field.name in added
                else batch.column(field.name)
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
# Row rules and conditions that a task judges itself, in the batches that it reads from files.


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredScan(ScanOfScan):
    """A part of a file without the rows that fail one of the rules. `tested` are the columns that the rules read."""

    rules: tuple[Expression, ...]
    tested: pa.Schema

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the good rows in `schema`. Raises ScanError."""
        beside = [field for field in self.tested if field.name not in schema.names]
        for batch in self.scan.batches(pa.schema([*schema, *beside])):
            kept = batch
            for rule in self.rules:
                kept = kept.filter(evaluated(rule, kept, pa.bool_(), {}))
            yield kept.select(schema.names)


def marked(rows: pa.RecordBatch, rules: Sequence[tuple[str, Expression]], column: str) -> pa.RecordBatch:
    """Return the rows with one more column: the names of the rules that a row fails, joined by ', ', or null.

    A row for which a rule is null passes that rule.
    """
    good = ((name, pc.fill_null(evaluated(rule, rows, pa.bool_(), {}), fill_value=True)) for name, rule in rules)
    failed = (pc.if_else(each, pa.scalar(None, pa.string()), pa.scalar(name)) for name, each in good)
    return rows.append_column(column, reduce(_joined, failed))


def _joined(names: pa.StringArray, more: pa.StringArray) -> pa.StringArray:
    return pc.coalesce(pc.binary_join_element_wise(names, more, ", "), names, more)
