"""Copies one file from a storage to another, and returns the size and checksum of the copy."""

import os
import shutil
import zlib
from pathlib import Path
from typing import BinaryIO, Final

from jobs.storage.folder import Folder, sync
from jobs.storage.place import StoragePlace

_CHUNK_BYTES: Final = 1024 * 1024


def transferred(source: StoragePlace, target: StoragePlace, *, link: bool = False) -> tuple[int, int]:
    """Copy a file durably, replace the target, and return the size and the checksum of the bytes that were read.

    With `link`, the file is linked if both places lie on one file system. In a folder, the name of the target is not
    durable yet (`synced.sync_above`). Raises FileNotFoundError, and OSError.
    """
    if isinstance(source.storage, Folder) and isinstance(target.storage, Folder):
        here, there = source.storage.path(source.name), target.storage.path(target.name)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.unlink(missing_ok=True)
        return _link(here, there) if link else _copy(here, there)
    content = source.read()
    target.replace(content)
    return len(content), zlib.crc32(content)


def moved(source: StoragePlace, target: StoragePlace) -> None:
    """Move a file to a name that is free: by renaming it in a folder, or by a copy and a deletion. Raises OSError."""
    if isinstance(source.storage, Folder) and isinstance(target.storage, Folder):
        there = target.storage.path(target.name)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source.storage.path(source.name), there)
        return
    transferred(source, target)
    source.delete()


def _link(source: Path, target: Path) -> tuple[int, int]:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        return _copy(source, target)
    with source.open("rb") as reader:
        seen = _measured(reader)
    sync(source)
    return seen


def _copy(source: Path, target: Path) -> tuple[int, int]:
    with source.open("rb") as reader, target.open("xb") as writer:
        seen = _measured(reader, writer)
        writer.flush()
        os.fsync(writer.fileno())
    return seen


def _measured(reader: BinaryIO, writer: BinaryIO | None = None) -> tuple[int, int]:
    size, crc32 = 0, 0
    while chunk := reader.read(_CHUNK_BYTES):
        size, crc32 = size + len(chunk), zlib.crc32(chunk, crc32)
        if writer is not None:
            writer.write(chunk)
    return size, crc32
