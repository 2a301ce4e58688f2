"""Small files on a local file system: written whole or not at all, and kept through a power cut where asked."""

import os
import stat
from contextlib import suppress
from pathlib import Path


class NotARegularFileError(OSError):
    """Something else than a file lies where a file should: a named pipe, a folder, a device. Names it."""


def read_regular(path: Path, bytes_max: int) -> bytes:
    """Return at most so many bytes of a file, and never wait for any.

    Raises NotARegularFileError for a named pipe or a device, which nobody may write, and OSError as `open` does.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotARegularFileError(f"{path} is no file but a named pipe, a folder or a device")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(bytes_max)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    sync_file(path)


def write_durable(path: Path, content: bytes) -> None:
    """Write a new file, its folders included, and return when all are durable. Raises FileExistsError."""
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    for folder in made:
        sync_folder(folder.parent)


def replace(path: Path, content: bytes, *, unique: str) -> None:
    """Put `content` in the place of a file in one step: a reader sees the old bytes or the new ones, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{unique}.tmp")
    beside.write_bytes(content)
    beside.replace(path)


def replace_durable(path: Path, content: bytes, *, unique: str) -> None:
    """As `replace`, and return when the bytes and the name are durable."""
    beside = path.with_name(f".{path.name}.{unique}.tmp")
    write_durable(beside, content)
    beside.replace(path)
    sync_folder(path.parent)


def drop_unfinished(folder: Path, *, before_s: float) -> None:
    """Delete what processes that died left beside the files that they meant to replace, if it is older than that."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            if path.stat().st_mtime < before_s:
                path.unlink()
