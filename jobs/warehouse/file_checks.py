"""Compares the files that an entry needs with their handles: existence, size and checksum."""

import base64
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from checkpointing.handles import UNKNOWN_CRC32, FileHandle
from checkpointing.metadata.paths import STAGED, parse_generation, parse_staged_name
from jobs.sinks.statistics import logged_statistics
from jobs.storage.copy_folder import measured
from jobs.storage.folder import Folder
from jobs.storage.place import AT_A_TIME, StoragePlace, in_threads, sizes_of
from jobs.storage.port import Storage
from jobs.warehouse.log_entries import LogEntry, entries_after, file_actions, newest_entries
from jobs.warehouse.table_snapshot import KnownTable

THREADS: Final = 4
"""The number of files in a folder that are read in parallel. Reading and checksums release Python's lock (GIL)."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that differs from its handle. `what` describes the difference, in words that follow the file's name."""

    path: str
    what: str

    def __str__(self) -> str:
        """Return the damage as messages describe it."""
        return f"file {self.path} {self.what}"


def damages(storage: Storage, files: Iterable[FileHandle], *, checksums: bool) -> Iterator[Damage]:
    """Yield the damage of these files in order. Each file is checked once.

    Without `checksums`, no file is read, and only existence and size are compared. A handle that contains the content
    itself needs no file. Files are read several at a time.
    """
    looked_at = {file.path: file for file in files}
    read = {path for path, file in looked_at.items() if checksums and file.crc32 != UNKNOWN_CRC32}
    listed = {} if isinstance(storage, Folder) else _sizes(storage, looked_at.values(), read)

    def damage(file: FileHandle) -> str:
        if file.path in listed:
            return misfit(file, listed[file.path])
        return _damage(StoragePlace(storage, file.path), file, checksums=checksums)

    threads = min(AT_A_TIME, 1 if not read else THREADS if isinstance(storage, Folder) else len(looked_at))
    for path, what in zip(looked_at, in_threads(threads, damage, looked_at.values()), strict=True):
        if what:
            yield Damage(path, what)


def misfit(file: FileHandle, size: int | None, crc32: int = UNKNOWN_CRC32) -> str:
    """Return how a file of this size and checksum differs from its handle, in words that follow the file's name.

    The result is empty if there is no difference. `size` is None for a missing file. Checksums are compared if both are
    known.
    """
    if size is None:
        return "is missing"
    if size != file.bytes:
        return f"has {size} bytes instead of {file.bytes}"
    if UNKNOWN_CRC32 in (file.crc32, crc32) or file.crc32 == crc32:
        return ""
    return f"is damaged: its checksum is {crc32:#010x}, not {file.crc32:#010x}"


def _sizes(storage: Storage, files: Iterable[FileHandle], read: AbstractSet[str]) -> dict[str, int | None]:
    return sizes_of(storage, [file.path for file in files if not file.inline and file.path not in read])


def _damage(place: StoragePlace, file: FileHandle, *, checksums: bool) -> str:
    if file.inline:
        content = base64.b64decode(file.inline)
        return misfit(file, file.bytes, zlib.crc32(content) if checksums else UNKNOWN_CRC32)
    size = place.size()
    if size != file.bytes or not checksums or file.crc32 == UNKNOWN_CRC32:
        return misfit(file, size)
    try:
        return misfit(file, *measured(place))
    except OSError as error:
        return f"cannot be read ({error.strerror})"


# ------------------------------------------------------------------
# Finds Tidemark's files that another writer removed from an append table, by moving or deleting their rows.
#
# Such files are found in the log's entries, which an output table keeps (`output_tables.CONFIGURATION`). A file that
# any writer has added again is not lost.


_PARTS_OF_A_STAGED_PATH = 3


@dataclass(frozen=True, slots=True)
class LostFile:
    """A file of Tidemark that the table no longer has, and the foreign log entry that removed it."""

    path: str
    by: LogEntry


def is_ours(path: str) -> bool:
    """Return True if a path in a table's log is the path of a file that a vertex staged."""
    parts = path.split("/", _PARTS_OF_A_STAGED_PATH - 1)
    return (
        len(parts) == _PARTS_OF_A_STAGED_PATH
        and parts[0] == STAGED
        and parse_generation(parts[1]) is not None
        and parse_staged_name(parts[2]) is not None
    )


