"""Checks alignment on any run: snapshot n holds exactly the effect of the segments before barrier n (C1 to C6).

It counts who sent which segment and who ran over it, and opens no file. So it checks simulations and traces of real
runs alike. For every edge, two sums must be equal. One is what the edge carried before the barrier, and what the
restored cut held in flight on it. The other is what ran before the snapshot, and what the new cut holds in flight.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.config import CheckpointingMode
from checkpointing.graph import JobGraph, VertexKind
from checkpointing.identifiers import EdgeId, Generation, VertexId
from checkpointing.messages import InputSegments
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from spec.history import DoorStarted, History, RowCommitted, SegmentSent, SegmentsRun, SegmentsTakenBack

Unit = SourceSlice | str
"""What is counted: a slice of a source, or the path of a file."""


@dataclass(slots=True)
class _Traffic:
    """What one generation's door sent and ran, in order."""

    graph: JobGraph
    restored: CheckpointRecord | None
    sent: dict[VertexId, list[SegmentSent]] = field(default_factory=dict)
    """By the vertex that sent it."""
    run: dict[EdgeId, list[tuple[int, InputSegments]]] = field(default_factory=dict)
    """By edge: the number of each micro-batch that ran, and its segments."""

    def sends(self, event: SegmentSent) -> None:
        """Note a segment that a vertex sent."""
        self.sent.setdefault(event.vertex, []).append(event)

    def runs(self, event: SegmentsRun) -> None:
        """Note the segments of a micro-batch."""
        for entry in event.inputs:
            edge = EdgeId(entry.upstream, event.vertex, entry.input)
            self.run.setdefault(edge, []).append((event.micro_batch, entry))

    def takes_back(self, event: SegmentsTakenBack) -> None:
        """Forget a micro-batch that could not be written."""
        for edge, ran in self.run.items():
            if edge.downstream == event.vertex:
                ran[:] = [each for each in ran if each[0] != event.micro_batch]

    def before(self, edge: EdgeId, record: CheckpointRecord) -> Iterator[Unit]:
        """Yield what the upstream vertex had sent when it passed the barrier of this entry."""
        if self.graph.vertex(edge.upstream).kind is VertexKind.SOURCE:
            for split, reached in _positions(record, edge.upstream).items():
                yield from self._slices(edge.upstream, split, reached)
            return
        counter = _vertex(record, edge.upstream).micro_batch
        for sent in self.sent.get(edge.upstream, ()):
            if sent.micro_batch <= counter:
                yield from _units(sent.segment)

    def ran(self, edge: EdgeId, record: CheckpointRecord) -> Iterator[Unit]:
        """Yield what the downstream vertex had run over when it took its snapshot."""
        counter = _vertex(record, edge.downstream).micro_batch
        for micro_batch, entry in self.run.get(edge, ()):
            if micro_batch <= counter:
                for segment in entry.segments:
                    yield from _units(segment)

    def _slices(self, source: VertexId, split: str, reached: str | None) -> Iterator[SourceSlice]:
        if reached is None or reached == self._started_at(source, split):
            return
        for sent in self.sent.get(source, ()):
            if isinstance(sent.segment, SourceSlice) and sent.segment.split == split:
                yield sent.segment
                if sent.segment.end == reached:
                    return

    def _started_at(self, source: VertexId, split: str) -> str | None:
        return _positions(self.restored, source).get(split) if self.restored else None


def misaligned(history: History) -> Iterator[str]:
    """Yield every edge of every committed entry that holds more or less than what lay before the barrier.

    At least once, more is allowed. Entries of generations of which nothing else is known are skipped.
    """
    generations: dict[Generation, _Traffic] = {}
    for event in history.events:
        match event:
            case DoorStarted():
                generations[event.generation] = _Traffic(event.graph, event.restored)
            case SegmentSent():
                generations[event.generation].sends(event)
            case SegmentsRun():
                generations[event.generation].runs(event)
            case SegmentsTakenBack():
                generations[event.generation].takes_back(event)
            case RowCommitted(record, _) if record.generation in generations:
                yield from _of_row(record, generations[record.generation], history.mode)
            case _:
                pass


def _of_row(record: CheckpointRecord, traffic: _Traffic, mode: CheckpointingMode) -> Iterator[str]:
    for edge in traffic.graph.edges:
        due = Counter(traffic.before(edge, record)) + Counter(_in_flight(traffic.restored, edge))
        held = Counter(traffic.ran(edge, record)) + Counter(_in_flight(record, edge))
        where = f"checkpoint {record.checkpoint}, {edge.upstream} -> {edge.downstream}"
        if due - held:
            yield f"{where}: lacks {_brief(due - held)}"
        if held - due and mode is CheckpointingMode.EXACTLY_ONCE:
            yield f"{where}: holds {_brief(held - due)}, which came after the barrier"


def _in_flight(record: CheckpointRecord | None, edge: EdgeId) -> Iterator[Unit]:
    """Yield what a cut holds in flight on an edge.

    After a rescale the edge is the same, but its channels may differ.
    """
    for vertex in record.vertices if record else ():
        for snapshot in vertex.subtasks:
            for held in snapshot.in_flight:
                if held.channel.edge == edge:
                    for segment in held.segments:
                        yield from _units(segment)


def _units(segment: Segment) -> Iterator[Unit]:
    if isinstance(segment, SourceSlice):
        yield segment
    else:
        yield from (file.path for file in segment.files)


def _vertex(record: CheckpointRecord, name: VertexId) -> VertexRecord:
    return next(vertex for vertex in record.vertices if vertex.vertex == name)


def _positions(record: CheckpointRecord, source: VertexId) -> dict[str, str | None]:
    was = next((vertex for vertex in record.vertices if vertex.vertex == source), None)
    if was is None:
        return {}
    return {split: snapshot.position for split, snapshot in zip(was.splits, was.subtasks, strict=True)}


def _brief(units: Counter[Unit]) -> str:
    shown = [unit if isinstance(unit, str) else f"{unit.split} {unit.start}..{unit.end}" for unit in units.elements()]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""  # noqa: PLR2004
    return f"{', '.join(sorted(shown)[:3])}{more}"
