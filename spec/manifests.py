"""Invariants of manifests: an entry with manifests can always be read, and reads as it was appended (ADR 14)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spec.history import FilesDiscarded, History, RowCommitted, SavepointDisposed
from spec.rest_events import EntryRead, EntryStored

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId


def read_otherwise(history: History) -> Iterator[str]:
    """Yield every entry that reads differently from how it was appended."""
    for event in history.without_flow:
        if isinstance(event, EntryRead) and event.differs:
            yield f"entry {event.checkpoint} was read otherwise than it was appended"


def named_too_early(history: History) -> Iterator[str]:
    """Yield every manifest that is missing, changed, or of a foreign generation when an entry begins to name it."""
    for event in history.without_flow:
        if isinstance(event, EntryStored):
            yield from (f"entry {event.checkpoint} names {path}, which does not fit" for path in event.unfit)


def written_again(history: History) -> Iterator[str]:
    """Yield every entry that writes manifests although the entry before it has the same handles."""
    for event in history.without_flow:
        if isinstance(event, EntryStored) and event.new and not event.changed:
            yield f"entry {event.checkpoint} has the handles of the one before, and writes {event.new[0]}"


def deleted_too_early(history: History) -> Iterator[str]:
    """Yield every manifest that was deleted, or found missing, while an entry named it."""
    stored: dict[CheckpointId, tuple[str, ...]] = {}
    named: dict[CheckpointId, tuple[str, ...]] = {}
    for event in history.without_flow:
        match event:
            case EntryStored():
                stored[event.checkpoint] = event.named
            case RowCommitted(record, kept):
                named[record.checkpoint] = stored.get(record.checkpoint, ())
                named = {checkpoint: paths for checkpoint, paths in named.items() if checkpoint in kept}
            case SavepointDisposed(checkpoint):
                named.pop(checkpoint, None)
            case FilesDiscarded(paths):
                gone = set(paths)
                lost = ((each, path) for each, kept in named.items() for path in kept if path in gone)
                yield from (f"{path} was deleted, and entry {checkpoint} names it" for checkpoint, path in lost)
            case EntryRead(checkpoint, missing):
                yield from (f"{path} was missed, and entry {checkpoint} names it" for path in missing)
            case _:
                pass
