"""Writes files of an append table again under the new names of its columns.

Rows and their order stay as they are. A file of the job stays a file of the job, so a rollback can tell its rows apart.
Another writer's file gets a name that no micro-batch gives, so its rows stay in the table through every rollback.

A file is read and written row group by row group. A large file becomes several files, so that no whole file need fit
into memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.handles import FileHandle
from checkpointing.identifiers import Generation, TableName, VertexId
from checkpointing.metadata.paths import staged_name_in
from jobs.sinks.staged_files import StagedFiles
from jobs.storage.parquet import parquet_of
from jobs.stores.warehouse import Warehouse

_FILE_BYTES: Final = 256 * 1024 * 1024
"""A new file gets row groups of about so many bytes, not compressed."""

Renamed = tuple[tuple[str, str], ...]
"""The new and the old name of each column."""


@dataclass(frozen=True, slots=True)
class _Key:
    table: TableName
    path: str
    renamed: Renamed
    generation: Generation
    unseen: tuple[str, ...]


class TakenNameError(ValueError):
    """A file of others has a column of a new name already, so its values would be shown under that name."""


class BothNamesError(TakenNameError):
    """A file has a renamed column under both of its names, so nobody knows which values count."""

    def __init__(self, path: str, new: str, old: str) -> None:
        super().__init__(f"somebody else wrote file {path} with both columns {old} and {new}")


class UnseenColumnError(TakenNameError):
    """A file has a column of a new name that the table does not show. A rollback may have taken it out of the table."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(f"somebody else wrote file {path} with a column {name}, which the table does not show")


class RenamedFiles:
    """Writes files again, each once. What was written stays known, so that a second attempt to publish is quick."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Serve the warehouse's job."""
        self._warehouse = warehouse
        self._known: dict[_Key, tuple[FileHandle, ...] | None] = {}

    def written_again(
        self, table: TableName, path: str, renamed: Renamed, generation: Generation, unseen: tuple[str, ...] = ()
    ) -> tuple[FileHandle, ...] | None:
        """Return new files with the rows of this file, or None if it has none of the old names alone.

        The new files are those of `generation`, that of the entry which renames. No leftover of another generation is
        named so. `path` is the file's in the warehouse. `unseen` are the new names that the table does not show yet, if
        it shows the file. Raises TakenNameError, OSError and ArrowException.
        """
        key = _Key(table, path, renamed, generation, unseen)
        if key not in self._known:
            self._known[key] = self._rewrite(key)
        return self._known[key]

    def _rewrite(self, key: _Key) -> tuple[FileHandle, ...] | None:
        with pq.ParquetFile(parquet_of(self._warehouse.place(key.path))) as file:
            schema = file.schema_arrow.remove_metadata()
            names = _under_new_names(key, schema.names)
            if names == schema.names:
                return None
            schema = pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
            return tuple(self._written(key, file, groups, schema) for groups in _shares(file))

    def _written(self, key: _Key, file: pq.ParquetFile, groups: list[int], schema: pa.Schema) -> FileHandle:
        own = staged_name_in(key.path)
        vertex, folder = (own.vertex, own.partition) if own is not None else (VertexId(""), "")
        files = StagedFiles(str(self._warehouse.root), self._warehouse.paths.job, key.generation, vertex, 0)
        parts = (file.read_row_group(group).rename_columns(schema.names).cast(schema) for group in groups)
        path = (
            ""
            if own is not None
            else self._warehouse.paths.foreign_file(key.table, key.generation, key.path, uuid4().hex)
        )
        return files.write_parts(key.table, parts, schema, folder=folder, path=path)


def _under_new_names(key: _Key, names: list[str]) -> list[str]:
    """Return the file's columns under their new names. Raises TakenNameError if it has another column of a new name."""
    for new, old in key.renamed:
        if new in names and old in names:
            raise BothNamesError(key.path, new, old)
        if new in names and new in key.unseen:
            raise UnseenColumnError(key.path, new)
        names = [new if name == old else name for name in names]
    return names


def _shares(file: pq.ParquetFile) -> Iterator[list[int]]:
    """Yield the row groups for each new file. A file without rows becomes one without rows."""
    share: list[int] = []
    size = 0
    for group in range(file.num_row_groups):
        own = file.metadata.row_group(group).total_byte_size
        if share and size + own > _FILE_BYTES:
            yield share
            share, size = [], 0
        share.append(group)
        size += own
    yield share
