"""Checks that a vertex runs over the segments of a channel in the order in which they were sent.

Like `alignment`, it compares who sent a segment and who ran over it, so it also checks traces of real runs. What the
restored cut held in flight on a channel comes first, in its own order. The rule holds in every mode: an unaligned
barrier overtakes segments, but does not change their order.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.graph import JobGraph
from checkpointing.identifiers import EdgeId, VertexId
from spec.alignment import Unit, units_of
from spec.history import DoorStarted, History, SegmentSent, SegmentsRun, SegmentsTakenBack

NOWHERE = 0
"""The place of a segment that nobody was seen to send."""


@dataclass(slots=True)
class _Door:
    """What one generation's door sent: the channel of each unit, and its place there."""

    graph: JobGraph
    places: dict[tuple[EdgeId, Unit], list[tuple[int, int]]] = field(default_factory=dict)
    """(edge, unit) -> (the sender's subtask, its place on that channel). A slice has two if a reset sent it again."""
    outputs: Counter[tuple[VertexId, int]] = field(default_factory=Counter)
    """(vertex, micro-batch) -> how many of its subtasks have sent what they wrote."""
    sent_so_far: int = 0
    reached: dict[tuple[EdgeId, int], int] = field(default_factory=dict)
    """The place that the reader of a channel has reached."""
    before: dict[VertexId, dict[tuple[EdgeId, int], int]] = field(default_factory=dict)
    """The same before the last micro-batch of each vertex."""

    def sends(self, edge: EdgeId, sender: int, segment: Segment) -> None:
        """Note a segment at the end of a channel."""
        for unit in units_of(segment):
            self.sent_so_far += 1
            self.places.setdefault((edge, unit), []).append((sender, self.sent_so_far))

    def sent(self, event: SegmentSent) -> None:
        """Note a segment on every edge that leaves the vertex."""
        segment = event.segment
        if isinstance(segment, SourceSlice):
            sender = self.graph.vertex(event.vertex).splits.index(segment.split)
        else:
            sender = self.outputs[event.vertex, event.micro_batch]
            self.outputs[event.vertex, event.micro_batch] += 1
        for edge in self.graph.edges:
            if edge.upstream == event.vertex:
                self.sends(edge, sender, segment)

    def runs(self, edge: EdgeId, segment: Segment) -> Iterator[str]:
        """Take a segment of a micro-batch. Yield it if the vertex has run over a later one already."""
        for unit in units_of(segment):
            known = self.places.get((edge, unit), [(0, NOWHERE)])
            ahead = (at for at in known if at[1] >= self.reached.get((edge, at[0]), 0))
            sender, place = next(ahead, known[-1])
            if NOWHERE < place < self.reached.get((edge, sender), 0):
                what = unit if isinstance(unit, str) else f"{unit.split} {unit.start}..{unit.end}"
                yield f"{edge.upstream} -> {edge.downstream}: {what} was run over after what was sent later"
            self.reached[edge, sender] = max(place, self.reached.get((edge, sender), 0))

    def begins(self, vertex: VertexId) -> None:
        """Note the places of a vertex before a micro-batch."""
        self.before[vertex] = {at: place for at, place in self.reached.items() if at[0].downstream == vertex}

    def takes_back(self, vertex: VertexId) -> None:
        """Set a vertex back to its last places, because its micro-batch could not be written."""
        others = {at: place for at, place in self.reached.items() if at[0].downstream != vertex}
        self.reached = others | self.before[vertex]


def disordered(history: History) -> Iterator[str]:
    """Yield every segment over which a vertex ran after one that was sent later."""
    doors: dict[int, _Door] = {}
    for event in history.events:
        match event:
            case DoorStarted():
                doors[event.generation] = _opened(event)
            case SegmentSent():
                doors[event.generation].sent(event)
            case SegmentsTakenBack():
                doors[event.generation].takes_back(event.vertex)
            case SegmentsRun():
                doors[event.generation].begins(event.vertex)
                for entry in event.inputs:
                    edge = EdgeId(entry.upstream, event.vertex, entry.input)
                    for segment in entry.segments:
                        yield from doors[event.generation].runs(edge, segment)
            case _:
                pass


def _opened(event: DoorStarted) -> _Door:
    """Begin with what the restored cut holds in flight. Its channel may belong to another subtask now."""
    door = _Door(event.graph)
    for vertex in event.restored.vertices if event.restored else ():
        for snapshot in vertex.subtasks:
            for held in snapshot.in_flight:
                senders = event.graph.vertex(held.channel.edge.upstream).parallelism
                for segment in held.segments:
                    door.sends(held.channel.edge, held.channel.subtask % senders, segment)
    return door
