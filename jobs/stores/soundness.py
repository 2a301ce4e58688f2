"""Whether the files that a row needs are what its handles say: there, of that size, and of that checksum."""

import base64
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpointing.handles import UNKNOWN_CRC32, FileHandle
from jobs.stores.delta_log import file_size

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

    Without `checksums` only what the file system knows is compared: existence and size. A file whose content is in
    its handle needs no place on disk.
    """
    for path, file in {file.path: file for file in files}.items():
        found = _damage(root / path, file, checksums=checksums)
        if found:
            yield Damage(path, found)


def _damage(path: Path, file: FileHandle, *, checksums: bool) -> str:
    if file.inline:
        crc32 = zlib.crc32(base64.b64decode(file.inline)) if checksums else file.crc32
        return "" if crc32 == file.crc32 else _wrong(crc32, file)
    size = file_size(path)
    if size is None:
        return "is missing"
    if size != file.bytes:
        return f"has {size} bytes instead of {file.bytes}"
    if not checksums or file.crc32 == UNKNOWN_CRC32:
        return ""
    try:
        crc32 = _checksum(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if crc32 == file.crc32 else _wrong(crc32, file)


def _wrong(crc32: int, file: FileHandle) -> str:
    return f"is damaged: its checksum is {crc32:#010x}, not {file.crc32:#010x}"


def _checksum(path: Path) -> int:
    crc32 = 0
    with path.open("rb") as reader:
        while chunk := reader.read(_CHUNK_BYTES):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32
