"""Runs one operator vertex: its gate, the micro-batch that it collects or runs, and its live files.

The gate is polled only while the vertex is idle (one mailbox for records and checkpoint actions, B1). The segments that
the gate lets through are collected into one micro-batch. When the gate triggers a checkpoint, the collected segments
run first, and the snapshot follows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from typing import assert_never

from checkpointing.channel_items import AlignmentType, Barrier, RangeFiles, Segment, SourceSlice, SubtaskSnapshot
from checkpointing.commit.live_files import live_files
from checkpointing.config import UNLIMITED, CheckpointConfig, CheckpointingMode
from checkpointing.coordinator.messages import TriggerTask
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.event_time import BEFORE_TIME, END_OF_TIME, Expiry, VertexTime
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import InputGate
from checkpointing.gate.messages import (
    ClockRead,
    GateConfig,
    GateEffect,
    GatePolicy,
    InFlightComplete,
    Polled,
    TriggerCheckpoint,
)
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, CheckpointId, Generation, SubtaskId, TableName, VertexId
from checkpointing.job.polling import Split
from checkpointing.messages import (
    CancelJudgement,
    InputSegments,
    JudgementFailed,
    JudgeSuites,
    MicroBatchFinished,
    RunMicroBatch,
    SubtaskOutput,
    SuitesJudged,
)
from checkpointing.metadata.paths import is_state_table, staged_name_in
from checkpointing.metadata.record import CheckpointRecord, ExpiryRecord, VertexRecord
from checkpointing.partitions import version_of_folder
from checkpointing.task.subtask_checkpointing import Subtasks

# ------------------------------------------------------------------
# Gives every subtask of a vertex all of the vertex's broadcast state (D1).
#
# Every subtask sees all broadcast rows, so all subtasks have the same state. One task writes it, and all subtasks hold
# that file. After a change of parallelism, each new subtask gets the copy of an old subtask, as Flink's
# `RoundRobinOperatorStateRepartitioner` distributes broadcast state.


def handed_to_all(tables: Sequence[Table], outputs: Sequence[SubtaskOutput]) -> tuple[SubtaskOutput, ...]:
    """Return the outputs of a micro-batch, each with the broadcast state that one subtask wrote."""
    names = {table.name for table in tables if table.broadcast}
    written = {entry.table: entry for output in outputs for entry in output.ranges if entry.table in names}
    if not written:
        return tuple(outputs)
    return tuple(replace(output, ranges=_with_all(output.ranges, written)) for output in outputs)


def _with_all(ranges: Sequence[RangeFiles], written: dict[TableName, RangeFiles]) -> tuple[RangeFiles, ...]:
    return (*(entry for entry in ranges if entry.table not in written), *written.values())


def restored_broadcasts(
    tables: Sequence[Table], was: VertexRecord, parallelism: int
) -> tuple[tuple[RangeFiles, ...], ...]:
    """Return the broadcast state of each new subtask. The cut may have had another parallelism.

    Each new subtask gets the whole copy of one old subtask. Old subtasks without files are left out (D1; Flink:
    `RoundRobinOperatorStateRepartitioner`).
    """
    names = {table.name for table in tables if table.broadcast}
    copies: dict[TableName, list[RangeFiles]] = {}
    for entry in (entry for snapshot in was.subtasks for entry in snapshot.ranges):
        if entry.table in names and entry.files:
            copies.setdefault(entry.table, []).append(entry)
    return tuple(tuple(held[subtask % len(held)] for held in copies.values()) for subtask in range(parallelism))


def broadcasts_left(graph: JobGraph, record: CheckpointRecord) -> Iterator[VertexId]:
    """Yield each vertex that has broadcast state in the cut and none in the graph: a restore would lose it (G2)."""
    known = {vertex.id for vertex in graph.vertices}
    tables = {table.name for table in graph.tables()}
    for was in record.vertices:
        held = {entry.table for snapshot in was.subtasks for entry in snapshot.ranges if entry.files}
        if was.vertex in known and any(is_state_table(table) and table not in tables for table in held):
            yield was.vertex


# ------------------------------------------------------------------
# Derives from a job's configuration the barriers that sources send, and the configuration of the gates (C1 to C6).


def gate_config(config: CheckpointConfig) -> GateConfig:
    """Return the configuration of the gates for a job's configuration."""
    limit = UNLIMITED if config.max_alignment_bytes is None else config.max_alignment_bytes
    return GateConfig(_policy(config), limit)


