"""Finds out why a process cannot use a warehouse in an object store, and whether the store breaks its promise.

A check writes, reads, lists and deletes a probe object. A race lets several writers write one object at the same time.
If two of them succeed, two ticks could both commit one version of `checkpoints`, and rows would be lost.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final
from uuid import uuid4

from jobs.storage.failures import StoreError
from jobs.storage.objects import ObjectStore
from jobs.storage.obstacle import Obstacle
from jobs.storage.place import StoragePlace
from jobs.storage.together import both

WRITERS: Final = 8
RACES: Final = 12
RACE_BYTES: Final = 64 * 1024
"""With more bytes, a store that checks first and puts later takes longer between the two.

So the race finds it sooner.
"""


def store_obstacles(store: ObjectStore, folder: str) -> Iterator[Obstacle]:
    """Yield the reasons why a process cannot use a store.

    It writes, reads, lists and deletes one object in `folder`.
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
    """Yield an obstacle if several writers of one object succeed. Nothing stays in `folder`."""
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
