"""Says whether the files that a row needs are what their handles say: there, of that size, and of that checksum."""

import base64
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from checkpointing.handles import UNKNOWN_CRC32, FileHandle
from jobs.stores.files import file_size

_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not what its handle says; `what` says how, in words that follow its name."""

    path: str
    what: str

    def __str__(self) -> str:
        """Return the damage as a message names it."""
        return f"file {self.path} {self.what}"


def damages(root: Path, files: Iterable[FileHandle], *, checksums: bool) -> Iterator[Damage]:
    """Yield what is wrong with these files, each looked at once, in order.

    Without `checksums` no file is read: only its existence and its size are compared. A file whose content is in its
    handle needs no place on disk.
    """
    for path, file in {file.path: file for file in files}.items():
        found = _damage(root / path, file, checksums=checksums)
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


def measured(file: BinaryIO, copy: BinaryIO | None = None) -> tuple[int, int]:
    """Return the size and the checksum of an opened file, and write its content into `copy` if there is one."""
    size, crc32 = 0, 0
    while chunk := file.read(_CHUNK_BYTES):
        size, crc32 = size + len(chunk), zlib.crc32(chunk, crc32)
        if copy is not None:
            copy.write(chunk)
    return size, crc32


def _damage(path: Path, file: FileHandle, *, checksums: bool) -> str:
    if file.inline:
        content = base64.b64decode(file.inline)
        return misfit(file, file.bytes, zlib.crc32(content) if checksums else UNKNOWN_CRC32)
    size = file_size(path)
    if size != file.bytes or not checksums or file.crc32 == UNKNOWN_CRC32:
        return misfit(file, size)
    try:
        with path.open("rb") as reader:
            return misfit(file, *measured(reader))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
