"""Small files on a local file system: written whole or not at all, and kept through a power cut where asked."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ValidationError

DOCUMENT_BYTES_MAX: Final = 64 * 1024

Document = TypeVar("Document", bound=BaseModel)


class NotARegularFileError(OSError):
    """A named pipe, a folder or a device lies where a file should be. The message names it."""


def read_regular(path: Path, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
    """Return at most `bytes_max` bytes of a file. It never waits for a writer.

    Raises NotARegularFileError for a named pipe or a device, and OSError as `open` does.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotARegularFileError(f"{path} is no file but a named pipe, a folder or a device")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(bytes_max)
    finally:
        os.close(descriptor)


def read_document(kind: type[Document], path: Path, bytes_max: int = DOCUMENT_BYTES_MAX) -> Document | None:
    """Return the document in a JSON file; None if the file is missing, damaged or of another format."""
    try:
        return kind.model_validate_json(read_regular(path, bytes_max))
    except (OSError, ValidationError):
        return None


def write_document(path: Path, document: BaseModel) -> None:
    """Replace a JSON file durably by this document."""
    replace_durable(path, document.model_dump_json(indent=1).encode())


def file_size(path: Path) -> int | None:
    """Return a file's size in bytes; None if there is no file of that name, but nothing, a folder or a pipe."""
    try:
        status = os.stat(path)  # noqa: PTH116 - one system call
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def sync(path: Path) -> None:
    """Make the bytes of a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durable(path: Path, content: bytes) -> None:
    """Write a new file, its folders included, and return when all are durable. Raises FileExistsError."""
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    for folder in (path, *made):
        sync(folder.parent)


def replace(path: Path, content: bytes) -> None:
    """Replace a file in one step. A reader sees the old bytes or the new ones, never a part of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path)
    beside.write_bytes(content)
    beside.replace(path)


def replace_durable(path: Path, content: bytes) -> None:
    """Replace a file as `replace` does, and return when its bytes and its name are durable."""
    beside = _beside(path)
    write_durable(beside, content)
    beside.replace(path)
    sync(path.parent)


def drop_unfinished(folder: Path, *, before_s: float) -> None:
    """Delete the files that dead processes had not yet put in their place, if they are older than `before_s`."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            if path.stat().st_mtime < before_s:
                path.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4()}.tmp")