def _policy(config: CheckpointConfig) -> GatePolicy:
    if config.mode is CheckpointingMode.AT_LEAST_ONCE:
        return GatePolicy.AT_LEAST_ONCE
    if config.unaligned:
        return GatePolicy.UNALIGNED if config.alignment_timeout_ms is None else GatePolicy.ALTERNATING
    return GatePolicy.ALIGNED_BLOCKING if config.max_alignment_bytes is None else GatePolicy.ALIGNED_BUFFERING


def _barrier(
    checkpoint: CheckpointId, properties: CheckpointProperties, config: CheckpointConfig, now_ms: int
) -> Barrier:
    """Return the barrier that the sources send for this checkpoint. The barrier of a savepoint is always aligned."""
    if config.mode is CheckpointingMode.AT_LEAST_ONCE:
        return Barrier(checkpoint, now_ms, AlignmentType.AT_LEAST_ONCE)
    if not config.unaligned:
        return Barrier(checkpoint, now_ms, AlignmentType.ALIGNED)
    if properties.is_savepoint:
        return Barrier(checkpoint, now_ms, AlignmentType.FORCED_ALIGNED)
    if config.alignment_timeout_ms is None:
        return Barrier(checkpoint, now_ms, AlignmentType.UNALIGNED)
    return Barrier(checkpoint, now_ms, AlignmentType.ALIGNED, config.alignment_timeout_ms)


def source_barrier(effect: TriggerTask, config: CheckpointConfig, now_ms: int, split: Split) -> Barrier:
    """Return the barrier that the subtask of a split sends."""
    return of_split(split, _barrier(effect.checkpoint, effect.properties, config, now_ms))


def of_split(split: Split, barrier: Barrier) -> Barrier:
    """Return a barrier as the split sends it. It reports whether the split has nothing to read, waits or has ended."""
    watermark_ms = END_OF_TIME if split.ended else barrier.watermark_ms
    return replace(barrier, watermark_ms=watermark_ms, idle=split.idle and not split.held, waits=split.waits)


# ------------------------------------------------------------------
# Decides which files an overwrite table shows: in each partition the files of the greatest version that was read.
#
# The invariant: at every cut, the table shows the rows of the batch query `rows where version = max(version) over
# (partition by its partition columns)`, over the rows before the barrier. This holds for every order of arrival, and
# wherever micro-batches and epochs were cut. Two facts make it so:
#
# - A file has rows of one version of one partition, and is never written again.
# - A file that is left out has a smaller version than another file of its partition that was read. No later file can
#   bring it back, since a greatest version only rises. So a cut needs to hold only the files that are shown.


class NoVersionError(ValueError):
    """A file of an overwrite table lies in no folder of its version column. Micro-batches write no such file."""


def newest(files: Iterable[KeyedFile]) -> tuple[KeyedFile, ...]:
    """Return the files that have the greatest version of their partition, in the same order. Each comes once.

    All files belong to one overwrite table. Raises NoVersionError.
    """
    known = {keyed.file.path: keyed for keyed in files}
    places = {path: _place(path) for path in known}
    versions: dict[str, set[str]] = {}
    for partition, version in places.values():
        versions.setdefault(partition, set()).add(version)
    greatest = {partition: max(found, key=_order) for partition, found in versions.items()}
    return tuple(keyed for path, keyed in known.items() if greatest[places[path][0]] == places[path][1])


def _place(path: str) -> tuple[str, str]:
    """Return the folder of a file's partition, and inside it the folder of its version.

    Equal values have equal folders.
    """
    name = staged_name_in(path)
    if name is None or not name.version:
        raise NoVersionError(f"{path} does not lie in the folder of a version")
    return name.partition, name.version


def _order(folder: str) -> tuple[int, str]:
    version = version_of_folder(folder)
    return version.order if version is not None else (0, "")


