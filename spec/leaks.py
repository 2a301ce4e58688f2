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

    Also yield every remaining cut if neither its entry exists nor a plain savepoint that was taken after it.
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
                readable = {*entries, *(row.parent for row in entries.values() if not row.commits)}
                strange = [each for each, _ in cuts if each not in readable]
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
