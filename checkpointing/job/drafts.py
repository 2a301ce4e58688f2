"""What is known of each pending checkpoint until it ends: what its row is drafted from, and why it failed."""

from checkpointing.commit.two_phase import Draft
from checkpointing.coordinator import messages as told
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import CheckpointId, SubtaskId, VertexId
from checkpointing.metadata.record import HookState, RowKind, Statistics, TableKeys, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot


class Drafts:
    """The book of pending checkpoints; an entry is forgotten when its checkpoint ends."""

    def __init__(self, graph: JobGraph) -> None:
        """Begin with nothing pending."""
        self._graph = graph
        self._counters: dict[CheckpointId, dict[VertexId, int]] = {}
        self._sent: dict[CheckpointId, int] = {}
        self._failures: dict[CheckpointId, tuple[CheckpointFailureReason, str]] = {}

    def begun(self, checkpoint: CheckpointId, rows_sent: int) -> None:
        """Its first barrier is sent, after so many rows of all sources."""
        self._counters[checkpoint] = {}
        self._sent[checkpoint] = rows_sent

    def knows(self, checkpoint: CheckpointId) -> bool:
        """Return whether it has begun and not ended."""
        return checkpoint in self._counters

    def passed(self, checkpoint: CheckpointId, vertex: VertexId, micro_batch: int) -> None:
        """A vertex passed its barrier after that micro-batch."""
        if checkpoint in self._counters:
            self._counters[checkpoint][vertex] = micro_batch

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str) -> None:
        """Somebody said why it fails, in words for a person."""
        self._failures[checkpoint] = (reason, message)

    def failure(self, checkpoint: CheckpointId) -> tuple[CheckpointFailureReason, str] | None:
        """Return what was said of its failure."""
        return self._failures.get(checkpoint)

    def rows_sent_before(self, checkpoint: CheckpointId) -> int:
        """Return how many rows the sources had sent in this tick before its barrier."""
        return self._sent.get(checkpoint, 0)

    def compose(self, effect: told.CommitCheckpoint, statistics: Statistics) -> Draft:
        """Return what is to be committed; raise TypeError if a subtask acknowledged anything but a snapshot."""
        counters = self._counters.get(effect.checkpoint, {})
        vertices = tuple(
            VertexRecord(
                vertex=vertex.id,
                micro_batch=counters.get(vertex.id, 0),
                subtasks=tuple(_snapshot_of(effect, subtask) for subtask in vertex.subtasks()),
                splits=vertex.splits,
                meanings=vertex.meanings,
                table_keys=tuple(
                    TableKeys(table=table.name, columns=table.keys)
                    for table in vertex.tables
                    if table.mode is TableMode.UPSERT
                ),
            )
            for vertex in self._graph.vertices
        )
        kind = RowKind.CHECKPOINT if effect.properties.commits else RowKind.SAVEPOINT
        pinned = effect.properties.is_savepoint
        hooks = tuple(HookState(hook=hook, state=state) for hook, state in sorted(effect.master_states.items()))
        return Draft(effect.checkpoint, vertices, statistics, effect.subsumed, kind, pinned, hooks)

    def forget(self, checkpoint: CheckpointId) -> None:
        """It has ended."""
        self._counters.pop(checkpoint, None)
        self._sent.pop(checkpoint, None)
        self._failures.pop(checkpoint, None)


def _snapshot_of(effect: told.CommitCheckpoint, subtask: SubtaskId) -> SubtaskSnapshot:
    state = effect.states.get(subtask)
    payload = state.payload if state is not None else SubtaskSnapshot(finished=True)
    if not isinstance(payload, SubtaskSnapshot):
        raise TypeError(f"subtask {subtask} acknowledged {payload!r}, which is no snapshot")
    return payload
