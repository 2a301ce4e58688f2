"""Compares the files that an entry needs with their handles: existence, size and checksum."""

import base64
import zlib
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from checkpointing.handles import UNKNOWN_CRC32, FileHandle
from jobs.storage.checksums import measured
from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace
from jobs.storage.port import Storage
from jobs.storage.sizes import sizes_of
from jobs.storage.together import AT_A_TIME, in_threads

THREADS: Final = 4
"""This many files of a folder are read in parallel. Reading and checksums run without Python's lock."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that differs from its handle. `what` says how, in words that follow the file's name."""

    path: str
    what: str

    def __str__(self) -> str:
        """Return the damage in the words of messages."""
        return f"file {self.path} {self.what}"


def damages(storage: Storage, files: Iterable[FileHandle], *, checksums: bool) -> Iterator[Damage]:
    """Yield the damage of these files in order. Each file is looked at once.

    Without `checksums`, no file is read, and only existence and size are compared. If the handle has the content
    itself, no file is needed. Files are read several at a time.
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
    """Return how a file of this size and checksum differs from its handle, in words that follow its name.

    Empty if it does not. `size` is None for a missing file. Checksums are compared if both are known.
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
