"""Describes a reason why a process cannot use a warehouse."""

import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import Final
from uuid import uuid4

from jobs.disk_errors import accident_of
from jobs.storage.folder import Folder
from jobs.storage.objects import ObjectStore, StoreError
from jobs.storage.place import StoragePlace, both


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason why a tick cannot use the warehouse, and the way out."""

    what: str
    way_out: str

    def __str__(self) -> str:
        """Return the reason and the way out as a sentence."""
        return f"{self.what}: {self.way_out}"


# ------------------------------------------------------------------
# Finds out why a process cannot write into a warehouse's folder.
#
# The check leaves nothing behind, since it writes a file that never has a name.


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
    """Return what lies at a path, in the words of a message, or None if nothing does."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - one system call
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((kind for holds, kind in _KINDS if holds(mode)), "of no known kind")


def _existing(root: Path) -> Path:
    """Return the warehouse's folder, or the folder in which it would be created."""
    return next(folder for folder in (root, *root.parents) if kind_of(folder) is not None)


def _unwritable(folder: Path) -> Iterator[Obstacle]:
    try:
        _probe(folder)
    except OSError as error:
        what, _, way_out = (accident_of(error) or f"{error.strerror}: make it writable").partition(": ")
        yield Obstacle(f"{folder} cannot be written, {what}", way_out)


def _probe(folder: Path) -> None:
    """Write a file without a name into a folder. The file vanishes when it is closed.

    Raise OSError if this is impossible.
    """
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


# ------------------------------------------------------------------
# Finds out why a process cannot use a warehouse in an object store, and whether conditional puts fail there.
#
# A check writes, reads, lists and deletes a probe object. A race lets several writers write one object at the same
# time. If two of them succeed, two ticks could both commit one version of `checkpoints`, and rows would be lost.


WRITERS: Final = 8
RACES: Final = 12
RACE_BYTES: Final = 64 * 1024
"""The size of the object in a race. It is large so that the race sooner finds a store without atomic conditional puts.

Such a store checks the condition first and writes later. The more bytes, the more time lies between the two.
"""


def store_obstacles(store: ObjectStore, folder: str) -> Iterator[Obstacle]:
    """Yield the reasons why a process cannot use a store.

    The check writes, reads, lists and deletes one object in `folder`.
    """
    probe = StoragePlace(store, f"{folder}/probe-{uuid4().hex}")
    try:
        probe.write(b"probe")
        read, listed = both(store, probe.read, lambda: [each.name for each in StoragePlace(store, folder).entries()])
        probe.delete()
        if read != b"probe" or probe.last not in listed or probe.exists():
            yield Obstacle(
                f"{store.root} does not show at once what was written into it or deleted",
                "a warehouse needs a store that does: name another one with --warehouse",
            )
    except StoreError as error:
        yield Obstacle(error.what, error.way_out)


def broken_promises(store: ObjectStore, folder: str) -> Iterator[Obstacle]:
    """Yield an obstacle if several writers of one object succeed. Nothing is left in `folder`."""
    winners = max(_race(StoragePlace(store, f"{folder}/race-{uuid4().hex}")) for _ in range(RACES))
    if winners != 1:
        yield Obstacle(
            f"{store.root} let {winners} of {WRITERS} writers create one object, so two ticks could both commit, and "
            "rows would be lost",
            "use a store whose conditional put (If-None-Match: *) is atomic, as S3, GCS, Azure and current MinIO have "
            "it, or a folder",
        )


def _race(place: StoragePlace) -> int:
    """Return how many of several writers created one object."""
    start = Barrier(WRITERS)

    def wrote(writer: int) -> bool:
        start.wait()
        try:
            place.write(bytes([writer]) * RACE_BYTES)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        won = sum(pool.map(wrote, range(WRITERS)))
    place.delete()
    return won
