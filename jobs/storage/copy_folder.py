"""Makes a savepoint's copy, which appears whole or not at all, and deletes such a copy.

A folder is made beside its final place, and renamed into this place when everything in it is durable. An object store
cannot rename. There the copy is made in place. Until the copy is whole, it has a note that names the process that makes
it.
"""

import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from jobs.storage.address import Root
from jobs.storage.folder import Folder, sync
from jobs.storage.place import StoragePlace, delete_folder, place_in, storage_of
from jobs.storage.port import Storage

_MAKER: Final = "maker.json"

IsDead = Callable[[StoragePlace], bool]
"""Takes the note that names the process of a copy. Returns True if this process is certainly dead."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An unfinished copy. `durable` has the names of files that need no further sync."""

    root: Root
    durable: set[str] = field(default_factory=set)

    @property
    def storage(self) -> Storage:
        """Return the storage into which the copy is written."""
        return storage_of(self.root)


@contextmanager
def made_whole(to: Root, maker: bytes) -> Iterator[Unfinished]:
    """Yield an empty storage that becomes `to` when the block ends. `maker` is the note that names this process.

    If the block raises, no file is left. Raises OSError.
    """
    made = Unfinished(to.with_name(f".{to.name}.{uuid4()}.partial") if isinstance(to, Path) else to)
    try:
        made.storage.write(_MAKER, maker)
        yield made
        made.storage.delete(_MAKER)
        if isinstance(made.root, Path) and isinstance(to, Path):
            _sync_all(made.root, made.durable)
            made.root.rename(to)
            sync(to.parent)
    except BaseException:
        with suppress(OSError):
            delete_folder(place_in(made.root, ""), _MAKER)
        raise


def drop_unfinished_copies(to: Root, is_dead: IsDead) -> None:
    """Delete the unfinished copies of killed processes, at `to` and beside it. `is_dead` tells if a process is dead."""
    others = to.parent.glob(f".{to.name}.*.partial") if isinstance(to, Path) else (to,)
    for each in others:
        if is_dead(place_in(each, _MAKER)):
            delete_folder(place_in(each, ""), _MAKER)  # deleted last: until then, it marks the other files as left over


def is_free(to: Root, is_dead: IsDead) -> bool:
    """Return True if nothing lies at this address, or only the unfinished copy of a killed process."""
    if isinstance(to, Path):
        return not to.exists() or (to.is_dir() and not any(to.iterdir()))
    return not place_in(to, "").is_folder() or is_dead(place_in(to, _MAKER))


def delete_at_once(root: Root) -> None:
    """Delete a savepoint's copy. A folder disappears in one step."""
    if isinstance(root, Path):
        gone = root.with_name(f".{root.name}.{uuid4()}.claimed")
        root.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    else:
        delete_folder(place_in(root, ""))


def free_bytes(root: Root) -> int | None:
    """Return the free space of the disk on which a folder lies or would lie, or None for an object store."""
    if not isinstance(root, Path):
        return None
    there = root.absolute()
    return shutil.disk_usage(next(each for each in (there, *there.parents) if each.exists())).free


def _sync_all(root: Path, durable: set[str]) -> None:
    sync(root)
    for path in root.rglob("*"):
        if str(path.relative_to(root)) not in durable:
            sync(path)


# ------------------------------------------------------------------
# Copies one file from a storage to another, and returns the size and checksum of the copy.


_CHUNK_BYTES: Final = 1024 * 1024


def transferred(source: StoragePlace, target: StoragePlace, *, link: bool = False) -> tuple[int, int]:
    """Copy a file durably, replace the target, and return the size and the checksum of the bytes that were read.

    With `link`, the file is linked if both places lie on one file system. In a folder, the copy's bytes are durable,
    but its name is not yet (`synced.sync_above`). Raises FileNotFoundError, and OSError.
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


# ------------------------------------------------------------------
# Computes the checksums of whole files.


_BUFFER_BYTES: Final = 256 * 1024
_buffers: Final = threading.local()
"""A buffer for each thread, used for all its files. New memory would cost more time than the checksum."""


def measured(place: StoragePlace) -> tuple[int, int]:
    """Return the size and the CRC-32 of a file. Raises what reading the file raises."""
    if isinstance(place.storage, Folder):
        return _of_path(place.storage.path(place.name))
    size, crc32 = 0, 0
    for chunk in place.chunks():
        size, crc32 = size + len(chunk), zlib.crc32(chunk, crc32)
    return size, crc32


def _of_path(path: "os.PathLike[str]") -> tuple[int, int]:
    buffer = _buffer()
    size, crc32 = 0, 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # reading a named pipe might never end
    try:
        while got := os.readv(descriptor, [buffer]):
            size, crc32 = size + got, zlib.crc32(buffer[:got], crc32)
    finally:
        os.close(descriptor)
    return size, crc32


def _buffer() -> memoryview:
    if not hasattr(_buffers, "own"):
        _buffers.own = memoryview(bytearray(_BUFFER_BYTES))
    own: memoryview = _buffers.own
    return own
