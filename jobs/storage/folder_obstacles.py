"""Finds out why a process cannot write into a warehouse's folder.

The check leaves nothing behind: it writes a file that never has a name.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from jobs.accidents import accident_of
from jobs.storage.folder import Folder
from jobs.storage.obstacle import Obstacle

PROBE_BYTES: Final = 64 * 1024
"""A folder must have at least this much free space. A claim and its log entry are smaller."""

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISREG, "a file"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def folder_obstacles(folder: Folder, names: Iterable[str]) -> Iterator[Obstacle]:
    """Yield the reasons why a process cannot write into a folder and into these folders in it."""
    root = folder.root
    writable = True
    for each in (_existing(root), *(folder.path(name) for name in names)):
        kind = kind_of(each)
        if kind == "a folder" and writable:
            found = tuple(_unwritable(each))
            writable = not found  # the folders in it have the same obstacle, so one message is enough
            yield from found
        elif kind not in {None, "a folder"}:
            other = ", or name another folder with --warehouse" if each in (root, *root.parents) else ""
            yield Obstacle(f"{each} is {kind}, and a tick needs a folder there", f"move it away{other}")


def kind_of(path: Path) -> str | None:
    """Return the kind of thing at a path in the words of a message, or None if there is nothing."""
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
    """Write a file without a name into a folder. The file is gone at once. Raise OSError if this is impossible."""
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
