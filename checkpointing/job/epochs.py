"""Measures each epoch on its way through the job (C7, E6). No decision depends on the measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import NO_METRICS, SnapshotMetrics, Task
from checkpointing.gate.messages import BarrierReceived, InFlightComplete, TriggerCheckpoint
from checkpointing.graph import JobGraph
from checkpointing.handles import FileHandle, Version
from checkpointing.identifiers import CheckpointId, Generation, SubtaskId, VertexId
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from checkpointing.metadata.record import (
    BarrierRecord,
    CheckpointCounts,
    Statistics,
    SubtaskStatistics,
    VertexStatistics,
)
from checkpointing.snapshots import NO_WORK, TaskWork

Known = dict[str, Any]
"""The fields of a vertex's `VertexStatistics` that are known so far."""


@dataclass(slots=True)
class _SubtaskWork:
    """What a subtask has done since its last barrier. `tasks` is None if a micro-batch measured nothing."""

    tasks: TaskWork | None = NO_WORK
    rows_out: int = 0
    bytes_out: int = 0
    state_bytes: int = 0

    def wrote(self, output: SubtaskOutput, version: Version) -> None:
        """Add the files of a micro-batch. A file that is both emitted and staged counts once."""
        files = list(_written(output, version).values())
        self.rows_out += sum(file.rows for file in files)
        self.bytes_out += sum(file.bytes for file in files)
        self.state_bytes += sum(keyed.file.bytes for keyed in output.state)


@dataclass(slots=True)
class _Work:
    """What a vertex has done since its last barrier."""

    micro_batches: int = 0
    rows_in: int = 0
    busy_ms: int = 0
    subtasks: list[_SubtaskWork] = field(default_factory=list)

    def add(self, fact: MicroBatchFinished, rows_in: int, generation: Generation) -> None:
        """Add a micro-batch of a generation."""
        self.micro_batches += 1
        self.rows_in += rows_in
        self.busy_ms += fact.duration_ms
        self.subtasks = self.subtasks or [_SubtaskWork() for _ in fact.outputs]
        measured = fact.work or (None,) * len(fact.outputs)
        for own, output, tasks in zip(self.subtasks, fact.outputs, measured, strict=True):
            own.wrote(output, Version(generation, fact.micro_batch))
            own.tasks = None if tasks is None or own.tasks is None else own.tasks + tasks


@dataclass(slots=True)
class _Epoch:
    """One epoch, from its trigger to its end."""

    triggered_ms: int
    rows: int
    rows_estimated: int = 0
    barriers: dict[VertexId, list[BarrierRecord]] = field(default_factory=dict)
    passed: dict[VertexId, Known] = field(default_factory=dict)
    work: dict[VertexId, _Work] = field(default_factory=dict)
    verdicts: list[str] = field(default_factory=list)

    def start_delay_ms(self, vertex: VertexId) -> int | None:
        """Return the time from the trigger to the vertex's first barrier. A source gets no barrier: None."""
        barriers = self.barriers.get(vertex)
        return min(barrier.at_ms for barrier in barriers) - self.triggered_ms if barriers else None


