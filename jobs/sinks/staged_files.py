"""Writes staged Parquet files, inside Spark's tasks.

A file gets its name only when it is whole, so nobody sees it half written. Nothing is overwritten or deleted. A retried
task leaves its first files as orphans.
"""

import base64
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from enum import Enum
from itertools import chain
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkpointing.channel_items import TaskWork
from checkpointing.handles import FileHandle
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.metadata.paths import PART_BYTES_MAX, ProtocolPaths, StagedName
from checkpointing.partitions import NO_VALUE, TableVersion, VersionKind, folder_of, values_of
from jobs.sinks.statistics import FileStatistics, statistics_json
from jobs.storage.address import StoreUrl, parsed
from jobs.storage.place import storage_at

# ------------------------------------------------------------------
# Measures a Spark task from inside: how long it runs, and how much of this time it writes files (E6).


_NS: Final = 1_000_000
"""Nanoseconds in a millisecond."""


def _now_ns() -> int:
    return time.monotonic_ns()


@dataclass(slots=True)
class Stopwatch:
    """A stopwatch that runs from its creation. Only one thread may use it."""

    _started_ns: int = field(default_factory=_now_ns)
    _writing_ns: int = 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count the time inside this block as time in which the task wrote files."""
        began = _now_ns()
        try:
            yield
        finally:
            self._writing_ns += _now_ns() - began

    def work(self, rows: int) -> TaskWork:
        """Return what the task has measured until now. `rows` is how many rows it received."""
        ran_ns = _now_ns() - self._started_ns
        return TaskWork(task_ms=ran_ns // _NS, sync_ms=self._writing_ns // _NS, rows=rows)


# ------------------------------------------------------------------
# Chooses the rows that an overwrite table may show, inside Spark's tasks, and records their version.


class VersionError(ValueError):
    """Rows have no version that Tidemark can compare. The message names the table, the column and the way out."""


def require_versions(table: TableName, rows: pa.Table, column: str) -> None:
    """Raise VersionError if a row has no version, since it could not be compared with other rows."""
    lacking = rows.column(column).null_count
    if lacking:
        raise VersionError(
            f"table {table}: version column {column} is null in {lacking} of {rows.num_rows} rows: filter them out "
            "before overwrite, or put them aside there with check_rows(..., quarantine=..., id=...)"
        )


def newest_rows(table: TableName, rows: pa.Table, column: str) -> tuple[TableVersion, pa.Table]:
    """Return the greatest version of these rows, and the rows of that version in their order.

    There must be at least one row, and no version may be null. Raises VersionError for a version that makes a folder's
    name too long, or a date that cannot be written as text.
    """
    values = rows.column(column)
    greatest = pc.max(values)
    version = _version(table, column, greatest)
    if len(version.folder) > PART_BYTES_MAX:
        raise VersionError(
            f"table {table}: a value of version column {column} makes a name of more than {PART_BYTES_MAX} bytes "
            f"({version.text[:40]!r} ...): use a shorter one"
        )
    return version, rows.filter(pc.equal(values, greatest))


def _version(table: TableName, column: str, value: pa.Scalar) -> TableVersion:
    try:
        known = value.as_py()
    except (ValueError, OverflowError) as error:
        raise VersionError(
            f"table {table}: version column {column} holds a date outside of the years 1 to 9999: correct it"
        ) from error
    match known:
        case datetime(tzinfo=None):
            return TableVersion(VersionKind.TIME, known.isoformat(timespec="microseconds"))
        case datetime():
            moment = known.astimezone(UTC).replace(tzinfo=None)
            return TableVersion(VersionKind.TIME, f"{moment.isoformat(timespec='microseconds')}Z")
        case date():
            return TableVersion(VersionKind.DATE, known.isoformat())
        case int():
            return TableVersion(VersionKind.NUMBER, str(known))
        case str():
            return TableVersion(VersionKind.TEXT, known)
        case _:
            raise TypeError(f"table {table}: no version is a {value.type}")


# ------------------------------------------------------------------
# Splits rows into the partitions of a table, inside Spark's tasks.
#
# A file has the partition columns too, although the log has their values. So a later vertex, a suite, a sink and a
# restored range get whole rows from a staged file.


PARTITIONS_MAX: Final = 10_000
"""The most partitions of a table that a task may write in one micro-batch, since each is a file of its own."""

MEAN_NULL: Final = ("", NO_VALUE)
"""Texts that stand for null in a partition column. The first is from Delta's protocol, and the second from Hive."""


class PartitionError(ValueError):
    """Rows cannot be partitioned as the pipeline declares. The message names the table, the column and the way out."""


