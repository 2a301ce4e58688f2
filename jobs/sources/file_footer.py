"""Reads a Parquet file's footer: its number of rows, a digest of its contents, and its columns.

Tidemark compares footers instead of contents. A footer holds each column chunk's place, size, encodings and statistics,
and every writer writes it anew. The footer is read anyway. Reading whole files to compare them would cost as much as
their micro-batch.
"""

import os
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from jobs.sources.arrow_types import Conversion, conversion_of, spark_name
from jobs.sources.port import SourceError

_TAIL: Final = 8
"""Bytes behind the footer: its length in four, little-endian, and the magic word."""
_DIGEST_BYTES: Final = 6

Conversions = tuple[tuple[str, Conversion], ...]
"""Columns that are converted, in the order of the schema."""


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's number of rows, a digest of its footer, and its columns; `int96` are those of that physical type."""

    rows: int
    contents: str
    columns: pa.Schema
    int96: frozenset[str]


def read_footer(path: Path) -> Footer:
    """Return the footer of a file; no row is read. Raises SourceError if it is unreadable or truncated."""
    try:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            columns = map(file.schema.column, range(len(file.schema)))
            int96 = frozenset(column.path for column in columns if column.physical_type == "INT96")
            return Footer(int(file.metadata.num_rows), _digest(opened), file.schema_arrow, int96)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path} cannot be read as Parquet ({_first_line(error)}): write it anew, or remove it. A file that is "
            f"still being written needs a temporary name: a leading dot or underscore, or .tmp at the end"
        ) from error


def check_columns(path: Path, footer: Footer, schema: StructType) -> None:
    """Raise SourceError if a column of `schema` is missing, or the file has it with another type.

    Columns may be in any order. Other columns are allowed, and not read. A column of type null, which pandas and Polars
    write if it has no value, fits any type.
    """
    names = footer.columns.names
    for field in schema.fields:
        if names.count(field.name) != 1:
            raise SourceError(
                f"{path} has {'two columns' if field.name in names else 'no column'} {field.name!r} (it has "
                f"{', '.join(names)}): write it with the columns of the source's schema, or change the schema"
            )
        arrow, wanted = footer.columns.field(field.name).type, field.dataType.simpleString()
        found = "timestamp" if field.name in footer.int96 else spark_name(arrow)
        if found != wanted and not pa.types.is_null(arrow):
            raise SourceError(
                f"{path}: column {field.name!r} is {found}, but the source's schema says {wanted}: "
                f"write the file with that type, or change the schema"
            )


def conversions_of(footer: Footer, names: Iterable[str]) -> Conversions:
    """Return how those of the columns are converted that Spark cannot read by itself; a missing column is left out.

    An INT96 is a moment, which Spark reads, though Arrow takes it for nanoseconds without a zone.
    """
    there = (name for name in names if name in footer.columns.names and name not in footer.int96)
    found = ((name, conversion_of(footer.columns.field(name).type)) for name in there)
    return tuple((name, conversion) for name, conversion in found if conversion is not None)


def _digest(file: BinaryIO) -> str:
    """Return the footer's bytes in short."""
    file.seek(-_TAIL, os.SEEK_END)
    length = int.from_bytes(file.read(_TAIL)[:4], "little")
    file.seek(-_TAIL - length, os.SEEK_END)
    return urlsafe_b64encode(blake2b(file.read(length), digest_size=_DIGEST_BYTES).digest()).decode()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
