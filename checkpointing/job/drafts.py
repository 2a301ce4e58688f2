"""Collects the contents of each pending checkpoint's entry, and why the checkpoint failed."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from checkpointing.channel_items import NO_WORK, Segment, SourceSlice, SubtaskSnapshot, TaskWork
from checkpointing.commit.two_phase import Draft
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.properties import CheckpointProperties, SnapshotKind
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import NO_METRICS, SnapshotMetrics, Task
from checkpointing.event_time import END_OF_TIME, VertexTime
from checkpointing.gate.messages import BarrierReceived, InFlightComplete, TriggerCheckpoint
from checkpointing.graph import JobGraph, TableMode, Vertex
from checkpointing.handles import FileHandle, Version
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, SubtaskId, TableName, VertexId
from checkpointing.messages import (
    Compacted,
    CompactFiles,
    FilesCompacted,
    MicroBatchFinished,
    NotifyAborted,
    SubtaskOutput,
)
from checkpointing.metadata.record import (
    BarrierRecord,
    CheckpointCounts,
    CheckpointRecord,
    ExpiryRecord,
    HookState,
    InputTimeRecord,
    PassedBarrier,
    RowKind,
    SplitPosition,
    Statistics,
    SubtaskStatistics,
    TableKeys,
    VertexRecord,
    VertexStatistics,
    VertexTimeRecord,
    VertexWatermark,
)


@dataclass(frozen=True, slots=True)
class Passed:
    """The state of a vertex at its barrier: its last micro-batch, how far it was in time, and how state expires."""

    micro_batch: int = 0
    time: VertexTimeRecord | None = None
    expiry: ExpiryRecord | None = None


_NOT_PASSED = Passed()


def time_record(graph: JobGraph, vertex: Vertex, time: VertexTime, *, drained: bool = False) -> VertexTimeRecord:
    """Return the record of how far in event time a vertex was at its last barrier (N1).

    All subtasks of an upstream vertex are equally far, so the record has only the first one. If rows may wait until a
    drain, no table is complete until the watermark before the end of time. If a drain brought the end of time, more
    rows may come later, and the tables are complete no further than before.
    """
    inputs = []
    declared = graph.time_channels(vertex.id)
    for channel, then in time.channels.items():
        upstream, said = graph.vertex(channel.edge.upstream), declared.get(channel)
        if upstream.splits or not channel.subtask:
            inputs.append(
                InputTimeRecord(
                    input=channel.edge.input,
                    upstream=upstream.id,
                    split=upstream.splits[channel.subtask] if upstream.splits else "",
                    watermark_ms=then.mark.ms,
                    idle=then.mark.idle,
                    active_ms=then.active_ms,
                    delay_ms=None if said is None else said.delay_ms,
                    idle_after_ms=None if said is None else said.idle_after_ms,
                    close_after_ms=None if said is None else said.close_after_ms,
                )
            )
    now = time.watermark
    rows_ms = time.rows.ms if now.ms == END_OF_TIME else None
    behind_ms, at_end = graph.rows_wait_ms(vertex.id), now.ms == END_OF_TIME and not drained
    outputs = tuple(table.name for table in vertex.tables if table.mode is not TableMode.STATE)
    return VertexTimeRecord(
        watermark_ms=now.ms,
        idle=now.idle,
        rows_ms=rows_ms,
        drained=drained,
        inputs=tuple(inputs),
        tables=outputs if at_end or behind_ms is not None else (),
        behind_ms=behind_ms or 0,
    )


class Drafts:
    """The pending checkpoints. A checkpoint is forgotten when it ends."""

    def __init__(self, graph: JobGraph) -> None:
        """Begin with nothing pending."""
        self._graph = graph
        self._passed: dict[CheckpointId, dict[VertexId, Passed]] = {}
        self._sent: dict[CheckpointId, int] = {}
        self._said: dict[CheckpointId, str] = {}
        self._last_aborted = NO_CHECKPOINT
        self._fired = NO_CHECKPOINT
        """The newest barrier before which something has fired."""
        self._keeps_time = any(graph.time_channels(vertex.id) for vertex in graph.operators())
        self._barriers: dict[CheckpointId, PassedBarrier] = {}
        """The barriers since the last cut, if the job keeps event time.

        They are kept after their checkpoint has ended.
        """

    def begins(self, checkpoint: CheckpointId, rows_sent: int) -> bool:
        """Return True for a checkpoint's first barrier, and record how many rows all sources had sent by then."""
        if checkpoint in self._passed:
            return False
        self._passed[checkpoint] = {}
        self._sent[checkpoint] = rows_sent
        return True

    def sent(self, checkpoint: CheckpointId, now_ms: int, positions: Iterable[SplitPosition]) -> None:
        """Record when the sources sent a barrier, and their positions (N1)."""
        if self._keeps_time:
            self._barriers[checkpoint] = PassedBarrier(
                checkpoint=checkpoint, clock_ms=now_ms, positions=tuple(positions)
            )

    def timed(self, checkpoint: CheckpointId, vertex: VertexId, watermark_ms: int) -> None:
        """Record how far in event time a vertex was when it passed a barrier.

        Only entries after the newest cut need it.
        """
        barrier = self._barriers.get(checkpoint)
        if barrier is not None and all(each.vertex != vertex for each in barrier.watermarks):
            reached = VertexWatermark(vertex=vertex, watermark_ms=watermark_ms)
            self._barriers[checkpoint] = barrier.model_copy(update={"watermarks": (*barrier.watermarks, reached)})

    def committed(self, checkpoint: CheckpointId) -> None:
        """Forget the barriers up to a cut, since the next entry names only those that came after it."""
        self._barriers = {each: barrier for each, barrier in self._barriers.items() if each > checkpoint}

    def passed(self, checkpoint: CheckpointId, vertex: VertexId, passed: Passed) -> None:
        """Record the state of a vertex at its barrier."""
        if checkpoint in self._passed:
            self._passed[checkpoint][vertex] = passed

    def fires(self, checkpoint: CheckpointId) -> None:
        """Record that something fires before a barrier, so a cut has to show it."""
        self._fired = max(checkpoint, self._fired)

    def failed(self, checkpoint: CheckpointId, message: str) -> None:
        """Record why a vertex fails the checkpoint, in words for a user."""
        self._said[checkpoint] = message

    def said(self, checkpoint: CheckpointId) -> str:
        """Return why a vertex fails the checkpoint, in words for a user, or '' if that is not known."""
        return self._said.get(checkpoint, "")

    def aborted(self, effect: told.NotifyCheckpointAborted, *, ends_tick: bool) -> tuple[NotifyAborted, ...]:
        """Return the notice of an abort for listeners, once a checkpoint. `effect` comes once for each subtask."""
        if effect.checkpoint == self._last_aborted:
            return ()
        self._last_aborted = effect.checkpoint
        return (NotifyAborted(effect.checkpoint, effect.reason, effect.message, ends_tick),)

    def leaves_rows(self, record: CheckpointRecord, rows_sent: int) -> bool:
        """Return whether rows are not in the cut: sent after its barrier, in flight at the barrier, or fired since."""
        sent_later = rows_sent > self._sent.get(record.checkpoint, 0)
        return sent_later or record.has_rows_in_flight or self._fired > record.checkpoint

    def compose(self, effect: told.CommitCheckpoint, statistics: Statistics, coordinators: Mapping[str, str]) -> Draft:
        """Return the draft to commit. `coordinators` has the source coordinators' states (A7).

        Raise TypeError if a subtask acknowledged anything but a snapshot.
        """
        passed = self._passed.get(effect.checkpoint, {})
        vertices = tuple(
            VertexRecord(
                vertex=vertex.id,
                micro_batch=passed.get(vertex.id, _NOT_PASSED).micro_batch,
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
                time=passed.get(vertex.id, _NOT_PASSED).time,
                expiry=passed.get(vertex.id, _NOT_PASSED).expiry,
            )
            for vertex in self._graph.vertices
        )
        pinned = effect.properties.is_savepoint
        hooks = tuple(HookState(hook=hook, state=state) for hook, state in sorted(effect.master_states.items()))
        kind = _kind_of(effect.properties)
        barriers = tuple(barrier for before, barrier in self._barriers.items() if before < effect.checkpoint)
        return Draft(effect.checkpoint, vertices, statistics, effect.subsumed, kind, pinned, hooks, barriers=barriers)

    def forget(self, checkpoint: CheckpointId) -> None:
        """Forget a checkpoint that has ended."""
        self._passed.pop(checkpoint, None)
        self._sent.pop(checkpoint, None)
        self._said.pop(checkpoint, None)