@dataclass(slots=True)
class LiveFiles:
    """The current files of one subtask: its state, oldest first, and its files of upsert and overwrite tables."""

    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()
    due_ms: int | None = None
    """Nothing of the state is due before this event time. None: nothing ever is (N4)."""
    _snapshot: SubtaskSnapshot | None = None

    def snapshot(self) -> SubtaskSnapshot:
        """Return the files as a snapshot. As long as nothing is written, the snapshot is the same object.

        So a commit sees at once which subtasks did not change (ADR 14).
        """
        if self._snapshot is None:
            self._snapshot = SubtaskSnapshot(state=self.state, ranges=self.ranges, due_ms=self.due_ms)
        return self._snapshot

    def is_due(self, by_ms: int) -> bool:
        """Return whether something of the state may be due by this event time."""
        return self.due_ms is not None and self.due_ms <= by_ms

    def take_due(self, output: SubtaskOutput, fired_ms: int | None) -> None:
        """Set when the state is due next, after a micro-batch. It has fired all that was due by `fired_ms`, if any."""
        known = [] if self.due_ms is None or (fired_ms is not None and self.is_due(fired_ms)) else [self.due_ms]
        due_ms = min([*known, *([] if output.due_ms is None else [output.due_ms])], default=None)
        if due_ms != self.due_ms:
            self.due_ms, self._snapshot = due_ms, None

    def take(self, output: SubtaskOutput) -> tuple[tuple[KeyedFile, ...], tuple[KeyedFile, ...]]:
        """Add the files of a micro-batch. Return the files that are no longer live, and the files that are newly live.

        A range that was written keeps the files whose rows did not change. These were live before. If nothing was
        written, the lists stay the same objects.
        """
        if not output.state and not output.ranges and not output.ended:
            return (), ()
        self._snapshot = None
        before = {keyed.file.path: keyed for keyed in self._files()}
        still = tuple(keyed for keyed in self.state if keyed.file.path not in output.ended)
        self.state = _after(still, output.state)
        written = {entry.table: entry for entry in output.ranges}
        kept = tuple(entry for entry in self.ranges if entry.table not in written)
        self.ranges = (*kept, *output.ranges)
        now = {keyed.file.path: keyed for keyed in self._files()}
        gone = tuple(keyed for path, keyed in before.items() if path not in now)
        return gone, tuple(keyed for path, keyed in now.items() if path not in before)

    def of(self, table: TableName) -> tuple[KeyedFile, ...]:
        """Return the current files of an upsert or overwrite table."""
        return next((entry.files for entry in self.ranges if entry.table == table), ())

    def age(self, expiry: Expiry, now_ms: int) -> None:
        """Pass a barrier of this time.

        New files get this time as their time of writing, and files whose rows have expired are dropped (N5). A later
        file of a key never has an earlier time than an earlier file. So no older row becomes valid again when a newer
        row is dropped.
        """
        stamped = (keyed if keyed.touched_ms is not None else replace(keyed, touched_ms=now_ms) for keyed in self.state)
        aged = tuple(keyed for keyed in stamped if not expiry.is_over(keyed.touched_ms, now_ms))
        if aged != self.state:
            self.state, self._snapshot = aged, None

    def overwrite(self, table: TableName, files: Iterable[KeyedFile]) -> tuple[KeyedFile, ...]:
        """Add files of an overwrite table. Return the files, new or old, that the table does not show now.

        If the table shows none of the new files, the list stays the same object.
        """
        before = self.of(table)
        everything = (*before, *files)
        now = newest(everything)
        if now != before:
            self._snapshot = None
            self.ranges = (*(entry for entry in self.ranges if entry.table != table), RangeFiles(table, now))
        kept = {keyed.file.path for keyed in now}
        return tuple(keyed for keyed in everything if keyed.file.path not in kept)

    def _files(self) -> Iterator[KeyedFile]:
        yield from self.state
        for entry in self.ranges:
            yield from entry.files


def _after(live: tuple[KeyedFile, ...], new: tuple[KeyedFile, ...]) -> tuple[KeyedFile, ...]:
    """Return the live files after a write. A BASE holds every key of its range, so it replaces all older files."""
    bases = [place for place, keyed in enumerate(new) if keyed.kind is KeyedFileKind.BASE]
    return (*live, *new) if not bases else new[bases[-1] :]


class InputEnd(Enum):
    """How far a drain has come at a vertex."""

    OPEN = "open"
    """More rows may come on some channel."""
    REACHED = "reached"
    """No more rows come. A last micro-batch must emit what the vertex still holds back."""
    HANDED_ON = "handed_on"
    """The last rows were emitted, and the end of the data was sent after them."""


