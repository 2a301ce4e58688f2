"""The invariant that an entry's statistics are what was measured: the tasks' numbers, and how checkpoints ended (E6).

It uses what the tasks measured and which ids were used. So simulations and traces of real runs are judged alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.channel_items import NO_WORK, TaskWork
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, VertexId
from checkpointing.metadata.record import CheckpointCounts, CheckpointRecord, RowKind, VertexStatistics
from spec.history import CheckpointTriggered, DoorStarted, History, RowCommitted, WorkMeasured


@dataclass(slots=True)
class _Generation:
    """What is known of one generation: what its tasks measured, and its entries."""

    restored: bool
    work: dict[VertexId, dict[int, tuple[TaskWork, ...]]] = field(default_factory=dict)
    """By vertex and number of the micro-batch."""
    triggered: list[CheckpointId] = field(default_factory=list)
    written: dict[CheckpointId, dict[VertexId, int]] = field(default_factory=dict)
    """For each entry, the last micro-batch of every vertex before its barrier."""

    def before(self, checkpoint: CheckpointId) -> CheckpointId:
        """Return the newest of the generation's entries below an id."""
        return max((one for one in self.written if one < checkpoint), default=NO_CHECKPOINT)

    def measured(self, vertex: VertexId, after: int, last: int, subtask: int) -> TaskWork:
        """Return what a subtask's tasks measured from one micro-batch to another."""
        of_vertex = self.work.get(vertex, {})
        return sum((of_vertex[n][subtask] for n in range(after + 1, last + 1) if n in of_vertex), NO_WORK)


def wrongly_measured(history: History) -> Iterator[str]:
    """Yield every number of an entry that was not measured so, and every count that does not add up.

    An entry has the work since the last barrier. If that barrier's checkpoint failed, its vertices may have passed it
    or not. Then the work since the last entry is only an upper limit. Entries of a fenced generation are skipped,
    because `one-generation` names them.
    """
    generations: dict[Generation, _Generation] = {}
    newest: Generation | None = None
    for event in history.events:
        match event:
            case DoorStarted():
                generations[event.generation] = _Generation(event.restored is not None)
                newest = event.generation
            case CheckpointTriggered() if event.generation in generations:
                generations[event.generation].triggered.append(event.checkpoint)
            case WorkMeasured() if event.generation in generations:
                of_vertex = generations[event.generation].work.setdefault(event.vertex, {})
                of_vertex[event.micro_batch] = event.work
            case RowCommitted(record, _) if record.generation == newest and _of_door(record):
                known = generations[newest]
                yield from _of_counts(record, known)
                yield from _of_subtasks(record, known)
                known.written[record.checkpoint] = {each.vertex: each.micro_batch for each in record.vertices}
            case _:
                pass


def _of_door(record: CheckpointRecord) -> bool:
    """Return whether a tick's door wrote the entry. At rest, nothing is measured."""
    kinds = (RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD)
    return record.kind in kinds and record.statistics.counts is not None


def _of_counts(record: CheckpointRecord, known: _Generation) -> Iterator[str]:
    counts = record.statistics.counts or CheckpointCounts()
    where = f"checkpoint {record.checkpoint} counts {counts}"
    if min(counts.total, counts.in_progress, counts.completed, counts.failed, counts.restored) < 0:
        yield f"{where}: one of them is negative"
    if counts.total != counts.in_progress + counts.completed + counts.failed:
        yield f"{where}: the total is another"
    if counts.completed != len(known.written) or counts.restored != known.restored:
        yield f"{where}: {len(known.written)} were complete, and {int(known.restored)} restored"
    if counts.in_progress < 1:
        yield f"{where}: it was in progress itself"


def _of_subtasks(record: CheckpointRecord, known: _Generation) -> Iterator[str]:
    before = known.before(record.checkpoint)
    exact = not any(before < one < record.checkpoint for one in known.triggered)
    last = {each.vertex: each.micro_batch for each in record.vertices}
    for vertex in record.statistics.vertices:
        after = known.written.get(before, {}).get(vertex.vertex, 0)
        for subtask, (task_ms, sync_ms, rows) in enumerate(_columns(vertex)):
            due = known.measured(vertex.vertex, after, last[vertex.vertex], subtask)
            pairs = ((task_ms, due.task_ms), (sync_ms, due.sync_ms), (rows, due.rows))
            if any(said < 0 or said > most or (exact and said != most) for said, most in pairs):
                said = TaskWork(task_ms=task_ms, sync_ms=sync_ms, rows=rows)
                where = f"checkpoint {record.checkpoint}, subtask {subtask} of {vertex.vertex}"
                yield f"{where}: {said}, its tasks measured {due}{'' if exact else ' at most'}"


def _columns(vertex: VertexStatistics) -> Iterator[tuple[int, int, int]]:
    """Yield the measured columns of an entry's subtasks: task_ms, sync_ms, rows_in."""
    columns = vertex.subtasks
    for task_ms, sync_ms, rows in zip(columns.task_ms, columns.sync_ms, columns.rows_in, strict=True):
        if task_ms is not None and sync_ms is not None and rows is not None:
            yield task_ms, sync_ms, rows
