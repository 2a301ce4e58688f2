"""Writes files of append tables under new names of columns, after the claim and before the first epoch (G2).

Nobody sees these files until the first checkpoint publishes the table. If the tick dies before, they are leftovers. The
publication looks at the table again, so this step only takes the work out of the time between commit and publication.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from checkpointing.commit.columns import Pairs
from checkpointing.identifiers import Generation, TableName
from jobs.holding.boundaries import RENAME_COLUMNS, Boundary, around
from jobs.holding.job_stores import JobStores
from jobs.recovery.renaming import RenameFailedError
from jobs.stores.renamed_files import TakenNameError

SILENT_S: Final = 2.0
"""A table that takes longer is told of, and again each time that so many seconds have passed."""

Told = Callable[[TableName, int, int], None]
"""A function that hears how many of how many bytes of a table are done."""


def rename_columns(
    stores: JobStores, renamed: Mapping[TableName, Pairs], generation: Generation, told: Told, boundary: Boundary
) -> None:
    """Write the files of these tables again, as the claimed `generation`. `renamed` has their new and old names.

    Raises RenameFailedError for a file that cannot be written under new names, and OSError.
    """
    for table, pairs in renamed.items():
        progress = _Progress(table, told)
        with around(boundary, f"{RENAME_COLUMNS}:{table}"):
            try:
                stores.rename_files(table, pairs, generation, progress)
            except (TakenNameError, pa.ArrowException) as error:
                names = ", ".join(f"{old} to {new}" for new, old in pairs)
                raise RenameFailedError(f"table {table} cannot rename {names}: {error}") from error


@dataclass(slots=True)
class _Progress:
    """Tells how many bytes of a table are done, now and then."""

    table: TableName
    told: Told
    last: float = 0.0

    def __post_init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= SILENT_S:
            self.last = now
            self.told(self.table, done, total)
