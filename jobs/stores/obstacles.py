"""Finds obstacles that would stop a tick in its work in the warehouse. A tick and doctor look for them."""

from collections.abc import Iterator

from jobs.storage.folder import Folder, is_link, link_to
from jobs.storage.folder_obstacles import folder_obstacles, kind_of
from jobs.storage.objects import ObjectStore
from jobs.storage.obstacle import Obstacle
from jobs.storage.store_obstacles import broken_promises, store_obstacles
from jobs.storage.together import both
from jobs.stores.warehouse import Warehouse


def obstacles(warehouse: Warehouse, *, thorough: bool = False) -> Iterator[Obstacle]:
    """Yield the reasons why a tick of the job cannot write into the warehouse.

    An object store is tested for the promises of the storage port if the job has never run there, and if `thorough`.
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
    """Return the kind of file that a name in a folder leads to, or None if there is no such file."""
    return kind_of(warehouse.storage.path(name)) if isinstance(warehouse.storage, Folder) else None
