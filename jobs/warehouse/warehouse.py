"""Combines a job's paths with a storage, a clock, and the name under which the stores write."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from checkpointing.metadata.paths import ROOT, ProtocolPaths
from jobs.distribution import DISTRIBUTION, installed_version
from jobs.engine_paths import must_suit_delta
from jobs.storage.address import Root
from jobs.storage.folder import Folder, is_link, link_to
from jobs.storage.objects import ObjectStore
from jobs.storage.place import StoragePlace, both, local_path, storage_of
from jobs.storage.port import Listed, Storage
from jobs.storage.write_checks import Obstacle, broken_promises, folder_obstacles, kind_of, store_obstacles

_IN_A_JOBS_FOLDER: Final = 2
"""The number of slashes in the name of a folder in a job's folder."""


def system_clock_ms() -> int:
    """Return the machine's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def installed_writer() -> str:
    """Return the name and version of this software for log entries."""
    found = installed_version()
    return DISTRIBUTION if found is None else f"{DISTRIBUTION} {found}"


class OwnFolder(Folder):
    """A warehouse's folder. Nothing behind a symbolic link inside a table or a job's folder is deleted there.

    Only Tidemark makes folders inside of these folders, so such a link leads to files that are not the job's.
    """

    __slots__ = ()

    def delete(self, name: str) -> None:
        """Delete a file if it exists, unless its path leads through a symbolic link inside a table's folder."""
        if link_to(self, name) is None:
            Folder.delete(self, name)

    def list(self, name: str, *, deep: bool = False) -> Iterator[Listed]:
        """Yield the entries of a folder. A link in place of a folder in a job's folder is treated as empty."""
        is_jobs = name.startswith(f"{ROOT}/") and name.count("/") == _IN_A_JOBS_FOLDER
        return iter(()) if is_jobs and self.path(name).is_symlink() else Folder.list(self, name, deep=deep)


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
        """Refuse a folder that cannot have tables, before anything is claimed or written."""
        if isinstance(self.root, Path):
            must_suit_delta(self.root)
        storage = OwnFolder(self.root) if isinstance(self.root, Path) else storage_of(self.root)
        object.__setattr__(self, "storage", storage)

    def place(self, name: str) -> StoragePlace:
        """Return the place with a warehouse-relative name."""
        return StoragePlace(self.storage, name)

    def path(self, name: str) -> Path:
        """Return the local path of a file that is written piece by piece, such as a trace."""
        return local_path(self.place(name))

    def delete(self, name: str) -> bool:
        """Delete a file if it exists. Return False, and delete nothing, if it lies behind a symbolic link.

        Raises OSError if the operating system refuses.
        """
        if link_to(self.storage, name) is not None:
            return False
        self.storage.delete(name)
        return True


# ------------------------------------------------------------------
# Finds obstacles to a tick's work in the warehouse. A tick and `doctor` check for them.


def obstacles(warehouse: Warehouse, *, thorough: bool = False) -> Iterator[Obstacle]:
    """Yield the reasons why a tick of the job cannot write into the warehouse.

    An object store is tested for the guarantees of the storage port if the job has never run there, or if `thorough`.
    """
    paths = warehouse.paths
    logs = tuple(f"{name}/_delta_log" for name in (paths.checkpoints, paths.cuts))
    match warehouse.storage:
        case Folder() as folder:
            own = (paths.requests, paths.traces, paths.reservations, paths.manifests, paths.checkpoints, paths.cuts)
            yield from dict.fromkeys(_linked(folder, name) for name in (*own, *logs) if is_link(folder, name))
            yield from folder_obstacles(folder, (paths.folder, paths.requests, paths.traces, *logs))
        case ObjectStore() as store:
            found, has_run = both(
                store, lambda: tuple(store_obstacles(store, paths.folder)), lambda: _is_there(warehouse, logs[0])
            )
            yield from found
            if not found and (thorough or not has_run):
                yield from broken_promises(store, paths.folder)
        case _:
            raise TypeError(f"no storage of Tidemark's: {warehouse.storage}")


def _linked(folder: Folder, name: str) -> Obstacle:
    path = folder.path(link_to(folder, name) or name)
    return Obstacle(f"{path} is a symbolic link, and a tick deletes files there", "put the folder itself there")


def _is_there(warehouse: Warehouse, folder: str) -> bool:
    """Return True if the folder exists, and False if the storage does not answer."""
    try:
        return warehouse.place(folder).is_folder()
    except OSError:
        return False


def kind_at(warehouse: Warehouse, name: str) -> str | None:
    """Return the kind of file at a name in a folder, or None if there is no such file."""
    return kind_of(warehouse.storage.path(name)) if isinstance(warehouse.storage, Folder) else None
