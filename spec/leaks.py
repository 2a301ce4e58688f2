"""The invariants of deletions: readers keep what they reserved, and clean-ups leave no file that nobody needs (K4)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spec.history import History, RowCommitted, SavepointDisposed
from spec.named_files import named_files
from spec.rest_events import CameToRest, ReservedGone

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId
    from checkpointing.metadata.record import CheckpointRecord


def left_behind(history: History) -> Iterator[str]:
    """Yield every file that no entry names, and that no table shows now or at a remaining cut.

    Also yield every remaining cut that nobody can ask for. A cut stays with its entry, and with an entry that continues
    from it and has no cut of its own: a plain savepoint, or a savepoint of a stop that was abandoned unpublished.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, kept):
                entries[record.checkpoint] = record
                entries = {each: entries[each] for each in kept if each in entries}
            case SavepointDisposed(checkpoint):
                entries.pop(checkpoint, None)
            case CameToRest(files, shown, cuts):
                recorded = {each for each, _ in cuts}
                bases = {row.parent for row in entries.values() if row.checkpoint not in recorded}
                strange = sorted(recorded - entries.keys() - bases)
                yield from (f"cut {each} is left, and nobody can ask for it" for each in strange)
                needed = shown.union(*map(named_files, entries.values()), *(active for _, active in cuts))
                yield from (f"{path} is left, and nobody needs it" for path in sorted(files - needed))
            case _:
                pass


def reserved_gone(history: History) -> Iterator[str]:
    """Yield every file that was deleted while a reader counted on its reservation."""
    for event in history.without_flow:
        if isinstance(event, ReservedGone):
            yield f"{event.path} was deleted, and a reader had reserved it"
