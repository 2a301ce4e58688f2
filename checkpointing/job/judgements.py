"""The asynchronous part of a snapshot: the judgements of suites that are under way, and what waits for them (J3, B2).

Invariant: a judgement is awaited only while its checkpoint is pending. Whatever ends the checkpoint (a timeout, a
failure, a newer one, the end of the tick) cancels its judgements, and a verdict that still comes changes nothing.
"""

from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.messages import CancelJudgement, JudgeSuites, SuitesJudged
from checkpointing.snapshots import SubtaskSnapshot

Snapshots = tuple[SubtaskSnapshot, ...]


class Judgements:
    """Keeps the snapshots of each vertex that waits for a verdict."""

    def __init__(self) -> None:
        """Begin with none under way."""
        self._waiting: dict[tuple[VertexId, CheckpointId], Snapshots] = {}

    def begin(
        self,
        vertex: VertexId,
        checkpoint: CheckpointId,
        files: tuple[tuple[TableName, tuple[FileHandle, ...]], ...],
        snapshots: Snapshots,
    ) -> JudgeSuites:
        """Return what is to be judged; the snapshots wait for the verdict."""
        self._waiting[vertex, checkpoint] = snapshots
        return JudgeSuites(vertex, checkpoint, files)

    def cancel(self, vertex: VertexId, checkpoint: CheckpointId) -> tuple[CancelJudgement, ...]:
        """Return what cancels the vertex's judgement; nothing if none is under way."""
        known = self._waiting.pop((vertex, checkpoint), None)
        return () if known is None else (CancelJudgement(vertex, checkpoint),)

    def told(self, fact: SuitesJudged) -> Snapshots | None:
        """Return the snapshots that waited for this verdict; None if it comes too late."""
        return self._waiting.pop((fact.vertex, fact.checkpoint), None)
