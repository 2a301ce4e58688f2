"""Makes durable what a commit is about to name, so that a power cut takes nothing of it. `commit.durability` says what.

delta-rs and the writers of staged files leave syncing to others. It is done here in one go, by several threads at a
time: the file system then writes its journal once for many files. Names are durable once their folders are synced.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from checkpointing.commit.durability import Entries
from jobs.stores.files import sync_file, sync_folder
from jobs.stores.log_entries import entry_path
from jobs.stores.warehouse import Warehouse

THREADS: Final = 8


class Durability:
    """Syncs files of one warehouse, and remembers which folders' own names are durable."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Nothing of the warehouse is known to be durable."""
        self._warehouse = warehouse
        self._named: set[Path] = set()

    def sync_files(self, paths: Iterable[str]) -> None:
        """Make these files of the warehouse durable; one that is gone is left to those who read it."""
        self._sync([self._warehouse.path(path) for path in paths])

    def sync_entries(self, entries: Iterable[Entries]) -> None:
        """Make these entries of tables' logs durable, as far as the logs still have them."""
        self._sync(
            [
                entry_path(self._warehouse.path(each.table), version)
                for each in entries
                for version in range(each.first, each.last + 1)
            ]
        )

    def _sync(self, paths: list[Path]) -> None:
        if not paths:
            return
        folders = {path.parent for path in paths}
        above = {each for folder in folders - self._named for each in self._above(folder)}
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(_sync_file, paths))
            list(pool.map(_sync_folder, folders | above))
        self._named |= folders

    def _above(self, folder: Path) -> list[Path]:
        """Return the folders that hold the names on the way from the warehouse's root to a folder."""
        root = self._warehouse.root
        return [each for each in folder.parents if each == root or each.is_relative_to(root)]


def _sync_file(path: Path) -> None:
    with suppress(FileNotFoundError):
        sync_file(path)


def _sync_folder(path: Path) -> None:
    with suppress(FileNotFoundError):
        sync_folder(path)
