"""Keeps merged state of earlier micro-batches in the memory of a Python worker, bounded in size (D5).

Files are immutable, and each copy records the paths of the files that it was made from. So a hit is always correct, and
a miss only costs a load. Any worker can run any subtask. To update an older copy, a worker reads only the files that
the copy lacks.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from checkpointing.event_time import Expiry
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import TOUCHED, TOUCHED_BY_CLOCK

COPY_BYTES_MAX = 512 * 1024 * 1024
"""The largest size of all copies of one worker together."""

RangeName = tuple[str, str, int, int]
"""(warehouse, state table or output table, first and last key group)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The merged rows of these files (oldest first), without rows that had expired by the time of `aged`."""

    paths: tuple[str, ...]
    rows: KeyedRows
    aged: "Aged | None" = None

    def since(self, paths: Sequence[str]) -> "Copy | None":
        """Return the copy if its files are the first of these.

        If rows expire, `paths` may lack the copy's oldest files.

        Those files held only expired rows. After a rollback the copy never matches, because the paths are older or
        fewer.
        """
        gone = self.paths.index(paths[0]) if self.aged is not None and paths and paths[0] in self.paths else 0
        left = self.paths[gone:]
        return Copy(left, self.rows, self.aged) if tuple(paths[: len(left)]) == left else None


@dataclass(frozen=True, slots=True)
class Aged:
    """How rows of state expire, and up to which time rows have expired. None: no time has come yet."""

    expiry: Expiry
    now_ms: int | None

    @property
    def column(self) -> str:
        """The column with the time at which a row was written."""
        return TOUCHED_BY_CLOCK if self.expiry.by_clock else TOUCHED

    def is_after(self, other: "Aged") -> bool:
        """Return whether rows that have expired by the time of `other` have also expired by this one."""
        earlier, now = other.now_ms, self.now_ms
        return self.expiry == other.expiry and (earlier is None or (now is not None and earlier <= now))


@dataclass(frozen=True, slots=True)
class CopyUses:
    """How often a range's copy was current, was behind, or did not exist."""

    hits: int = 0
    behind: int = 0
    misses: int = 0

    def __add__(self, other: "CopyUses") -> "CopyUses":
        """Return the sum of both counts."""
        return CopyUses(self.hits + other.hits, self.behind + other.behind, self.misses + other.misses)


NO_USES = CopyUses()


@dataclass(slots=True, eq=False)
class WorkerCopies:
    """The copies of one worker. If the bound is reached, the least recently used range is dropped first."""

    bytes_max: int = COPY_BYTES_MAX
    _copies: OrderedDict[RangeName, Copy] = field(default_factory=OrderedDict)
    _sizes: dict[RangeName, int] = field(default_factory=dict)
    _uses: CopyUses = NO_USES

    def find(self, name: RangeName, paths: Sequence[str], schema: pl.Schema, aged: Aged | None = None) -> Copy | None:
        """Return the range's copy if it has these columns and was made from these files, or from the first of them.

        The copy may lack only rows that have expired by the time of `aged`.
        """
        copy = self.newest(name, schema)
        if copy is None or (copy.aged is None) != (aged is None):
            return None
        if aged is not None and copy.aged is not None and not aged.is_after(copy.aged):
            return None
        return copy.since(paths)

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
