"""Writes staged Parquet files, inside Spark's tasks.

A file gets its name when it is whole, so that it is never seen half written. Nothing is overwritten or deleted. A
retried task leaves its first files as orphans.
"""

import base64
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.handles import FileHandle
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.partitions import values_of
from jobs.sinks.partitions import partitions
from jobs.sinks.statistics import FileStatistics, statistics_json
from jobs.sinks.stopwatch import Stopwatch
from jobs.sinks.versions import newest_rows, require_versions
from jobs.storage.location import storage_at


class Encoding(Enum):
    """How integers are stored in a file. Texts are stored with a dictionary either way."""

    PLAIN = "plain"
    """Plain and compressed: every engine reads it."""
    DIFFERENCES = "differences"
    """Differences from one value to the next (Parquet: DELTA_BINARY_PACKED), in half the time and three quarters of the
    space. Spark, delta-rs, DuckDB and Polars read it. Some older engines do not, so only state uses it."""


class StagedFileError(OSError):
    """A staged file could not be written: names the path and what the operating system said."""


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
        """Return the same writer with a stopwatch that starts now; a task calls this first."""
        return replace(self, watch=Stopwatch())

    def write(
        self, table: TableName, rows: pa.Table, encoding: Encoding = Encoding.PLAIN, *, folder: str = ""
    ) -> FileHandle:
        """Write these rows to a new file staged for `table` (also a state's or a channel's) and return its handle.

        `folder` is the folder of a partition (`checkpointing.partitions`), if the file is to lie in one.
        Raise StagedFileError if the file can't be written, for example because the disk is full.
        """
        with self.watch.writing():
            content = _parquet(rows, encoding)
            handle = self._handle(table, rows, content, folder)
            _place(self.root, handle.path, content)
        return handle

    def write_partitions(self, table: TableName, rows: pa.Table, by: tuple[str, ...]) -> tuple[FileHandle, ...]:
        """Write rows (at least one) to one file for each partition by these columns. Return the files' handles.

        Without columns that is one file. An empty text in a partition column becomes null, as with Spark.
        Raises StagedFileError, and PartitionError for rows that cannot be laid out so.
        """
        if not by:
            return (self.write(table, rows),)
        return tuple(self._write_part(table, part, by, folder) for folder, part in partitions(table, rows, by))

    def write_newest(
        self, table: TableName, rows: pa.Table, by: tuple[str, ...], version: str
    ) -> tuple[FileHandle, ...]:
        """Write the rows that an overwrite table may show, and return the files' handles.

        In each partition by these columns, they are the rows with the greatest value of the `version` column. All other
        rows are left out, since rows of a greater version are among these. Raises StagedFileError, PartitionError, and
        VersionError for rows without a version, or with one that no folder can have.
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
        self, table: TableName, parts: Iterator[pa.Table], schema: pa.Schema, *, folder: str, path: str = ""
    ) -> FileHandle:
        """Write rows to one file in the folder of their partition, each part as a row group, and return its handle.

        The file gets this `path`, or a staged file's. Only one part and the file's bytes are in memory. Raises as
        `write` does, and what `parts` raises.
        """
        by = tuple(column for column, _ in values_of(folder))
        statistics, sink, rows = FileStatistics(by), pa.BufferOutputStream(), 0
        with pq.ParquetWriter(sink, schema, **_options(schema, Encoding.PLAIN)) as writer:
            for part in parts:
                writer.write_table(part, row_group_size=max(1, part.num_rows))
                statistics.add(part)
                rows += part.num_rows
        content = sink.getvalue()
        path = path or self._path(table, folder)
        handle = FileHandle(path, rows, content.size, zlib.crc32(content), statistics.json())
        _place(self.root, path, content)
        return handle

    def inline(self, table: TableName, rows: pa.Table) -> FileHandle:
        """Return a handle that carries the file which `write` would have written; nothing is written."""
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
    pq.write_table(rows, sink, **_options(rows.schema, encoding))
    return sink.getvalue()


def _options(schema: pa.Schema, encoding: Encoding) -> dict[str, Any]:
    """Return how files are written. With zstd, a dictionary is worth its cost for texts, but not for numbers."""
    kinds = {field.name: field.type for field in schema}
    texts = [name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]
    integers = [name for name, kind in kinds.items() if pa.types.is_integer(kind)]
    packed = dict.fromkeys(integers if encoding is Encoding.DIFFERENCES else (), "DELTA_BINARY_PACKED")
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": texts or False,
        "column_encoding": packed or None,
    }


def _place(root: str, path: str, content: pa.Buffer) -> None:
    try:
        storage_at(root).write(path, memoryview(content), durable=False)
    except OSError as error:
        raise StagedFileError(
            f"can't write staged file {path}: {error.strerror or error}; "
            "check the free space and the permissions of the warehouse, then run again"
        ) from error
