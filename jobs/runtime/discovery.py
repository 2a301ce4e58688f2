"""What the sources have to offer after a cut, found without Spark: rows, and how far they could be read.

Polling reads no row, so a look costs the listing of the splits and the footers of the files that are new.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from checkpointing.metadata.record import CheckpointRecord
from jobs.sources.port import Source

ENDLESS: Final = 1_000_000_000_000
"""A split that offers this many rows at once has no end."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What one source offers: `rows` after the cut (from ENDLESS on: without end), and where each split ends."""

    rows: int
    ends: Mapping[SplitId, str | None]
    """The position up to which a split can be read now; None: its start, for it is empty."""

    @property
    def digest(self) -> str:
        """The positions in short: it changes with them and with nothing else."""
        canonical = json.dumps(dict(self.ends), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def discover(sources: Mapping[VertexId, Source], restored: CheckpointRecord | None) -> dict[VertexId, Discovered]:
    """Return what each source offers after the restored cut (None: from its start). Raises SourceError."""
    positions = positions_of(restored)
    return {name: _discovered(name, source, positions) for name, source in sources.items()}


def positions_of(record: CheckpointRecord | None) -> dict[tuple[VertexId, SplitId], str | None]:
    """Return where a cut says that each split of each source has been read to."""
    if record is None:
        return {}
    return {
        (vertex.vertex, SplitId(split)): subtask.position
        for vertex in record.vertices
        if vertex.splits
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=True)
    }


def _discovered(name: VertexId, source: Source, positions: Mapping[tuple[VertexId, SplitId], str | None]) -> Discovered:
    rows = 0
    ends: dict[SplitId, str | None] = {}
    for split in source.splits():
        start = positions.get((name, split))
        found = source.poll(PollSource(name, split, start, ENDLESS))
        ends[split] = start if found is None else found.end
        rows += 0 if found is None else found.rows
    return Discovered(rows, ends)
