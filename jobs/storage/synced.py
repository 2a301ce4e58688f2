"""Makes files of a folder durable that other programs wrote into it.

Several threads sync at the same time, because the file system then writes its journal once for many files. A name is
durable once its folder is synced.
"""

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from jobs.storage.folder import Folder, sync
from jobs.storage.place import StoragePlace
from jobs.storage.port import Storage

THREADS: Final = 16


class SyncedNames:
    """Syncs files, and remembers the folders whose names are durable. It does nothing for an object store."""

    def __init__(self, storage: Storage) -> None:
        """Begin without a durable name."""
        self._folder = storage if isinstance(storage, Folder) else None
        self._named: set[Path] = set()

    def sync(self, names: Collection[str]) -> None:
        """Make these files durable, and the names that lead to them. Ignore a missing file."""
        if self._folder is None or not names:
            return
        root, paths = self._folder.root, [self._folder.path(name) for name in names]
        folders = {path.parent for path in paths}
        above = {each for new in folders - self._named for each in new.parents if each.is_relative_to(root)}
        with ThreadPoolExecutor(THREADS) as pool:
            for each in (paths, [*folders | above]):
                list(pool.map(_sync_all, [each[thread::THREADS] for thread in range(min(THREADS, len(each)))]))
        self._named |= folders


def sync_files(places: Iterable[StoragePlace]) -> None:
    """Make files of one folder and their names durable, one after another."""
    above: set[Path] = set()
    for place in places:
        if isinstance(place.storage, Folder):
            path = place.storage.path(place.name)
            sync(path)
            above.add(path.parent)
    sync_folders(above)


def new_folders(folder: StoragePlace) -> tuple[Path, ...]:
    """Return this folder, the missing folders above it, and the first existing one. Their names are not durable yet."""
    if not isinstance(folder.storage, Folder):
        return ()
    path = folder.storage.path(folder.name)
    there = next(above for above in path.parents if above.is_dir())
    return (path, *(above for above in path.parents if above.is_relative_to(there)))


def sync_above(storage: Storage, names: Iterable[str]) -> None:
    """Make the names of files that were just written durable, from the root of their storage down."""
    if isinstance(storage, Folder):
        root = storage.root
        for folder in {above for name in names for above in storage.path(name).parents if above.is_relative_to(root)}:
            sync(folder)


def sync_folders(folders: Iterable[Path]) -> None:
    """Make the names in these folders durable. The folders exist now."""
    for folder in folders:
        sync(folder)


def _sync_all(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            sync(path)
