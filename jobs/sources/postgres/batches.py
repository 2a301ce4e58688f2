"""Turns rows of several tables into Arrow batches with one column for each table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jobs.sources.change_rows import COMMITTED_AT, KIND, LSN, TABLE, UNCHANGED, XID
from jobs.sources.port import SourceError
from jobs.sources.postgres.columns import SourceTable
from jobs.sources.postgres.lsn import written
from jobs.sources.postgres.texts import UnfitValueError, converted

END: Final = "_end_lsn"
"""A column of staged files that no slice offers.

The last row of each transaction has the place after its commit record. The column is null in the other rows.
"""

_NAMES: Final = pa.list_(pa.field("element", pa.string()))
_HEAD_ARROW: Final = pa.schema(
    [
        pa.field(KIND, pa.string()),
        pa.field(TABLE, pa.string()),
        pa.field(LSN, pa.int64()),
        pa.field(XID, pa.int64()),
        pa.field(COMMITTED_AT, pa.timestamp("us", "UTC")),
        pa.field(UNCHANGED, _NAMES),
        pa.field(END, pa.int64()),
    ]
)
_END_COLUMN: Final = len(_HEAD_ARROW) - 1

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table: their numbers in the batch, rising, and the texts of their values, column by column."""

    numbers: Numbers
    columns: Sequence[pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The columns that all rows of a batch have, whatever their table, with a value for each row.

    `tables` has the number of each row's table. `unchanged` has the columns that the server did not send, by the row's
    number.
    """

    kinds: Sequence[str] | pa.Array
    tables: Numbers
    lsns: Numbers
    xids: Numbers | None = None
    committed_us: Numbers | None = None
    unchanged: Mapping[int, list[str]]
    ends: pa.Array | None = None

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.tables)


class Batches:
    """Makes the batches of one staged file."""

    def __init__(self, tables: Sequence[SourceTable], *, nulls_for_unfit: bool) -> None:
        """Name the tables, in the order of their numbers."""
        self._tables = tables
        self._nulls_for_unfit = nulls_for_unfit
        own = [pa.field(table.column, table.arrow()) for table in tables]
        later = [field for table in tables for field in table.later_arrow()]
        self.schema = pa.schema([*_HEAD_ARROW, *own, *later])

    def made(self, heads: Heads, rows: Mapping[int, TableRows]) -> pa.RecordBatch:
        """Return the rows of all tables. Each row is at its number in the batch.

        Raises SourceError for a value that its column's type cannot hold.
        """
        count, own, later = len(heads), [], []
        for number, table in enumerate(self._tables):
            first = len(table.first)
            if number not in rows:
                own.append(pa.nulls(count, table.arrow()))
                later += [pa.nulls(count, field.type) for field in table.later_arrow()]
                continue
            numbers, columns = rows[number].numbers, self._columns(number, rows[number], heads)
            struct = pa.StructArray.from_arrays(columns[:first], fields=list(table.arrow()))
            own.append(_spread(struct, numbers, count))
            later += [_spread(column, numbers, count) for column in columns[first:]]
        return pa.RecordBatch.from_arrays([*self._head(heads), *own, *later], schema=self.schema)

    def _head(self, heads: Heads) -> list[pa.Array]:
        count = len(heads)
        names = pa.array([table.full_name for table in self._tables], pa.string())
        unchanged: list[list[str] | None] = [None] * count
        for number, columns in heads.unchanged.items():
            unchanged[number] = columns
        committed = pa.nulls(count, pa.int64()) if heads.committed_us is None else pa.array(heads.committed_us)
        return [
            pa.array(heads.kinds, pa.string()),
            names.take(pa.array(heads.tables)),
            pa.array(heads.lsns),
            pa.nulls(count, pa.int64()) if heads.xids is None else pa.array(heads.xids),
            committed.cast(pa.timestamp("us", "UTC")),
            pa.array(unchanged, _NAMES) if heads.unchanged else pa.nulls(count, _NAMES),
            pa.nulls(count, pa.int64()) if heads.ends is None else heads.ends,
        ]

    def _columns(self, number: int, rows: TableRows, heads: Heads) -> list[pa.Array]:
        """Return the values of one table's columns, without the gaps."""
        arrays = []
        for column, values in zip(self._tables[number].columns, rows.columns, strict=True):
            try:
                arrays.append(converted(values, column.type, nulls_for_unfit=self._nulls_for_unfit))
            except UnfitValueError as error:
                lsn = int(heads.lsns[rows.numbers[0]])
                raise SourceError(
                    f"table {self._tables[number].full_name}, column {column.name}: {error.text!r} is no value of "
                    f"Spark's type {column.type}, in a row committed at or after {written(lsn)}: change the row, or "
                    'read such values as null with PostgresChanges(..., unfit="null")'
                ) from None
        return arrays


def ended(batch: pa.RecordBatch, end_lsn: int) -> pa.RecordBatch:
    """Return a batch whose last row is the last one of its transaction."""
    before = batch.column(_END_COLUMN).slice(0, batch.num_rows - 1)
    return batch.set_column(_END_COLUMN, END, pa.concat_arrays([before, pa.array([end_lsn], pa.int64())]))


def _spread(rows: pa.Array, numbers: Numbers, count: int) -> pa.Array:
    """Return `count` rows: the given ones at their numbers, and nulls elsewhere."""
    if len(numbers) == count:
        return rows
    indices = np.zeros(count, np.int64)
    missing = np.ones(count, np.bool_)
    indices[numbers], missing[numbers] = np.arange(len(numbers)), False
    return rows.take(pa.array(indices, mask=missing))
