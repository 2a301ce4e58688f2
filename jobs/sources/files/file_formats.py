"""The formats of input files: their suffixes, what is known of a file without Spark, and how Spark reads them.

| format    | is read in part | the number of rows is          | the columns are                        |
|-----------|-----------------|--------------------------------|----------------------------------------|
| `parquet` | yes             | known before, from the footer  | in the footer, with types              |
| `orc`     | no              | known before, from the footer  | in the footer, with types              |
| `avro`    | no              | estimated from the size        | in the header, with types              |
| `csv`     | no              | about that of its lines        | in the header, if the options say so   |
| `json`    | no              | about that of its lines        | in the records; a record a line        |

Spark numbers the rows of a file only in Parquet. A file of another format is read whole: no slice ends inside of it.
"""

import bz2
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import file_digest
from io import BufferedReader, RawIOBase
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc
from pyspark.sql.types import StringType

from jobs.sources.arrow_types import ColumnType
from jobs.sources.avro.schemas import AvroTypeError, column_types, schema_of_file
from jobs.sources.csv_text import Dialect, TextLook, header_of, is_on, looked_through, option
from jobs.sources.files.file_columns import document_columns, json_columns
from jobs.sources.files.file_footer import (
    Column,
    Footer,
    column,
    digest,
    read_footer,
    unreadable,
)
from jobs.sources.files.file_position import PLACES
from jobs.sources.port import SourceError
from jobs.storage.folder import Folder
from jobs.storage.parquet import parquet_of
from jobs.storage.place import StoragePlace

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Options = Mapping[str, str]
"""The options of Spark's reader for the format, all as text."""

_SPARKS_AVRO: Final = "org.apache.spark.sql.avro.AvroFileFormat"
"""This class is in Spark's own jars. Only the short name `avro` needs an extra jar."""
_HEADER_BYTES_MAX: Final = 1024 * 1024
_PART_BYTES: Final = 1024 * 1024
_COMPRESSED: Final = ("", ".gz", ".bz2")


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of files.

    `bytes_per_row` is a guess, for a file whose rows are not counted before they are read.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    footer: Callable[[StoragePlace, Options], Footer]
    bytes_per_row: int | None = None
    spark: str = ""
    """Spark's name for the format, if it differs from `name`."""

    @property
    def is_whole(self) -> bool:
        """Return True if each file is read whole."""
        return self.bytes_per_row is not None

    @property
    def is_text(self) -> bool:
        """Return True if a file may have single records that are unreadable."""
        return self.name in {"csv", "json"}

    def require_readable(self, path: StoragePlace, footer: Footer, *, keeps_corrupt: bool) -> None:
        """Raise SourceError if a file is damaged, as far as this can be checked without Spark."""
        if footer.bad_line is not None and not keeps_corrupt:
            raise SourceError(
                f"{path}: line {footer.bad_line} is no JSON object, so its columns are not added: correct it, remove "
                "the file, or give the source a corrupt_column, which holds such lines"
            )
        try:
            if self.name == "parquet":
                with pq.ParquetFile(parquet_of(path)) as file:
                    for _ in file.iter_batches():
                        pass
            elif self.name == "orc":
                stripes = orc.ORCFile(parquet_of(path))
                for number in range(stripes.nstripes):
                    stripes.read_stripe(number)
        except (pa.ArrowException, OSError) as error:
            raise unreadable(path, self.title, error) from error

    def rows_in(self, size: int, footer: Footer | None) -> int:
        """Return the probable number of rows of a whole file of `size` bytes, at least 1."""
        if footer is not None and footer.counted is not None:
            return max(1, footer.counted)
        return max(1, size // (self.bytes_per_row or 1))


def format_named(name: str) -> FileFormat:
    """Return the format of that name. Raise SourceError with all names if there is none."""
    if name not in _FORMATS:
        raise SourceError(f"there is no format {name!r} of input files: write one of {', '.join(sorted(_FORMATS))}")
    return _FORMATS[name]


def csv_header(path: StoragePlace, options: Options) -> tuple[str, ...]:
    """Return the values of the first record of a CSV file; raise SourceError if it cannot be read."""
    dialect = Dialect.of(options)
    try:
        begin = next(_contents(path, _HEADER_BYTES_MAX), b"")
        return header_of(begin.decode(dialect.encoding, "replace"), dialect)
    except (OSError, EOFError, zlib.error, ValueError, LookupError) as error:
        raise unreadable(path, "CSV", error) from error


def _contents(path: StoragePlace, part_bytes: int = _PART_BYTES) -> Iterator[bytes]:
    """Yield the unpacked contents of a file in parts. Raises the errors of reading and unpacking."""
    with _unpacked(path, BufferedReader(_Chunks(path))) as opened:
        while part := opened.read(part_bytes):
            yield part


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
        """Return True, as `RawIOBase` requires for reading."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill the buffer from the present part of the file. Raises OSError."""
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
        file = orc.ORCFile(parquet_of(path))
        schema, rows = file.schema, file.nrows
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, "ORC", error) from error
    return replace(_whole(path, tuple(map(_orc_column, schema))), counted=rows)


