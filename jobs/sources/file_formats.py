"""The formats of input files: how their names end, what is known of a file without Spark, and how Spark reads them.

| format    | is read in part | the number of rows is          | the columns are                        |
|-----------|-----------------|--------------------------------|----------------------------------------|
| `parquet` | yes             | known before, from the footer  | in the footer, with types              |
| `orc`     | no              | estimated from the size        | in the footer, with types              |
| `avro`    | no              | estimated from the size        | in the header, with types              |
| `csv`     | no              | estimated from the size        | in the header, if the options say so   |
| `json`    | no              | estimated from the size        | in the first records; a record a line  |

Spark gives rows an address in Parquet files only. A file of another format is read whole: a slice never ends in it.
"""

import bz2
import csv
import gzip
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import file_digest
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final, cast

import pyarrow as pa
from pyarrow import orc
from pyspark.sql.types import StringType

from jobs.sources.avro.schemas import schema_of_file
from jobs.sources.avro.types import AvroTypeError, ColumnType, column_types
from jobs.sources.file_footer import Column, Footer, column, digest, read_footer, unreadable
from jobs.sources.file_position import PLACES
from jobs.sources.json_columns import json_columns
from jobs.sources.port import SourceError
from jobs.storage.folder import Folder
from jobs.storage.parquet import parquet_of
from jobs.storage.place import StoragePlace

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Options = Mapping[str, str]
"""The options of Spark's reader for the format, all as text."""

