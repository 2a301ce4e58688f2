"""Row rules that a task can judge itself, in the batches that it reads from files.

Only rules about null are among them. Arrow and Spark say the same about null for every type.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from jobs.sources.slice_reading import ScanOfScan


@dataclass(frozen=True, slots=True)
class NullRule:
    """A row is good if this column is null, or with `null=False` if it is not."""

    column: str
    null: bool

    def good(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it is good."""
        column = rows.column(self.column)
        return pc.is_null(column) if self.null else pc.is_valid(column)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredScan(ScanOfScan):
    """A part of a file without the rows that fail one of the rules. `tested` are the columns that the rules read."""

    rules: tuple[NullRule, ...]
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
