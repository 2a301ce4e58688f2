"""Moves the positions of a source in the newest cut, so that it is read on from elsewhere (K2).

Tables and state stay as they are: rows that the source gives once more are counted once more, rows that it leaves
out are never counted. What the cut holds in flight had been read, and stays too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from checkpointing.commit.net import nothing_staged
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord


@dataclass(frozen=True, slots=True)
class Move:
    """From where splits of a source are to be read on; a position is the source's own, None its start."""

    source: VertexId
    positions: Mapping[SplitId, str | None]


def moved(newest: CheckpointRecord, move: Move) -> tuple[VertexRecord, ...]:
    """Return the vertices of the cut after the move; splits that it does not name stand where they stood."""
    return tuple(_moved(each, move) if each.vertex == move.source else each for each in nothing_staged(newest))


def _moved(source: VertexRecord, move: Move) -> VertexRecord:
    there = zip(source.splits, source.subtasks, strict=True)
    subtasks = (
        replace(subtask, position=move.positions.get(SplitId(split), subtask.position)) for split, subtask in there
    )
    return source.model_copy(update={"subtasks": tuple(subtasks)})
