"""Checks alignment on any run: snapshot n holds exactly the effect of the segments before barrier n (C1 to C6).

It counts who sent which segment and who ran over it, and opens no file. So it checks simulations and traces of real
runs alike. For every edge, two sums must be equal. One is what the edge carried before the barrier, and what the
restored cut held in flight on it. The other is what ran before the snapshot, and what the new cut holds in flight.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.config import CheckpointingMode
from checkpointing.graph import JobGraph, VertexKind
from checkpointing.identifiers import CheckpointId, EdgeId, Generation, VertexId
from checkpointing.job.tick_end import FIRST_MS, LONGEST_MS
from checkpointing.messages import Effect, Fact, NotifyAborted, NotifyComplete, PollSource, SliceOffered
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from spec.history import (
    Begun,
    DoorStarted,
    History,
    OrderBroken,
    RowCommitted,
    SegmentSent,
    SegmentsRun,
    SegmentsTakenBack,
)
from spec.reference.pipeline import CutReached
from spec.rules import rule
from spec.rules.watching import DoorJudge, Watched
from spec.rules.watching import Split as WatchedSplit

Unit = SourceSlice | str
"""What is counted: a slice of a source, or the path of a file."""


@dataclass(slots=True)
class _Counted:
    """What one end of an edge sent or ran, each unit with its micro-batch.

    An entry counts the units up to its own micro-batch.
    """

    upto: int = 0
    counted: list[tuple[int, Unit]] = field(default_factory=list)
    waiting: list[tuple[int, Unit]] = field(default_factory=list)

    def move(self, to: int) -> Iterator[tuple[Unit, int]]:
        """Count the units up to this micro-batch.

        Yield each unit that is newly counted (1), or no longer counted (-1).
        """
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
        """Forget a micro-batch. Yield each of its units that was counted."""
        self.waiting = [each for each in self.waiting if each[0] != number]
        if number <= self.upto:
            yield from ((unit, -1) for ran, unit in self.counted if ran == number)
            self.counted = [each for each in self.counted if each[0] != number]


@dataclass(slots=True)
class _Slices:
    """The slices of one split in the order in which they were sent. An entry includes the slices up to its position."""

    started_at: str | None
    upto: int = 0
    sent: list[SourceSlice] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    """How many slices lie before a position. If two slices end there, the first one decides."""

    def sends(self, slice_: SourceSlice) -> None:
        if self.sent or slice_.start != slice_.end:  # else it only says where a split read at `latest` begins
            self.places.setdefault(slice_.start, len(self.sent))  # a slice without rows may have led there
        self.sent.append(slice_)
        self.places.setdefault(slice_.end, len(self.sent))

    def move(self, reached: str | None) -> Iterator[tuple[Unit, int]]:
        """Count the slices up to this position, or all slices if it is unknown. Yield as `_Counted.move` does."""
        began = reached is None or reached == self.started_at
        to = 0 if began else self.places.get(reached or "", len(self.sent))
        yield from ((unit, 1) for unit in self.sent[self.upto : to])
        yield from ((unit, -1) for unit in self.sent[to : self.upto])
        self.upto = to


@dataclass(slots=True)
class _Edge:
    """One edge: what its two ends sent and ran, and which units the newest entry has on one side only.

    The counts go on from one entry to the next. So the time to judge a run is proportional to its length.
    """

    edge: EdgeId
    from_source: bool
    began: dict[str, str | None]
    """Where the splits of the source stood in the restored entry."""
    splits: dict[str, _Slices] = field(default_factory=dict)
    """Maps each split to what the source sent of it."""
    sent: _Counted = field(default_factory=_Counted)
    """What another vertex sent."""
    ran: _Counted = field(default_factory=_Counted)
    open: Counter[Unit] = field(default_factory=Counter)
    """How often each unit was sent, less how often it ran."""

    def sends(self, event: SegmentSent) -> None:
        """Record a segment that the upstream vertex sent."""
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
        """Count up to an entry. Yield the units that the entry lacks, and the units that it holds in excess."""
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
        """Record a segment that a vertex sent."""
        for edge in self._out_of.get(event.vertex, ()):
            edge.sends(event)

    def runs(self, event: SegmentsRun) -> None:
        """Record the segments of a micro-batch."""
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


@rule("alignment")
def misaligned(history: History) -> Iterator[str]:
    """Yield every edge on which a committed entry holds more or less than what lay before its barrier.

    In at-least-once mode, more is allowed. An entry is skipped if the history does not show the beginning of its
    generation.
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
    """Yield the indivisible parts of a segment: its slice of a source, or the paths of its files."""
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


