"""The line of entries: the cuts that a job has passed through, and the ones that a rollback leaves behind (K2).

Every committed entry names its parent, so the entries form a line that ends in the newest one. The parent of a
rollback's entry is an older one. The entries in between are then no longer on the line. Those that are not pinned are
dropped in the rollback's own commit. A pinned one stays, marked as abandoned, until its owner disposes of it. A
rollback to an abandoned entry puts it on the line again.

A plain savepoint publishes nothing: its tables are those of the cut after which it was taken. So the entry of that cut
stays as long as the savepoint's, whatever subsumes or abandons it. It alone says what the operators' state was there.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord, RowKind


@dataclass(frozen=True, slots=True)
class Turn:
    """What a rollback does to the other entries. Each group is in order of id."""

    dropped: tuple[CheckpointId, ...]
    """These are dropped in the same commit."""
    abandoned: tuple[CheckpointId, ...]
    """These are pinned, or a plain savepoint stands on them. They stay, off the line."""
    adopted: tuple[CheckpointId, ...]
    """These were off the line, and are on it again."""

    @property
    def marks(self) -> Mapping[CheckpointId, bool]:
        """The entries whose mark changes, and whether each is abandoned now."""
        return dict.fromkeys(self.abandoned, True) | dict.fromkeys(self.adopted, False)


def stood_upon(rows: Iterable[CheckpointRecord]) -> frozenset[CheckpointId]:
    """Return the checkpoints after which an existing plain savepoint was taken, or whose held successor exists."""
    return frozenset(row.parent for row in rows if not row.commits)


def disposed_with(gone: CheckpointRecord, rows: Iterable[CheckpointRecord]) -> tuple[CheckpointId, ...]:
    """Return the entries that go when a user disposes of a savepoint: itself, and an abandoned one that only it kept.

    A checkpoint that is still on the line goes with the next commit that subsumes it.
    """
    others = [row for row in rows if row.checkpoint != gone.checkpoint]
    kept = stood_upon(others)
    alone = (row for row in others if row.checkpoint == gone.parent and not gone.commits)
    left = (row.checkpoint for row in alone if row.abandoned and not row.is_savepoint and row.checkpoint not in kept)
    return (gone.checkpoint, *left)


def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
    """Return what happens to these entries when the job goes back to one of them. `rows` must be all existing ones.

    Only committed entries are on the line. A plain savepoint belongs to the cut after which it was taken.
    """
    known = {row.checkpoint: row for row in rows}
    stays = stood_upon(known.values())
    chain = tuple(_off_the_line(known, to))
    base = chain[-1].parent if chain else to.checkpoint
    kept = {row.checkpoint for row in chain}
    left = [row for row in known.values() if not row.abandoned and _after(row, base, kept)]
    on_again = [row for row in known.values() if row.abandoned and (row in chain or _stands_on(row) in {*kept, base})]
    return Turn(
        dropped=tuple(sorted(row.checkpoint for row in left if not (row.is_savepoint or row.checkpoint in stays))),
        abandoned=tuple(sorted(row.checkpoint for row in left if row.is_savepoint or row.checkpoint in stays)),
        adopted=tuple(sorted(row.checkpoint for row in on_again)),
    )


def _off_the_line(known: Mapping[CheckpointId, CheckpointRecord], to: CheckpointRecord) -> Iterator[CheckpointRecord]:
    """Yield the entry and its ancestors down to the line. The new line leaves the old one at the last one's parent."""
    at: CheckpointRecord | None = to
    while at is not None and (at.abandoned or not at.commits):
        yield at
        at = known.get(at.parent)


def _after(row: CheckpointRecord, base: CheckpointId, kept: Collection[CheckpointId]) -> bool:
    """Return whether an entry came after the place where the new line leaves the old one."""
    return _stands_on(row) > base and _stands_on(row) not in kept


def _stands_on(row: CheckpointRecord) -> CheckpointId:
    """Return the committed entry itself, or the one after which a plain savepoint was taken."""
    return row.checkpoint if row.commits else row.parent


def restorable(rows: Iterable[CheckpointRecord]) -> tuple[CheckpointRecord, ...]:
    """Return the entries to which a user may go back, newest first: those that are not abandoned, and no held cut."""
    there = (row for row in rows if not row.abandoned and row.kind is not RowKind.HELD)
    return tuple(sorted(there, key=lambda row: -row.checkpoint))