def partitions(table: TableName, rows: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the folder and the rows of each partition, in order of the values. Rows keep their order.

    The texts `MEAN_NULL` become null, as in Spark. Raises PartitionError.
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
    """Return the rows with null in place of the texts `MEAN_NULL` in these columns."""
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
    """Return values as Delta's protocol writes them for partition columns.

    Raises PartitionError if that is impossible.
    """
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


_SAMPLE: Final = 2_000
"""The number of rows that are examined to decide whether a column's values repeat."""


class Encoding(Enum):
    """How values are stored in a file. Texts are stored with a dictionary, except where `CHANNEL` does without one."""

    PLAIN = "plain"
    """Plain values, compressed. Every engine reads them."""
    DIFFERENCES = "differences"
    """Differences from one integer to the next (Parquet: DELTA_BINARY_PACKED), in half the time and three quarters of
    the space. Spark, delta-rs, DuckDB and Polars read them. Some older engines do not, so only state uses them."""
    CHANNEL = "channel"
    """For files that are read once, and soon: LZ4 instead of zstd, and a dictionary only for texts that repeat. Writing
    and reading take two thirds of the time, and files up to twice the space. In a store, space matters more."""


class StagedFileError(OSError):
    """A staged file could not be written. The message has the path and the operating system's error."""


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Writes the files of one micro-batch below `root`, the warehouse's absolute path, which every task can reach.

    Names have a random part, so that a retried task writes new files.
    """

    root: str
    job: JobName
    generation: Generation
    vertex: VertexId
    micro_batch: int
    watch: Stopwatch = field(default_factory=Stopwatch, compare=False, repr=False)

    def timed(self) -> "StagedFiles":
        """Return the same writer with a stopwatch that starts now. A task calls this first."""
        return replace(self, watch=Stopwatch())

    def write(
        self, table: TableName, rows: pa.Table, encoding: Encoding = Encoding.PLAIN, *, folder: str = ""
    ) -> FileHandle:
        """Write these rows to a new file staged for `table` (also a state's) and return its handle.

        `folder` is the folder of a partition (`checkpointing.partitions`), if the file is to lie in one.
        Raise StagedFileError if the file can't be written, for example because the disk is full.
        """
        with self.watch.writing():
            content = _parquet(rows, encoding)
            handle = self._handle(table, rows, content, folder)
            _place(self.root, handle.path, content)
        return handle

    def write_channel(
        self, channel: TableName, parts: Iterator[pa.Table], schema: pa.Schema, *, folder: str = ""
    ) -> FileHandle:
        """Write rows for the vertices behind this one to one file, each part as a row group, and return its handle.

        Only one part and the file's bytes are in memory, here and where the file is read. A keyed vertex writes parts
        of at most 65,536 rows. A task of a stateless vertex writes all its rows as one part, since it holds them
        anyway. The handle has no bounds of the values, since no reader needs them. Raises what `write` raises.
        """
        with self.watch.writing():
            of_store = isinstance(parsed(self.root), StoreUrl)
            rows, content = _in_parts(parts, schema, Encoding.PLAIN if of_store else Encoding.CHANNEL)
            path = self._path(channel, folder)
            _place(self.root, path, content)
        return FileHandle(path, rows, content.size, zlib.crc32(content))

    def write_partitions(self, table: TableName, rows: pa.Table, by: tuple[str, ...]) -> tuple[FileHandle, ...]:
        """Write rows (at least one) to one file for each partition by these columns. Return the files' handles.

        Without columns, there is one file. An empty text in a partition column becomes null, as with Spark. Raises
        StagedFileError, and PartitionError for rows that cannot be partitioned by these columns.
        """
        if not by:
            return (self.write(table, rows),)
        return tuple(self._write_part(table, part, by, folder) for folder, part in partitions(table, rows, by))

    def write_newest(
        self, table: TableName, rows: pa.Table, by: tuple[str, ...], version: str
    ) -> tuple[FileHandle, ...]:
        """Write the rows that an overwrite table may show, and return the files' handles.

        In each partition by these columns, these are the rows with the greatest value of the `version` column. All
        other rows are left out, since rows of a greater version replace them. Raises StagedFileError, PartitionError,
        and VersionError for rows without a version, or with a version that cannot be in the name of a folder.
        """
        require_versions(table, rows, version)
        parts = partitions(table, rows, by) if by else [("", rows)]
        newest = ((folder, *newest_rows(table, part, version)) for folder, part in parts)
        return tuple(self._write_part(table, part, by, folder, of.folder) for folder, of, part in newest)

    def _write_part(
        self, table: TableName, rows: pa.Table, by: tuple[str, ...], folder: str, version: str = ""
    ) -> FileHandle:
        with self.watch.writing():
            content = _parquet(rows, Encoding.PLAIN)
            handle = self._handle(table, rows, content, folder, by, version)
            _place(self.root, handle.path, content)
        return handle

    def write_parts(
        self,
        table: TableName,
        parts: Iterator[pa.Table],
        schema: pa.Schema,
        encoding: Encoding = Encoding.PLAIN,
        *,
        folder: str = "",
        path: str = "",
    ) -> FileHandle:
        """Write rows to one file in the folder of their partition, each part as a row group, and return its handle.

        The file gets this `path`, or else the path of a new staged file. Only one part and the file's bytes are in
        memory. Raises what `write` and `parts` raise.
        """
        by = tuple(column for column, _ in values_of(folder))
        statistics = FileStatistics(by)
        with self.watch.writing():
            rows, content = _in_parts(parts, schema, encoding, statistics)
            path = path or self._path(table, folder)
            handle = FileHandle(path, rows, content.size, zlib.crc32(content), statistics.json())
            _place(self.root, path, content)
        return handle

    def inline(self, table: TableName, rows: pa.Table) -> FileHandle:
        """Return a handle that contains the file that `write` would write. Nothing is written."""
        with self.watch.writing():
            content = _parquet(rows, Encoding.DIFFERENCES)
            return replace(self._handle(table, rows, content), inline=base64.b64encode(content).decode("ascii"))

    def _handle(
        self,
        table: TableName,
        rows: pa.Table,
        content: pa.Buffer,
        partition: str = "",
        by: tuple[str, ...] = (),
        version: str = "",
    ) -> FileHandle:
        return FileHandle(
            path=self._path(table, partition, version),
            rows=rows.num_rows,
            bytes=content.size,
            crc32=zlib.crc32(content),
            stats=statistics_json(rows, besides=by),
        )

    def _path(self, table: TableName, partition: str, version: str = "") -> str:
        name = StagedName(self.vertex, self.micro_batch, str(uuid4()), partition, version)
        return ProtocolPaths(self.job).staged_file(table, self.generation, name)


def _parquet(rows: pa.Table, encoding: Encoding) -> pa.Buffer:
    """Return the file's bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **_options(rows, encoding))
    return sink.getvalue()


def _in_parts(
    parts: Iterable[pa.Table], schema: pa.Schema, encoding: Encoding, statistics: FileStatistics | None = None
) -> tuple[int, pa.Buffer]:
    """Return the number of rows, and a file's bytes, with each part as a row group. Add all rows to `statistics`."""
    rows, sink, every = 0, pa.BufferOutputStream(), iter(parts)
    first = next(every, schema.empty_table())
    with pq.ParquetWriter(sink, schema, **_options(first, encoding)) as writer:
        for part in chain((first,), every):
            writer.write_table(part, row_group_size=max(1, part.num_rows))
            if statistics is not None:
                statistics.add(part)
            rows += part.num_rows
    return rows, sink.getvalue()


def _options(rows: pa.Table, encoding: Encoding) -> dict[str, Any]:
    """Return Parquet's options for a file that begins with these rows. A dictionary is worth its cost only for texts.

    The footer has no bounds of floating point columns. Arrow leaves NaN out of such bounds, and Spark and DuckDB would
    then miss the rows with NaN.
    """
    kinds = {field.name: field.type for field in rows.schema}
    texts = [name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]
    integers = [name for name, kind in kinds.items() if pa.types.is_integer(kind)]
    bounded = [name for name, kind in kinds.items() if not (pa.types.is_nested(kind) or pa.types.is_floating(kind))]
    packed = dict.fromkeys(integers if encoding is Encoding.DIFFERENCES else (), "DELTA_BINARY_PACKED")
    is_fast = encoding is Encoding.CHANNEL
    if is_fast:
        texts = [name for name in texts if _repeats(rows.column(name).slice(0, _SAMPLE))]
    return {
        "compression": "lz4" if is_fast else "zstd",
        "compression_level": None if is_fast else 1,
        "use_dictionary": texts or False,
        "column_encoding": packed or None,
        "write_statistics": bounded or False,
    }


def _repeats(values: pa.ChunkedArray) -> bool:
    """Return whether a value occurs at least twice on average."""
    return bool(2 * pc.count_distinct(values, mode="all").as_py() <= len(values))


def _place(root: str, path: str, content: pa.Buffer) -> None:
    try:
        storage_at(root).write(path, memoryview(content), durable=False)
    except OSError as error:
        raise StagedFileError(
            f"can't write staged file {path}: {error.strerror or error}; "
            "check the free space and the permissions of the warehouse, then run again"
        ) from error
