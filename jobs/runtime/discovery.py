"""Asks the sources what they offer after a cut, without Spark: how many rows, and up to which positions.

Polling reads no row. A look lists the splits, and reads the footers of new files.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from checkpointing.metadata.record import CheckpointRecord
from jobs.sources.port import Source, SourceError
from jobs.sources.position_form import positions_of

ENDLESS: Final = 1_000_000_000_000
"""A split that offers this many rows at once has no end."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What one source offers: `rows` after the cut (ENDLESS or more: it has no end), and where each split ends."""

    rows: int
    ends: Mapping[SplitId, str | None]
    """The position up to which a split can be read now; None for an empty split."""

    @property
    def digest(self) -> str:
        """A short text that changes exactly if the positions change."""
        canonical = json.dumps(dict(self.ends), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def discover(sources: Mapping[VertexId, Source], restored: CheckpointRecord | None) -> dict[VertexId, Discovered]:
    """Return what each source offers after the restored cut (None: from its start). Raises SourceError."""
    positions = positions_of(restored)
    return {name: _discovered(name, source, positions) for name, source in sources.items()}


def rows_ahead(sources: Mapping[VertexId, Source], restored: CheckpointRecord | None) -> int | None:
    """Return the unread rows of all sources, for a progress bar; None for an endless or unreadable source."""
    try:
        total = sum(found.rows for found in discover(sources, restored).values())
    except SourceError:
        return None
    return None if total >= ENDLESS else total


def _discovered(name: VertexId, source: Source, positions: Mapping[tuple[VertexId, SplitId], str | None]) -> Discovered:
    rows = 0
    ends: dict[SplitId, str | None] = {}
    for split in source.splits():
        start = positions.get((name, split))
        found = source.poll(PollSource(name, split, start, ENDLESS))
        ends[split] = start if found is None else found.end
        rows += 0 if found is None else found.rows
    return Discovered(rows, ends)
