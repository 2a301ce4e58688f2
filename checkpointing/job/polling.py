"""Decides which cut of an upstream job a group of splits reads next, and whether a barrier may be sent (A10).

Splits that read tables of one upstream job form a group. The invariant: at every barrier, all splits of a group stand
at one cut of that job. So the group reads up to one cut, stops, and asks for a barrier itself. If anybody else asks for
a barrier in the meantime, that barrier waits until the group has reached its cut.

| state of the group                               | polls                               | a barrier     |
|--------------------------------------------------|-------------------------------------|---------------|
| stands at a cut, and knows no newer one          | one split at a time, for any cut    | may be sent   |
| reads up to a cut that one of its splits found   | all splits behind, up to that cut   | waits         |
| all its splits have reached that cut             | none                                | is requested  |
| has a split at a cut, and a new split at no cut | one split at a time, for any cut | waits |
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from checkpointing.channel_items import Segment, SourceSlice, SubtaskSnapshot
from checkpointing.graph import JobGraph, Vertex
from checkpointing.identifiers import ChannelId, SplitId, SubtaskId, VertexId, split_id
from checkpointing.job.setup import JobSetup
from checkpointing.messages import PollSource
from checkpointing.metadata.record import CheckpointRecord, SplitPosition, VertexRecord, VertexTimeRecord

SplitKey = tuple[VertexId, SplitId]


class MixedCutsError(ValueError):
    """A source of cuts answered a poll with rows of another cut than the requested one. The group is unchanged."""


@dataclass(slots=True)
class CutGroup:
    """The splits of one group, and the cut up to which these splits read."""

    splits: frozenset[SplitKey]
    uneven: bool
    """True if some splits stand at a cut and others have no position yet."""
    target: str | None = None
    arrived: set[SplitKey] = field(default_factory=set)

    @property
    def is_at_cut(self) -> bool:
        """Return True if every split has reached the group's cut, and no barrier has followed yet."""
        return self.target is not None and self.arrived == self.splits

    @property
    def holds_barrier(self) -> bool:
        """Return True if a barrier would find splits at different cuts."""
        return self.uneven if self.target is None else not self.is_at_cut

    def offered(self, split: SplitKey, slice_: SourceSlice) -> None:
        """Record a slice. After a barrier, the first slice decides which cut the group reads. Raises MixedCutsError."""
        if slice_.cut is None or self.target not in (None, slice_.cut) or split in self.arrived:
            raise MixedCutsError(f"split {split[1]} of {split[0]} offered rows of cut {slice_.cut}, not {self.target}")
        self.target = slice_.cut
        if slice_.at_cut:
            self.arrived.add(split)
        self.uneven = self.uneven and not self.is_at_cut

    def barrier_sent(self) -> None:
        """Record that a barrier was sent at the cut. The group may now read up to another cut."""
        self.target = None
        self.arrived.clear()


class CutGroups:
    """All groups of a job. Splits of other kinds of sources belong to no group."""

    def __init__(self, groups: Mapping[VertexId, str], positions: Mapping[SplitKey, str | None]) -> None:
        """Begin at these positions. A split without a position has not been read yet."""
        by_name: dict[str, set[SplitKey]] = {}
        for split in positions:
            if split[0] in groups:
                by_name.setdefault(groups[split[0]], set()).add(split)
        self._groups = tuple(CutGroup(frozenset(splits), _are_uneven(splits, positions)) for splits in by_name.values())
        self._of = {split: group for group in self._groups for split in group.splits}

    @property
    def hold_barrier(self) -> bool:
        """Return True if a barrier must wait until a group has reached its cut."""
        return any(group.holds_barrier for group in self._groups)

    @property
    def barrier_due(self) -> bool:
        """Return True if a group has reached a cut, so that a barrier must be requested for it."""
        return any(group.is_at_cut for group in self._groups)

    def offered(self, split: SplitKey, slice_: SourceSlice) -> frozenset[SplitKey]:
        """Record a slice. Return the splits that must read on to the same cut. Raises MixedCutsError."""
        group = self._of.get(split)
        if group is None:
            return frozenset()
        begins = group.target is None
        group.offered(split, slice_)
        return group.splits - {split} if begins else frozenset()

    def barrier_sent(self) -> None:
        """Record that a barrier was sent behind all rows that the splits have read."""
        for group in self._groups:
            group.barrier_sent()

    def is_behind(self, split: SplitKey) -> bool:
        """Return True if a barrier waits, or would wait, for rows of this split."""
        group = self._of.get(split)
        return group is not None and group.holds_barrier and split not in group.arrived

    def waits_at_cut(self, split: SplitKey) -> bool:
        """Return True if the split has reached its group's cut, and reads on only after the next barrier."""
        group = self._of.get(split)
        return group is not None and split in group.arrived

    def cut_for(self, split: SplitKey) -> str | None:
        """Return the cut up to which a poll of this split may read, or None for any cut."""
        group = self._of.get(split)
        return None if group is None else group.target

    def seeks(self, split: SplitKey, polled: Iterable[SplitKey]) -> bool:
        """Return True if the group has no cut yet, and one of its splits is being polled for one.

        Two splits that are polled at the same time might find different cuts.
        """
        group = self._of.get(split)
        return group is not None and group.target is None and not group.splits.isdisjoint(polled)


