"""Small files on a local file system: written whole or not at all, and kept through a power cut where asked."""

import os
from pathlib import Path


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
    """Write a new file, its folder included, and return when both are durable. Raises FileExistsError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def replace(path: Path, content: bytes, *, unique: str) -> None:
    """Put `content` in the place of a file in one step: a reader sees the old bytes or the new ones, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{unique}.tmp")
    beside.write_bytes(content)
    beside.replace(path)


def replace_durable(path: Path, content: bytes, *, unique: str) -> None:
    """As `replace`, and return when the bytes and the name are durable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{unique}.tmp")
    write_durable(beside, content)
    beside.replace(path)
    sync_folder(path.parent)
