"""Deletes the files that a clean-up decided on, in a store several at a time.

An interrupted clean-up can simply be run again.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from checkpointing.commit.cleanup import Unneeded
from checkpointing.identifiers import Generation
from checkpointing.metadata.paths import parse_generation
from jobs.cleanup.tables import JobTable
from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace, drop_if_empty
from jobs.storage.together import together
from jobs.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Deleted:
    """The deleted files, and those that could not be deleted, each with the reason."""

    files: tuple[Unneeded, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the deleted bytes."""
        return sum(each.file.bytes for each in self.files)


def delete_unneeded(warehouse: Warehouse, unneeded: Iterable[Unneeded]) -> Deleted:
    """Delete these files. If one cannot be deleted, the others still are."""

    def failure(each: Unneeded) -> str:
        try:
            gone = warehouse.delete(each.file.path)
        except OSError as error:
            return f"{each.file.path}: {error.strerror or error}"
        return "" if gone else f"{each.file.path}: lies behind a symbolic link; put the folder itself there"

    asked = tuple(unneeded)
    failures = together(warehouse.storage, failure, asked)
    gone = tuple(each for each, failed in zip(asked, failures, strict=True) if not failed)
    return Deleted(gone, tuple(filter(None, failures)))


def drop_empty_folders(warehouse: Warehouse, tables: Iterable[JobTable], current: Generation) -> None:
    """Delete the empty folders of older generations."""
    for table in tables:
        for folder in warehouse.place(warehouse.paths.staged_root(table.name)).folders():
            generation = parse_generation(folder.last)
            if generation is not None and generation < current:
                _drop_empty(folder)


def _drop_empty(folder: StoragePlace) -> None:
    """Delete a folder if it holds no file. It may hold a folder for each partition."""
    for inside in folder.folders() if isinstance(folder.storage, Folder) else ():
        _drop_empty(inside)
    drop_if_empty(folder)