@dataclass(slots=True)
class OperatorRun:
    """The run of one operator vertex. The door steps it. It decides nothing about other vertices."""

    vertex: Vertex
    gate: InputGate
    generation: Generation
    live: list[LiveFiles]
    time: VertexTime | None = None
    """How far in event time the vertex is. None: no input has times."""
    passing: Barrier | None = None
    """The barrier that the vertex is about to send on, with its watermark.

    Before that, the vertex fires due state (N4).
    """
    firing_ms: int | None = None
    """The running micro-batch fires the state that is due by this time."""
    rows_fire: bool = False
    """True if rows of this tick were due at the very next barrier, as the rows of short windows are."""
    now_ms: int | None = None
    """The time of the last barrier, by which state expires (N5)."""
    clock_ms: int = 0
    """The clock of the last barrier, or of the claim. Rows of the epoch have this processing time (N4)."""
    passed: CheckpointId = NO_CHECKPOINT
    """The last barrier that this vertex has passed."""
    micro_batch: int = 0
    collected: list[tuple[ChannelId, Segment]] = field(default_factory=list)
    collected_since_ms: int = 0
    running: tuple[tuple[ChannelId, Segment], ...] = ()
    busy: bool = False
    gate_wake_ms: int | None = None
    """When the gate's alignment timer is due."""
    trigger: TriggerCheckpoint | None = None
    """The checkpoint that the gate has triggered. The snapshot follows the micro-batch that is collected or running."""
    in_flight: InFlightComplete | None = None
    """The complete channel state of the triggered checkpoint, until its snapshot is taken."""
    waits_for_barrier: bool = False
    """True if the files of the last micro-batch could not be written. Its rows wait for the next barrier."""
    input_end: InputEnd = InputEnd.OPEN
    data_ended_on: set[ChannelId] = field(default_factory=set)
    """The channels on which no more rows come (drain). After a restore there are none."""
    unsnapshotted: set[str] = field(default_factory=set)
    """Files that no snapshot has named. Once such a file is no longer live, nothing refers to it."""
    worked: dict[CheckpointId, bool] = field(default_factory=dict)
    """The barriers after which the vertex worked on rows. True: it sent some rows on to other vertices."""

    @property
    def has_input(self) -> bool:
        """True if rows, the end of the data or an item at the gate wait for the vertex.

        Otherwise it has nothing to do.
        """
        return bool(self.collected) or self.gate.has_deliverable() or self.input_end is InputEnd.REACHED

    @property
    def at_work(self) -> bool:
        """True if the vertex runs, is about to run, or could take something from its gate."""
        return self.busy or self.trigger is not None or self.has_input

    @property
    def snapshot_due(self) -> TriggerCheckpoint | None:
        """The triggered checkpoint, once the micro-batch before its barrier is done. None until then."""
        owes_work = bool(self.collected) or self.input_end is InputEnd.REACHED
        return None if owes_work or self.busy else self.trigger

    @property
    def collected_rows(self) -> int:
        """How many collected rows wait to run."""
        return sum(segment.rows for _, segment in self.collected)

    def poll(self, now_ms: int) -> tuple[GateEffect, ...]:
        """Give the gate the time, and take one item from it. Do nothing if the gate has no item."""
        if not self.gate.has_deliverable():
            return ()
        self.gate.step(ClockRead(now_ms))
        return self.gate.step(Polled())

    def collect(self, channel: ChannelId, segment: Segment, now_ms: int) -> None:
        """Add a segment that the gate let through."""
        if not self.collected:
            self.collected_since_ms = now_ms
        self.collected.append((channel, segment))
        if self.time is not None:
            self.time.came(channel)

    def triggered(self, trigger: TriggerCheckpoint) -> None:
        """Record that the gate triggers a checkpoint.

        A micro-batch that could not be written may now be tried again.
        """
        self.trigger, self.waits_for_barrier = trigger, False

    def data_ended(self, channel: ChannelId) -> None:
        """Record that no more rows come on this channel. Barriers between the ends of two channels change nothing."""
        self.data_ended_on.add(channel)
        if self.data_ended_on == self.gate.open_channels():
            self.input_end = InputEnd.REACHED

    @property
    def ends_without_work(self) -> bool:
        """True if the data has ended and no micro-batch is due. A vertex without state holds no rows back."""
        idle = not self.busy and not self.collected
        return self.input_end is InputEnd.REACHED and idle and self.vertex.kind is not VertexKind.KEYED

    def start(self, rows_max: int) -> RunMicroBatch:
        """Run the collected segments as the next micro-batch. At the end of the data, this is the last micro-batch.

        The micro-batch ends with the segment that reaches `rows_max`. More segments may have been collected while the
        vertex waited for a barrier.
        """
        self.micro_batch += 1
        before = accumulate((segment.rows for _, segment in self.collected), initial=0)
        place = sum(rows < rows_max for rows in list(before)[:-1])
        self.running, self.collected = tuple(self.collected[:place]), self.collected[place:]
        end_of_input = self.input_end is InputEnd.REACHED and not self.collected
        due_ms = END_OF_TIME if end_of_input and self.vertex.fires else self._due_with_rows()
        return self._run(due_ms, end_of_input=end_of_input)

    @property
    def fires_with_rows(self) -> bool:
        """True if one micro-batch can run the last rows before a barrier and fire what is due at it (N4).

        The time of the barrier must be known before the rows have run. It is known if it comes by the clock, or only
        from upstream vertices, whose barriers carry it.
        """
        return self.vertex.fires and (self.vertex.by_clock or (self.time is not None and not self.time.reads_splits))

    def _due_with_rows(self) -> int | None:
        """Return the time by which the last micro-batch before a barrier also fires due state.

        None: it fires nothing.
        """
        trigger = self.trigger
        if not self.fires_with_rows or trigger is None or trigger.unaligned or self.collected:
            return None
        barrier = trigger.barrier if self.time is None else self.time.foreseen(trigger.barrier, {})
        return self._time_at(barrier) if self.rows_fire or self.fires_at(barrier) else None

    @property
    def fires_next(self) -> bool:
        """True if something may be due by the watermark of the barrier that the vertex is about to send on (N4)."""
        return self.passing is not None and self.fires_at(self.passing)

    def fires_at(self, barrier: Barrier) -> bool:
        """Return whether something may be due at a barrier that the vertex sends on."""
        return self.vertex.fires and any(own.is_due(self._time_at(barrier)) for own in self.live)

    def completes_partition_at(self, barrier: Barrier) -> bool:
        """Return whether a partition of a table is complete at a barrier, but was not at the barrier before (N8)."""
        if self.time is None:
            return False
        before_ms, now_ms = (self._complete_until_ms(each) for each in (self.time.watermark.ms, barrier.watermark_ms))
        known = (table.time_partitions for table in self.vertex.tables)
        return any(each.complete(before_ms) < each.complete(now_ms) for each in known if each is not None)

    def _complete_until_ms(self, watermark_ms: int) -> int:
        """Return until when the vertex's tables are complete. After the last row they are complete for ever."""
        return watermark_ms if watermark_ms == END_OF_TIME else watermark_ms - (self.vertex.rows_wait_ms or 0)

    def _time_at(self, barrier: Barrier) -> int:
        """Return the time by which state is due at a barrier.

        By the clock, this is the millisecond before the barrier.
        """
        return barrier.created_ms - 1 if self.vertex.by_clock else barrier.watermark_ms

    def turns_at_ms(self) -> int | None:
        """Return when a barrier without new rows would change something: a split turns idle, or state is due."""
        at = [] if self.time is None else [self.time.idles_at_ms()]
        if self.vertex.by_clock:
            at += [own.due_ms + 1 for own in self.live if own.due_ms is not None]
        return min((each for each in at if each is not None), default=None)

    @property
    def waits_for_time(self) -> bool:
        """True if state is due, or a partition of a table ends, at an event time that is yet to come."""
        if not self.vertex.by_clock and any(own.due_ms is not None for own in self.live):
            return True
        in_time = self.time is not None and self.time.watermark.ms not in (BEFORE_TIME, END_OF_TIME)
        return in_time and any(table.time_partitions for table in self.vertex.tables)

    def fire(self) -> RunMicroBatch:
        """Run a micro-batch without rows. It fires due state before the barrier is sent downstream."""
        if self.passing is None:
            raise TypeError(f"vertex {self.vertex.id} fires without a barrier")
        self.rows_fire = self.rows_fire or self.passed in self.worked
        self.micro_batch += 1
        return self._run(self._time_at(self.passing), end_of_input=False)

    def pass_time(self, trigger: TriggerCheckpoint) -> Barrier:
        """Return the barrier that the vertex sends on. A vertex that keeps time advances to the barrier, once (N1)."""
        if self.passing is None:
            time = self.time
            barrier = trigger.barrier
            self.passing = barrier if time is None else time.pass_barrier(barrier, unaligned=trigger.unaligned)
        return self.passing

    def sent_on(self, barrier: Barrier) -> Barrier:
        """Return the barrier that the vertex's output channels carry.

        Rows that wait in this vertex follow the barrier, and their times may be `rows_wait_ms` before the vertex's
        watermark (N6). The watermark on the barrier must hold for these rows too, so it is smaller by that wait (Flink:
        `KeyedCoProcessOperatorWithWatermarkDelay`).
        """
        mark_ms, wait_ms = barrier.watermark_ms, self.vertex.rows_wait_ms or 0
        if mark_ms in (BEFORE_TIME, END_OF_TIME):
            return barrier
        return replace(barrier, watermark_ms=max(BEFORE_TIME, mark_ms - wait_ms))

    def held_back(self) -> Iterable[tuple[ChannelId, int, int]]:
        """Return how far in event time each split with `hold_back_ms` is (N1)."""
        return () if self.time is None else self.time.held_back()

    def overtook(self, complete: InFlightComplete) -> None:
        """Record which rows an unaligned barrier has overtaken, for the time of the vertex (N1)."""
        if self.time is not None:
            for held in complete.channels:
                self.time.overtook(held.channel, complete.checkpoint, len(held.segments))

    def _run(self, due_ms: int | None, *, end_of_input: bool) -> RunMicroBatch:
        self.busy, self.firing_ms = True, due_ms
        return RunMicroBatch(
            vertex=self.vertex.id,
            micro_batch=self.micro_batch,
            generation=self.generation,
            inputs=_by_input(self.running),
            state=tuple(own.state for own in self.live),
            ranges=tuple(own.ranges for own in self.live),
            end_of_input=end_of_input,
            late_ms=self._late_ms,
            due_ms=due_ms,
            now_ms=self.now_ms,
        )

    @property
    def _late_ms(self) -> int:
        if self.vertex.by_clock:
            return self.clock_ms - 1
        return BEFORE_TIME if self.time is None else self.time.watermark.ms

    def not_staged(self) -> CheckpointId | None:
        """Take back the rows of a micro-batch that could not be written. Return the checkpoint that waited for them.

        The vertex can take no snapshot for that checkpoint any more. Each barrier allows one more try. Without waiting
        for a barrier, the disk would probably still be full at the next try.
        """
        self.busy = False
        self.collected, self.running = [*self.running, *self.collected], ()
        waiting, self.trigger, self.in_flight = self.trigger, None, None
        self.passing = self.firing_ms = None
        self.waits_for_barrier = True
        return None if waiting is None else waiting.barrier.checkpoint

    def finish(self, fact: MicroBatchFinished) -> tuple[str, ...]:
        """Handle a finished micro-batch. Return the paths to which nothing refers any more."""
        self.busy = False
        if self.time is not None:
            self._take_times(self.time, fact)
        if self.running:
            sent = any(output.emitted for output in fact.outputs)
            self.worked[self.passed] = sent or self.worked.get(self.passed, False)
        self.running = ()
        dead = []
        for own, output in zip(self.live, handed_to_all(self.vertex.tables, fact.outputs), strict=True):
            gone, new = own.take(output)
            dead += [keyed.file.path for keyed in gone if keyed.file.path in self.unsnapshotted]
            self.unsnapshotted.update(keyed.file.path for keyed in new)
            dead += self._overwrite(own, output)
            own.take_due(output, self.firing_ms)
        self.firing_ms = None
        self.unsnapshotted.difference_update(dead)
        return tuple(dict.fromkeys(dead))

    def _take_times(self, time: VertexTime, fact: MicroBatchFinished) -> None:
        """Record the times of the rows that have run (N1)."""
        for channel, segments in Counter(channel for channel, _ in self.running).items():
            time.ran(channel, segments)
        splits = {
            (channel.edge.input, segment.split): channel
            for channel, segment in self.running
            if isinstance(segment, SourceSlice)
        }
        for greatest in fact.times:
            time.read(splits[greatest.input, greatest.split], greatest.ms)

    def _overwrite(self, own: LiveFiles, output: SubtaskOutput) -> Iterator[str]:
        """Add staged files to the overwrite tables.

        Yield files that are in no cut and that the tables no longer show.
        """
        for table in self._overwritten():
            new = [self._of_no_key(file) for name, file in output.staged if name == table]
            if new:
                self.unsnapshotted.update(keyed.file.path for keyed in new)
                gone = (keyed.file.path for keyed in own.overwrite(table, new))
                yield from (path for path in gone if path in self.unsnapshotted)

    def _overwritten(self) -> list[TableName]:
        return [table.name for table in self.vertex.tables if table.mode is TableMode.OVERWRITE]

    def _of_no_key(self, file: FileHandle) -> KeyedFile:
        """Return a file of an overwrite table. The file has no keys, and belongs to the only subtask of its vertex."""
        return KeyedFile(file, KeyedFileKind.BASE, 0, 0, Version(self.generation, self.micro_batch))

    def staged(self, output: SubtaskOutput) -> tuple[StagedFile, ...]:
        """Return a subtask's staged files of append tables, each with the barrier after which it was staged."""
        overwritten = self._overwritten()
        return tuple(StagedFile(table, file, self.passed) for table, file in output.staged if table not in overwritten)

    def to_judge(
        self, staged: Iterable[StagedFile], parent: CheckpointRecord | None
    ) -> tuple[tuple[TableName, tuple[FileHandle, ...]], ...]:
        """Return the staged files of judged tables since the last completed checkpoint (J3)."""
        since = parent.checkpoint if parent else NO_CHECKPOINT
        new = [file for file in staged if file.after >= since]
        by_table = {
            table.name: tuple(file.file for file in new if file.table == table.name)
            for table in self.vertex.tables
            if table.judged
        }
        return tuple((table, files) for table, files in by_table.items() if files)

    def overwritten_to_judge(
        self, parent: CheckpointRecord | None
    ) -> tuple[tuple[TableName, tuple[FileHandle, ...]], ...]:
        """Return the files that the next completed checkpoint brings into judged overwrite tables (J3)."""
        was = next((each for each in parent.vertices if each.vertex == self.vertex.id), None) if parent else None
        found = []
        for table in (each for each in self.vertex.tables if each.judged and each.mode is TableMode.OVERWRITE):
            before = {file.path for file in live_files(table, was)} if was is not None else set()
            now = (keyed.file for own in self.live for keyed in own.of(table.name))
            found.append((table.name, tuple(file for file in now if file.path not in before)))
        return tuple((name, files) for name, files in found if files)

    def sent_rows_on(self, since: CheckpointId, until: CheckpointId) -> bool | None:
        """Return whether the vertex sent rows on between two barriers. None if it worked on no rows between them."""
        epochs = [sent for after, sent in self.worked.items() if since <= after < until]
        return any(epochs) if epochs else None

    def take_snapshot(self, barrier: Barrier) -> tuple[SubtaskSnapshot, ...]:
        """Pass barrier n. Return every subtask's live files, which are on disk already."""
        self.passed, self.clock_ms = barrier.checkpoint, barrier.created_ms
        if self.vertex.expiry is not None:
            self._age(self.vertex.expiry, barrier)
        self.trigger = self.passing = None
        self.unsnapshotted.clear()
        return tuple(own.snapshot() for own in self.live)

    @property
    def expiry_record(self) -> ExpiryRecord | None:
        """How the vertex's state expires, in the form that a cut keeps."""
        expiry = self.vertex.expiry
        if expiry is None:
            return None
        return ExpiryRecord(ttl_ms=expiry.ttl_ms, by_clock=expiry.by_clock, now_ms=self.now_ms)

    def _age(self, expiry: Expiry, barrier: Barrier) -> None:
        self.now_ms = expiry.time_at(barrier, self.now_ms)
        if self.now_ms is not None:
            for own in self.live:
                own.age(expiry, self.now_ms)

    def in_flight_due(self) -> InFlightComplete | None:
        """Return the complete channel state. Before the snapshot there is none (C5)."""
        held = self.in_flight
        if held is None or (self.trigger is not None and self.trigger.barrier.checkpoint == held.checkpoint):
            return None
        self.in_flight = None
        return held