class EpochLog:
    """Collects the measurements of every pending epoch, and forgets an epoch when it ends."""

    def __init__(self, graph: JobGraph, generation: Generation) -> None:
        """Begin with nothing measured. The micro-batches are those of this generation."""
        self._graph = graph
        self._generation = generation
        self._epochs: dict[CheckpointId, _Epoch] = {}
        self._work: dict[VertexId, _Work] = {}
        self._read: dict[SubtaskId, _SubtaskWork] = {}
        """What each split of a source has sent since its last barrier."""
        self._rows_estimated = 0
        """How many of the rows that were sent in this tick are a source's estimate."""

    def triggered(self, checkpoint: CheckpointId, now_ms: int, rows: int) -> None:
        """Note that the sources were triggered. `rows` is how many they had sent in this tick."""
        self._epochs[checkpoint] = _Epoch(now_ms, rows, self._rows_estimated)

    def read(self, split: SubtaskId, segment: Segment) -> None:
        """Add a segment that a split has sent."""
        own = self._read.setdefault(split, _SubtaskWork())
        own.rows_out += segment.rows
        own.bytes_out += segment.bytes
        if isinstance(segment, SourceSlice) and segment.rows_estimated:
            self._rows_estimated += segment.rows

    def worked(self, fact: MicroBatchFinished, rows_in: int) -> None:
        """Add a finished micro-batch."""
        self._work.setdefault(fact.vertex, _Work()).add(fact, rows_in, self._generation)

    def received(self, vertex: VertexId, effect: BarrierReceived) -> None:
        """Add a barrier that reached the end of a channel."""
        epoch = self._epochs.get(effect.checkpoint)
        if epoch is not None:
            epoch.barriers.setdefault(vertex, []).append(BarrierRecord(channel=str(effect.channel), at_ms=effect.at_ms))

    def passed(self, vertex: VertexId, trigger: TriggerCheckpoint, now_ms: int) -> None:
        """Note that a vertex has passed the barrier. Its work since the last barrier belongs to this epoch."""
        epoch = self._epochs.get(trigger.barrier.checkpoint)
        work = self._work.pop(vertex, _Work())
        if epoch is None:
            return
        epoch.work[vertex] = work
        epoch.passed[vertex] = Known(
            aligned_ms=now_ms,
            alignment=trigger.barrier.alignment,
            alignment_ms=trigger.alignment_ms,
            bytes_held=trigger.bytes_held,
            micro_batches=work.micro_batches,
            rows_in=work.rows_in,
            rows_out=sum(own.rows_out for own in work.subtasks),
            bytes_out=sum(own.bytes_out for own in work.subtasks),
            busy_ms=work.busy_ms,
            start_delay_ms=epoch.start_delay_ms(vertex),
            bytes_processed=trigger.bytes_processed,
        )

    def overtaken(self, vertex: VertexId, effect: InFlightComplete) -> None:
        """Note the last barrier of an unaligned checkpoint, which came after the snapshot."""
        epoch = self._epochs.get(effect.checkpoint)
        if epoch is not None and vertex in epoch.passed:
            epoch.passed[vertex] |= Known(alignment_ms=effect.alignment_ms, bytes_processed=effect.bytes_processed)

    def acknowledged(self, subtask: SubtaskId, checkpoint: CheckpointId, now_ms: int) -> SnapshotMetrics:
        """Return the measurements of a subtask that acknowledges now. The vertex keeps the time of its last subtask."""
        epoch, vertex = self._epochs.get(checkpoint), subtask.vertex
        if epoch is None:
            return NO_METRICS
        known = epoch.passed.setdefault(vertex, Known(aligned_ms=now_ms, rows_out=0, bytes_out=0))
        work = self._work_of(epoch, subtask)
        if vertex not in epoch.work:
            _sent(known, work)
        known |= Known(acknowledged_ms=now_ms, async_ms=now_ms - known["aligned_ms"])
        return SnapshotMetrics(
            checkpointed_bytes=work.state_bytes,
            sync_ms=work.tasks.sync_ms if work.tasks is not None else None,
            task_ms=work.tasks.task_ms if work.tasks is not None else None,
            rows_in=work.tasks.rows if work.tasks is not None else None,
            rows_out=work.rows_out,
            bytes_out=work.bytes_out,
        )

    def _work_of(self, epoch: _Epoch, subtask: SubtaskId) -> _SubtaskWork:
        """Return what the subtask did in this epoch. A source's split runs no Spark task that could measure itself."""
        work = epoch.work.get(subtask.vertex)
        if work is None:
            sent = self._read.pop(subtask, _SubtaskWork())
            sent.tasks = None
            return sent
        return work.subtasks[subtask.index] if work.subtasks else _SubtaskWork()

    def judged(self, checkpoint: CheckpointId, report: str) -> None:
        """Add a suite's verdict."""
        if checkpoint in self._epochs:
            self._epochs[checkpoint].verdicts.append(report)

    def ended(self, checkpoint: CheckpointId, tracker: StatisticsTracker) -> Statistics:
        """Forget the epoch and return its measurements. The commit fills in its own time.

        `tracker` has the numbers that came with the acknowledgements, and the counts of the generation.
        """
        epoch, known = self._epochs.pop(checkpoint), tracker.of(checkpoint)
        metrics = known.tasks if known is not None else {}
        return Statistics(
            triggered_ms=epoch.triggered_ms,
            committed_ms=0,
            rows=epoch.rows,
            rows_estimated=epoch.rows_estimated,
            vertices=tuple(self._complete(epoch, vertex, metrics) for vertex in epoch.passed),
            verdicts=tuple(epoch.verdicts),
            counts=counts_of(tracker),
        )

    def forget(self, checkpoint: CheckpointId) -> None:
        """Forget an epoch that has ended."""
        self._epochs.pop(checkpoint, None)

    def _complete(self, epoch: _Epoch, vertex: VertexId, metrics: Mapping[Task, SnapshotMetrics]) -> VertexStatistics:
        """Add all barriers of the vertex, also those after its snapshot, and the numbers of its subtasks."""
        own = [metrics.get(subtask, NO_METRICS) for subtask in self._graph.vertex(vertex).subtasks()]
        barriers = tuple(epoch.barriers.get(vertex, ()))
        return VertexStatistics(vertex=vertex, **epoch.passed[vertex], barriers=barriers, subtasks=_columns(own))


def counts_of(tracker: StatisticsTracker) -> CheckpointCounts:
    """Return the counts of the tracker's generation, in the form that is persisted."""
    counters = tracker.counters
    return CheckpointCounts(
        total=counters.total,
        in_progress=counters.in_progress,
        completed=counters.completed,
        failed=counters.failed,
        restored=counters.restored,
    )


def _sent(known: Known, work: _SubtaskWork) -> None:
    """Add to `known` what another split of the source has sent."""
    known["rows_out"] += work.rows_out
    known["bytes_out"] += work.bytes_out


def _columns(of_subtasks: Sequence[SnapshotMetrics]) -> SubtaskStatistics:
    """Return the numbers of a vertex's subtasks, column by column. A column that no subtask measured is empty."""
    columns = {name: tuple([getattr(each, name) for each in of_subtasks]) for name in SubtaskStatistics.model_fields}
    return SubtaskStatistics(**{name: column for name, column in columns.items() if set(column) - {None}})


def _written(output: SubtaskOutput, version: Version) -> dict[str, FileHandle]:
    """Return the files of a subtask's output by path. A file that is both emitted and staged counts once.

    A range that was written keeps the files whose rows did not change. Those have an older version, and do not count.
    """
    files = {file.path: file for file in output.emitted}
    files |= {file.path: file for _, file in output.staged}
    ranges = (keyed for entry in output.ranges for keyed in entry.files)
    return files | {keyed.file.path: keyed.file for keyed in ranges if keyed.version == version}
