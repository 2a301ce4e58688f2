"""Makes files durable before a commit names them, so that a power cut cannot lose any of them (`commit.durability`).

Neither delta-rs nor the writers of staged files sync what they write.
"""

from collections.abc import Iterable

from checkpointing.commit.durability import Entries
from jobs.storage.synced import SyncedNames
from jobs.stores.log_entries import entry_place
from jobs.stores.warehouse import Warehouse


class Durability:
    """Syncs files of one warehouse. In an object store, every file is durable already."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Begin without any file that is known to be durable."""
        self._warehouse = warehouse
        self._synced = SyncedNames(warehouse.storage)

    def sync_files(self, paths: Iterable[str]) -> None:
        """Make these files of the warehouse durable. A missing file is left to the code that reads it."""
        self._synced.sync(tuple(paths))

    def sync_entries(self, entries: Iterable[Entries]) -> None:
        """Make these log entries of tables durable, if the logs still have them."""
        tables = ((self._warehouse.place(each.table), range(each.first, each.last + 1)) for each in entries)
        self._synced.sync([entry_place(folder, version).name for folder, versions in tables for version in versions])
