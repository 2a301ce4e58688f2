"""The one writer of staged Parquet files; it runs inside Spark's tasks.

A file appears under its name whole or not at all: it is written under a temporary name and renamed.
Nothing overwrites or deletes here; a retried task leaves its first files as orphans.
"""

import base64
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.handles import FileHandle
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from jobs.sinks.statistics import statistics_json


class Encoding(Enum):
    """How integers lie in a file; texts are in a dictionary either way."""

    PLAIN = "plain"
    """As they are, compressed: every engine reads it."""
    DIFFERENCES = "differences"
    """As differences from one to the next (Parquet: DELTA_BINARY_PACKED), in half the time and three quarters of the
    space. Spark, delta-rs, DuckDB and Polars read it, some older engines don't: for state."""


class StagedFileError(OSError):
    """A staged file could not be written: names the path and what the operating system said."""


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Writes the files of one micro-batch below `root`, the warehouse's absolute path as every task reaches it.

    The random part of a name makes a retried task's files new ones.
    """

    root: str
    job: JobName
    generation: Generation
    vertex: VertexId
    micro_batch: int

    def write(self, table: TableName, rows: pa.Table, encoding: Encoding = Encoding.PLAIN) -> FileHandle:
        """Write these rows to a new file staged for `table` (also a state's or a channel's) and return its handle.

        Raise StagedFileError if the file can't be written, e.g. for want of space or permission.
        """
        content = _parquet(rows, encoding)
        handle = self._handle(table, rows, content)
        _place(self.root, handle.path, content)
        return handle

    def inline(self, table: TableName, rows: pa.Table) -> FileHandle:
        """Return a handle that carries the file which `write` would have written; nothing is written."""
        content = _parquet(rows, Encoding.DIFFERENCES)
        return replace(self._handle(table, rows, content), inline=base64.b64encode(content).decode("ascii"))

    def _handle(self, table: TableName, rows: pa.Table, content: pa.Buffer) -> FileHandle:
        name = StagedName(self.vertex, self.micro_batch, str(uuid4()))
        return FileHandle(
            path=ProtocolPaths(self.job).staged_file(table, self.generation, name),
            rows=rows.num_rows,
            bytes=content.size,
            crc32=zlib.crc32(content),
            stats=statistics_json(rows),
        )


def _parquet(rows: pa.Table, encoding: Encoding) -> pa.Buffer:
    """Return the file. A dictionary of numbers costs more than it saves once zstd is there; of texts it does not."""
    kinds = {field.name: field.type for field in rows.schema}
    texts = [name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]
    integers = [name for name, kind in kinds.items() if pa.types.is_integer(kind)]
    packed = dict.fromkeys(integers if encoding is Encoding.DIFFERENCES else (), "DELTA_BINARY_PACKED")
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=texts or False,
        column_encoding=packed or None,
    )
    return sink.getvalue()


def _place(root: str, path: str, content: pa.Buffer) -> None:
    target = Path(root, path)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StagedFileError(
            f"can't write staged file {path}: {error.strerror or error}; "
            "check the free space and the permissions of the warehouse, then run again"
        ) from error
