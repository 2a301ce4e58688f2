"""Event time advances at barriers: it says how far in time the rows before a barrier reach (N1).

The watermark of a cut says that all rows up to this time have come, as far as anybody knows. A vertex computes its
watermark when it has aligned for barrier n, from all rows before barrier n, and from nothing else. So the watermark
does not depend on how the rows were cut into micro-batches, or on parallelism. Barriers carry the watermark on, and the
cut records it. A row of the epoch after the cut is late if its time is not after the watermark of the cut.

Times are whole milliseconds since 1970. A time between two milliseconds is rounded down.

| channel of a vertex | its watermark at barrier n                                                                |
|---------------------|-------------------------------------------------------------------------------------------|
| from a split        | the greatest time among the split's rows before n, less the delay, less one               |
| from a vertex       | the vertex's, which its barrier n carries                                           |
| at its end          | none: it holds nobody back. After the end of all channels, it is the end of time          |
| of a stream at rest | with `close_after`: the greatest of its splits, and as much later as the stream has rested |

A vertex has the least watermark of its active channels, but never a smaller one than before (Flink:
`StatusWatermarkValve`).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

from checkpointing.channel_items import Barrier
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId

BEFORE_TIME: Final = -(2**63)
"""The watermark before any row has come."""
END_OF_TIME: Final = 2**63 - 1
"""The watermark after the last row: no row can be late any more, and all rows that wait in state are due."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """What a pipeline says about the times of an input that reads a source.

    Rows may come `delay_ms` after rows with later times. A split without rows for more than `idle_after_ms` does not
    hold the watermark back. With None, a split without rows always holds it back. A split whose watermark is more than
    `hold_back_ms` ahead of another split's is not read until that split has caught up. With None, it is read all the
    same. Once no split of the stream has had rows for more than `close_after_ms`, the stream's time advances at the
    pace of the clock. With None, it does not advance.
    """

    delay_ms: int
    idle_after_ms: int | None = None
    hold_back_ms: int | None = None
    close_after_ms: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if `idle_after_ms` or `close_after_ms` is zero or negative."""
        if self.idle_after_ms is not None and self.idle_after_ms <= 0:
            raise ValueError("idle_after is 0, so no split would ever count; say how long a split may have no rows")
        if self.close_after_ms is not None and self.close_after_ms <= 0:
            raise ValueError("close_after is 0, so time would never wait for rows; say how long the stream may rest")

    def watermark(self, greatest_ms: int) -> int:
        """Return the watermark of a split after a row of this time (Flink: `BoundedOutOfOrdernessWatermarks`)."""
        return max(BEFORE_TIME, greatest_ms - self.delay_ms - 1)