def _orc_column(field: pa.Field) -> Column:
    """Return a column. Each of ORC's two timestamp types can be read as each of Spark's two."""
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
    footer = _looked_through(path, options)
    if not footer.rows:
        return footer
    if not is_on(options, "header"):
        try:
            first = csv_header(path, options)
        except SourceError:  # it decides nothing here, and Spark may read more encodings than Python
            first = ()
        return replace(footer, first=first)
    names = csv_header(path, options)
    if not names:
        return replace(footer, rows=0)
    columns = tuple(Column(name, None, StringType()) for name in names)
    return replace(footer, columns=columns, counted=max(1, (footer.counted or 1) - 1))


def _looked_through(path: StoragePlace, options: Options) -> Footer:
    """Return what is known of a CSV file from its text. Raise SourceError if the text ends inside of a value."""
    footer, dialect = _whole(path, None), Dialect.of(options)
    try:
        look = looked_through(lambda: _contents(path), dialect)
    except LookupError:  # Spark knows encodings that Python does not
        return replace(footer, reading=(("multiLine", "true"),))
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, "CSV", error) from error
    if look.open_at is not None:
        raise SourceError(
            f"{path}: line {look.open_at} opens a quote that is never closed, so all that follows would be one value: "
            'close it, or say with options={"quote": ""} that quotes are characters like any other'
        )
    reading = _reading(path, look, dialect, option(options, "lineSep"))
    return replace(footer, counted=max(1, look.lines), reading=reading, broken_at=look.broken_at)


def _reading(path: StoragePlace, look: TextLook, dialect: Dialect, line_sep: str) -> tuple[tuple[str, str], ...]:
    """Return the options with which Spark keeps a value with a line break whole, if there may be such values.

    Spark can read a file without quotes in several tasks. Otherwise Spark must be given the kind of line break. Without
    it, Spark would use the first line break in the file, even one inside of a value.
    """
    by_lines = not look.has_quotes or (look.break_ is None and not look.breaks_inside)
    if by_lines and not dialect.encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32", "utf16", "utf32")):
        return ()
    if line_sep:
        return (("multiLine", "true"),)
    if look.break_ is None:
        raise SourceError(
            f"{path}: its lines end in several ways, and it has quotes, so nobody can tell where its records end: "
            "write it with one kind of line break"
        )
    return (("multiLine", "true"), ("lineSep", look.break_))


def _of_json(path: StoragePlace, options: Options) -> Footer:
    encoding = option(options, "encoding", "charset", default="utf-8")
    try:
        if is_on(options, "multiLine"):
            found = document_columns(b"".join(_contents(path)).decode(encoding))
        else:
            with _unpacked(path, BufferedReader(_Chunks(path))) as opened:
                found = json_columns(opened, encoding)
    except (OSError, EOFError, zlib.error, ValueError, LookupError) as error:
        raise unreadable(path, "JSON", error) from error
    footer = replace(_whole(path, found.columns), may_lack=True, counted=max(1, found.lines))
    return replace(footer, doubtful=found.doubtful, times=found.times, bad_line=found.bad_line)


def _whole(path: StoragePlace, columns: tuple[Column, ...] | None) -> Footer:
    """Return what is known of a file that is read whole; raise SourceError if it cannot be read.

    Such a file has no footer that identifies its contents. So in a folder, the whole contents are compared. An object
    in a store is identified by the tag that the store gives to its contents. Otherwise it would have to be downloaded.
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
