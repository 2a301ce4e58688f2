"""Lets one process at a time do something in a warehouse. Safety never depends on this lock."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace
from jobs.storage.port import ChangedError

_COUNTS_MS: Final = 30_000
"""A lock in an object store counts only for this long, because its holder may have died."""
_LOOK_S: Final = 0.2


@contextmanager
def locked(place: StoragePlace) -> Iterator[None]:
    """Hold the lock of that name until the block ends. Wait while another process holds it. Raises OSError.

    In an object store the lock is an object that is written if absent. It counts for 30 s.
    """
    if isinstance(place.storage, Folder):
        path = place.storage.path(place.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        return
    mine = uuid4().hex.encode()
    while not _took(place, mine):
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        if place.exists() and place.read() == mine:
            place.delete()


def _took(place: StoragePlace, mine: bytes) -> bool:
    """Take the lock if it is free or its holder's time is over. Return True if this process has it now."""
    try:
        place.write(mine)
    except FileExistsError:
        try:
            there = place.described()
            if time.time() * 1000 - there.changed_ms < _COUNTS_MS:
                return False
            place.storage.replace(place.name, mine, unchanged=there.tag)
        except (FileNotFoundError, ChangedError):
            return False
    return True
