"""Counts from outside, by facts and effects, how many bytes lie in each channel of a door: sent and not yet processed.

Segments that the restored cut held in flight count too, in a channel of the same edge whose sender still exists.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from checkpointing.channel_items import Segment, SourceSlice, StagedSegment
from checkpointing.graph import JobGraph
from checkpointing.identifiers import EdgeId, SplitId, VertexId
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, SliceOffered
from checkpointing.metadata.record import CheckpointRecord


@dataclass(slots=True)
class ChannelBytes:
    """The bytes in each channel, which is an edge and the number of the sending subtask."""

    graph: JobGraph
    limit: int
    """A channel is full with this many bytes."""
    lying: Counter[tuple[EdgeId, int]] = field(default_factory=Counter)
    segments: Counter[VertexId] = field(default_factory=Counter)
    """How many segments wait for each vertex."""
    out: dict[VertexId, tuple[EdgeId, ...]] = field(default_factory=dict)
    _senders: dict[tuple[EdgeId, Segment], deque[int]] = field(default_factory=dict)
    _running: dict[VertexId, RunMicroBatch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the edges that leave each vertex."""
        for vertex in self.graph.vertices:
            self.out[vertex.id] = tuple(edge for edge in self.graph.edges if edge.upstream == vertex.id)

    def restored(self, record: CheckpointRecord | None) -> None:
        """Put what a cut holds in flight into the channels."""
        for vertex in record.vertices if record else ():
            for held in (held for snapshot in vertex.subtasks for held in snapshot.in_flight):
                senders = self.graph.vertex(held.channel.edge.upstream).parallelism
                for segment in held.segments:
                    self._put(held.channel.edge, held.channel.subtask % senders, segment)

    def offered(self, offered: SliceOffered) -> None:
        """Put a slice into the channels of its split."""
        segment = offered.slice
        if isinstance(segment, SourceSlice) and segment.rows:
            self._sent(segment.source, self.subtask(segment.source, segment.split), segment)

    def began(self, effect: RunMicroBatch) -> None:
        """Note what a micro-batch runs over."""
        self._running[effect.vertex] = effect
        self.segments[effect.vertex] -= sum(len(entry.segments) for entry in effect.inputs)

    def taken_back(self, vertex: VertexId) -> None:
        """Let the segments of a micro-batch wait again, because it could not be written."""
        ran = self._running.pop(vertex, None)
        self.segments[vertex] += sum(len(entry.segments) for entry in ran.inputs) if ran is not None else 0

    def finished(self, fact: MicroBatchFinished) -> None:
        """Remove what a micro-batch ran over, and add what it emitted."""
        ran = self._running.pop(fact.vertex, None)
        for entry in ran.inputs if ran is not None else ():
            edge = EdgeId(entry.upstream, fact.vertex, entry.input)
            for segment in entry.segments:
                known = self._senders.get((edge, segment))
                if known:
                    self.lying[edge, known.popleft()] -= segment.bytes
        for index, output in enumerate(fact.outputs):
            if output.emitted:
                self._sent(fact.vertex, index, StagedSegment(output.emitted))

    def full(self, vertex: VertexId, subtask: int) -> EdgeId | None:
        """Return an edge on which a subtask has no credit, or None."""
        for edge in self.out[vertex]:
            if self.lying[edge, subtask] >= self.limit:
                return edge
        return None

    def subtask(self, source: VertexId, split: SplitId | str) -> int:
        """Return the subtask that sends a split."""
        return [str(each) for each in self.graph.vertex(source).splits].index(split)

    def _sent(self, vertex: VertexId, subtask: int, segment: Segment) -> None:
        for edge in self.out[vertex]:
            self._put(edge, subtask, segment)

    def _put(self, edge: EdgeId, subtask: int, segment: Segment) -> None:
        self.lying[edge, subtask] += segment.bytes
        self.segments[edge.downstream] += 1
        self._senders.setdefault((edge, segment), deque()).append(subtask)