_SPARKS_AVRO: Final = "org.apache.spark.sql.avro.AvroFileFormat"
"""Spark's own jars have this class. Only the short name `avro` comes with a jar of its own."""
_HEADER_BYTES_MAX: Final = 1024 * 1024
_COMPRESSED: Final = ("", ".gz", ".bz2")


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of files.

    `bytes_per_row` is a guess, for a file whose rows nobody counts before reading.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    footer: Callable[[StoragePlace, Options], Footer]
    bytes_per_row: int | None = None
    spark: str = ""
    """Spark's name for it, if that is another one."""

    @property
    def is_whole(self) -> bool:
        """Return True if each file is read whole."""
        return self.bytes_per_row is not None

    @property
    def is_text(self) -> bool:
        """Return True if single records of a file may be unreadable."""
        return self.name in {"csv", "json"}

    def rows_in(self, size: int) -> int:
        """Return an estimate of the rows of a whole file of `size` bytes."""
        return max(1, size // (self.bytes_per_row or 1))


def format_named(name: str) -> FileFormat:
    """Return the format of that name. Raise SourceError with all names if there is none."""
    if name not in _FORMATS:
        raise SourceError(f"there is no format {name!r} of input files: write one of {', '.join(sorted(_FORMATS))}")
    return _FORMATS[name]


def csv_header(path: StoragePlace, options: Options) -> tuple[str, ...]:
    """Return the names in the first line of a CSV file; raise SourceError if it cannot be read."""
    try:
        with _opened(path) as opened:
            encoding = options.get("encoding", options.get("charset", "utf-8"))
            quote = options.get("quote", '"')
            rows = csv.reader(
                _without_comments((line.decode(encoding) for line in opened), options),
                delimiter=options.get("sep", options.get("delimiter", ",")),
                quotechar=quote or None,
                quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            )
            names = next(rows, [])
    except (OSError, EOFError, UnicodeDecodeError, LookupError, csv.Error, TypeError) as error:
        raise unreadable(path, "CSV", error) from error
    trimmed = options.get("ignoreLeadingWhiteSpace", "false").lower() == "true"
    return tuple(name.removeprefix("\ufeff").strip() if trimmed else name.removeprefix("\ufeff") for name in names)


def _without_comments(lines: Iterator[str], options: Options) -> Iterator[str]:
    comment = options.get("comment")
    return (line for line in lines if line.strip() and not (comment and line.startswith(comment)))


def _opened(path: StoragePlace) -> IO[bytes]:
    """Open the beginning of a file, in which its header lies."""
    return _unpacked(path, BytesIO(path.read(_HEADER_BYTES_MAX)))


def _unpacked(path: StoragePlace, packed: IO[bytes]) -> IO[bytes]:
    match PurePosixPath(str(path)).suffix:
        case ".gz":
            return cast("IO[bytes]", gzip.open(packed))
        case ".bz2":
            return bz2.open(packed)
        case _:
            return packed


class _Chunks(RawIOBase):
    """Reads a file of any storage from its beginning to its end, one part at a time."""

    def __init__(self, path: StoragePlace) -> None:
        """Read nothing yet."""
        self._chunks = path.chunks()
        self._rest = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill the buffer as far as the present part goes. Raises OSError."""
        view = memoryview(buffer).cast("B")
        while not self._rest:
            part = next(self._chunks, None)
            if part is None:
                return 0
            self._rest = part
        count = min(len(view), len(self._rest))
        view[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _of_parquet(path: StoragePlace, _: Options) -> Footer:
    return read_footer(path)


def _of_orc(path: StoragePlace, _: Options) -> Footer:
    try:
        schema = orc.ORCFile(parquet_of(path)).schema
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, "ORC", error) from error
    return _whole(path, tuple(map(_orc_column, schema)))


def _orc_column(field: pa.Field) -> Column:
    """Return a column. Both of ORC's kinds of timestamps fit both of Spark's kinds."""
    found = column(field.name, field.type)
    return Column(field.name, None, found.type) if pa.types.is_timestamp(field.type) else found


def _of_avro(path: StoragePlace, _: Options) -> Footer:
    try:
        types = column_types(schema_of_file(path.read(_HEADER_BYTES_MAX), str(path)))
    except (OSError, ValueError, EOFError) as error:
        raise unreadable(path, "Avro", error) from error
    return _whole(path, tuple(_avro_column(name, found) for name, found in types.items()))


def _avro_column(name: str, found: ColumnType | AvroTypeError) -> Column:
    if isinstance(found, AvroTypeError):
        return Column(name, f"no type of Spark ({found})")
    return Column(name, found.spark.simpleString(), found.spark)


def _of_csv(path: StoragePlace, options: Options) -> Footer:
    if options.get("header", "false").lower() != "true":
        try:
            first = csv_header(path, options)
        except SourceError:  # it decides nothing here, and Spark may read more encodings than Python
            first = ()
        return replace(_whole(path, None), first=first)
    return _whole(path, tuple(Column(name, None, StringType()) for name in csv_header(path, options)))


def _of_json(path: StoragePlace, options: Options) -> Footer:
    try:
        with _unpacked(path, BufferedReader(_Chunks(path))) as opened:
            found = json_columns(opened, options.get("encoding", options.get("charset", "utf-8")))
    except (OSError, EOFError) as error:
        raise unreadable(path, "JSON lines", error) from error
    return replace(_whole(path, found), may_lack=True)


def _whole(path: StoragePlace, columns: tuple[Column, ...] | None) -> Footer:
    """Return what is known of a file that is read whole; raise SourceError if it cannot be read.

    Such a file has no footer that its writer writes anew each time. So in a folder its contents are compared in full.
    An object is known by its tag, which the store gives each content, or it would have to be downloaded.
    """
    try:
        in_folder = isinstance(path.storage, Folder)
        size, contents = _hashed(Path(str(path))) if in_folder else _tagged(path)
    except OSError as error:
        said = error.strerror or str(error)
        raise SourceError(f"{path} cannot be read ({said}): correct its rights, or remove it") from error
    return Footer(PLACES if size else 0, contents, columns)


def _hashed(path: Path) -> tuple[int, str]:
    with path.open("rb") as opened:
        contents = digest(file_digest(opened, "blake2b").digest())
        return opened.tell(), contents


def _tagged(path: StoragePlace) -> tuple[int, str]:
    found = path.described()
    return found.size, digest(found.tag.encode())


def _suffixes(*plain: str) -> tuple[str, ...]:
    return tuple(f"{suffix}{compressed}" for suffix in plain for compressed in _COMPRESSED)


_FORMATS: Final = {
    each.name: each
    for each in (
        FileFormat("parquet", "Parquet", (".parquet",), _of_parquet),
        FileFormat("orc", "ORC", (".orc",), _of_orc, bytes_per_row=20),
        FileFormat("avro", "Avro", (".avro",), _of_avro, bytes_per_row=50, spark=_SPARKS_AVRO),
        FileFormat("csv", "CSV", _suffixes(".csv", ".tsv"), _of_csv, bytes_per_row=100),
        FileFormat("json", "JSON lines", _suffixes(".json", ".jsonl", ".ndjson"), _of_json, bytes_per_row=200),
    )
}
