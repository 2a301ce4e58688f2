"""Writes and reads the Parquet files of Tidemark's own small tables. They are made in memory and never changed.

They lie in a folder whose name begins with an underscore. So a VACUUM cannot delete a file before the commit that names
it.
"""

import io
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from jobs.storage.place import StoragePlace, together
from jobs.warehouse.delta_log import add

FOLDER = "_rows"


def is_own(path: str) -> bool:
    """Return True if a path in the log is that of a file that Tidemark wrote. Others may have appended files too."""
    return path.startswith(f"{FOLDER}/")


class RowFiles:
    """The row files of one table. Their rows stay in memory while the file is active."""

    def __init__(
        self, table_folder: StoragePlace, schema: pa.Schema, *, nullable: frozenset[str] = frozenset()
    ) -> None:
        """Name the table, its columns, and those columns that may be null in Tidemark's own rows."""
        self._nullable = nullable
        self._folder = table_folder
        self._schema = schema
        self._read: dict[str, tuple[dict[str, Any], ...]] = {}

    def write(self, prefix: str, rows: list[dict[str, Any]], at_ms: int) -> AddAction:
        """Write a durable file of `rows`. Return the action that adds it to the table."""
        buffer, table = io.BytesIO(), pa.Table.from_pylist(rows, schema=self._schema)
        pq.write_table(table, buffer, compression="zstd")
        content = buffer.getvalue()
        path = f"{FOLDER}/{prefix}-{uuid4()}.parquet"
        (self._folder / path).write(content)
        self._read[path] = tuple(table.to_pylist())
        return add(path, len(content), f'{{"numRecords":{len(rows)}}}', at_ms)

    def read_sound(self, paths: list[str]) -> tuple[dict[str, tuple[dict[str, Any], ...]], dict[str, str]]:
        """Return the rows of each active file, and the damage of each unreadable file.

        Files never change, so each is read once. Another writer's file may hold rows of Tidemark, because of a
        compaction. They count if they are whole and no file of Tidemark has them.
        """
        found: dict[str, tuple[dict[str, Any], ...]] = {}
        unreadable: dict[str, str] = {}
        for path, rows in zip(paths, together(self._folder.storage, self._known, paths), strict=True):
            if isinstance(rows, str):
                unreadable[path] = rows
            else:
                found[path] = rows
        ours = [row for path, rows in found.items() if is_own(path) for row in rows]
        for path, rows in found.items():
            if not is_own(path):
                found[path] = tuple(row for row in rows if self._is_whole(row) and row not in ours)
        self._read = found
        return found, unreadable

    def _is_whole(self, row: dict[str, Any]) -> bool:
        return all(row.get(field.name) is not None for field in self._schema if field.name not in self._nullable)

    def _known(self, path: str) -> tuple[dict[str, Any], ...] | str:
        """Return a file's rows, or its damage."""
        if path in self._read:
            return self._read[path]
        try:
            return self._load(path)
        except (OSError, pa.ArrowException) as error:
            return f"{type(error).__name__}: {error}"

    def _load(self, path: str) -> tuple[dict[str, Any], ...]:
        # This takes a third of the time of pq.read_table, which makes a dataset of each file. Each file has few rows.
        file = pq.ParquetFile(pa.BufferReader((self._folder / path).read()))
        return tuple(file.read(columns=self._schema.names, use_threads=False).to_pylist())
