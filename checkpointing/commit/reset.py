"""Moves the positions of a source in the newest cut, so that the source is read from elsewhere (K2).

Tables and state stay as they are. Rows that the source sends again count again. Rows that it skips never count. Rows
that the cut holds in flight have been read already, and stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from checkpointing.commit.net import nothing_staged
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord


@dataclass(frozen=True, slots=True)
class Move:
    """The new positions of a source's splits. A position is the source's own; None is the split's start."""

    source: VertexId
    positions: Mapping[SplitId, str | None]


def moved(newest: CheckpointRecord, move: Move) -> tuple[VertexRecord, ...]:
    """Return the vertices of the cut after the move. Splits that it does not name keep their position.

    A split that it names has not ended, even if it had. So the job is not finished any more (B4).
    """
    return tuple(_moved(each, move) if each.vertex == move.source else each for each in nothing_staged(newest))


def _moved(source: VertexRecord, move: Move) -> VertexRecord:
    subtasks = (
        replace(subtask, position=move.positions[SplitId(split)], finished=False)
        if split in move.positions
        else subtask
        for split, subtask in zip(source.splits, source.subtasks, strict=True)
    )
    return source.model_copy(update={"subtasks": tuple(subtasks)})
