"""Checks alignment on any run: snapshot n holds exactly the effect of the segments before barrier n (C1 to C6).

It counts who sent which segment and who ran over it, and opens no file. So it checks simulations and traces of real
runs alike. For every edge, two sums must be equal. One is what the edge carried before the barrier, and what the
restored cut held in flight on it. The other is what ran before the snapshot, and what the new cut holds in flight.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.config import CheckpointingMode
from checkpointing.graph import JobGraph, VertexKind
from checkpointing.identifiers import EdgeId, Generation, VertexId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from spec.history import DoorStarted, History, RowCommitted, SegmentSent, SegmentsRun, SegmentsTakenBack

Unit = SourceSlice | str
"""What is counted: a slice of a source, or the path of a file."""


@dataclass(slots=True)
class _Counted:
    """What one end of an edge sent or ran, each unit with its micro-batch; an entry counts those up to its own."""

    upto: int = 0
    counted: list[tuple[int, Unit]] = field(default_factory=list)
    waiting: list[tuple[int, Unit]] = field(default_factory=list)

    def move(self, to: int) -> Iterator[tuple[Unit, int]]:
        """Count up to this micro-batch. Yield each unit that counts now (1), or no longer (-1)."""
        if to < self.upto:
            yield from ((unit, -1) for number, unit in self.counted if number > to)
            self.waiting += [each for each in self.counted if each[0] > to]
            self.counted = [each for each in self.counted if each[0] <= to]
        self.upto = to
        now = [each for each in self.waiting if each[0] <= to]
        if now:
            self.waiting = [each for each in self.waiting if each[0] > to]
            self.counted += now
            yield from ((unit, 1) for _, unit in now)

    def drop(self, number: int) -> Iterator[tuple[Unit, int]]:
        """Forget a micro-batch. Yield each of its units that counted."""
        self.waiting = [each for each in self.waiting if each[0] != number]
        if number <= self.upto:
            yield from ((unit, -1) for ran, unit in self.counted if ran == number)
            self.counted = [each for each in self.counted if each[0] != number]


@dataclass(slots=True)
class _Slices:
    """The slices of one split in the order in which they were sent. An entry counts those up to its position."""

    started_at: str | None
    upto: int = 0
    sent: list[SourceSlice] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    """How many slices lie before a position. If two slices end there, the first one tells."""

    def sends(self, slice_: SourceSlice) -> None:
        """Note a slice."""
        self.sent.append(slice_)
        self.places.setdefault(slice_.end, len(self.sent))

    def move(self, reached: str | None) -> Iterator[tuple[Unit, int]]:
        """Count up to this position; up to an unknown one, all that was sent. Yield as `_Counted.move` does."""
        began = reached is None or reached == self.started_at
        to = 0 if began else self.places.get(reached or "", len(self.sent))
        yield from ((unit, 1) for unit in self.sent[self.upto : to])
        yield from ((unit, -1) for unit in self.sent[to : self.upto])
        self.upto = to


@dataclass(slots=True)
class _Edge:
    """One edge: what its two ends sent and ran, and which units the newest entry has on one side only.

    Each entry goes on from the one before it. So a long run is judged in a time that grows with its length.
    """

    edge: EdgeId
    from_source: bool
    began: dict[str, str | None]
    """Where the splits of the source stood in the restored entry."""
    splits: dict[str, _Slices] = field(default_factory=dict)
    """What a source sent, by split."""
    sent: _Counted = field(default_factory=_Counted)
    """What another vertex sent."""
    ran: _Counted = field(default_factory=_Counted)
    open: Counter[Unit] = field(default_factory=Counter)
    """How often each unit was sent, less how often it ran."""

    def sends(self, event: SegmentSent) -> None:
        """Note a segment that the upstream vertex sent."""
        if not self.from_source:
            self.sent.waiting += [(event.micro_batch, unit) for unit in units_of(event.segment)]
        elif isinstance(event.segment, SourceSlice):
            split = event.segment.split
            self.splits.setdefault(split, _Slices(self.began.get(split))).sends(event.segment)

    def add(self, units: Iterable[tuple[Unit, int]]) -> None:
        """Add to the balance."""
        for unit, times in units:
            self.open[unit] += times
            if not self.open[unit]:
                del self.open[unit]

    def judge(self, record: CheckpointRecord, mode: CheckpointingMode) -> Iterator[str]:
        """Count up to an entry. Yield what it lacks, and what it holds too much."""
        if self.from_source:
            reached = _positions(record, self.edge.upstream)
            self.add(each for name, known in self.splits.items() for each in known.move(reached.get(name)))
        else:
            self.add(self.sent.move(_vertex(record, self.edge.upstream).micro_batch))
        self.add((unit, -times) for unit, times in self.ran.move(_vertex(record, self.edge.downstream).micro_batch))
        left = self.open.copy()
        left.subtract(_in_flight(record, self.edge))
        where = f"checkpoint {record.checkpoint}, {self.edge.upstream} -> {self.edge.downstream}"
        if +left:
            yield f"{where}: lacks {_brief(+left)}"
        if -left and mode is CheckpointingMode.EXACTLY_ONCE:
            yield f"{where}: holds {_brief(-left)}, which came after the barrier"


class _Traffic:
    """What one generation's door sent and ran, edge by edge."""

    def __init__(self, graph: JobGraph, restored: CheckpointRecord | None) -> None:
        self._into: dict[VertexId, list[_Edge]] = {}
        self._out_of: dict[VertexId, list[_Edge]] = {}
        self._edges: list[_Edge] = []
        for name in graph.edges:
            from_source = graph.vertex(name.upstream).kind is VertexKind.SOURCE
            began = _positions(restored, name.upstream) if restored and from_source else {}
            edge = _Edge(name, from_source, began)
            edge.add((unit, 1) for unit in _in_flight(restored, name))
            self._edges.append(edge)
            self._into.setdefault(name.downstream, []).append(edge)
            self._out_of.setdefault(name.upstream, []).append(edge)

    def sends(self, event: SegmentSent) -> None:
        """Note a segment that a vertex sent."""
        for edge in self._out_of.get(event.vertex, ()):
            edge.sends(event)

    def runs(self, event: SegmentsRun) -> None:
        """Note the segments of a micro-batch."""
        for edge in self._into.get(event.vertex, ()):
            for entry in event.inputs:
                if (entry.upstream, entry.input) == (edge.edge.upstream, edge.edge.input):
                    units = (unit for segment in entry.segments for unit in units_of(segment))
                    edge.ran.waiting += [(event.micro_batch, unit) for unit in units]

    def takes_back(self, event: SegmentsTakenBack) -> None:
        """Forget a micro-batch that could not be written."""
        for edge in self._into.get(event.vertex, ()):
            edge.add((unit, -times) for unit, times in edge.ran.drop(event.micro_batch))

    def judge(self, record: CheckpointRecord, mode: CheckpointingMode) -> Iterator[str]:
        """Judge an entry on every edge."""
        for edge in self._edges:
            yield from edge.judge(record, mode)


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
                yield from generations[record.generation].judge(record, history.mode)
            case _:
                pass


def _in_flight(record: CheckpointRecord | None, edge: EdgeId) -> Iterator[Unit]:
    """Yield what a cut holds in flight on an edge.

    After a rescale the edge is the same, but its channels may differ.
    """
    for vertex in record.vertices if record else ():
        for snapshot in vertex.subtasks:
            for held in snapshot.in_flight:
                if held.channel.edge == edge:
                    for segment in held.segments:
                        yield from units_of(segment)


def units_of(segment: Segment) -> Iterator[Unit]:
    """Yield the parts of a segment that stay whole: its slice of a source, or the paths of its files."""
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
