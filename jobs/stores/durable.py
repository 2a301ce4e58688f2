"""Makes durable what a commit is about to name, so that a power cut takes nothing of it (`commit.durability`).

delta-rs and the writers of staged files leave syncing to others.
"""

from collections.abc import Iterable

from checkpointing.commit.durability import Entries
from jobs.storage.synced import SyncedNames
from jobs.stores.log_entries import entry_place
from jobs.stores.warehouse import Warehouse


class Durability:
    """Syncs files of one warehouse. An object store needs none of it, since it answers when a file is durable."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Nothing of the warehouse is known to be durable."""
        self._warehouse = warehouse
        self._synced = SyncedNames(warehouse.storage)

    def sync_files(self, paths: Iterable[str]) -> None:
        """Make these files of the warehouse durable. A missing file is left to its readers."""
        self._synced.sync(tuple(paths))

    def sync_entries(self, entries: Iterable[Entries]) -> None:
        """Make these entries of tables' logs durable, as far as the logs still have them."""
        tables = ((self._warehouse.place(each.table), range(each.first, each.last + 1)) for each in entries)
        self._synced.sync([entry_place(folder, version).name for folder, versions in tables for version in versions])