def _kind_of(properties: CheckpointProperties) -> RowKind:
    if properties.kind is SnapshotKind.HELD:
        return RowKind.HELD
    return RowKind.CHECKPOINT if properties.commits else RowKind.SAVEPOINT


def _snapshot_of(effect: told.CommitCheckpoint, subtask: SubtaskId) -> SubtaskSnapshot:
    state = effect.states.get(subtask)
    payload = state.payload if state is not None else None
    if not isinstance(payload, SubtaskSnapshot):
        raise TypeError(f"subtask {subtask} acknowledged {payload!r}, which is no snapshot")
    return payload


# ------------------------------------------------------------------
# Decides when a tick compacts its append tables, and which checkpoint commits what was compacted.
#
# A tick compacts while it reads, because it can end soon after its last checkpoint. At most one request is in progress,
# and its result belongs to one checkpoint. If that checkpoint is declined, the next one commits the result. So no two
# checkpoints replace the same files. Nothing waits for a compaction. If the tick ends before it, the next tick begins a
# new one.


class Compacting:
    """Keeps track of the request for compactions, its result, and the checkpoint that commits the result."""

    def __init__(self, graph: JobGraph, config: CheckpointConfig, unpublished: Collection[TableName]) -> None:
        """Begin a tick. It does not know yet how many small files the tables have, so all tables are due.

        `unpublished` are tables that no entry has published under their names yet. Their logs show other files.
        """
        tables = [table.name for table in graph.tables() if table.mode is TableMode.APPEND]
        self._files_min = config.compact_files_min
        self._bytes_max = config.compacted_bytes_max
        self._added = Counter({table: 0 if table in unpublished else self._files_min or 0 for table in tables})
        """How many files each table got since it was last compacted."""
        self._asked = False
        """Whether a request is in progress, or its result is not published yet."""
        self._ready: tuple[Compacted, ...] = ()
        self._taken: CheckpointId | None = None
        """The checkpoint that is to commit the result."""

    def rows_read(self) -> tuple[CompactFiles, ...]:
        """Return the request for compactions that are due, when the tick has rows for another checkpoint."""
        if self._files_min is None or self._asked:
            return ()
        due = tuple(table for table, files in self._added.items() if files >= self._files_min)
        if not due:
            return ()
        self._asked = True
        for table in due:
            self._added[table] = 0
        return (CompactFiles(due, self._files_min, self._bytes_max),)

    def told(self, fact: FilesCompacted) -> None:
        """Keep the result of a request for the next checkpoint."""
        self._ready = fact.found
        self._asked = bool(fact.found)
        for table in fact.more:
            self._added[table] = self._files_min or 0

    def onto(self, draft: Draft) -> Draft:
        """Return the draft with the result, unless another draft has the result, or this draft publishes nothing."""
        if self._taken is not None or not self._ready or draft.kind is RowKind.SAVEPOINT:
            return draft
        self._taken = draft.checkpoint
        return replace(draft, compacted=self._ready)

    def declined(self, checkpoint: CheckpointId) -> None:
        """Record that a checkpoint is not committed. The next checkpoint may commit its compactions."""
        if checkpoint == self._taken:
            self._taken = None

    def committed(self, record: CheckpointRecord) -> None:
        """Record that a checkpoint is committed and published, and how many files it has added."""
        for table in record.tables:
            if table.table in self._added:
                self._added[table.table] += len(table.adds)
        if record.checkpoint == self._taken:
            self._ready, self._taken, self._asked = (), None, False


