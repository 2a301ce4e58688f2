"""Splits rows into the partitions of a table, inside Spark's tasks.

A file has the partition columns too, although the log says their values. So whoever reads a staged file by its path
gets whole rows: a later vertex, a suite, a sink and a restored range.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkpointing.identifiers import TableName
from checkpointing.metadata.paths import PART_BYTES_MAX
from checkpointing.partitions import NO_VALUE, folder_of

PARTITIONS_MAX: Final = 10_000
"""A task writes at most so many partitions of a table in one micro-batch, since each is a file of its own."""

MEAN_NULL: Final = ("", NO_VALUE)
"""Texts that mean null in a partition column. Delta's protocol says so of the first, and Hive of the other."""


class PartitionError(ValueError):
    """Rows cannot be laid out as the pipeline says. The message names the table, the column and the way out."""


def partitions(table: TableName, rows: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the folder and the rows of each partition, in order of the values. Rows keep their order.

    The texts `MEAN_NULL` become null, as Spark writes them. Raises PartitionError.
    """
    whole = _with_nulls(rows, by)
    order = pc.sort_indices(whole.select(by), sort_keys=[(name, "ascending") for name in by])
    ordered = whole.take(order)
    begins = _begins(ordered, by)
    if len(begins) > PARTITIONS_MAX:
        raise PartitionError(
            f"table {table}: one micro-batch has rows of {len(begins)} partitions by {', '.join(by)} for one task, "
            f"which writes at most {PARTITIONS_MAX}: lay the table out by a column of fewer values, such as a date"
        )
    texts = [_texts(table, name, ordered.column(name).take(pa.array(begins))) for name in by]
    for begin, end, values in zip(begins, [*begins[1:], ordered.num_rows], zip(*texts, strict=True), strict=True):
        yield _folder(table, by, values), ordered.slice(begin, end - begin)


def _with_nulls(rows: pa.Table, by: tuple[str, ...]) -> pa.Table:
    """Return the rows with null in place of texts that mean null in these columns."""
    for name in by:
        column, at = rows.column(name), rows.schema.get_field_index(name)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            nulled = pc.if_else(
                pc.is_in(column, pa.array(MEAN_NULL, column.type)), pa.scalar(None, column.type), column
            )
            rows = rows.set_column(at, rows.schema.field(at), nulled)
    return rows


def _begins(ordered: pa.Table, by: tuple[str, ...]) -> list[int]:
    """Return where each partition begins in rows that are ordered by these columns."""
    new = np.zeros(ordered.num_rows, dtype=bool)
    new[:1] = True
    for name in by:
        codes = ordered.column(name).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        new[1:] |= codes[1:] != codes[:-1]
    return [int(place) for place in np.flatnonzero(new)]


def _texts(table: TableName, column: str, values: pa.ChunkedArray) -> list[str | None]:
    """Return values as Delta's protocol writes those of partition columns. Raises PartitionError if it has no text."""
    try:
        return [None if value is None else _text(value) for value in values.to_pylist()]
    except (ValueError, OverflowError) as error:
        raise PartitionError(
            f"table {table}: partition column {column} holds a date outside of the years 1 to 9999, or a text that is "
            "no UTF-8, of which no reader makes a partition: correct it with with_column, or leave such rows out"
        ) from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _folder(table: TableName, by: tuple[str, ...], values: tuple[str | None, ...]) -> str:
    named = tuple(zip(by, values, strict=True))
    for column, value in named:
        if len(folder_of([(column, value)])) > PART_BYTES_MAX:
            raise PartitionError(
                f"table {table}: a value of partition column {column} makes a name of more than {PART_BYTES_MAX} bytes "
                f"({str(value)[:40]!r} ...): lay the table out by a column of shorter values"
            )
    return folder_of(named)