def lost_files(folder: StoragePlace, newest: int, after: int) -> dict[str, LostFile]:
    """Return a dict from paths to Tidemark's files that foreign log entries removed.

    These entries are of the table versions after `after`, up to `newest`. Files that any writer has added again are
    left out. Raises OSError if an entry of the log is gone.
    """
    lost: dict[str, LostFile] = {}
    for entry in reversed(list(entries_after(folder, newest, after))):
        for action, path in file_actions(folder, entry.version):
            if action == "add":
                lost.pop(path, None)
            elif entry.ours is None and is_ours(path):
                lost[path] = LostFile(path, entry)
    return lost


def not_removable(table: KnownTable, folder: StoragePlace, leaving: Collection[str]) -> str:
    """Return why these files of Tidemark cannot be removed from an append table, and the way out, or an empty text.

    Another writer may have moved their rows into other files, or given them deletion vectors. A file that never came
    into the log need not be removed.
    """
    gone = table.without(leaving)
    newest = table.version()
    lost = lost_files(folder, newest, _newest_of_ours(folder, newest)) if gone else {}
    if gone & lost.keys():
        return merged(lost[min(gone & lost.keys())].by, str(folder))
    vectors = table.with_deletion_vectors().intersection(leaving)
    return marked(vectors, str(folder)) if vectors else ""


def _newest_of_ours(folder: StoragePlace, newest: int) -> int:
    return next((entry.version for entry in newest_entries(folder, newest) if entry.ours is not None), 0)


def merged(by: LogEntry, folder: str) -> str:
    """Return the message with the way out if another writer moved rows of Tidemark into other files."""
    return (
        f"foreign {by} removed files of Tidemark and wrote their rows into other files, so the rows that came after "
        f"the checkpoint can't be told apart: undo it (RESTORE TABLE delta.`{folder}` TO VERSION AS OF "
        f"{by.version - 1}), and do the same again"
    )


def marked(paths: Collection[str], folder: str) -> str:
    """Return the message with the way out if files have deletion vectors. A rollback cannot remove such files."""
    return (
        f"a DELETE or UPDATE left deletion vectors on {len(paths)} files of Tidemark ({min(paths)}), which only Spark "
        f"can remove: find its version (DESCRIBE HISTORY delta.`{folder}`), go back to the one before (RESTORE TABLE "
        f"delta.`{folder}` TO VERSION AS OF ...), and do the same again"
    )


# ------------------------------------------------------------------
# Reads the properties of a table's files from its Delta log.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFile:
    """One file of a table: its path in the table's folder, and its properties in the log.

    `encoded` is the path in the log, URL-encoded. `partition` has the values of the partition columns in the log's
    form. `statistics` is the JSON text of an add action's statistics, as far as the log has them.
    """

    path: str
    encoded: str
    rows: int | None
    bytes: int
    written_ms: int
    partition: tuple[tuple[str, str | None], ...]
    statistics: str


def logged_files(table: DeltaTable) -> dict[str, LoggedFile]:
    """Return a dict from paths in a table's folder to the files that the table shows.

    No value in a log makes the function fail, however far away or long it is. A value that cannot be a bound is left
    out as a bound.
    """
    actions = pa.table(table.get_add_actions())
    plain = ("path", "num_records", "size_bytes", "modification_time", "null_count")
    named = {name: actions.column(name).to_pylist() for name in plain if name in actions.column_names}
    found = (_file(actions, row, {name: each[row] for name, each in named.items()}) for row in range(actions.num_rows))
    return {file.path: file for file in found}


def _file(actions: pa.Table, row: int, said: Mapping[str, Any]) -> LoggedFile:
    least, greatest, partition = (
        actions.column(name)[row] if name in actions.column_names else pa.scalar(None)
        for name in ("min", "max", "partition")
    )
    rows: int | None = said["num_records"]
    encoded = str(said["path"])
    return LoggedFile(
        path=unquote(encoded),
        encoded=encoded,
        rows=rows,
        bytes=said["size_bytes"],
        written_ms=said["modification_time"],
        partition=tuple((name, _text(value)) for name, value in partition.items()) if partition.is_valid else (),
        statistics=logged_statistics(rows, least, greatest, said.get("null_count") or {}),
    )


def _text(scalar: pa.Scalar) -> str | None:
    """Return a value of a partition column in the log's form. An empty text is null, as in a log."""
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):  # a date or a moment outside of the years 1 to 9999
        return str(scalar.cast(pa.string()).as_py())
    match value:
        case None | "" | b"":
            return None
        case bool():
            return str(value).lower()
        case bytes():
            return value.decode(errors="surrogateescape")
        case datetime():
            return value.isoformat(sep=" ")
        case _:
            return format(value, "f") if pa.types.is_decimal(scalar.type) else str(value)
