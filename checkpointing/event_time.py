"""Event time moves at barriers: how far in time the rows before a barrier reach (N1).

The watermark of a cut says that all rows up to this time have come, as far as anybody knows. It is decided when a
vertex has aligned for barrier n, from all rows before barrier n, and from nothing else. So it does not depend on how
the rows were cut into micro-batches, or on parallelism. Barriers carry it on, and the cut records it. A row of the
epoch after the cut is late if its time is not after the watermark of the cut.

Times are whole milliseconds since the epoch. A time between two milliseconds counts as the earlier one.

| channel of a vertex | its watermark at barrier n                                                                |
|---------------------|-------------------------------------------------------------------------------------------|
| from a split        | the greatest time among the split's rows before n, less the delay, less one               |
| from a vertex       | that of the vertex, which its barrier n carries                                           |
| at its end          | the end of time                                                                           |

A vertex has the least watermark of its active channels, and its own never goes back (Flink: `StatusWatermarkValve`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from checkpointing.channel_items import Barrier
from checkpointing.identifiers import ChannelId

BEFORE_TIME: Final = -(2**63)
"""The watermark before any row has come."""
END_OF_TIME: Final = 2**63 - 1
"""The watermark after the last row: nothing can be late any more, and all that waits is due."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """What a pipeline says about the times of an input that reads a source.

    Rows may come `delay_ms` after rows with later times. A split without rows for `idle_after_ms` does not hold the
    watermark back. With None it does, for however long it has none.
    """

    delay_ms: int
    idle_after_ms: int | None = None

    def watermark(self, greatest_ms: int) -> int:
        """Return the watermark of a split after a row of this time (Flink: `BoundedOutOfOrdernessWatermarks`)."""
        return max(BEFORE_TIME, greatest_ms - self.delay_ms - 1)


@dataclass(frozen=True, slots=True)
class Expiry:
    """When a row of a vertex's state expires: `ttl_ms` after it was written (N5).

    A row was written at the time of the barrier after it. That is the vertex's watermark there, or `by_clock` the clock
    of the barrier. So what has expired is a function of the input and the cuts alone.
    """

    ttl_ms: int
    by_clock: bool = False

    def time_at(self, barrier: Barrier, last_ms: int | None) -> int | None:
        """Return the time of a barrier as the vertex sends it on. None: before any time. It never goes back.

        The end of time is no time: a drain takes nothing away that a later tick may go on with.
        """
        ms = barrier.created_ms if self.by_clock else barrier.watermark_ms
        if not self.by_clock and ms in (BEFORE_TIME, END_OF_TIME):
            return last_ms
        return ms if last_ms is None else max(ms, last_ms)

    def is_over(self, touched_ms: int | None, now_ms: int) -> bool:
        """Return whether what was written at a time has expired (Flink: `TtlUtils.expired`)."""
        return touched_ms is not None and touched_ms + self.ttl_ms <= now_ms


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a channel or a vertex is. An `idle` one holds nobody back."""

    ms: int = BEFORE_TIME
    idle: bool = False


def combined(channels: Iterable[Watermark], last: Watermark) -> Watermark:
    """Return the watermark of a vertex with these channels, after `last`.

    Active channels that are behind `last` were idle or not there before. They count again once they have caught up. If
    the last active channel turns idle, the greatest of all counts, so that nothing waits for rows that do not come
    (Flink: `StatusWatermarkValve`, FLINK-40475).
    """
    every = tuple(channels)
    active = [each.ms for each in every if not each.idle]
    if not active:
        return Watermark(max([last.ms, *(each.ms for each in every)]), idle=bool(every))
    return Watermark(min((ms for ms in active if ms >= last.ms), default=last.ms))


@dataclass(frozen=True, slots=True)
class ChannelTime:
    """How far one channel of a vertex was at its last barrier. A cut keeps it.

    `active_ms` is the clock of the last barrier before which the split of the channel had rows, or still had some to
    read. Before its first barrier, and for a channel from a vertex, it is None.
    """

    mark: Watermark = Watermark()
    active_ms: int | None = None


