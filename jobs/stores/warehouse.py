"""Combines a job's paths with a storage, a clock, and the name under which the stores write."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from checkpointing.metadata.paths import ProtocolPaths
from jobs.distribution import DISTRIBUTION, installed_version
from jobs.engine_paths import must_suit_delta
from jobs.storage.address import Root
from jobs.storage.folder import link_to
from jobs.storage.local import local_path
from jobs.storage.location import storage_of
from jobs.storage.place import StoragePlace
from jobs.storage.port import Storage


def system_clock_ms() -> int:
    """Return the machine's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def installed_writer() -> str:
    """Return this software and its version, as log entries name it."""
    found = installed_version()
    return DISTRIBUTION if found is None else f"{DISTRIBUTION} {found}"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A job's paths in a storage. All processes of the job must be able to reach `root`.

    Raises UnusableFolderError for a folder whose name delta-rs cannot open.
    """

    root: Root
    paths: ProtocolPaths
    now_ms: Callable[[], int] = system_clock_ms
    writer: str = installed_writer()
    storage: Storage = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a folder that cannot hold tables. Nothing has been claimed or written then."""
        if isinstance(self.root, Path):
            must_suit_delta(self.root)
        object.__setattr__(self, "storage", storage_of(self.root))

    def place(self, name: str) -> StoragePlace:
        """Return the place with a warehouse-relative name."""
        return StoragePlace(self.storage, name)

    def path(self, name: str) -> Path:
        """Return the local path of a file that is written bit by bit, such as a trace."""
        return local_path(self.place(name))

    def delete(self, name: str) -> bool:
        """Delete a file if it exists. Return False, and delete nothing, if it lies behind a symbolic link.

        Raises OSError if the operating system refuses.
        """
        if link_to(self.storage, name) is not None:
            return False
        self.storage.delete(name)
        return True
