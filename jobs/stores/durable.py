"""Makes durable what a commit is about to name, so that a power cut takes nothing of it (`commit.durability`).

delta-rs and the writers of staged files leave syncing to others. Several threads sync at a time, because the file
system then writes its journal once for many files. A name is durable once its folder is synced.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from checkpointing.commit.durability import Entries
from jobs.stores.files import sync
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
        """Make these files of the warehouse durable. A missing file is left to its readers."""
        self._sync([self._warehouse.path(path) for path in paths])

    def sync_entries(self, entries: Iterable[Entries]) -> None:
        """Make these entries of tables' logs durable, as far as the logs still have them."""
        tables = ((self._warehouse.path(each.table), range(each.first, each.last + 1)) for each in entries)
        self._sync([entry_path(folder, version) for folder, versions in tables for version in versions])

    def _sync(self, paths: list[Path]) -> None:
        if not paths:
            return
        root, folders = self._warehouse.root.absolute(), {path.parent for path in paths}
        above = {each for new in folders - self._named for each in new.parents if each.is_relative_to(root)}
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(_sync, paths))
            list(pool.map(_sync, folders | above))
        self._named |= folders


def _sync(path: Path) -> None:
    with suppress(FileNotFoundError):
        sync(path)