def _by_input(segments: tuple[tuple[ChannelId, Segment], ...]) -> tuple[InputSegments, ...]:
    edges = {channel.edge: None for channel, _ in segments}
    return tuple(
        InputSegments(
            edge.input, edge.upstream, tuple(segment for channel, segment in segments if channel.edge == edge)
        )
        for edge in sorted(edges, key=lambda edge: (edge.input, edge.upstream))
    )


# ------------------------------------------------------------------
# Foresees what a barrier without new rows would change. If it would, time alone is a reason for a checkpoint.


class Foresight:
    """Finds out for all vertices of a job what the next barrier would change without new rows (N4, N8)."""

    def __init__(self, runs: Mapping[VertexId, OperatorRun]) -> None:
        """Look at these vertices. They are in the order in which a barrier passes them."""
        self._runs = runs

    def brings_on(self, splits: Iterable[Split], now_ms: int) -> bool:
        """Return whether a barrier that is sent now would change something."""
        return any(at_ms <= now_ms for at_ms in self.turns_at_ms(now_ms)) or self._comes_due(splits, now_ms)

    def turns_at_ms(self, now_ms: int) -> list[int]:
        """Return the times at which a barrier would change something. Vertices at which it never would are left out."""
        runs = self._runs.values()
        at = [at_ms for run in runs if (at_ms := run.turns_at_ms()) is not None]
        if any(run.time is not None and run.time.awaits_first_barrier for run in runs):
            at += [now_ms for run in runs if run.waits_for_time]
        return at

    def _comes_due(self, splits: Iterable[Split], now_ms: int) -> bool:
        """Return whether a barrier would fire something or complete a partition of a table now.

        Without new rows there are two causes. A stream with `close_after` rests, so that the clock moves its time on.
        Or the last barrier was unaligned: rows that it overtook have run since, and the time of each vertex is still
        that of an older barrier.
        """
        barrier = Barrier(NO_CHECKPOINT, now_ms)
        sent = {split.subtask: of_split(split, barrier) for split in splits}
        for run in self._runs.values():
            if run.time is None:
                continue
            channels = {each: sent[SubtaskId(each.edge.upstream, each.subtask)] for each in run.time.channels}
            passed = run.time.foreseen(barrier, channels)
            if run.fires_at(passed) or run.completes_partition_at(passed):
                return True
            sent |= dict.fromkeys(run.vertex.subtasks(), run.sent_on(passed))
        return False


