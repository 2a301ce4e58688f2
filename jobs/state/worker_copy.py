"""Keeps merged state of earlier micro-batches in the memory of a Python worker, bounded in size (D5).

Files are immutable, and each copy remembers the paths that it was made from. So a hit is always right, and a miss only
costs a load. Any worker may run any subtask. An older copy catches up by reading only the files that it lacks.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from jobs.state.keyed_rows import KeyedRows

COPY_BYTES_MAX = 512 * 1024 * 1024
"""The largest size of all copies of one worker together."""

RangeName = tuple[str, str, int, int]
"""(warehouse, state table or output table, first and last key group)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The merged rows of these files, oldest first."""

    paths: tuple[str, ...]
    rows: KeyedRows


@dataclass(frozen=True, slots=True)
class CopyUses:
    """How often a range's copy was right at once, had to catch up, or did not exist."""

    hits: int = 0
    behind: int = 0
    misses: int = 0

    def __add__(self, other: "CopyUses") -> "CopyUses":
        """Return both counts together."""
        return CopyUses(self.hits + other.hits, self.behind + other.behind, self.misses + other.misses)


NO_USES = CopyUses()


@dataclass(slots=True, eq=False)
class WorkerCopies:
    """The copies of one worker. If the bound is reached, the least recently used range is dropped first."""

    bytes_max: int = COPY_BYTES_MAX
    _copies: OrderedDict[RangeName, Copy] = field(default_factory=OrderedDict)
    _sizes: dict[RangeName, int] = field(default_factory=dict)
    _uses: CopyUses = NO_USES

    def find(self, name: RangeName, paths: Sequence[str], schema: pl.Schema) -> Copy | None:
        """Return the range's copy if it has these columns and was made from these files, or from the first of them."""
        copy = self.newest(name, schema)
        return copy if copy is not None and tuple(paths[: len(copy.paths)]) == copy.paths else None

    def newest(self, name: RangeName, schema: pl.Schema) -> Copy | None:
        """Return the range's copy if it has these columns, whatever files it was made from."""
        copy = self._copies.get(name)
        if copy is None or copy.rows.schema != schema:
            return None
        self._copies.move_to_end(name)
        return copy

    def note_use(self, copy: Copy | None, paths: Sequence[str]) -> None:
        """Count the result of `find` for these files. A range without files is not counted."""
        if not paths:
            return
        if copy is None:
            self._uses += CopyUses(misses=1)
        elif len(copy.paths) < len(paths):
            self._uses += CopyUses(behind=1)
        else:
            self._uses += CopyUses(hits=1)

    def take_uses(self) -> CopyUses:
        """Return the counts since the last call."""
        taken, self._uses = self._uses, NO_USES
        return taken

    def keep(self, name: RangeName, copy: Copy) -> None:
        """Keep this copy in place of the range's earlier one, unless it alone exceeds the bound."""
        self._copies.pop(name, None)
        self._sizes.pop(name, None)
        size = copy.rows.estimated_size()
        if size > self.bytes_max:
            return
        self._copies[name] = copy
        self._sizes[name] = size
        while sum(self._sizes.values()) > self.bytes_max:
            oldest, _ = self._copies.popitem(last=False)
            del self._sizes[oldest]


COPIES = WorkerCopies()
"""The copies of this process. A Spark Python worker runs one task at a time."""
