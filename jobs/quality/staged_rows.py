"""Reads the judged columns of staged Parquet files, without changing any value.

pandas turns integers with nulls into floating point, which is exact up to 2**53. So a column with greater numbers is
read as pandas' nullable integers. Timestamps keep their unit and zone.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.quality.expectation import Expectation
from jobs.storage.address import Root
from jobs.storage.location import place_in
from jobs.storage.parquet import parquet_of
from jobs.storage.place import StoragePlace

_COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B", "column_list", "column_set")
_EXACT: Final = 2**53


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of several files, one after the other; `ends` are the row numbers at which each file ends."""

    rows: pa.Table
    paths: tuple[str, ...]
    ends: tuple[int, ...]

    def files_of(self, indices: Iterable[int]) -> tuple[str, ...]:
        """Return the paths of the files in which these rows lie, in order."""
        places = sorted({bisect_right(self.ends, index) for index in indices})
        return tuple(self.paths[place] for place in places)

    def only_integers(self, expectation: Expectation) -> bool:
        """Return whether all columns of the expectation hold whole numbers, which pandas may show as floating point."""
        named = columns_named([expectation]) or frozenset()
        return all(
            pa.types.is_integer(self.rows.schema.field(name).type)
            for name in named.intersection(self.rows.column_names)
        )

    def to_pandas(self) -> Any:  # noqa: ANN401 - a pandas DataFrame; pandas is imported late
        """Return the rows as pandas data with exactly the values of the files."""
        import pandas as pd  # noqa: PLC0415 - a second of start-up that only a judge needs

        wide = {field.name for field in self.rows.schema if _is_wide(field, self.rows.column(field.name))}
        exact = self.rows.select([name for name in self.rows.column_names if name in wide])
        plain = self.rows.select([name for name in self.rows.column_names if name not in wide])
        frame = plain.to_pandas(split_blocks=True, coerce_temporal_nanoseconds=False)
        for name in exact.column_names:
            frame[name] = exact.column(name).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        return frame


def read_staged(root: Root, paths: Sequence[str], expectations: Iterable[Expectation]) -> StagedRows:
    """Return the rows of these warehouse-relative files, with the columns that the expectations name.

    A column that no file has is left out: the judge says so by name. Raises what pyarrow raises for a
    file that cannot be read.
    """
    wanted = columns_named(expectations)
    tables = [_widened(_read(place_in(root, path), wanted)) for path in paths]
    rows = pa.concat_tables(tables, promote_options="permissive")
    return StagedRows(rows, tuple(paths), tuple(accumulate(table.num_rows for table in tables)))


def no_rows(expectations: Iterable[Expectation]) -> StagedRows:
    """Return a table without rows, with the column that each of these expectations judges."""
    names = sorted({str(each.kwargs["column"]) for each in expectations if "column" in each.kwargs})
    return StagedRows(pa.table({name: pa.nulls(0) for name in names}), (), ())


def columns_named(expectations: Iterable[Expectation]) -> frozenset[str] | None:
    """Return the columns that these expectations need, or None if one of them looks at the whole schema."""
    names: set[str] = set()
    for expectation in expectations:
        if expectation.type.startswith("expect_table_column"):
            return None
        for argument in _COLUMN_ARGUMENTS:
            value = expectation.kwargs.get(argument)
            names.update(value if isinstance(value, tuple) else [value] if isinstance(value, str) else [])
        if "row_condition" in expectation.kwargs:
            return None
    return frozenset(names)


def _read(place: StoragePlace, wanted: frozenset[str] | None) -> pa.Table:
    file = pq.ParquetFile(parquet_of(place))
    there = file.schema_arrow.names
    chosen = [name for name in there if wanted is None or name in wanted]
    return file.read(columns=chosen or there[:1])


def _widened(table: pa.Table) -> pa.Table:
    """Small integers as 64 bits: the same values, and pandas judges those without a loop in Python."""
    fields = [
        field.with_type(pa.int64()) if pa.types.is_signed_integer(field.type) else field for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _is_wide(field: pa.Field, column: pa.ChunkedArray) -> bool:
    if field.type != pa.int64() or column.null_count in (0, len(column)):
        return False
    least, most = pc.min_max(column).as_py().values()
    return bool(max(-least, most) > _EXACT)