@dataclass(frozen=True, slots=True)
class TimePartitions:
    """The hours, days or weeks of a table that a scheduler sees: each has `size_ms` of a zone's local time (N8).

    The first partition begins at `start_ms` of local time. Each of `offsets`, oldest first, is a moment, and by how
    many ms local time is ahead of UTC from that moment on. The first offset also holds before its moment.
    """

    size_ms: int
    start_ms: int
    offsets: tuple[tuple[int, int], ...]

    def complete(self, until_ms: int) -> int:
        """Return how many partitions are complete in a table that is complete until `until_ms`."""
        end_ms = until_ms + 1
        place = bisect_right(self.offsets, end_ms, key=lambda each: each[0])
        _, ahead_ms = self.offsets[max(0, place - 1)]
        return max(0, (end_ms + ahead_ms - self.start_ms) // self.size_ms)


@dataclass(frozen=True, slots=True)
class Expiry:
    """When a row of a vertex's state expires: `ttl_ms` after it was written (N5).

    The time of the write is taken to be the time of the barrier that follows it. This is the vertex's watermark at that
    barrier, or with `by_clock` the clock of that barrier. So what has expired is a function of the input and the cuts
    alone.
    """

    ttl_ms: int
    by_clock: bool = False

    def time_at(self, barrier: Barrier, last_ms: int | None) -> int | None:
        """Return the time by which state expires at a barrier that the vertex sends on. It never goes back.

        None: there is no watermark yet. The end of time leaves the time as it is, so that a drain removes no state with
        which a later tick may go on.
        """
        ms = barrier.created_ms if self.by_clock else barrier.watermark_ms
        if not self.by_clock and ms in (BEFORE_TIME, END_OF_TIME):
            return last_ms
        return ms if last_ms is None else max(ms, last_ms)

    def is_over(self, touched_ms: int | None, now_ms: int) -> bool:
        """Return whether state that was written at `touched_ms` has expired (Flink: `TtlUtils.expired`)."""
        return touched_ms is not None and touched_ms + self.ttl_ms <= now_ms


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a channel or a vertex is in event time. An `idle` channel or vertex holds nobody back."""

    ms: int = BEFORE_TIME
    idle: bool = False


def combined(channels: Iterable[Watermark], last: Watermark) -> Watermark:
    """Return the watermark of an upstream vertex whose subtasks send on these channels, after `last`.

    An active channel that is behind `last` was idle before, or is new. It is used again once it has caught up with
    `last`. If the last active channel turns idle, the result is the greatest watermark of all channels, so that nothing
    waits for rows that do not come (Flink: `StatusWatermarkValve`, FLINK-40475).
    """
    every = tuple(channels)
    if not every:
        return last
    active = [each.ms for each in every if not each.idle]
    if not active:
        return Watermark(max(last.ms, *(each.ms for each in every)), idle=True)
    return Watermark(min((ms for ms in active if ms >= last.ms), default=last.ms))


def least(inputs: Iterable[Watermark], last: Watermark) -> Watermark:
    """Return the watermark of a vertex with these splits and upstream vertices, after `last`.

    An active input that is behind `last` was idle before, or is new. It holds the watermark where it is until it has
    caught up, so that its rows do not stay late (Flink: `WatermarkOutputMultiplexer`, `CombinedWatermarkStatus`).
    """
    every = tuple(inputs)
    active = [each.ms for each in every if not each.idle]
    return Watermark(max(last.ms, min(active))) if active else combined(every, last)


@dataclass(frozen=True, slots=True)
class ChannelTime:
    """How far one channel of a vertex was at its last barrier. A cut records it.

    `active_ms` is the clock time of the last barrier at which the channel's split was active: rows of the split had run
    since the barrier before, or the split still had rows to read. A split is also active at its first barrier, and
    while it waits for an earlier part of its source. `active_ms` is None before the channel's first barrier, and for a
    channel from a vertex.
    """

    mark: Watermark = Watermark()
    active_ms: int | None = None


class VertexTime:
    """How far in event time one vertex is. `channels` are the channels of the inputs that have times.

    A channel from a split has an `EventTime`, and a channel from a vertex has None.
    """

    def __init__(self, channels: Mapping[ChannelId, EventTime | None]) -> None:
        """Begin with no time known."""
        self._declared = channels
        self._now = dict.fromkeys(channels, ChannelTime())
        self._greatest: dict[ChannelId, int] = {}
        self._came: set[ChannelId] = set()
        self._ran: Counter[ChannelId] = Counter()
        """How many segments of each channel have run since the last unaligned barrier."""
        self._overtaken: dict[ChannelId, tuple[int, Barrier]] = {}
        """For each channel with overtaken rows: how many of their segments have not run, and the barrier."""
        self._barriers: dict[ChannelId, Barrier] = {}
        """The newest barrier of each channel, until the vertex advances to it."""
        self._behind: dict[ChannelId, Barrier] = {}
        """For each channel: an older barrier than the newest one, before which all rows have run."""
        self._rested_ms: dict[ChannelId, int] = {}
        """For each split without rows and with nothing to read at the last barrier: for how long that had lasted.

        A split that waits for an earlier part of its source is treated as if it had rested for ever. So it does not
        prevent its stream from being at rest.
        """
        self._over: set[ChannelId] = set()
        """The channels that are at the end of time: all their rows have run, and no more will come."""
        self.watermark = Watermark()
        """The watermark of the last barrier that the vertex has passed. Rows whose time is not after it are late."""
        self._senders: dict[EdgeId, Watermark] = {}
        """How far each upstream vertex was at the last barrier."""
        self.rows = Watermark()
        """How far the vertex's rows were at the last barrier. At the end of time, `watermark` is ahead of this."""

    @property
    def channels(self) -> Mapping[ChannelId, ChannelTime]:
        """How far the rows of each channel were at the last barrier. The end of a channel does not show here."""
        return self._now

    @property
    def reads_splits(self) -> bool:
        """True if a channel comes from a split. Only the rows of such a channel say how far it is."""
        return any(declared is not None for declared in self._declared.values())

    def restore(
        self,
        watermark: Watermark,
        rows_ms: int,
        channels: Mapping[ChannelId, ChannelTime],
        ended: Collection[ChannelId] = (),
    ) -> None:
        """Restore the times of the cut. A split that the cut does not know holds the watermark where it is.

        Every split of the cut is taken into account at once, even if it has not sent anything yet (FLINK-32828). If the
        cut was at the end of time and not all channels have `ended`, the vertex falls back to the watermark of its
        rows. This happens after a drain.
        """
        self._now |= channels
        for channel, then in channels.items():
            if self._declared[channel] is None:
                self._senders[channel.edge] = then.mark
        self.rows = Watermark(rows_ms) if watermark.ms == END_OF_TIME else watermark
        self.watermark = watermark if self._declared.keys() <= set(ended) else self.rows

    # -------------------------------------------------------------- between barriers

    def came(self, channel: ChannelId) -> None:
        """Record that rows of the channel are about to run."""
        if channel in self._declared:
            self._came.add(channel)

    def ran(self, channel: ChannelId, segments: int) -> None:
        """Record that this many segments of the channel have run. The overtaken rows of a channel run first."""
        self._ran[channel] += segments
        left, barrier = self._overtaken.get(channel, (0, None))
        if barrier is not None and left <= segments:
            del self._overtaken[channel]
            self._behind[channel] = barrier
        elif barrier is not None:
            self._overtaken[channel] = left - segments, barrier

    def read(self, channel: ChannelId, greatest_ms: int) -> None:
        """Record the greatest time of rows that have run, unless earlier rows had a greater time."""
        self._greatest[channel] = max(greatest_ms, self._greatest.get(channel, BEFORE_TIME))

    def held_back(self) -> Iterator[tuple[ChannelId, int, int]]:
        """Yield each split with `hold_back_ms`, its watermark by all rows that have run, and `hold_back_ms`."""
        for channel, declared in self._declared.items():
            if declared is not None and declared.hold_back_ms is not None:
                greatest_ms = self._greatest.get(channel, BEFORE_TIME)
                yield channel, max(self._now[channel].mark.ms, declared.watermark(greatest_ms)), declared.hold_back_ms

    def received(self, channel: ChannelId, barrier: Barrier) -> None:
        """Record a barrier that has come on a channel. It carries the end of time if no row will come behind it."""
        if channel in self._declared:
            if channel in self._barriers:
                self._behind[channel] = self._barriers[channel]
            self._barriers[channel] = barrier

    def overtook(self, channel: ChannelId, checkpoint: CheckpointId, segments: int) -> None:
        """Record that barrier n of the channel has overtaken this many segments.

        The barrier's time is used when these segments have run.

        Some of these segments may have run already, between the barrier of another channel and this barrier.
        """
        barrier = self._barriers.get(channel)
        if barrier is not None and barrier.checkpoint == checkpoint and self._ran[channel] < segments:
            self._overtaken[channel] = segments - self._ran[channel], self._barriers.pop(channel)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """Forget the barriers of a checkpoint that the vertex has aborted. Nobody knows which rows they overtook."""
        self._barriers, self._behind = (
            {at: each for at, each in known.items() if each.checkpoint != checkpoint}
            for known in (self._barriers, self._behind)
        )

    def end(self) -> None:
        """Record that all rows of all channels have run, and no more will come."""
        self._over.update(self._declared)

    def idles_at_ms(self) -> int | None:
        """Return when the next split turns idle by the clock, if it gets no row until then. None: no split will."""
        return min(
            (
                then.active_ms + declared.idle_after_ms + 1
                for channel, then in self._now.items()
                if (declared := self._declared[channel]) is not None
                and declared.idle_after_ms is not None
                and then.active_ms is not None
                and not then.mark.idle
                and channel not in self._over
            ),
            default=None,
        )

    @property
    def awaits_first_barrier(self) -> bool:
        """True if a split has passed no barrier yet, and its idle time begins at one.

        Until then it holds the watermark back.
        """
        said = (declared for channel, declared in self._declared.items() if self._now[channel].active_ms is None)
        return any(each is not None and (each.idle_after_ms or each.close_after_ms) is not None for each in said)

    # -------------------------------------------------------------- at a barrier

    def pass_barrier(self, barrier: Barrier, *, unaligned: bool = False) -> Barrier:
        """Advance to a barrier, and return it as the vertex sends it on.

        All rows before the barrier have run, unless it is unaligned. Then the vertex advances only by the times of the
        rows that have run, and by the earlier barriers before which all rows have run.
        """
        self._rested_ms.clear()
        for channel, was in self._now.items():
            known, newest = self._behind.pop(channel, None), self._barriers.get(channel)
            if newest is not None and (not unaligned or newest.checkpoint < barrier.checkpoint):
                known = self._barriers.pop(channel)
            self._now[channel] = self._at(channel, was, known, barrier.created_ms)
        if unaligned:
            self._ran.clear()
        left = self._now.keys() - self._over
        self.rows = least(self._inputs(left or self._now.keys()), self.rows)
        self.watermark = self.rows if left else Watermark(END_OF_TIME)
        return replace(barrier, watermark_ms=self.watermark.ms, idle=self.watermark.idle)

    def foreseen(self, barrier: Barrier, channels: Mapping[ChannelId, Barrier]) -> Barrier:
        """Return the barrier that the vertex would send on if these came now on its channels, with no rows before."""
        then = copy(self)
        vars(then).update((name, copy(each)) for name, each in vars(self).items())
        for channel, each in channels.items():
            then.received(channel, each)
        return then.pass_barrier(barrier)

    def _inputs(self, channels: Collection[ChannelId]) -> Iterator[Watermark]:
        """Yield the watermark of each split and each upstream vertex. Yield one for a whole stream at rest."""
        by_edge: dict[EdgeId, list[ChannelId]] = {}
        for channel in channels:
            by_edge.setdefault(channel.edge, []).append(channel)
        for edge, own in by_edge.items():
            marks = [self._now[channel].mark for channel in own]
            declared = self._declared[own[0]]
            if declared is None:
                self._senders[edge] = combined(marks, self._senders.get(edge, Watermark()))
                yield self._senders[edge]
            elif (rested := self._at_rest(declared, own)) is not None:
                yield rested
            else:
                yield from marks

    def _at_rest(self, declared: EventTime, splits: Collection[ChannelId]) -> Watermark | None:
        """Return the watermark of a stream at rest, or None if it is not at rest.

        It is at rest if all its splits have rested for more than `close_after`. Its time then advances from the
        greatest watermark of its splits, at the pace of the clock of barriers.
        """
        limit_ms, marks = declared.close_after_ms, [self._now[each].mark for each in splits]
        rested_ms, greatest_ms = min(self._rested_ms.get(each, 0) for each in splits), max(each.ms for each in marks)
        if limit_ms is None or rested_ms <= limit_ms or greatest_ms == BEFORE_TIME:
            return None
        return Watermark(min(greatest_ms + rested_ms, END_OF_TIME - 1), idle=all(each.idle for each in marks))

    def _at(self, channel: ChannelId, was: ChannelTime, barrier: Barrier | None, clock_ms: int) -> ChannelTime:
        """Return how far a channel is, by the times of its rows that have run and the `barrier` that came behind them.

        If `barrier` is None, no barrier has come behind rows that have run.
        """
        if barrier is not None and barrier.watermark_ms == END_OF_TIME:
            self._over.add(channel)
        declared = self._declared[channel]
        if declared is None:
            if barrier is None or channel in self._over:
                return was
            return ChannelTime(Watermark(max(was.mark.ms, barrier.watermark_ms), barrier.idle))
        greatest_ms, came = self._greatest.pop(channel, None), channel in self._came
        self._came.discard(channel)
        mark = was.mark if greatest_ms is None else Watermark(max(was.mark.ms, declared.watermark(greatest_ms)))
        if barrier is not None and barrier.waits:
            self._rested_ms[channel] = END_OF_TIME
            return ChannelTime(replace(mark, idle=True), clock_ms)
        if came or was.active_ms is None or (barrier is not None and not barrier.idle):
            return ChannelTime(replace(mark, idle=False), clock_ms)
        if barrier is None:
            return ChannelTime(mark, was.active_ms)
        self._rested_ms[channel] = barrier.created_ms - was.active_ms
        waited_ms, limit_ms = clock_ms - was.active_ms, declared.idle_after_ms
        return ChannelTime(replace(mark, idle=limit_ms is not None and waited_ms > limit_ms), was.active_ms)
