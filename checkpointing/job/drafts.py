"""Collects what is known of each pending checkpoint: what its entry is composed of, and why it failed."""

from collections.abc import Mapping

from checkpointing.commit.draft import Draft
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.properties import CheckpointProperties, SnapshotKind
from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, SubtaskId, VertexId
from checkpointing.messages import NotifyAborted
from checkpointing.metadata.record import CheckpointRecord, HookState, RowKind, Statistics, TableKeys, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot


class Drafts:
    """The pending checkpoints. A checkpoint is forgotten when it ends."""

    def __init__(self, graph: JobGraph) -> None:
        """Begin with nothing pending."""
        self._graph = graph
        self._counters: dict[CheckpointId, dict[VertexId, int]] = {}
        self._sent: dict[CheckpointId, int] = {}
        self._said: dict[CheckpointId, str] = {}
        self._last_aborted = NO_CHECKPOINT

    def begins(self, checkpoint: CheckpointId, rows_sent: int) -> bool:
        """Return True for a checkpoint's first barrier, and note how many rows all sources had sent by then."""
        if checkpoint in self._counters:
            return False
        self._counters[checkpoint] = {}
        self._sent[checkpoint] = rows_sent
        return True

    def passed(self, checkpoint: CheckpointId, vertex: VertexId, micro_batch: int) -> None:
        """Note the last micro-batch of a vertex before its barrier."""
        if checkpoint in self._counters:
            self._counters[checkpoint][vertex] = micro_batch

    def failed(self, checkpoint: CheckpointId, message: str) -> None:
        """Note why a vertex fails the checkpoint, in words for a person."""
        self._said[checkpoint] = message

    def said(self, checkpoint: CheckpointId) -> str:
        """Return why a vertex fails the checkpoint, in words for a person, or '' if that is not known."""
        return self._said.get(checkpoint, "")

    def aborted(self, effect: told.NotifyCheckpointAborted) -> tuple[NotifyAborted, ...]:
        """Return what listeners hear of an abort: nothing if they heard it before. `effect` comes once a subtask."""
        if effect.checkpoint == self._last_aborted:
            return ()
        self._last_aborted = effect.checkpoint
        return (NotifyAborted(effect.checkpoint, effect.reason, effect.message),)

    def leaves_rows(self, record: CheckpointRecord, rows_sent: int) -> bool:
        """Return whether the cut lacks rows that were sent: after its barrier, or in flight at the barrier."""
        return rows_sent > self._sent.get(record.checkpoint, 0) or record.has_rows_in_flight

    def compose(self, effect: told.CommitCheckpoint, statistics: Statistics, coordinators: Mapping[str, str]) -> Draft:
        """Return the draft to commit. `coordinators` has the states of source coordinators (A7).

        Raise TypeError if a subtask acknowledged anything but a snapshot.
        """
        counters = self._counters.get(effect.checkpoint, {})
        vertices = tuple(
            VertexRecord(
                vertex=vertex.id,
                micro_batch=counters.get(vertex.id, 0),
                subtasks=tuple(_snapshot_of(effect, subtask) for subtask in vertex.subtasks()),
                splits=vertex.splits,
                meanings=vertex.meanings,
                table_keys=tuple(
                    TableKeys(table=table.name, columns=table.keys, mode=table.mode)
                    for table in vertex.tables
                    if table.mode in (TableMode.UPSERT, TableMode.OVERWRITE)
                ),
                coordinator=coordinators.get(vertex.id),
                outputs_read=vertex.outputs_read,
            )
            for vertex in self._graph.vertices
        )
        pinned = effect.properties.is_savepoint
        hooks = tuple(HookState(hook=hook, state=state) for hook, state in sorted(effect.master_states.items()))
        kind = _kind_of(effect.properties)
        return Draft(effect.checkpoint, vertices, statistics, effect.subsumed, kind, pinned, hooks)

    def forget(self, checkpoint: CheckpointId) -> None:
        """Forget a checkpoint that has ended."""
        self._counters.pop(checkpoint, None)
        self._sent.pop(checkpoint, None)
        self._said.pop(checkpoint, None)


def _kind_of(properties: CheckpointProperties) -> RowKind:
    if properties.kind is SnapshotKind.HELD:
        return RowKind.HELD
    return RowKind.CHECKPOINT if properties.commits else RowKind.SAVEPOINT


def _snapshot_of(effect: told.CommitCheckpoint, subtask: SubtaskId) -> SubtaskSnapshot:
    state = effect.states.get(subtask)
    payload = state.payload if state is not None else SubtaskSnapshot(finished=True)
    if not isinstance(payload, SubtaskSnapshot):
        raise TypeError(f"subtask {subtask} acknowledged {payload!r}, which is no snapshot")
    return payload
