"""Finds the storage that a warehouse's address stands for."""

from functools import lru_cache
from pathlib import Path

from jobs.storage.address import Root, parsed
from jobs.storage.folder import Folder
from jobs.storage.objects import ObjectStore
from jobs.storage.place import StoragePlace
from jobs.storage.port import Storage


def storage_of(root: Root) -> Storage:
    """Return the storage of a warehouse."""
    return Folder(root) if isinstance(root, Path) else ObjectStore(root)


@lru_cache(maxsize=64)
def storage_at(address: str) -> Storage:
    """Return the storage of an address. A task gets the address as a warehouse's absolute path or its URL."""
    return storage_of(parsed(address))


def place_in(root: Root | str, name: str) -> StoragePlace:
    """Return the place of a file or folder in the warehouse with that root or address."""
    return StoragePlace(storage_at(str(root)), name)