def _are_uneven(splits: Iterable[SplitKey], positions: Mapping[SplitKey, str | None]) -> bool:
    return len({positions[split] is None for split in splits}) > 1


# ------------------------------------------------------------------
# Decides which source splits read now, and how many rows. It keeps their positions.
#
# Back-pressure acts on the sources here: a split without credit is not polled. Pacing (A11) is done here too. With
# `every_rows` the counted sources share exactly that many rows in an epoch. A source may also have a cap of its own, so
# that two sources of unequal size advance together. A split on its way to a cut of another job has no such limits,
# since no barrier can be sent before it arrives (A10).
#
# Splits may run ahead of others in event time, so that windows and joins hold much state. With `hold_back`, a split
# that is too far ahead is not polled until the others have caught up (N1; Flink: watermark alignment). Only splits that
# can catch up are compared. A split that has nothing to read, has ended, cannot be read, or waits for an earlier part
# cannot catch up. The split with the least time is never held, so some split can always be read. A split on its way to
# a cut is never held either. How far a slice goes in time is known only after it has run, and a poll can bring a whole
# backlog. So a split with `hold_back` is polled again only after its newest slice has run.
#
# Some sources consist of parts, which are other sources that are read one after the other (B4). A split of a later part
# waits until all splits of the earlier parts have ended. Meanwhile it counts neither as idle nor as having rows.


@dataclass(slots=True)
class Split:
    """One split and its position. `granted` rows are being read.

    A split that was idle, or whose last `failures` polls have failed, is not polled before `idle_until_ms`. A split
    that has `ended` is idle for ever. A split of a later part `waits` until the earlier parts have ended. A split that
    is too far ahead in event time is `held`. So is a split whose newest slice, which ends at `unread`, has not run yet.
    """

    subtask: SubtaskId
    name: SplitId
    position: str | None = None
    granted: int = 0
    idle: bool = False
    ended: bool = False
    waits: bool = False
    held: bool = False
    unread: str | None = None
    part: int = 0
    failures: int = 0
    idle_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Pacing:
    """How many rows sources may read in an epoch: `counted` sources together (`every_rows`), each alone (`caps`).

    `failures_max` polls of a split may fail in a row.
    """

    slice_rows_max: int
    every_rows: int | None
    counted: frozenset[VertexId]
    caps: Mapping[VertexId, int]
    idle_poll_ms: int
    failures_max: int
    cut_groups: Mapping[VertexId, str] = field(default_factory=dict)


class UnknownSplitError(ValueError):
    """An answer from a split that was not polled. Nothing was changed."""


