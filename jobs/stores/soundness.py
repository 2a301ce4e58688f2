"""Says whether the files that a row needs are what their handles say: there, of that size, and of that checksum."""

import base64
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from checkpointing.handles import UNKNOWN_CRC32, FileHandle
from jobs.storage.place import StoragePlace
from jobs.storage.port import Storage


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not what its handle says; `what` says how, in words that follow its name."""

    path: str
    what: str

    def __str__(self) -> str:
        """Return the damage as a message names it."""
        return f"file {self.path} {self.what}"


def damages(storage: Storage, files: Iterable[FileHandle], *, checksums: bool) -> Iterator[Damage]:
    """Yield what is wrong with these files, each looked at once, in order.

    Without `checksums` no file is read: only its existence and its size are compared. A file whose content is in its
    handle needs no place on disk.
    """
    for path, file in {file.path: file for file in files}.items():
        found = _damage(StoragePlace(storage, path), file, checksums=checksums)
        if found:
            yield Damage(path, found)


def misfit(file: FileHandle, size: int | None, crc32: int = UNKNOWN_CRC32) -> str:
    """Return how a file of this size and checksum differs from its handle, in words that follow its name.

    Empty if it does not. A `size` of None is a missing file. Checksums are compared if both are known.
    """
    if size is None:
        return "is missing"
    if size != file.bytes:
        return f"has {size} bytes instead of {file.bytes}"
    if UNKNOWN_CRC32 in (file.crc32, crc32) or file.crc32 == crc32:
        return ""
    return f"is damaged: its checksum is {crc32:#010x}, not {file.crc32:#010x}"


def measured(chunks: Iterable[bytes]) -> tuple[int, int]:
    """Return the size and the checksum of a file that is read in parts."""
    size, crc32 = 0, 0
    for chunk in chunks:
        size, crc32 = size + len(chunk), zlib.crc32(chunk, crc32)
    return size, crc32


def _damage(place: StoragePlace, file: FileHandle, *, checksums: bool) -> str:
    if file.inline:
        content = base64.b64decode(file.inline)
        return misfit(file, file.bytes, zlib.crc32(content) if checksums else UNKNOWN_CRC32)
    size = place.size()
    if size != file.bytes or not checksums or file.crc32 == UNKNOWN_CRC32:
        return misfit(file, size)
    try:
        return misfit(file, *measured(place.chunks()))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