# ------------------------------------------------------------------
# Checks that a vertex runs over the segments of a channel in the order in which they were sent.
#
# Like `alignment`, it compares who sent a segment and who ran over it, so it also checks traces of real runs. What the
# restored cut held in flight on a channel comes first, in its own order. The rule holds in every mode: an unaligned
# barrier overtakes segments, but does not change their order.


NOWHERE = 0
"""The place of a segment if the history does not show who sent it."""


@dataclass(slots=True)
class _Door:
    """What one generation's door sent: the channel of each unit, and its place there."""

    graph: JobGraph
    places: dict[tuple[EdgeId, Unit], list[tuple[int, int]]] = field(default_factory=dict)
    """(edge, unit) -> (the sender's subtask, its place on that channel).

    A slice has two places if it was sent again after a reset.
    """
    outputs: Counter[tuple[VertexId, int]] = field(default_factory=Counter)
    """(vertex, micro-batch) -> how many of its subtasks have sent what they wrote."""
    sent_so_far: int = 0
    reached: dict[tuple[EdgeId, int], int] = field(default_factory=dict)
    """The place that the reader of a channel has reached."""
    before: dict[VertexId, dict[tuple[EdgeId, int], int]] = field(default_factory=dict)
    """Maps each vertex to the places that it had reached before its last micro-batch."""

    def sends(self, edge: EdgeId, sender: int, segment: Segment) -> None:
        """Record a segment as the newest one of a channel."""
        for unit in units_of(segment):
            self.sent_so_far += 1
            self.places.setdefault((edge, unit), []).append((sender, self.sent_so_far))

    def sent(self, event: SegmentSent) -> None:
        """Record a segment on every edge that leaves the vertex."""
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
        """Process a segment of a micro-batch. Report the segment if the vertex has already run over a later segment."""
        for unit in units_of(segment):
            known = self.places.get((edge, unit), [(0, NOWHERE)])
            ahead = (at for at in known if at[1] >= self.reached.get((edge, at[0]), 0))
            sender, place = next(ahead, known[-1])
            if NOWHERE < place < self.reached.get((edge, sender), 0):
                what = unit if isinstance(unit, str) else f"{unit.split} {unit.start}..{unit.end}"
                yield f"{edge.upstream} -> {edge.downstream}: {what} was run over after what was sent later"
            self.reached[edge, sender] = max(place, self.reached.get((edge, sender), 0))

    def begins(self, vertex: VertexId) -> None:
        """Save the places that a vertex has reached before a micro-batch."""
        self.before[vertex] = {at: place for at, place in self.reached.items() if at[0].downstream == vertex}

    def takes_back(self, vertex: VertexId) -> None:
        """Set a vertex back to the saved places, because its micro-batch could not be written."""
        others = {at: place for at, place in self.reached.items() if at[0].downstream != vertex}
        self.reached = others | self.before[vertex]


@rule("fifo")
def fifo(history: History) -> Iterator[str]:
    """A vertex gets the rows of a channel in the order in which they were sent, also after a restore."""
    doors: dict[int, _Door] = {}
    for event in history.events:
        match event:
            case OrderBroken():
                yield f"{event.vertex}: {event.what}"
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
    """Return a door with what the restored cut holds in flight. A channel may belong to another subtask now."""
    door = _Door(event.graph)
    for vertex in event.restored.vertices if event.restored else ():
        for snapshot in vertex.subtasks:
            for held in snapshot.in_flight:
                senders = event.graph.vertex(held.channel.edge.upstream).parallelism
                for segment in held.segments:
                    door.sends(held.channel.edge, held.channel.subtask % senders, segment)
    return door


# ------------------------------------------------------------------
# Judges a job that reads another job's cuts: at each entry, it must stand at one of these cuts (A10).


Split = tuple[str, str]


@rule("at-one-cut")
def at_one_cut(history: History) -> Iterator[str]:
    """At every entry, all splits that read tables of one upstream job stand at the same cut of that job (A10).

    Only a source understands its positions. So a cut is recognized by the slices that reached it, and the restored
    entry's positions are taken as one cut. Splits that have read no row stand before the first cut.
    """
    reached: dict[tuple[Split, str | None], set[str]] = {}
    groups: dict[Generation, Mapping[VertexId, str]] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, _, restored):
                groups[generation] = event.cut_groups
                for split, position in _positions_of_at_one_cut(restored, event.cut_groups):
                    reached.setdefault((split, position), set()).add(
                        f"restored {restored.checkpoint if restored is not None else 0}"
                    )
            case CutReached():
                split = (str(event.source), str(event.split))
                reached.setdefault((split, event.position), set()).add(event.cut)
            case RowCommitted(record) if record.generation in groups:
                yield from _mixed(record, groups[record.generation], reached)
            case _:
                pass