# ------------------------------------------------------------------
# The asynchronous part of a snapshot: judgements of suites in progress, and the snapshots that wait for them (J3, B2).
#
# Invariant: a judgement is awaited only while its checkpoint is pending. When the checkpoint ends, its judgements are
# cancelled, and a verdict that still comes changes nothing. A pending checkpoint can end by a timeout, a failure, a
# newer checkpoint or the end of the tick.


Snapshots = tuple[SubtaskSnapshot, ...]
Judged = SuitesJudged | JudgementFailed
Files = tuple[tuple[TableName, tuple[FileHandle, ...]], ...]
"""The files of each table to judge."""


def to_judge(
    vertex: VertexId,
    runs: Mapping[VertexId, OperatorRun],
    graph: JobGraph,
    subtasks: Subtasks,
    checkpoint: CheckpointId,
    parent: CheckpointRecord | None,
) -> Files:
    """Return the files that the checkpoint would bring into a vertex's judged tables, or none if it has ended already.

    A table without files is judged too if its suite also judges such an epoch (`judged_empty`), and if rows came and
    none of them went into the table. `parent` is the last completed checkpoint.
    """
    run = runs[vertex]
    files = run.to_judge(subtasks.staged_for(checkpoint, run.vertex), parent)
    since = parent.checkpoint if parent else NO_CHECKPOINT
    run.worked = {after: sent for after, sent in run.worked.items() if after >= since}
    if not subtasks.takes(checkpoint, run.vertex):
        return files
    files = (*files, *run.overwritten_to_judge(parent))
    filled = {table for table, _ in files}
    empty = [table.name for table in run.vertex.tables if table.judged_empty and table.name not in filled]
    if not empty or not _rows_came(vertex, runs, graph, since, checkpoint):
        return files
    return (*files, *((name, ()) for name in empty))


