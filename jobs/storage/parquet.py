"""Opens Parquet files of a storage for Arrow: by a path, of which Arrow reads what it needs, or by whole bytes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.storage.address import StoreUrl, parsed
from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace, place_in

FOOTER_TAIL: Final = 8
"""The bytes after a Parquet file's footer: four with the footer's length (little-endian), and four magic ones."""
_GUESSED: Final = 64 * 1024


def parquet_of(place: StoragePlace) -> "str | pa.BufferReader":
    """Return the file in a form that Arrow can open: its path, or its bytes. Raises OSError for a missing object."""
    return str(place) if isinstance(place.storage, Folder) else pa.BufferReader(place.read())


def footer_of(place: StoragePlace, size: int | None = None) -> bytes:
    """Return a Parquet file's footer and the bytes after it, which are all that Arrow reads if it needs only metadata.

    For a file that is not a Parquet file, or only a part of one, some bytes are returned, so that Arrow reports the
    error. Raises OSError. With its `size`, one request is enough for most files.
    """
    size = place.described().size if size is None else size
    end = place.storage.read(place.name, start=max(0, size - _GUESSED), most=_GUESSED).bytes
    length = int.from_bytes(end[-FOOTER_TAIL:-4], "little") + FOOTER_TAIL
    if len(end) < length <= size:
        end = place.storage.read(place.name, start=size - length, most=length).bytes
    return end[-length:]


# ------------------------------------------------------------------
# Reads a part of a Parquet file by columns. A task itself does so if Spark computes nothing before the task.


_BATCH_ROWS: Final = 64 * 1024


class ScanError(Exception):
    """A file cannot be read. The message names the file and what to do."""


@dataclass(frozen=True, slots=True)
class Numbering:
    """The columns that a source adds: the split of the rows, their positions, and their file if that is requested.

    `first` is the position of the file's row 0.
    """

    split_column: str
    split: str
    position_column: str
    first: int
    file_column: str | None = None
    file: str = ""

    @property
    def constants(self) -> dict[str, str]:
        """Return the columns that have the same value in all rows, with this value."""
        return {self.split_column: self.split} | ({self.file_column: self.file} if self.file_column else {})


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows that are read of a part of a file.

    A bit for each row is 1 if it is read, and `left_out` counts the others.

    Positions count only rows that are read.
    """

    bits: bytes
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan:
    """The rows `first` to `end` (exclusive) of a Parquet file. `root` is the address of a storage, `name` a file there.

    `bytes` is the size of the whole file. With a `numbering`, the numbering's columns are computed, not read. `names`
    has the name in the file of each column that may be called otherwise there. Without `kept`, all rows of the part are
    read. A file is `staged` if a vertex has written it.
    """

    root: str
    name: str
    first: int
    end: int
    bytes: int
    numbering: Numbering | None = None
    names: tuple[tuple[str, str], ...] = ()
    kept: KeptRows | None = None
    staged: bool = False

    @property
    def rows(self) -> int:
        """Return how many rows are read."""
        return self.end - self.first - (0 if self.kept is None else self.kept.left_out)

    @property
    def may_repeat(self) -> bool:
        """Return whether several readers may each read their own columns. An object of a store is always read whole."""
        return not isinstance(parsed(self.root), StoreUrl)

    def stored(self, columns: Sequence[str]) -> pa.Schema | None:
        """Return the schema of a staged file whose columns can be read without change, or None if these columns cannot.

        Raises ScanError.
        """
        if not self.staged or not self.may_repeat:
            return None
        with self._named_errors():
            schema = pq.read_schema(parquet_of(place_in(self.root, self.name)))
        return schema if set(columns) <= set(schema.names) else None

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns of `schema`.

        A column that the file lacks is null, and a narrower type is widened.

        Raises ScanError.
        """
        with self._named_errors(), pq.ParquetFile(parquet_of(place_in(self.root, self.name))) as file:
            for first, batch in self._kept(self._parts(file, schema)):
                yield self._in_schema(batch, first, schema)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            place = place_in(self.root, self.name)
            raise ScanError(f"{place} cannot be read ({why}): put it back as it was") from error

    def _parts(self, file: pq.ParquetFile, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches of the rows from `first` to `end`, each with the number of its first row in the file."""
        made = () if self.numbering is None else (*self.numbering.constants, self.numbering.position_column)
        stored = dict(self.names)
        asked = (stored.get(name, name) for name in schema.names if name not in made)
        wanted = [name for name in asked if name in file.schema_arrow.names]
        groups, at = _groups(file, self.first, self.end)
        for batch in file.iter_batches(_BATCH_ROWS, groups, wanted):
            start, stop = max(self.first - at, 0), min(self.end - at, batch.num_rows)
            if start < stop:
                yield at + start, batch.slice(start, stop - start)
            at += batch.num_rows

    def _kept(self, parts: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each batch that are read.

        Number the first of them as if the file had only rows that are read.
        """
        if self.kept is None:
            yield from parts
            return
        kept = np.unpackbits(np.frombuffer(self.kept.bits, np.uint8), count=self.end - self.first).astype(np.bool_)
        number = self.first
        for first, batch in parts:
            mask = kept[first - self.first : first - self.first + batch.num_rows]
            rows = batch.filter(pa.array(mask))
            if rows.num_rows:
                yield number, rows
            number += rows.num_rows

    def _in_schema(self, batch: pa.RecordBatch, first: int, schema: pa.Schema) -> pa.RecordBatch:
        columns, constants = [], {} if self.numbering is None else self.numbering.constants
        stored = dict(self.names)
        for field in schema:
            if field.name in constants:
                columns.append(pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows))
            elif self.numbering is not None and field.name == self.numbering.position_column:
                start = self.numbering.first + first
                columns.append(pa.array(np.arange(start, start + batch.num_rows, dtype=np.int64)))
            elif (name := stored.get(field.name, field.name)) in batch.schema.names:
                columns.append(batch.column(name).cast(field.type))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.record_batch(columns, schema=schema)


def _groups(file: pq.ParquetFile, first: int, end: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows from `first` to `end`, and the number of the first row in these groups."""
    groups: list[int] = []
    begins, at = first, 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if at < end and at + rows > first:
            begins = at if not groups else begins
            groups.append(number)
        at += rows
    if at < end:
        raise pa.ArrowInvalid(f"it has {at} rows instead of at least {end}")
    return groups, begins
