"""One operator vertex at work: its gate, the micro-batch it collects or runs, its live files.

The gate is polled only while the vertex is idle (one mailbox for records and checkpoint actions, B1).
Segments that the gate lets through are collected into one micro-batch; when the gate triggers a
checkpoint, what was collected runs first and the snapshot follows it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.channel_items import Segment
from checkpointing.gate import InputGate
from checkpointing.gate.messages import ClockRead, GateEffect, InFlightComplete, Polled, TriggerCheckpoint
from checkpointing.graph import Vertex
from checkpointing.handles import KeyedFile, KeyedFileKind, StagedFile
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, CheckpointId, Generation
from checkpointing.messages import InputSegments, MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.snapshots import RangeFiles, SubtaskSnapshot


@dataclass(slots=True)
class LiveFiles:
    """The current files of one subtask: operator state, oldest first, and upsert ranges by table."""

    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()

    def take(self, output: SubtaskOutput) -> tuple[KeyedFile, ...]:
        """Take what a micro-batch wrote; return the files that are live no more."""
        before = {keyed.file.path: keyed for keyed in self._files()}
        self.state = _after(self.state, output.state)
        written = {entry.table: entry for entry in output.ranges}
        kept = tuple(entry for entry in self.ranges if entry.table not in written)
        self.ranges = (*kept, *output.ranges)
        now = {keyed.file.path for keyed in self._files()}
        return tuple(keyed for path, keyed in before.items() if path not in now)

    def _files(self) -> Iterator[KeyedFile]:
        yield from self.state
        for entry in self.ranges:
            yield from entry.files


def _after(live: tuple[KeyedFile, ...], new: tuple[KeyedFile, ...]) -> tuple[KeyedFile, ...]:
    """A BASE holds every key of its range: what lies before it no longer counts."""
    bases = [place for place, keyed in enumerate(new) if keyed.kind is KeyedFileKind.BASE]
    return (*live, *new) if not bases else new[bases[-1] :]


@dataclass(slots=True)
class OperatorRun:
    """The run of one operator vertex; the door steps it, it decides nothing about others."""

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
    """The gate has triggered; the snapshot follows the micro-batch that is collected or running."""
    in_flight: InFlightComplete | None = None
    """What the triggered checkpoint holds in flight, complete before its snapshot could follow."""
    unsnapshotted: set[str] = field(default_factory=set)
    """Paths that no snapshot has carried: when they are live no more, nothing refers to them."""

    @property
    def at_work(self) -> bool:
        """Whether the vertex runs, is about to run, or would take something from its gate."""
        return self.busy or bool(self.collected) or self.trigger is not None or self.gate.has_deliverable()

    @property
    def collected_rows(self) -> int:
        """Rows waiting to run."""
        return sum(segment.rows for _, segment in self.collected)

    def poll(self, now_ms: int) -> tuple[GateEffect, ...]:
        """Take one item from the gate, which reads the clock with it; nothing if the gate has none to give."""
        if not self.gate.has_deliverable():
            return ()
        self.gate.step(ClockRead(now_ms))
        return self.gate.step(Polled())

    def collect(self, channel: ChannelId, segment: Segment, now_ms: int) -> None:
        """Add a segment that the gate let through."""
        if not self.collected:
            self.collected_since_ms = now_ms
        self.collected.append((channel, segment))

    def start(self) -> RunMicroBatch:
        """Run what was collected as the next micro-batch."""
        self.micro_batch += 1
        self.running, self.collected = tuple(self.collected), []
        self.busy = True
        return RunMicroBatch(
            vertex=self.vertex.id,
            micro_batch=self.micro_batch,
            generation=self.generation,
            inputs=_by_input(self.running),
            state=tuple(own.state for own in self.live),
            ranges=tuple(own.ranges for own in self.live),
        )

    def finish(self, fact: MicroBatchFinished) -> tuple[str, ...]:
        """Take a finished micro-batch; return the paths that nothing refers to any more."""
        self.busy = False
        self.running = ()
        dead = []
        for own, output in zip(self.live, fact.outputs, strict=True):
            dead += [gone.file.path for gone in own.take(output) if gone.file.path in self.unsnapshotted]
            new = (*output.state, *(keyed for entry in output.ranges for keyed in entry.files))
            self.unsnapshotted.update(keyed.file.path for keyed in new)
        self.unsnapshotted.difference_update(dead)
        return tuple(dead)

    def staged(self, output: SubtaskOutput) -> tuple[StagedFile, ...]:
        """Return the append tables' files of a subtask, tagged with the barrier they were staged after."""
        return tuple(StagedFile(table, file, self.passed) for table, file in output.staged)

    def take_snapshot(self, checkpoint: CheckpointId) -> tuple[SubtaskSnapshot, ...]:
        """Pass barrier n: return every subtask's live files, which are on disk already."""
        self.passed = checkpoint
        self.trigger = None
        self.unsnapshotted.clear()
        return tuple(SubtaskSnapshot(state=own.state, ranges=own.ranges) for own in self.live)

    def snapshot(self) -> tuple[object, ...]:
        """Return the canonical state."""
        live = tuple((own.state, own.ranges) for own in self.live)
        work = (tuple(self.collected), self.running, self.busy, self.trigger, self.in_flight, self.micro_batch)
        return (self.vertex.id, self.gate.snapshot(), live, self.passed, work, frozenset(self.unsnapshotted))


def _by_input(segments: tuple[tuple[ChannelId, Segment], ...]) -> tuple[InputSegments, ...]:
    edges = {channel.edge: None for channel, _ in segments}
    return tuple(
        InputSegments(
            edge.input, edge.upstream, tuple(segment for channel, segment in segments if channel.edge == edge)
        )
        for edge in sorted(edges, key=lambda edge: (edge.input, edge.upstream))
    )
