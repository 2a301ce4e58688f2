"""What a Parquet file says of itself: its number of rows, its contents in short, and whether it has the right columns.

The footer stands for the contents: it has each column chunk's place, size, encodings and statistics, and every writer
writes it anew. It is read anyway, and reading a whole file to compare it would cost as much as its micro-batch.
"""

import os
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from jobs.sources.port import SourceError

_TAIL: Final = 8
"""Bytes behind the footer: its length in four, little-endian, and the magic word."""
_DIGEST_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's number of rows, and a digest of its footer."""

    rows: int
    contents: str


def footer_of(path: Path) -> Footer | None:
    """Return what a file's footer says; None for a file that is gone or cannot be read as Parquet."""
    try:
        with path.open("rb") as file, pq.ParquetFile(file) as parquet:
            return Footer(int(parquet.metadata.num_rows), _digest(file))
    except (pa.ArrowException, OSError):
        return None


def checked_footer(path: Path, schema: StructType) -> Footer:
    """Return what the footer of the file says; no row is read.

    Columns may stand in any order, and others may be there too: they are not read. Raises SourceError
    if the file is unreadable or truncated, or a column of `schema` is missing or of another type.
    """
    try:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            footer, columns = Footer(int(file.metadata.num_rows), _digest(opened)), file.schema_arrow
            int96 = {name.path for name in map(file.schema.column, range(len(file.schema))) if _is_int96(name)}
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path} cannot be read as Parquet ({_first_line(error)}): write it anew, or remove it. A file that is "
            f"still being written needs a temporary name: a leading dot or underscore, or .tmp at the end"
        ) from error
    for field in schema.fields:
        _check(path, field.name, field.dataType.simpleString(), columns, int96=int96)
    return footer


def _digest(file: BinaryIO) -> str:
    """Return the footer's bytes in short."""
    file.seek(-_TAIL, os.SEEK_END)
    length = int.from_bytes(file.read(_TAIL)[:4], "little")
    file.seek(-_TAIL - length, os.SEEK_END)
    return urlsafe_b64encode(blake2b(file.read(length), digest_size=_DIGEST_BYTES).digest()).decode()


def _check(path: Path, name: str, wanted: str, columns: pa.Schema, *, int96: set[str]) -> None:
    """Raise SourceError unless the file has that column, once, with that type."""
    if columns.names.count(name) != 1:
        raise SourceError(
            f"{path} has {'two columns' if name in columns.names else 'no column'} {name!r} (it has "
            f"{', '.join(columns.names)}): write it with the columns of the source's schema, or change the schema"
        )
    found = "timestamp" if name in int96 else _spark_name(columns.field(name).type)
    if found != wanted:
        raise SourceError(
            f"{path}: column {name!r} is {found}, but the source's schema says {wanted}: "
            f"write the file with that type, or change the schema"
        )


def _spark_name(arrow: pa.DataType) -> str:
    """Return the type as Spark names it; a type that Spark does not know keeps its Arrow name."""
    plain = arrow.value_type if pa.types.is_dictionary(arrow) else arrow
    try:
        return str(from_arrow_type(plain, prefer_timestamp_ntz=True).simpleString())
    except PySparkTypeError:
        return str(arrow)


def _is_int96(column: pq.ColumnSchema) -> bool:
    """Whether a column is a timestamp as Spark and Hive write it by default: a moment, without a zone in its type."""
    return bool(column.physical_type == "INT96")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
