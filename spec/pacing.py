"""Checks pacing on any run: how many rows a door asks for in each poll, and between two barriers (A11).

The rows between the barriers of two entries are counted from the positions in them. A failed checkpoint may have had a
barrier too. So there are as many epochs between two entries as ids were used.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import Effect, Fact, NotifyAborted, PollSource, RunMicroBatch, SliceOffered
from checkpointing.metadata.record import CheckpointRecord
from spec.steps import Begun
from spec.watching import DoorJudge, Split, Watched, drafted

ALL = VertexId("the counted sources")
"""Stands for all sources that `every_rows` counts."""


class Pacing(DoorJudge):
    """Judges the rows of polls, micro-batches and epochs. At a barrier, polls in progress count too (A11)."""

    def __init__(self, door: Watched) -> None:
        """Begin at the restored positions."""
        super().__init__(door)
        self._at = positions_of(door.setup.restored)
        self._read: Counter[Split] = Counter()
        self._granted: Counter[Split] = Counter()
        """The same without the rows that a slice had more than was asked for, since it could not be cut."""
        self._reached: dict[tuple[Split, str | None], int] = dict.fromkeys(self._at.items(), 0)
        """How many granted rows a split had sent when it was at this position."""
        self._asked: dict[Split, int] = {}
        """How many rows the newest poll of a split asked for."""
        self._newest = CheckpointId(door.next_id - 1)
        self._before: Counter[VertexId] = Counter()
        """How many rows each source had sent before the barrier of the newest entry."""
        self._limits = _limits(door)
        self._polled_more = False
        """The step that is judged polls a split."""
        self._by_slice = False
        """The step that is judged began with a slice of rows."""
        self._counted_at: dict[CheckpointId, int] = {CheckpointId(0): 0}
        """How many rows the counted sources had sent at each trigger; one that was aborted may have had no barrier."""

    def told(self, fact: Begun | Fact) -> None:
        """Count the rows of a slice."""
        if isinstance(fact, Begun):
            self._reached |= {(split, None): 0 for split in _splits(self.door) if split not in self._at}
        self._by_slice = isinstance(fact, SliceOffered)
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice):
            split = (fact.slice.source, fact.slice.split)
            self._at[split] = fact.slice.end
            self._read[split] += fact.slice.rows
            self._granted[split] += min(fact.slice.rows, self._asked[split])
            self._reached[split, fact.slice.end] = self._granted[split]

    def asked(self, effect: Effect) -> None:
        """Judge the position and size of a poll, and the rows between two entries."""
        if isinstance(effect, PollSource):
            self._polled_more = True
            self._polled(effect)
        elif isinstance(effect, RunMicroBatch):
            self._ran(effect)
        elif isinstance(effect, NotifyAborted):
            self._counted_at.pop(effect.checkpoint, None)
        else:
            record = drafted(effect)
            if record is not None and self._limits:
                self._polled_more = True
                self._between(record)

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge how many rows were read, or are being read, since the newest entry. Only polls make them more."""
        if given:
            self._triggered(given[-1])
        polled, self._polled_more = self._polled_more, False
        if not self._limits or not polled:
            return
        granted: Counter[VertexId] = Counter()
        for (source, _), rows in self.door.polls.items():
            granted[source] += rows
        epochs = self.door.next_id - self._newest
        for (name, limit), now in zip(self._limits.items(), self._sums(granted), strict=True):
            if now - self._before[name] > limit * epochs:
                self.wrong(f"{name}: {now - self._before[name]} rows since {self._newest}, {limit} are its epoch's")

    def _triggered(self, checkpoint: CheckpointId) -> None:
        """A slice triggers a checkpoint only if the counted sources have sent enough rows since the last barrier.

        A source of another job's cuts asks for checkpoints itself (A10).
        """
        every = self.door.setup.config.every_rows
        read: Counter[VertexId] = Counter()
        for (source, _), rows in self._read.items():
            read[source] += rows
        counted = self._of(ALL, read)
        since = counted - max(self._counted_at.values())
        announced = bool(self.door.setup.cut_groups)
        if self._by_slice and not announced and (every is None or since < every):
            self.wrong(f"checkpoint {checkpoint} is triggered after {since} rows, it is due after {every}")
        self._counted_at[checkpoint] = counted

    # -------------------------------------------------------------- polls

    def _polled(self, poll: PollSource) -> None:
        split, most = (poll.source, poll.split), self.door.setup.config.slice_rows_max
        if not 0 < poll.max_rows <= most:
            self.wrong(f"split {poll.split} is to bring {poll.max_rows} rows, a slice may have {most}")
        self._asked[split] = poll.max_rows
        if split in self.door.polls:
            self.wrong(f"split {poll.split} is read twice at a time")
        if poll.position != self._at.get(split):
            self.wrong(f"split {poll.split} is read on from {poll.position}, it stands at {self._at.get(split)}")

    def _ran(self, effect: RunMicroBatch) -> None:
        """Note a micro-batch.

        A vertex stops collecting once it has enough, but the first one also takes what was in flight.
        """
        most = self.door.setup.config.micro_batch_rows_max
        rows = [segment.rows for entry in effect.inputs for segment in entry.segments]
        if effect.micro_batch > 1 and rows and sum(rows) - max(rows) >= most:
            self.wrong(f"micro-batch {effect.micro_batch} of {effect.vertex} has {sum(rows)} rows, {most} are enough")

    # -------------------------------------------------------------- epochs

    def _between(self, record: CheckpointRecord) -> None:
        at = {split: self._reached.get((split, at)) for split, at in positions_of(record).items()}
        if record.checkpoint < self._newest or None in at.values():
            return
        sent: Counter[VertexId] = Counter()
        for (source, _), rows in at.items():
            sent[source] += rows or 0
        sums = Counter({name: self._of(name, sent) for name in self._limits})
        for name, limit in self._limits.items():
            rows = sums[name] - self._before[name]
            if rows > limit * (record.checkpoint - self._newest):
                self.wrong(
                    f"{name}: {rows} rows between {self._newest} and {record.checkpoint}, {limit} are its epoch's"
                )
        self._newest, self._before = record.checkpoint, sums

    def _sums(self, granted: Counter[VertexId]) -> Iterator[int]:
        sent = granted.copy()
        for (source, _), rows in self._granted.items():
            sent[source] += rows
        return (self._of(name, sent) for name in self._limits)

    def _of(self, name: VertexId, sent: Mapping[VertexId, int]) -> int:
        return sum(sent.get(source, 0) for source in _counted(self.door)) if name is ALL else sent.get(name, 0)


def _counted(door: Watched) -> list[VertexId]:
    names = door.setup.config.rows_of
    return [source.id for source in door.setup.graph.sources() if not names or source.id in names]


def _limits(door: Watched) -> dict[VertexId, int]:
    """Return the limits that bind: a source of another job's cuts reads on to its cut whatever they say (A10)."""
    of_cuts = set(door.setup.cut_groups)
    every, known = door.setup.config.every_rows, {source.id for source in door.setup.graph.sources()} - of_cuts
    limits = {source: rows for source, rows in door.setup.rows_per_epoch.items() if source in known}
    return limits if every is None or not of_cuts.isdisjoint(_counted(door)) else {**limits, ALL: every}


def _splits(door: Watched) -> Iterator[Split]:
    return ((source.id, split) for source in door.setup.graph.sources() for split in source.splits)


def positions_of(record: CheckpointRecord | None) -> dict[Split, str | None]:
    """Return the position of each split of an entry."""
    vertices = record.vertices if record else ()
    return {
        (vertex.vertex, SplitId(split)): snapshot.position
        for vertex in vertices
        for split, snapshot in zip(vertex.splits, vertex.subtasks, strict=False)
    }