# ------------------------------------------------------------------
# Measures each epoch as it passes through the job (C7, E6). No decision depends on the measurements.


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
        """Return the time from the trigger to the vertex's first barrier. None for a source, which gets no barrier."""
        barriers = self.barriers.get(vertex)
        return min(barrier.at_ms for barrier in barriers) - self.triggered_ms if barriers else None


class EpochLog:
    """Collects the measurements of every pending epoch, and forgets an epoch when it ends."""

    def __init__(self, graph: JobGraph, generation: Generation) -> None:
        """Begin with nothing measured. All micro-batches belong to this generation."""
        self._graph = graph
        self._generation = generation
        self._epochs: dict[CheckpointId, _Epoch] = {}
        self._work: dict[VertexId, _Work] = {}
        self._read: dict[SubtaskId, _SubtaskWork] = {}
        """What each split of a source has sent since its last barrier."""
        self._rows_estimated = 0
        """How many of the rows that were sent in this tick are estimated by their source."""

    def triggered(self, checkpoint: CheckpointId, now_ms: int, rows: int) -> None:
        """Record that the sources were triggered. `rows` is how many rows they had sent in this tick."""
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
        """Record that a vertex has passed the barrier. Its work since the last barrier belongs to this epoch."""
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
        """Record the last barrier of an unaligned checkpoint, which came after the snapshot."""
        epoch = self._epochs.get(effect.checkpoint)
        if epoch is not None and vertex in epoch.passed:
            epoch.passed[vertex] |= Known(alignment_ms=effect.alignment_ms, bytes_processed=effect.bytes_processed)

    def acknowledged(self, subtask: SubtaskId, checkpoint: CheckpointId, now_ms: int) -> SnapshotMetrics:
        """Return the measurements of a subtask that acknowledges now.

        The vertex gets the time of the subtask that acknowledges last.
        """
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
        """Return the subtask's work in this epoch. A source's split runs no Spark task that could measure its work."""
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
        """Forget the epoch and return its measurements. The commit adds the time of the commit.

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
        """Add all barriers of the vertex, even those after its snapshot, and the numbers of its subtasks."""
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
    """Add to `known` the rows that another split of the source has sent."""
    known["rows_out"] += work.rows_out
    known["bytes_out"] += work.bytes_out


def _columns(of_subtasks: Sequence[SnapshotMetrics]) -> SubtaskStatistics:
    """Return the measurements of a vertex's subtasks as columns. A column that no subtask measured is empty."""
    columns = {name: tuple([getattr(each, name) for each in of_subtasks]) for name in SubtaskStatistics.model_fields}
    return SubtaskStatistics(**{name: column for name, column in columns.items() if set(column) - {None}})


def _written(output: SubtaskOutput, version: Version) -> dict[str, FileHandle]:
    """Return a dict from paths to the files of a subtask's output. A file that is both emitted and staged counts once.

    A range that was written keeps the files whose rows did not change. These files have an older version, and are not
    counted.
    """
    files = {file.path: file for file in output.emitted}
    files |= {file.path: file for _, file in output.staged}
    ranges = (keyed for entry in output.ranges for keyed in entry.files)
    return files | {keyed.file.path: keyed.file for keyed in ranges if keyed.version == version}
