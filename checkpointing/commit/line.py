"""The line of the rows: which cuts a job has passed through, and what going back leaves behind (K2).

Every committed row names its parent, so the rows form a line that ends in the newest one. A rollback
appends a row whose parent is an older one: what came after that is no longer on the line. Rows that
nobody pinned leave with the rollback's own commit; a pinned one stays, marked, until its owner disposes
of it, and going back to it puts it on the line again.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class Turn:
    """What going back does to the other rows, each in order of id."""

    dropped: tuple[CheckpointId, ...]
    """They leave in the same commit."""
    abandoned: tuple[CheckpointId, ...]
    """Pinned: they stay, off the line."""
    adopted: tuple[CheckpointId, ...]
    """They were off the line, and are on it again."""

    @property
    def marks(self) -> Mapping[CheckpointId, bool]:
        """Whether each row whose mark changes is abandoned now."""
        return dict.fromkeys(self.abandoned, True) | dict.fromkeys(self.adopted, False)


def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
    """Return what happens to these rows, all that are there, when the job goes back to one of them.

    On the line are committed rows alone; a plain savepoint goes with the cut that it was taken after.
    """
    known = {row.checkpoint: row for row in rows}
    chain = tuple(_off_the_line(known, to))
    base = chain[-1].parent if chain else to.checkpoint
    kept = {row.checkpoint for row in chain}
    left = [row for row in known.values() if not row.abandoned and row != to and _after(row, base, kept)]
    on_again = [row for row in known.values() if row.abandoned and (row in chain or _stands_on(row) in {*kept, base})]
    return Turn(
        dropped=tuple(sorted(row.checkpoint for row in left if not row.is_savepoint)),
        abandoned=tuple(sorted(row.checkpoint for row in left if row.is_savepoint)),
        adopted=tuple(sorted(row.checkpoint for row in on_again)),
    )


def _off_the_line(known: Mapping[CheckpointId, CheckpointRecord], to: CheckpointRecord) -> Iterator[CheckpointRecord]:
    """Yield the row and its ancestors down to the line: the last one's parent is where the new line leaves it."""
    at: CheckpointRecord | None = to
    while at is not None and (at.abandoned or not at.commits):
        yield at
        at = known.get(at.parent)


def _after(row: CheckpointRecord, base: CheckpointId, kept: Collection[CheckpointId]) -> bool:
    """Whether a row came after the place where the new line leaves the old one."""
    return _stands_on(row) > base and _stands_on(row) not in kept


def _stands_on(row: CheckpointRecord) -> CheckpointId:
    """Return the committed row that a row is, or that a plain savepoint was taken after."""
    return row.checkpoint if row.commits else row.parent


def restorable(rows: Iterable[CheckpointRecord]) -> tuple[CheckpointRecord, ...]:
    """Return the rows that a user may be offered to go back to, newest first: those on the line, and savepoints."""
    return tuple(sorted((row for row in rows if not row.abandoned), key=lambda row: -row.checkpoint))
