"""Collects change rows, and turns them into Arrow batches with one column for each table."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from jobs.sources.change_rows import COMMITTED_AT, KIND, LSN, TABLE, UNCHANGED, XID
from jobs.sources.port import SourceError
from jobs.sources.postgres.columns import SourceTable
from jobs.sources.postgres.lsn import written
from jobs.sources.postgres.pgoutput import Unchanged, Values
from jobs.sources.postgres.texts import UnfitValueError, converted

END: Final = "_end_lsn"
"""A column of staged files that no slice offers.

The last row of each transaction has the place after its commit record. The column is null in the other rows.
"""

_HEAD_ARROW: Final = pa.schema(
    [
        pa.field(KIND, pa.string()),
        pa.field(TABLE, pa.string()),
        pa.field(LSN, pa.int64()),
        pa.field(XID, pa.int64()),
        pa.field(COMMITTED_AT, pa.timestamp("us", "UTC")),
        pa.field(UNCHANGED, pa.list_(pa.field("element", pa.string()))),
        pa.field(END, pa.int64()),
    ]
)


class ChangeBatch:
    """The rows of one staged file that are not written yet, in order."""

    def __init__(self, tables: Sequence[SourceTable], *, nulls_for_unfit: bool) -> None:
        """Begin without rows."""
        self._tables = tables
        self._nulls_for_unfit = nulls_for_unfit
        own = [pa.field(table.column, table.arrow()) for table in tables]
        later = [field for table in tables for field in table.later_arrow()]
        self.schema = pa.schema([*_HEAD_ARROW, *own, *later])
        self._clear()

    def _clear(self) -> None:
        self._head: tuple[list[object], ...] = ([], [], [], [], [], [], [])
        self._rows: list[list[Values]] = [[] for _ in self._tables]
        self._places: list[list[int]] = [[] for _ in self._tables]

    def __len__(self) -> int:
        """Return how many rows wait."""
        return len(self._head[0])

    def add(
        self, kind: str, table: int, values: Values | None, lsn: int, xid: int | None, committed_us: int | None
    ) -> None:
        """Add a row of one table. None is a row without values (truncate)."""
        columns = self._tables[table].columns
        kinds, tables, lsns, xids, times, unchanged, ends = self._head
        missing = None
        if values is not None:
            if Unchanged.VALUE in values:
                missing = [
                    column.name for column, value in zip(columns, values, strict=True) if value is Unchanged.VALUE
                ]
                values = [None if value is Unchanged.VALUE else value for value in values]
            self._rows[table].append(values)
            self._places[table].append(len(kinds))
        kinds.append(kind)
        tables.append(self._tables[table].full_name)
        lsns.append(lsn)
        xids.append(xid)
        times.append(committed_us)
        unchanged.append(missing)
        ends.append(None)

    def end_transaction(self, end_lsn: int) -> None:
        """Mark the newest row as the last one of its transaction."""
        self._head[-1][-1] = end_lsn

    def take(self) -> pa.RecordBatch:
        """Return the rows and begin anew. Raise SourceError for a value that its column's type cannot hold."""
        count = len(self)
        head = [pa.array(values, field.type) for values, field in zip(self._head, _HEAD_ARROW, strict=True)]
        own, later = [], []
        for number, places in enumerate(self._places):
            table, columns = self._tables[number], self._columns(number)
            first = len(table.first)
            struct = pa.StructArray.from_arrays(columns[:first], fields=list(table.arrow()))
            own.append(_spread(struct, places, count))
            later += [_spread(column, places, count) for column in columns[first:]]
        self._clear()
        return pa.RecordBatch.from_arrays([*head, *own, *later], schema=self.schema)

    def _columns(self, number: int) -> list[pa.Array]:
        """Return the values of one table's columns, without gaps."""
        table, rows = self._tables[number], self._rows[number]
        texts = list(zip(*rows, strict=True)) if rows else [()] * len(table.columns)
        arrays = []
        for column, values in zip(table.columns, texts, strict=True):
            try:
                arrays.append(converted(values, column.type, nulls_for_unfit=self._nulls_for_unfit))
            except UnfitValueError as error:
                raise self._unfit(number, column.name, column.type, error.text) from None
        return arrays

    def _unfit(self, number: int, column: str, kind: str, text: str) -> SourceError:
        name, where = self._tables[number].full_name, self._places[number]
        lsns = self._head[2]
        return SourceError(
            f"table {name}, column {column}: {text!r} is no value of Spark's type {kind}, in a row committed at or "
            f"after {written(int(str(lsns[where[0]])))}: change the row, or read such values as null with "
            'PostgresChanges(..., unfit="null")'
        )


def _spread(rows: pa.StructArray, places: list[int], count: int) -> pa.Array:
    """Return `count` rows: the given ones at their places, and nulls elsewhere."""
    if len(places) == count:
        return rows
    if not places:
        return pa.nulls(count, rows.type)
    indices: list[int | None] = [None] * count
    for number, place in enumerate(places):
        indices[place] = number
    return rows.take(pa.array(indices, pa.int64()))