def _mixed(
    record: CheckpointRecord, groups: Mapping[VertexId, str], reached: Mapping[tuple[Split, str | None], set[str]]
) -> Iterator[str]:
    for name in sorted(set(groups.values())):
        members = {source: group for source, group in groups.items() if group == name}
        places = dict(_positions_of_at_one_cut(record, members))
        if all(position is None for position in places.values()):
            continue
        cuts = [reached.get((split, position), set()) for split, position in places.items()]
        if not set.intersection(*cuts):
            said = ", ".join(f"{split[1]} at {position}" for split, position in sorted(places.items()))
            yield f"entry {record.checkpoint} stands at no one cut of {name}: {said}"


def _positions_of_at_one_cut(
    record: CheckpointRecord | None, groups: Mapping[VertexId, str]
) -> Iterator[tuple[Split, str | None]]:
    for vertex in record.vertices if record is not None else ():
        if vertex.vertex in groups:
            for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False):
                yield (str(vertex.vertex), split), subtask.position


@rule("cut-announced")
class Announced(DoorJudge):
    """Judges sources of cuts: they read on to the cut that a barrier waits for, and ask for a barrier there (A10).

    The judge takes the group's next poll as the sign that a barrier was sent. After a failed checkpoint, the next one
    comes after a pause, or when the interval triggers it.
    """

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._on_the_way: dict[str, set[WatchedSplit]] = {}
        """Maps each group to its splits that have reached the group's next cut.

        A group is listed once one of its splits has rows of that cut.
        """
        self._since: dict[str, CheckpointId] = {}
        """Maps each group to the next checkpoint id at the time when its first split had rows of the cut."""
        self._failures = 0
        """How many checkpoints in a row have failed."""
        self._again_ms = 0
        """When the pause after the failures is over."""

    def told(self, fact: Begun | Fact) -> None:
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice) and fact.slice.cut is not None:
            group = self.door.setup.cut_groups[fact.slice.source]
            arrived = self._on_the_way.setdefault(group, set())
            self._since.setdefault(group, self.door.next_id)
            if fact.slice.at_cut:
                arrived.add((fact.slice.source, fact.slice.split))

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, NotifyComplete):
            self._failures = 0
        if isinstance(effect, NotifyAborted):
            self._again_ms = self.door.now_ms + min(LONGEST_MS, FIRST_MS * 2**self._failures)
            self._failures += 1
        if not isinstance(effect, PollSource) or effect.source not in self.door.setup.cut_groups:
            return
        group = self.door.setup.cut_groups[effect.source]
        if (effect.source, effect.split) in self._on_the_way.get(group, ()):
            if self._on_the_way.pop(group) != self._members(group):
                self.wrong(f"split {effect.split} reads beyond a cut that others of its group have not reached")
            self._since.pop(group)

    def rested(self, given: tuple[CheckpointId, ...]) -> None:  # noqa: ARG002 - the form of a judge
        for group, since in self._since.items():
            behind = self._members(group) - self._on_the_way[group]
            if not behind:
                self._announces(group, since)
            elif self._barrier_waits(since):
                for split in sorted(behind - self.door.polls.keys()):
                    if not self.door.is_idle(split):
                        self.wrong(f"a barrier waits for split {split[1]} of {split[0]}, which is not read")

    def _announces(self, group: str, since: CheckpointId) -> None:
        door = self.door
        asked = door.next_id > since or door.pending or door.requests or door.asked_hooks or door.reserving
        pauses = door.now_ms < self._again_ms or (self._failures and door.setup.config.interval_ms is not None)
        if not asked and not pauses and door.reads:
            self.wrong(f"all tables of {group} are at a cut, and no checkpoint is asked for")

    def _barrier_waits(self, since: CheckpointId) -> bool:
        """Return whether a checkpoint that began after the first rows of a cut has reached the sources."""
        door = self.door
        told = any(checkpoint >= since for checkpoint in door.pending) and not door.asked_hooks
        return told and not (door.is_troubled or door.restoring or door.is_over)

    def _members(self, group: str) -> set[WatchedSplit]:
        setup = self.door.setup
        sources = (source for source in setup.graph.sources() if setup.cut_groups.get(source.id) == group)
        return {(source.id, split) for source in sources for split in source.splits}
