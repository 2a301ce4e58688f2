"""How many rows the sources have to offer before a tick begins, where they can tell: the length of its bar."""

from collections.abc import Mapping
from typing import Final

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from checkpointing.metadata.record import CheckpointRecord
from jobs.sources.port import Source, SourceError

ENDLESS: Final = 1_000_000_000_000
"""A split that offers this much at once has no end."""


def rows_ahead(sources: Mapping[VertexId, Source], restored: CheckpointRecord | None) -> int | None:
    """Return the rows after the restored positions; None for an endless or unreadable source.

    Polling reads no row, so this costs a look at the footers of the files that are new.
    """
    positions = _positions(restored)
    total = 0
    try:
        for vertex, source in sources.items():
            for split in source.splits():
                found = source.poll(PollSource(vertex, split, positions.get((vertex, split)), ENDLESS))
                total += 0 if found is None else found.rows
    except SourceError:
        return None
    return None if total >= ENDLESS else total


def _positions(restored: CheckpointRecord | None) -> dict[tuple[VertexId, SplitId], str | None]:
    if restored is None:
        return {}
    return {
        (vertex.vertex, SplitId(split)): subtask.position
        for vertex in restored.vertices
        if vertex.splits
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=True)
    }
