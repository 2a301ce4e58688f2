"""The rule `published-at-once`: rollbacks, resets and approvals end only when the tables show the new cut.

A savepoint publishes nothing. The next tick publishes an imported entry.
"""

from collections.abc import Iterator
from typing import Final

from checkpointing.metadata.record import RowKind
from spec.history import CutWritten, History
from spec.rest_events import EntryAtRest, ImportBegun

_KINDS: Final = (RowKind.CHECKPOINT, RowKind.ROLLBACK, RowKind.RESET)
"""The kinds of entries that are published at once. At rest, only approvals and imports append entries of checkpoints.
Imports do not count."""


def left_to_a_tick(history: History) -> Iterator[str]:
    """Yield each entry whose cut was not recorded when its process ended well."""
    recorded, importers = set(), set()
    for event in history.without_flow:
        match event:
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case ImportBegun(generation):
                importers.add(generation)
            case EntryAtRest(record) if record.kind in _KINDS and record.generation not in importers:
                if record.checkpoint not in recorded:
                    yield f"the {record.kind.value} {record.checkpoint} is left to the next tick to publish"
            case _:
                pass
