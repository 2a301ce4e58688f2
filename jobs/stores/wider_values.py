"""Reads from files of others what a rollback must know: wide values, and the names of their columns.

A rollback to a cut from before a widening gives a column its narrower type back. No reader narrows values, so a file
with wider ones would make the table unreadable. Tidemark looks twice: when it plans the rollback, and when it publishes
it. Another program may append a file in between.
"""

from collections.abc import Iterable, Mapping

import pyarrow.parquet as pq

from jobs.storage.parquet import parquet_of
from jobs.stores.lost_files import is_ours
from jobs.stores.table_columns import declared_columns
from jobs.stores.warehouse import Warehouse


def wider_values(warehouse: Warehouse, table: str, paths: Iterable[str], narrower: Mapping[str, str]) -> str | None:
    """Return an error message if a file of another program has another type than these columns are to get, else None.

    `paths` are files in the warehouse. Raises OSError and ArrowException for a file that cannot be read.
    """
    for path in sorted(paths) if narrower else ():
        if is_ours(path.removeprefix(f"{table}/")):
            continue
        with pq.ParquetFile(parquet_of(warehouse.place(path))) as file:
            types = {column.name: column.type for column in declared_columns(file.schema_arrow)}
        wide = next((column for column, kind in narrower.items() if types.get(column, kind) != kind), None)
        if wide is not None:
            return (
                f"table {table}: column {wide} was widened since, and others have written wider values ({path}): take "
                "these rows out of the table"
            )
    return None


def names_in(warehouse: Warehouse, paths: Iterable[str]) -> frozenset[str]:
    """Return the names of all columns that these files have. Raises as `wider_values`."""
    names: set[str] = set()
    for path in paths:
        with pq.ParquetFile(parquet_of(warehouse.place(path))) as file:
            names.update(column.name for column in declared_columns(file.schema_arrow))
    return frozenset(names)