class VertexTime:
    """How far in event time one vertex is. `channels` are those of its inputs that have times.

    A channel from a split has an `EventTime`, and one from a vertex has none.
    """

    def __init__(self, channels: Mapping[ChannelId, EventTime | None]) -> None:
        """Begin before time."""
        self._declared = channels
        self._now = dict.fromkeys(channels, ChannelTime())
        self._greatest: dict[ChannelId, int] = {}
        self._came: set[ChannelId] = set()
        self._overtaken: dict[ChannelId, tuple[int, Barrier]] = {}
        """For each channel with rows that an unaligned barrier overtook: how many segments of them have not run yet."""
        self._barriers: dict[ChannelId, Barrier] = {}
        """The newest barrier of each channel, until the vertex counts it."""
        self._ended: set[ChannelId] = set()
        self.watermark = Watermark()
        """That of the last barrier that the vertex has passed. Rows with a time that is not after it are late."""

    @property
    def channels(self) -> Mapping[ChannelId, ChannelTime]:
        """How far each channel was at the last barrier."""
        return self._now

    def restore(self, watermark: Watermark, channels: Mapping[ChannelId, ChannelTime]) -> None:
        """Go on as the cut says. A channel that the cut does not know begins before time, and holds nobody back.

        Every split of the cut counts at once, also one that has not sent anything yet (FLINK-32828).
        """
        self.watermark = watermark
        self._now = {channel: channels.get(channel, ChannelTime()) for channel in self._declared}

    # -------------------------------------------------------------- between barriers

    def came(self, channel: ChannelId) -> None:
        """Note that rows of the channel are about to run."""
        if channel in self._declared:
            self._came.add(channel)

    def ran(self, channel: ChannelId, segments: int) -> None:
        """Note that so many segments of the channel have run. Its overtaken rows come first."""
        left, barrier = self._overtaken.get(channel, (0, None))
        if barrier is not None and left <= segments:
            del self._overtaken[channel]
            self._barriers.setdefault(channel, barrier)
        elif barrier is not None:
            self._overtaken[channel] = left - segments, barrier

    def read(self, channel: ChannelId, greatest_ms: int) -> None:
        """Take the greatest time among rows that have run. It may be that of a row long ago."""
        self._greatest[channel] = max(greatest_ms, self._greatest.get(channel, BEFORE_TIME))

    def received(self, channel: ChannelId, barrier: Barrier) -> None:
        """Note a barrier that has come on a channel."""
        if channel in self._declared:
            self._barriers[channel] = barrier

    def overtook(self, channel: ChannelId, segments: int) -> None:
        """Note that the newest barrier of the channel has overtaken so many segments. It counts when they have run."""
        barrier = self._barriers.pop(channel, None)
        if barrier is not None:
            self._overtaken[channel] = segments, barrier

    def ended(self, channel: ChannelId) -> None:
        """Note that no row will come on this channel, ever."""
        if channel in self._declared:
            self._ended.add(channel)

    # -------------------------------------------------------------- at a barrier

    def pass_barrier(self, barrier: Barrier, *, unaligned: bool = False) -> Barrier:
        """Advance to a barrier, and return it as the vertex sends it on.

        All rows before the barrier have run, unless it is unaligned. Then only what has run counts: the watermarks of
        earlier barriers, and the times of rows.
        """
        for channel, was in self._now.items():
            if unaligned:
                self._now[channel] = self._overtaken_at(channel, was, barrier)
            else:
                self._now[channel] = self._aligned_at(channel, was, barrier.created_ms)
        if not unaligned:
            self._came.clear()
        self.watermark = combined((each.mark for each in self._now.values()), self.watermark)
        return replace(barrier, watermark_ms=self.watermark.ms, idle=self.watermark.idle)

    def _overtaken_at(self, channel: ChannelId, was: ChannelTime, barrier: Barrier) -> ChannelTime:
        received = self._barriers.get(channel)
        if received is not None and received.checkpoint < barrier.checkpoint:
            self._barriers.pop(channel)
            return ChannelTime(self._reached(channel, was, received), was.active_ms)
        return ChannelTime(self._reached(channel, was, None), was.active_ms)

    def _aligned_at(self, channel: ChannelId, was: ChannelTime, clock_ms: int) -> ChannelTime:
        if channel in self._ended:
            return ChannelTime(Watermark(END_OF_TIME), was.active_ms)
        barrier, declared = self._barriers.pop(channel, None), self._declared[channel]
        mark = self._reached(channel, was, barrier)
        if declared is None:
            return ChannelTime(mark)
        has_rows = channel in self._came or (barrier is not None and not barrier.idle)
        if has_rows or was.active_ms is None:
            return ChannelTime(replace(mark, idle=False), clock_ms)
        waited_ms, limit_ms = clock_ms - was.active_ms, declared.idle_after_ms
        return ChannelTime(replace(mark, idle=limit_ms is not None and waited_ms >= limit_ms), was.active_ms)

    def _reached(self, channel: ChannelId, was: ChannelTime, barrier: Barrier | None) -> Watermark:
        """Return the watermark of the rows of a channel that have run, as far as they and a barrier say."""
        declared, greatest_ms = self._declared[channel], self._greatest.pop(channel, None)
        if declared is not None:
            ms = BEFORE_TIME if greatest_ms is None else declared.watermark(greatest_ms)
            return replace(was.mark, ms=max(was.mark.ms, ms))
        return was.mark if barrier is None else Watermark(max(was.mark.ms, barrier.watermark_ms), barrier.idle)
