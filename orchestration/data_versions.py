"""Computes the data version of a table at a cut. It changes exactly if the table changed between two cuts."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from checkpointing.identifiers import JobName, TableName
from jobs.stores.tables import TableLogs
from orchestration.observation import warehouse_of

_DIGITS: Final = 8


class DataVersions:
    """The data versions of a job's tables: `12-3f2a9c1e` is Delta version 12 of the table with the id 3f2a9c1e...

    The id distinguishes a table from an earlier one that was deleted and written again up to the same version.
    """

    def __init__(self, root: Path, job: JobName) -> None:
        """Read nothing yet."""
        self._logs = TableLogs(warehouse_of(root, job))
        self._ids: dict[TableName, str] = {}

    def of(self, table: TableName, version: int) -> str:
        """Return the data version of a table at this Delta version."""
        if table not in self._ids:
            self._ids[table] = str(self._logs.log(table).current().metadata().id)[:_DIGITS]
        return f"{version}-{self._ids[table]}"

    def of_cut(self, versions: Mapping[TableName, int]) -> str:
        """Return one data version for all tables of a cut together."""
        each = sorted(f"{table}={self.of(table, version)}" for table, version in versions.items())
        return hashlib.sha256("\n".join(each).encode()).hexdigest()[: 2 * _DIGITS]
