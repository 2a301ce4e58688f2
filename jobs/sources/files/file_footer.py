"""Reads a Parquet file's footer: its number of rows, a digest of its contents, and its columns.

Tidemark compares footers instead of contents. A footer has each column chunk's place, size, encodings and statistics,
and every writer writes a new footer. The footer is read in any case, while reading whole files would cost as much as
their micro-batch.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import DataType, NullType, TimestampType

from jobs.sources.arrow_types import Conversion, conversion_of, spark_type
from jobs.sources.port import SourceError
from jobs.sources.schema_json import schema_of_json
from jobs.storage.parquet import FOOTER_TAIL, footer_of
from jobs.storage.place import StoragePlace

_DIGEST_BYTES: Final = 6
_SPARK_VERSION: Final = b"org.apache.spark.version"
_SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
_LEGACY: Final = frozenset({b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"})

Conversions = tuple[tuple[str, Conversion], ...]
"""The columns that are converted, in the order of the schema."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file: its name, its type in the file, the type that it is read as, and its conversion.

    `said` is None if the file does not name the type. `type` is None if the column cannot be read or its type is not
    known.
    """

    name: str
    said: str | None = None
    type: DataType | None = None
    conversion: Conversion | None = None

    def fits(self, wanted: DataType) -> bool:
        """Return True if the column can be read as this type. A column that never has a value fits any type."""
        if self.said is None or isinstance(self.type, NullType):
            return True
        return self.type is not None and self.type.simpleString() == wanted.simpleString()


def column(name: str, arrow: pa.DataType) -> Column:
    """Return the column of a file in which the column has this type."""
    found = spark_type(arrow)
    return Column(name, str(arrow) if found is None else found.simpleString(), found, conversion_of(arrow))


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's number of rows, a digest of its contents, and its columns (None: the file does not name them).

    If `may_lack` is True, a record may leave out a column without a value. `first` are the values of the first record
    of a CSV file that does not name its columns. A Parquet file `is_plain` if Arrow reads all its values as Spark does,
    because the file has no times in the Julian calendar or in 96 bits. `counted` is the approximate number of rows of a
    file that is read whole, if this number is known. `reading` are options with which Spark must read the file.
    `broken_at` is the first line with bytes that are no text. A JSON file may be `doubtful`, and may have fields with
    `times` without a day (`file_columns`). `bad_line` is the first line of a JSON file that is no object.
    """

    rows: int
    contents: str
    columns: tuple[Column, ...] | None
    may_lack: bool = False
    first: tuple[str, ...] = ()
    is_plain: bool = False
    counted: int | None = None
    reading: tuple[tuple[str, str], ...] = ()
    broken_at: int | None = None
    doubtful: bool = False
    times: frozenset[str] | None = frozenset()
    bad_line: int | None = None

    field_ids: tuple[tuple[int, str], ...] = ()
    """The field ids of a Parquet file's columns and fields of structs, each with the name of its column or field."""

    has_user_types: bool = False
    """Whether a Parquet file contains a Spark schema that Tidemark does not read, such as one with user-defined types.

    Without columns from the caller, Spark uses this schema, and PySpark imports the modules that the schema names.
    """


def read_footer(path: StoragePlace) -> Footer:
    """Return the footer of a Parquet file without reading rows. Raise SourceError if the file is damaged."""
    try:
        end = footer_of(path)
        with pq.ParquetFile(pa.BufferReader(end)) as file:
            known = digest(end[:-FOOTER_TAIL])
            rows, columns, user_types = int(file.metadata.num_rows), tuple(_columns(file)), _has_user_types(file)
            ids = tuple(_field_ids(file.schema_arrow))
            return Footer(rows, known, columns, is_plain=_is_plain(file), field_ids=ids, has_user_types=user_types)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, "Parquet", error) from error


def conversions_of(footer: Footer, names: Iterable[str]) -> Conversions:
    """Return the conversion of each of these columns that Spark cannot read by itself. Skip missing columns."""
    by_name = {column.name: column for column in footer.columns or ()}
    found = ((name, by_name[name].conversion) for name in names if name in by_name)
    return tuple((name, conversion) for name, conversion in found if conversion is not None)


def unreadable(path: StoragePlace, title: str, error: Exception) -> SourceError:
    """Return the error for a file that is not in its format, or is not complete."""
    return SourceError(
        f"{path} cannot be read as {title} ({first_line(error)}): write it anew, or remove it. A file that is "
        f"still being written needs a temporary name: a leading dot or underscore, or .tmp at the end"
    )


def digest(contents: bytes) -> str:
    """Return a short digest of bytes, for a position."""
    return urlsafe_b64encode(blake2b(contents, digest_size=_DIGEST_BYTES).digest()).decode()


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the name of its class."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _is_plain(file: pq.ParquetFile) -> bool:
    """Return whether Arrow can read all values.

    Dates that were written by Spark 2, or with a legacy setting of Spark, are Julian, and need Spark's reader.
    """
    said = file.metadata.metadata or {}
    old = said.get(_SPARK_VERSION, b"3").startswith((b"1.", b"2."))
    legacy = not _LEGACY.isdisjoint(said)
    leaves = map(file.schema.column, range(len(file.schema)))
    return not (old or legacy or any(leaf.physical_type == "INT96" for leaf in leaves))


def _field_ids(fields: Iterable[pa.Field]) -> Iterator[tuple[int, str]]:
    """Yield the ids in a Parquet file's schema, at any depth."""
    for field in fields:
        said = (field.metadata or {}).get(b"PARQUET:field_id")
        if said is not None:
            yield int(said), field.name
        yield from _field_ids(field.type.field(number) for number in range(field.type.num_fields))


def _has_user_types(file: pq.ParquetFile) -> bool:
    said = (file.metadata.metadata or {}).get(_SPARK_SCHEMA)
    try:
        if said is not None:
            schema_of_json(said.decode())
    except ValueError:
        return True
    return False


def _columns(file: pq.ParquetFile) -> Iterator[Column]:
    leaves = map(file.schema.column, range(len(file.schema)))
    int96 = frozenset(leaf.path for leaf in leaves if leaf.physical_type == "INT96")
    for field in file.schema_arrow:
        if field.name in int96:  # Spark reads it as a timestamp by itself; Arrow takes it for nanoseconds
            yield Column(field.name, "timestamp", TimestampType())
        else:
            yield column(field.name, field.type)
