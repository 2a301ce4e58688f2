"""Decides what a held cut stops, and how a person settles it: write, audit, publish.

A tick that holds its checkpoint appends an entry of kind HELD in place of the checkpoint's entry, and ends. The entry
has everything that the checkpoint's entry would have: positions, state, and the files to publish for each table. It
publishes nothing, no entry continues from it, and no tick begins from it.

- **Approval** appends the same cut under a new id as a checkpoint, which continues from the held cut's parent. The same
  commit drops the held entry. That is the commit point. Publishing it is the normal roll-forward.
- **Rejection** drops the held entry with the release of the process that rejects it. Its files are leftovers then: of a
  newer generation than the newest checkpoint, and named by no entry. So the next tick deletes them before it does
  anything else. It reads the same rows again, as after a suite that rejected them.

Until then no process moves the job: an errand whose `moves_on` is true is refused by name. So the newest checkpoint is
still the held cut's parent when the cut is settled, and there is never more than one held cut.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import NO_CHECKPOINT
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind


def held_cut(rows: Iterable[Row]) -> CheckpointRecord | None:
    """Return the cut that waits for approval, or None."""
    held = (row for row in rows if isinstance(row, CheckpointRecord) and row.kind is RowKind.HELD)
    return max(held, key=lambda row: row.checkpoint, default=None)


def waits_for_approval(held: CheckpointRecord) -> str:
    """Return what a process is told that may not move the job now, with the way out."""
    return (
        f"cut {held.checkpoint} of {held.job} waits for approval: 'tidemark approve {held.job}' publishes it, "
        f"'tidemark reject {held.job}' discards it, 'tidemark cut {held.job} pending' shows it"
    )


@dataclass(frozen=True, slots=True)
class Settlement:
    """The held cut that a person settles, or None with the reason why that cannot be done."""

    held: CheckpointRecord | None
    why_not: str = ""


def to_settle(rows: Iterable[Row], job: str, *, approve: bool) -> Settlement:
    """Return the held cut that may be settled now.

    A cut that does not continue from the newest checkpoint cannot be approved, because its files were computed on
    another one. Tidemark writes no such entries. It may be rejected.
    """
    known = tuple(rows)
    held, newest = held_cut(known), newest_checkpoint(known)
    if held is None:
        return Settlement(None, f"no cut of {job} waits for approval: 'tidemark run {job} --hold' makes one")
    stands = newest.checkpoint if newest is not None else NO_CHECKPOINT
    if approve and held.parent != stands:
        return Settlement(
            None,
            f"cut {held.checkpoint} of {job} continues from checkpoint {held.parent}, but the job stands at {stands}: "
            f"'tidemark reject {job}' discards it, and the next tick reads its rows again",
        )
    return Settlement(held)
