"""Finds what in the file system would keep a tick from its work, before the tick claims the job, and for the doctor.

Looking leaves nothing behind. A file that never has a name tells whether a folder can be written.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.accidents import accident_of
from jobs.stores.warehouse import Warehouse

PROBE_BYTES: Final = 64 * 1024
"""Free space that a folder must have at least: a claim and its log entry are smaller."""

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISREG, "a file"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something in the way of a tick, and how to remove it."""

    what: str
    way_out: str

    def __str__(self) -> str:
        """Return both as a sentence."""
        return f"{self.what}: {self.way_out}"


def obstacles(warehouse: Warehouse) -> Iterator[Obstacle]:
    """Yield what keeps a tick of the job from writing into the warehouse."""
    paths = warehouse.paths
    inner = (paths.folder, paths.requests, paths.traces)
    logs = (f"{name}/_delta_log" for name in (paths.checkpoints, paths.cuts))
    root = warehouse.root.absolute()
    writable = True
    for folder in (_existing(root), *(warehouse.path(name) for name in (*inner, *logs))):
        kind = kind_of(folder)
        if kind == "a folder" and writable:
            found = tuple(_unwritable(folder))
            writable = not found  # the folders in it are like it: that is said once
            yield from found
        elif kind not in {None, "a folder"}:
            other = ", or name another folder with --warehouse" if folder in (root, *root.parents) else ""
            yield Obstacle(f"{folder} is {kind}, and a tick needs a folder there", f"move it away{other}")


def kind_of(path: Path) -> str | None:
    """Return what a path leads to, as a message says it; None if it leads to nothing."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - one system call
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((kind for holds, kind in _KINDS if holds(mode)), "of no known kind")


def _existing(root: Path) -> Path:
    """Return the warehouse, or the folder in which it would be made."""
    return next(folder for folder in (root, *root.parents) if kind_of(folder) is not None)


def _unwritable(folder: Path) -> Iterator[Obstacle]:
    try:
        _probe(folder)
    except OSError as error:
        what, _, way_out = (accident_of(error) or f"{error.strerror}: make it writable").partition(": ")
        yield Obstacle(f"{folder} cannot be written, {what}", way_out)


def _probe(folder: Path) -> None:
    """Write a file without a name into a folder, where it is gone at once; raise OSError if that is impossible."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except (AttributeError, IsADirectoryError, OSError) as error:
        if isinstance(error, OSError) and accident_of(error) is not None:
            raise
        if not os.access(folder, os.W_OK | os.X_OK):  # no such files on this system
            raise PermissionError(13, "Permission denied", str(folder)) from error
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(bytes(PROBE_BYTES))