class SourceReaders:
    """Decides what to poll, for the splits of all sources."""

    def __init__(
        self,
        sources: tuple[Vertex, ...],
        positions: Mapping[SubtaskId, str | None],
        pacing: Pacing,
        ended: Collection[SubtaskId] = (),
    ) -> None:
        """Begin at these positions. None is the start of a split. The splits in `ended` have ended already."""
        self._pacing = pacing
        splits = (
            Split(
                subtask,
                name,
                positions.get(subtask),
                idle=subtask in ended,
                ended=subtask in ended,
                part=source.part(name),
            )
            for source in sources
            for subtask, name in zip(source.subtasks(), source.splits, strict=True)
        )
        self._splits = OrderedDict((_key(split), split) for split in splits)
        """The splits in the order in which they are polled. A split that is allowed to read moves to the end.

        So no split waits while another one is polled twice.
        """
        self.cuts = CutGroups(pacing.cut_groups, {key: split.position for key, split in self._splits.items()})
        self._bounded = all(source.bounded for source in sources)
        for source in sources:
            self._let_parts_wait(source.id)
        self._rows = dict.fromkeys((source.id for source in sources), 0)
        self._granted = dict.fromkeys(self._rows, 0)
        """For each source, how many rows are being read."""
        self._counted = tuple(source.id for source in sources if self._is_counted(source.id))
        self._before_barrier = 0
        self._reached: dict[ChannelId, tuple[int, int]] = {}
        """For each split with `hold_back`: how far a vertex has read it in event time, and how far it may be ahead."""
        self._asked = False
        self.stopped = False
        """True when the tick is about to end. No more rows are read."""
        self.ended = False
        """True once the barrier of a stop is sent. Slices that are being read then are not sent any more."""

    # -------------------------------------------------------------- questions

    def position(self, subtask: SubtaskId) -> str | None:
        """Return the position after all rows that the split has sent."""
        return self.split(subtask).position

    def positions(self) -> Iterator[SplitPosition]:
        """Yield the position of every split."""
        for split in self._splits.values():
            yield SplitPosition(source=split.subtask.vertex, split=split.name, position=split.position)

    def splits(self) -> Iterable[Split]:
        """Return all splits as they are now."""
        return self._splits.values()

    def split(self, subtask: SubtaskId) -> Split:
        """Return the split of a subtask as it is now."""
        return next(split for split in self._splits.values() if split.subtask == subtask)

    @property
    def rows(self) -> int:
        """How many rows the sources have sent since the last barrier."""
        return sum(self._rows.values())

    @property
    def rows_sent(self) -> int:
        """How many rows the sources have sent in this tick."""
        return self._before_barrier + self.rows

    def is_polling(self, source: VertexId) -> bool:
        """Return whether a poll of this source is not answered yet."""
        return any(split.granted for split in self._of(source))

    @property
    def polling(self) -> bool:
        """True if a poll is not answered yet, and its split was not known to be idle."""
        return any(split.granted and not split.idle for split in self._splits.values())

    @property
    def all_idle(self) -> bool:
        """True if no split had anything to read when it was last polled."""
        return all(_rests(split) for split in self._splits.values())

    @property
    def all_ended(self) -> bool:
        """True if every source is bounded, and all its splits have ended (B4)."""
        return self._bounded and all(split.ended for split in self._splits.values())

    @property
    def failing(self) -> bool:
        """True if the last poll of some split has failed, so that nobody knows whether it has rows."""
        return any(split.failures for split in self._splits.values())

    @property
    def quota_spent(self) -> bool:
        """True if some split may read on only in the next epoch."""
        waiting = (split for split in self._splits.values() if not (split.idle or split.waits))
        return any(self._room(split) <= 0 for split in waiting)

    @property
    def barrier_due(self) -> bool:
        """True if a checkpoint is due that was not requested yet.

        A checkpoint is due after `every_rows` rows (A11), and when splits have reached a cut of another job (A10).
        """
        if self._asked:
            return False
        every = self._pacing.every_rows
        return (every is not None and self._counted_rows() >= every) or self.cuts.barrier_due

    @property
    def awaits_barrier(self) -> bool:
        """True if a checkpoint was requested, and its barrier was not sent yet."""
        return self._asked

    # -------------------------------------------------------------- facts

    def offered(self, slice_: SourceSlice) -> SubtaskId | None:
        """Move a split to the end of its slice.

        Return the subtask that sends the slice, or None after a stop's barrier.
        """
        split = self._polled(slice_.source, slice_.split)
        self._grant(split, 0)
        if self.ended:
            return None
        for key in self.cuts.offered(_key(split), slice_):
            if not self._splits[key].failures:
                self._splits[key].idle, self._splits[key].idle_until_ms = False, 0
        self._rows[slice_.source] += slice_.rows
        split.position, split.idle, split.failures, split.idle_until_ms = slice_.end, False, 0, 0
        split.unread = slice_.end if slice_.rows else split.unread
        return split.subtask

    def found_idle(self, source: VertexId, name: SplitId, now_ms: int) -> None:
        """Record that a split has nothing to read now."""
        split = self._polled(source, name)
        self._grant(split, 0)
        split.idle, split.failures, split.idle_until_ms = True, 0, now_ms + self._pacing.idle_poll_ms

    def ask_sooner(self, source: VertexId, name: SplitId, at_ms: int) -> None:
        """Poll an idle split again at this earlier time."""
        self._splits[source, name].idle_until_ms = at_ms

    def reached(self, splits: Iterable[tuple[ChannelId, int, int]]) -> None:
        """Record how far in event time splits have been read, and how far ahead of others each may be (N1)."""
        self._reached.update((channel, (ms, most_ms)) for channel, ms, most_ms in splits)

    def ran(self, slice_: SourceSlice) -> None:
        """Record that a vertex has run the rows of a slice. Now the split's event time is known (N1)."""
        split = self._splits.get((slice_.source, slice_.split))
        if split is not None and split.unread == slice_.end:
            split.unread = None

    def found_ended(self, source: VertexId, name: SplitId) -> SubtaskId:
        """Record that a split has ended, and return its subtask. The split is never polled again.

        If it was the last open split of its part, the splits of the next part are read from now on.
        """
        split = self._polled(source, name)
        self._grant(split, 0)
        split.idle, split.ended, split.failures = True, True, 0
        self._let_parts_wait(source)
        return split.subtask

    def failed(self, source: VertexId, name: SplitId, now_ms: int) -> bool:
        """Record that a split cannot be read. Return whether it has failed too often in a row."""
        split = self._polled(source, name)
        self._grant(split, 0)
        split.idle, split.idle_until_ms = False, now_ms + self._pacing.idle_poll_ms
        split.failures += 1
        return split.failures > self._pacing.failures_max

    def barrier_asked(self) -> None:
        """Record that a checkpoint was requested. Its barrier comes when the coordinator allows it."""
        self._asked = True

    def barrier_sent(self, *, last: bool = False) -> None:
        """Begin the next epoch. After the barrier of a stop, only the next tick reads on."""
        self.ended = self.ended or last
        self.stopped = self.stopped or last
        self._asked = False
        self.cuts.barrier_sent()
        self._before_barrier += self.rows
        self._rows = dict.fromkeys(self._rows, 0)

    # -------------------------------------------------------------- decisions

    def polls(
        self, now_ms: int, has_credit: Callable[[SubtaskId], bool], *, barrier_waits: bool = False
    ) -> Iterator[PollSource]:
        """Yield the polls to make now.

        A split that was idle or has failed is polled again when its waiting time is over. A split for which a barrier
        waits needs no credit: a vertex that waits for that barrier would never free any.
        """
        self._hold_back()
        due = [split for split in self._splits.values() if _is_ready(split, now_ms)]
        ready = [
            split
            for split in due
            if self._may_read(split)
            if has_credit(split.subtask) or (barrier_waits and self.cuts.is_behind(_key(split)))
        ]
        for place, split in enumerate(ready):
            budget = self._room(split)
            if budget > 0 and not self.cuts.seeks(_key(split), self._outstanding()):
                sharers = sum(self._shares(split, other) for other in ready[place:])
                rows = min(self._pacing.slice_rows_max, -(-budget // sharers))
                self._grant(split, rows)
                yield PollSource(split.subtask.vertex, split.name, split.position, rows, self.cuts.cut_for(_key(split)))

    def _may_read(self, split: Split) -> bool:
        """Return whether a split reads on. In a tick that is about to end, a split on its way to a cut still does."""
        if self.ended or split.ended or split.waits:
            return False
        return self.cuts.is_behind(_key(split)) or not (self.stopped or split.held)

    def _hold_back(self) -> None:
        """Hold splits that are too far ahead of splits that can catch up, or whose newest slice has not run."""
        if not self._reached:
            return
        splits = {split.subtask: split for split in self._splits.values()}
        at = [(splits[SubtaskId(each.edge.upstream, each.subtask)], *said) for each, said in self._reached.items()]
        least_ms = min((ms for split, ms, _ in at if not _rests(split)), default=None)
        for split in splits.values():
            split.held = False
        for split, ms, most_ms in at:
            ahead = least_ms is not None and ms - most_ms > least_ms
            split.held = split.held or ahead or split.unread is not None

    def _outstanding(self) -> Iterator[tuple[VertexId, SplitId]]:
        return (key for key, split in self._splits.items() if split.granted)

    def next_poll_ms(self, now_ms: int) -> int | None:
        """Return when to poll the next waiting split again.

        A split whose waiting time is over waits only for credit.
        """
        later = [split for split in self._splits.values() if split.idle_until_ms > now_ms and not split.granted]
        return min([split.idle_until_ms for split in later if self._may_read(split)], default=None)

    # -------------------------------------------------------------- leaves

    def _part_now(self, source: VertexId) -> int:
        """Return the source's first part that has a split that has not ended."""
        return min((split.part for split in self._of(source) if not split.ended), default=0)

    def _let_parts_wait(self, source: VertexId) -> None:
        """Make the splits of a source wait until the splits of all earlier parts have ended."""
        now = self._part_now(source)
        for split in self._of(source):
            split.waits = split.part > now

    def _room(self, split: Split) -> int:
        """Return how many more rows the split may be granted in this epoch."""
        if self.cuts.is_behind(_key(split)):
            return _UNBOUNDED
        return 0 if self.cuts.waits_at_cut(_key(split)) else self._budget(split.subtask.vertex)

    def _budget(self, source: VertexId) -> int:
        """Return how many more rows the source may be granted in this epoch."""
        cap = self._pacing.caps.get(source)
        own = _UNBOUNDED if cap is None else cap - self._rows[source] - self._granted[source]
        if self._pacing.every_rows is None or source not in self._counted:
            return own
        granted = sum(self._granted[counted] for counted in self._counted)
        return min(own, self._pacing.every_rows - self._counted_rows() - granted)

    def _shares(self, one: Split, other: Split) -> bool:
        """Return whether two splits share one budget. A source that has reached its own cap takes no share."""
        mine, theirs = one.subtask.vertex, other.subtask.vertex
        both_counted = self._pacing.every_rows is not None and self._is_counted(mine) and self._is_counted(theirs)
        return mine == theirs or (both_counted and self._room(other) > 0)

    def _is_counted(self, source: VertexId) -> bool:
        return not self._pacing.counted or source in self._pacing.counted

    def _counted_rows(self) -> int:
        return sum(self._rows[source] for source in self._counted)

    def _of(self, source: VertexId) -> Iterator[Split]:
        return (split for split in self._splits.values() if split.subtask.vertex == source)

    def _polled(self, source: VertexId, name: SplitId) -> Split:
        split = self._splits.get((source, name))
        if split is None or not split.granted:
            raise UnknownSplitError(f"split {name} of source {source} answered, but was not polled")
        return split

    def _grant(self, split: Split, rows: int) -> None:
        """Grant the split this many rows to read, or end its grant with 0."""
        if rows:
            self._splits.move_to_end(_key(split))
        self._granted[split.subtask.vertex] += rows - split.granted
        split.granted = rows


_UNBOUNDED = 2**62


def _key(split: Split) -> tuple[VertexId, SplitId]:
    return split.subtask.vertex, split.name


def _rests(split: Split) -> bool:
    """Return whether the split had nothing to read when it was last polled, or cannot be read now."""
    return split.idle or bool(split.failures) or split.waits


def _is_ready(split: Split, now_ms: int) -> bool:
    return not split.granted and now_ms >= split.idle_until_ms


def pacing_of(setup: JobSetup) -> Pacing:
    """Return the pacing that the configuration sets."""
    return Pacing(
        slice_rows_max=setup.config.slice_rows_max,
        every_rows=setup.config.every_rows,
        counted=frozenset(VertexId(source) for source in setup.config.rows_of),
        caps=setup.rows_per_epoch,
        idle_poll_ms=setup.idle_poll_ms,
        failures_max=setup.config.tolerable_poll_failures,
        cut_groups=setup.cut_groups,
    )


# ------------------------------------------------------------------
# Makes a source that was read alone go on as the first part of a source with parts (B4).
#
# At the cut, the splits of a source that was read alone have the source's own names, such as `berlin`. In a source with
# parts, the same split is `1.berlin`. The invariant is: **the splits get the first part's names, and nothing else
# changes.** Each split keeps its position, its rows in flight, and whether it has ended. A cut in which the source had
# parts already stays as it is.
#
# No entry says whether a source had parts. The names of the splits show it: without parts, no name begins with a part's
# number. A first part with a split whose own name begins in this way is refused (`jobs.sources.hybrid.Part`).


Parts = Mapping[VertexId, tuple[str, ...]]
"""The prefixes of each source's split names, part by part. Sources without parts may be missing."""


def parts_of(graph: JobGraph) -> Parts:
    """Return the parts of each source of a pipeline."""
    return {source.id: source.parts for source in graph.sources()}


def read_alone(record: CheckpointRecord, parts: Parts) -> tuple[VertexId, ...]:
    """Return the sources that have parts now and had none at the cut."""
    return tuple(
        was.vertex
        for was in record.vertices
        if was.splits and parts.get(was.vertex)
        if not any(split.startswith(parts[was.vertex]) for split in was.splits)
    )


def in_first_part(record: CheckpointRecord, parts: Parts) -> CheckpointRecord:
    """Return the cut in which splits of sources that were read alone have their names in the first part."""
    begins = {vertex: parts[vertex][0] for vertex in read_alone(record, parts)}
    if not begins:
        return record
    return record.model_copy(update={"vertices": tuple(_vertex(was, begins) for was in record.vertices)})


def _vertex(was: VertexRecord, begins: Mapping[VertexId, str]) -> VertexRecord:
    begin = begins.get(was.vertex, "")
    return was.model_copy(
        update={
            "splits": tuple(f"{begin}{split}" for split in was.splits),
            "subtasks": tuple(_snapshot(each, begins) for each in was.subtasks),
            "time": None if was.time is None else _time(was.time, begins),
        }
    )


def _time(was: VertexTimeRecord, begins: Mapping[VertexId, str]) -> VertexTimeRecord:
    inputs = tuple(
        each.model_copy(update={"split": f"{begins.get(each.upstream, '')}{each.split}"}) for each in was.inputs
    )
    return was.model_copy(update={"inputs": inputs})


def _snapshot(snapshot: SubtaskSnapshot, begins: Mapping[VertexId, str]) -> SubtaskSnapshot:
    held = tuple(
        replace(each, segments=tuple(_segment(segment, begins) for segment in each.segments))
        for each in snapshot.in_flight
    )
    return replace(snapshot, in_flight=held)


def _segment(segment: Segment, begins: Mapping[VertexId, str]) -> Segment:
    if not isinstance(segment, SourceSlice):
        return segment
    return replace(segment, split=split_id(f"{begins.get(segment.source, '')}{segment.split}"))


# ------------------------------------------------------------------
# Back-pressure: counts the bytes in each channel that were sent and not yet processed.


class Credit:
    """Counts bytes by channel. A subtask has credit while each channel into which it sends is below the limit.

    The limit stops new work upstream. It never stops a barrier, so no alignment waits for credit.
    """

    def __init__(self, graph: JobGraph, limit_bytes: int) -> None:
        """Begin with empty channels."""
        self._limit_bytes = limit_bytes
        self._bytes = {channel: 0 for vertex in graph.vertices for channel in graph.channels_into(vertex.id)}
        self._out: dict[SubtaskId, list[ChannelId]] = {}
        self._full: dict[SubtaskId, int] = {}
        for channel in self._bytes:
            self._out.setdefault(_sender(channel), []).append(channel)

    def sent(self, channel: ChannelId, size_bytes: int) -> None:
        """Add bytes that entered the channel."""
        self._put(channel, self._bytes[channel] + size_bytes)

    def processed(self, channel: ChannelId, size_bytes: int) -> None:
        """Subtract bytes that a finished micro-batch has processed."""
        self._put(channel, self._bytes[channel] - size_bytes)

    def channels_from(self, subtask: SubtaskId) -> list[ChannelId]:
        """Return the channels that a subtask sends into."""
        return self._out.get(subtask, [])

    def has(self, subtask: SubtaskId) -> bool:
        """Return whether the subtask may send more."""
        return not self._full.get(subtask)

    def _put(self, channel: ChannelId, size_bytes: int) -> None:
        was_full = self._bytes[channel] >= self._limit_bytes
        self._bytes[channel] = size_bytes
        turned = (size_bytes >= self._limit_bytes) - was_full
        if turned:
            sender = _sender(channel)
            self._full[sender] = self._full.get(sender, 0) + turned


def _sender(channel: ChannelId) -> SubtaskId:
    return SubtaskId(channel.edge.upstream, channel.subtask)