def _rows_came(
    vertex: VertexId,
    runs: Mapping[VertexId, OperatorRun],
    graph: JobGraph,
    since: CheckpointId,
    until: CheckpointId,
) -> bool:
    """Return whether rows came between two barriers, even if vertices upstream dropped all of them.

    Rows that a barrier overtook have not come yet. A vertex that sent rows on has not dropped all of them.
    """
    if runs[vertex].sent_rows_on(since, until) is not None:
        return True
    before = (edge.upstream for edge in graph.upstream(vertex))
    return any(
        not runs[each].sent_rows_on(since, until) and _rows_came(each, runs, graph, since, until)
        for each in before
        if each in runs
    )


class Judgements:
    """Keeps the snapshots of each vertex that waits for a verdict."""

    def __init__(self) -> None:
        """Begin without a judgement."""
        self._waiting: dict[tuple[VertexId, CheckpointId], Snapshots] = {}

    def begin(
        self,
        vertex: VertexId,
        checkpoint: CheckpointId,
        files: Files,
        snapshots: Snapshots,
    ) -> tuple[JudgeSuites, ...]:
        """Return the request to judge, and keep the snapshots until the verdict.

        Without files there is nothing to judge.
        """
        if not files:
            return ()
        self._waiting[vertex, checkpoint] = snapshots
        return (JudgeSuites(vertex, checkpoint, files),)

    def cancel(self, vertex: VertexId, checkpoint: CheckpointId) -> tuple[CancelJudgement, ...]:
        """Return the cancellation of the vertex's judgement, or nothing if none is in progress."""
        known = self._waiting.pop((vertex, checkpoint), None)
        return () if known is None else (CancelJudgement(vertex, checkpoint),)

    def told(self, fact: Judged) -> Snapshots | None:
        """Return the snapshots that waited for this verdict, or None if it comes too late."""
        return self._waiting.pop((fact.vertex, fact.checkpoint), None)


def objection(fact: Judged) -> tuple[CheckpointFailureReason, str] | None:
    """Return the reason and message with which a vertex declines its checkpoint, or None if suites accept the rows.

    Rejected rows would be rejected again at each checkpoint, so the job fails. A judgement that failed can succeed at
    the next checkpoint. Its failure is counted, as Flink counts an asynchronous part of a snapshot that raised.
    """
    match fact:
        case JudgementFailed():
            return CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION, fact.error
        case SuitesJudged(passed=False):
            return CheckpointFailureReason.QUALITY, fact.message or fact.report
        case SuitesJudged():
            return None
        case _:
            assert_never(fact)
