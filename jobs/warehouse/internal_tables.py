"""Tidemark's own small tables, `checkpoints` and `cuts`: opens them, and writes and reads their Parquet files.

Only Tidemark may write into these tables. Rows that others append are ignored, and Tidemark's next commit removes them.
After a foreign OPTIMIZE, Tidemark's rows are in a new file, and remain valid. If another writer removes Tidemark's
files, entries are lost. Then no tick begins until the removal is undone.

The Parquet files are made in memory and never changed. They lie in a folder whose name begins with an underscore, which
VACUUM ignores. So a VACUUM cannot delete a file before a commit names the file.
"""

import io
from itertools import takewhile
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from jobs.engine_paths import typed
from jobs.storage.place import StoragePlace, together
from jobs.warehouse.cut_check import damaged_log
from jobs.warehouse.delta_log import DeltaLog, add
from jobs.warehouse.log_entries import file_actions, newest_entries
from jobs.warehouse.table_snapshot import KnownTable
from jobs.warehouse.warehouse import Warehouse

ROWS_FOLDER: Final = "_rows"


class OwnTableChangedError(Exception):
    """Another writer removed Tidemark's own files from `checkpoints` or `cuts`. `what` names the commit."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(f"{what}: {way_out}")
        self.what = what
        self.way_out = way_out


def opened(warehouse: Warehouse, log: DeltaLog, name: str) -> KnownTable:
    """Return the table as it was looked at after `DeltaLog.look_anew`. Check that no other writer removed files.

    Raises TableLogDamagedError, which names the missing or damaged log entry, and OwnTableChangedError.
    """
    try:
        table = log.looked_at()
    except Exception as error:
        raise damaged_log(warehouse, name, error) from error
    if log.sound_at == table.version():
        return table
    foreign = list(
        takewhile(lambda entry: entry.ours is None and entry.version > 0, newest_entries(log.folder, table.version()))
    )
    lost: set[str] = set()
    for entry in reversed([each for each in foreign if each.operation != "OPTIMIZE"]):
        for action, path in file_actions(log.folder, entry.version):
            if is_own(path):
                lost = lost | {path} if action == "remove" else lost - {path}
    if lost:
        before = foreign[-1].version - 1
        undo = f"from deltalake import DeltaTable; DeltaTable({str(log.folder)!r}).restore({before})"
        raise OwnTableChangedError(
            f"somebody else's commit ({foreign[-1]}) removed {len(lost)} of Tidemark's own files from {name} in "
            f"{warehouse.root}, where nobody but Tidemark may write",
            f"undo it with python -c {typed(undo)}, and start again",
        )
    log.sound_at = table.version()
    return table


def is_own(path: str) -> bool:
    """Return True if a path in the log is the path of a file that Tidemark wrote. Others may have appended files."""
    return path.startswith(f"{ROWS_FOLDER}/")


class RowFiles:
    """The row files of one table. The rows of a file stay in memory as long as the file is active."""

    def __init__(
        self, table_folder: StoragePlace, schema: pa.Schema, *, nullable: frozenset[str] = frozenset()
    ) -> None:
        """Store the table's folder, its columns, and the columns that may be null in Tidemark's own rows."""
        self._nullable = nullable
        self._folder = table_folder
        self._schema = schema
        self._read: dict[str, tuple[dict[str, Any], ...]] = {}

    def write(self, prefix: str, rows: list[dict[str, Any]], at_ms: int) -> AddAction:
        """Write a durable file of `rows`. Return the action that adds it to the table."""
        buffer, table = io.BytesIO(), pa.Table.from_pylist(rows, schema=self._schema)
        pq.write_table(table, buffer, compression="zstd")
        content = buffer.getvalue()
        path = f"{ROWS_FOLDER}/{prefix}-{uuid4()}.parquet"
        (self._folder / path).write(content)
        self._read[path] = tuple(table.to_pylist())
        return add(path, len(content), f'{{"numRecords":{len(rows)}}}', at_ms)

    def read_sound(self, paths: list[str]) -> tuple[dict[str, tuple[dict[str, Any], ...]], dict[str, str]]:
        """Return the rows of each active file, and the damage of each unreadable file.

        Files never change, so each file is read once. Another writer's file may have rows of Tidemark, because of a
        compaction. Such a row is returned if it is complete and no file of Tidemark has the same row.
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
        # ParquetFile takes a third of the time of pq.read_table, which makes a dataset of each file. Each file has few
        # rows.
        file = pq.ParquetFile(pa.BufferReader((self._folder / path).read()))
        return tuple(file.read(columns=self._schema.names, use_threads=False).to_pylist())
