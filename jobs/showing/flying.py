"""Rows in flight: segments that an unaligned barrier overtook, added up."""

from dataclasses import dataclass

from checkpointing.identifiers import EdgeId
from checkpointing.metadata.record import VertexRecord
from jobs.showing.quantities import plural, size


@dataclass(frozen=True, slots=True)
class Flying:
    """What a cut holds in flight: segments that an unaligned barrier overtook."""

    rows: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, was: VertexRecord, edge: EdgeId | None = None) -> "Flying":
        """Add up what is on its way to a vertex, by all its edges or by one."""
        segments = [
            segment
            for subtask in was.subtasks
            for held in subtask.in_flight
            for segment in held.segments
            if edge in (None, held.channel.edge)
        ]
        return cls(sum(segment.rows for segment in segments), sum(segment.bytes for segment in segments))

    def __str__(self) -> str:
        """Return it as a user reads it."""
        return f"{plural(self.rows, 'row')}, {size(self.size_bytes)}"
