"""Invariants of the codec: every format is read as it was meant, and a false entry is refused (H1)."""

from collections.abc import Iterator

from spec.history import History
from spec.rest_events import EntryTranslated, LieTold


def read_otherwise(history: History) -> Iterator[str]:
    """Yield every entry of some format that does not say what it said in that format."""
    for event in history.without_flow:
        if isinstance(event, EntryTranslated) and event.differs:
            yield f"a {event.kind} entry of format {event.format} is read otherwise: {event.differs}"


def believed(history: History) -> Iterator[str]:
    """Yield every entry that Tidemark cannot have written, and that the codec did not refuse."""
    for event in history.without_flow:
        if isinstance(event, LieTold) and event.answer != "refused":
            yield f"a {event.kind} entry with {event.lie} was {event.answer}"
