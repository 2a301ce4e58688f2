"""Deletes the files that a clean-up decided on, one by one. An interrupted clean-up can simply be run again."""

from collections.abc import Iterable
from dataclasses import dataclass

from checkpointing.commit.cleanup import Unneeded
from checkpointing.identifiers import Generation
from checkpointing.metadata.paths import parse_generation
from jobs.cleanup.tables import JobTable
from jobs.storage.place import drop_if_empty
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
    gone: list[Unneeded] = []
    failed: list[str] = []
    for each in unneeded:
        try:
            if warehouse.delete(each.file.path):
                gone.append(each)
            else:
                failed.append(f"{each.file.path}: lies behind a symbolic link; put the folder itself there")
        except OSError as error:
            failed.append(f"{each.file.path}: {error.strerror or error}")
    return Deleted(tuple(gone), tuple(failed))


def drop_empty_folders(warehouse: Warehouse, tables: Iterable[JobTable], current: Generation) -> None:
    """Delete the empty folders of older generations."""
    for table in tables:
        for folder in warehouse.place(warehouse.paths.staged_root(table.name)).folders():
            generation = parse_generation(folder.last)
            if generation is not None and generation < current:
                drop_if_empty(folder)
