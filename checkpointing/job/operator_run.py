"""One operator vertex at work: its gate, the micro-batch that it collects or runs, its live files.

The gate is polled only while the vertex is idle (one mailbox for records and checkpoint actions, B1). The segments that
the gate lets through are collected into one micro-batch. When the gate triggers a checkpoint, the collected segments
run first, and the snapshot follows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate

from checkpointing.channel_items import Segment
from checkpointing.commit.live_files import live_files
from checkpointing.gate import InputGate
from checkpointing.gate.messages import ClockRead, GateEffect, InFlightComplete, Polled, TriggerCheckpoint
from checkpointing.graph import TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, CheckpointId, Generation, SubtaskId, TableName
from checkpointing.job.broadcasting import handed_to_all
from checkpointing.messages import InputSegments, MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.overwriting import newest
from checkpointing.snapshots import RangeFiles, SubtaskSnapshot
from checkpointing.task.messages import InFlightStored


@dataclass(slots=True)
class LiveFiles:
    """The current files of one subtask: its state, oldest first, and those of upsert and overwrite tables."""

    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()
    _snapshot: SubtaskSnapshot | None = None

    def snapshot(self) -> SubtaskSnapshot:
        """Return the files as a snapshot. As long as nothing is written, it is the same object.

        So a commit sees at once which subtasks did not change (ADR 14).
        """
        if self._snapshot is None:
            self._snapshot = SubtaskSnapshot(state=self.state, ranges=self.ranges)
        return self._snapshot

    def take(self, output: SubtaskOutput) -> tuple[tuple[KeyedFile, ...], tuple[KeyedFile, ...]]:
        """Add what a micro-batch wrote. Return the files that are no longer live, and those that were not live before.

        A range that was written keeps the files whose rows did not change, and these were live before. If nothing was
        written, the lists stay the same objects.
        """
        if not output.state and not output.ranges:
            return (), ()
        self._snapshot = None
        before = {keyed.file.path: keyed for keyed in self._files()}
        self.state = _after(self.state, output.state)
        written = {entry.table: entry for entry in output.ranges}
        kept = tuple(entry for entry in self.ranges if entry.table not in written)
        self.ranges = (*kept, *output.ranges)
        now = {keyed.file.path: keyed for keyed in self._files()}
        gone = tuple(keyed for path, keyed in before.items() if path not in now)
        return gone, tuple(keyed for path, keyed in now.items() if path not in before)

    def of(self, table: TableName) -> tuple[KeyedFile, ...]:
        """Return the current files of an upsert or overwrite table."""
        return next((entry.files for entry in self.ranges if entry.table == table), ())

    def overwrite(self, table: TableName, files: Iterable[KeyedFile]) -> tuple[KeyedFile, ...]:
        """Add files of an overwrite table. Return those, of them and of the files before, that it does not show now.

        If it shows none of them, the list stays the same object.
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
    """Return the live files after a write. A BASE holds every key of its range, so older files no longer count."""
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
    """The run of one operator vertex. The door steps it; it decides nothing about other vertices."""

    vertex: Vertex
    gate: InputGate
    generation: Generation
    live: list[LiveFiles]
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
    worked: dict[CheckpointId, set[TableName | None]] = field(default_factory=dict)
    """Where rows went that it worked on, by the barrier before them: into tables, or on to other vertices (None)."""

    @property
    def has_input(self) -> bool:
        """True if rows, the end of the data or an item at the gate wait for the vertex. Otherwise it has no turn."""
        return bool(self.collected) or self.gate.has_deliverable() or self.input_end is InputEnd.REACHED

    @property
    def at_work(self) -> bool:
        """True if the vertex runs, is about to run, or could take something from its gate."""
        return self.busy or self.trigger is not None or self.has_input

    @property
    def snapshot_due(self) -> TriggerCheckpoint | None:
        """The triggered checkpoint, once the micro-batch before its barrier is done; None until then."""
        owes_work = bool(self.collected) or self.input_end is InputEnd.REACHED
        return None if owes_work or self.busy else self.trigger

    @property
    def collected_rows(self) -> int:
        """How many collected rows wait to run."""
        return sum(segment.rows for _, segment in self.collected)

    def poll(self, now_ms: int) -> tuple[GateEffect, ...]:
        """Take one item from the gate and give it the time, or do nothing if the gate has no item."""
        if not self.gate.has_deliverable():
            return ()
        self.gate.step(ClockRead(now_ms))
        return self.gate.step(Polled())

    def collect(self, channel: ChannelId, segment: Segment, now_ms: int) -> None:
        """Add a segment that the gate let through."""
        if not self.collected:
            self.collected_since_ms = now_ms
        self.collected.append((channel, segment))

    def triggered(self, trigger: TriggerCheckpoint) -> None:
        """Note that the gate triggers a checkpoint. A micro-batch that could not be written may be tried again."""
        self.trigger, self.waits_for_barrier = trigger, False

    def data_ended(self, channel: ChannelId) -> None:
        """Note that no more rows come on this channel. Barriers between the ends of two channels change nothing."""
        self.data_ended_on.add(channel)
        if self.data_ended_on == self.gate.open_channels():
            self.input_end = InputEnd.REACHED

    @property
    def ends_without_work(self) -> bool:
        """True if the data has ended and no micro-batch is due. A vertex without state holds no rows back."""
        idle = not self.busy and not self.collected
        return self.input_end is InputEnd.REACHED and idle and self.vertex.kind is not VertexKind.KEYED

    def start(self, rows_max: int) -> RunMicroBatch:
        """Run the collected segments as the next micro-batch. At the end of the data it is the last one.

        It ends with the segment that reaches `rows_max`. More segments may have been collected while the vertex waited
        for a barrier.
        """
        self.micro_batch += 1
        before = accumulate((segment.rows for _, segment in self.collected), initial=0)
        place = sum(rows < rows_max for rows in list(before)[:-1])
        self.running, self.collected = tuple(self.collected[:place]), self.collected[place:]
        self.busy = True
        return RunMicroBatch(
            vertex=self.vertex.id,
            micro_batch=self.micro_batch,
            generation=self.generation,
            inputs=_by_input(self.running),
            state=tuple(own.state for own in self.live),
            ranges=tuple(own.ranges for own in self.live),
            end_of_input=self.input_end is InputEnd.REACHED and not self.collected,
        )

    def not_staged(self) -> CheckpointId | None:
        """Take back the rows of a micro-batch that could not be written. Return the checkpoint that waited for it.

        No snapshot of that checkpoint can follow any more. Each barrier allows one more try. Without that wait, the
        disk would still be full at the next try.
        """
        self.busy = False
        self.collected, self.running = [*self.running, *self.collected], ()
        waiting, self.trigger, self.in_flight = self.trigger, None, None
        self.waits_for_barrier = True
        return None if waiting is None else waiting.barrier.checkpoint

    def finish(self, fact: MicroBatchFinished) -> tuple[str, ...]:
        """Take a finished micro-batch. Return the paths to which nothing refers any more."""
        self.busy = False
        if self.running:
            went = self.worked.setdefault(self.passed, set())
            went.update(table for output in fact.outputs for table, _ in output.staged)
            went.update(None for output in fact.outputs if output.emitted)
        self.running = ()
        dead = []
        for own, output in zip(self.live, handed_to_all(self.vertex.tables, fact.outputs), strict=True):
            gone, new = own.take(output)
            dead += [keyed.file.path for keyed in gone if keyed.file.path in self.unsnapshotted]
            self.unsnapshotted.update(keyed.file.path for keyed in new)
            dead += self._overwrite(own, output)
        self.unsnapshotted.difference_update(dead)
        return tuple(dict.fromkeys(dead))

    def _overwrite(self, own: LiveFiles, output: SubtaskOutput) -> Iterator[str]:
        """Give overwrite tables what was staged for them. Yield the files of no cut that they do not show any more."""
        for table in self._overwritten():
            new = [self._of_no_key(file) for name, file in output.staged if name == table]
            if new:
                self.unsnapshotted.update(keyed.file.path for keyed in new)
                gone = (keyed.file.path for keyed in own.overwrite(table, new))
                yield from (path for path in gone if path in self.unsnapshotted)

    def _overwritten(self) -> list[TableName]:
        return [table.name for table in self.vertex.tables if table.mode is TableMode.OVERWRITE]

    def _of_no_key(self, file: FileHandle) -> KeyedFile:
        """Return a file of an overwrite table. It has no keys, and belongs to the only subtask of its vertex."""
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
        """Return the files that come into judged overwrite tables with the next completed checkpoint (J3)."""
        was = next((each for each in parent.vertices if each.vertex == self.vertex.id), None) if parent else None
        found = []
        for table in (each for each in self.vertex.tables if each.judged and each.mode is TableMode.OVERWRITE):
            before = {file.path for file in live_files(table, was)} if was is not None else set()
            now = (keyed.file for own in self.live for keyed in own.of(table.name))
            found.append((table.name, tuple(file for file in now if file.path not in before)))
        return tuple((name, files) for name, files in found if files)

    def went(self, since: CheckpointId, until: CheckpointId) -> set[TableName | None] | None:
        """Return where the rows between two barriers went. None if it worked on no rows there."""
        epochs = [went for after, went in self.worked.items() if since <= after < until]
        return set[TableName | None]().union(*epochs) if epochs else None

    def take_snapshot(self, checkpoint: CheckpointId) -> tuple[SubtaskSnapshot, ...]:
        """Pass barrier n. Return every subtask's live files, which are on disk already."""
        self.passed = checkpoint
        self.trigger = None
        self.unsnapshotted.clear()
        return tuple(own.snapshot() for own in self.live)

    def in_flight_due(self) -> tuple[InFlightComplete | None, tuple[tuple[SubtaskId, InFlightStored], ...]]:
        """Return the complete channel state, and the fact for each subtask. Before the snapshot there is none.

        The first subtask stores the segments for all subtasks (C5).
        """
        held = self.in_flight
        if held is None or (self.trigger is not None and self.trigger.barrier.checkpoint == held.checkpoint):
            return None, ()
        self.in_flight = None
        subtasks = self.vertex.subtasks()
        return held, tuple(
            (subtask, InFlightStored(held.checkpoint, () if subtask.index else held.channels)) for subtask in subtasks
        )


def _by_input(segments: tuple[tuple[ChannelId, Segment], ...]) -> tuple[InputSegments, ...]:
    edges = {channel.edge: None for channel, _ in segments}
    return tuple(
        InputSegments(
            edge.input, edge.upstream, tuple(segment for channel, segment in segments if channel.edge == edge)
        )
        for edge in sorted(edges, key=lambda edge: (edge.input, edge.upstream))
    )
