"""All channels of a gate, and the order in which they are read.

Channels with priority items come first. These channels take turns in the order in which they got their first priority
item. Then the other channels take turns in the order in which they became non-empty. When an item, a priority item or
another, is taken from a channel, the channel goes to the end of the queue if it has more items (Flink:
`SingleInputGate`, `PrioritizedDeque`). A held item does not count as an item of its channel.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from checkpointing.channel_items import (
    AlignmentType,
    Barrier,
    ChannelItem,
    ChannelState,
    EndOfChannel,
    Segment,
    SourceSlice,
    StagedSegment,
)
from checkpointing.config import UNLIMITED
from checkpointing.gate.aligner import NEVER, may_time_out
from checkpointing.gate.messages import Announcement, GateItem, GateProtocolError
from checkpointing.identifiers import ChannelId, CheckpointId

# ------------------------------------------------------------------
# One input channel of a gate: its waiting items, its held items, and its rows in flight.
#
# If a barrier can block its channel, the gate *holds* everything behind the barrier until the channel is resumed, as if
# the sender had stopped there (Flink: `PipelinedSubpartition.isBlocked`). So a blocked channel is never read, and items
# that an unaligned barrier overtook can still be delivered.


@dataclass(frozen=True, slots=True)
class ChannelSnapshot:
    """The whole state of a Channel. `overtakers`: (checkpoint, number of waiting items that its barrier overtook)."""

    waiting: tuple[ChannelItem, ...]
    held: tuple[ChannelItem, ...]
    stopped: bool
    ended: bool
    newest_barrier: CheckpointId
    overtakers: tuple[tuple[CheckpointId, int], ...]
    recording_for: CheckpointId
    recorded: tuple[Segment, ...]


class Channel:
    """The queues of one channel, in order of arrival. `stopped`: items that arrive now are held."""

    __slots__ = (
        "_overtakers",
        "_taken",
        "ended",
        "held",
        "held_bytes",
        "id",
        "newest_barrier",
        "recorded",
        "recording_for",
        "stopped",
        "waiting",
    )

    def __init__(self, name: ChannelId) -> None:
        """Begin with an empty and open channel."""
        self.id = name
        self.waiting: deque[ChannelItem] = deque()
        self.held: deque[ChannelItem] = deque()
        self.stopped = False
        self.ended = False
        self.newest_barrier = NEVER
        self.recording_for = NEVER
        self.recorded: list[Segment] = []
        self.held_bytes = 0
        self._taken = 0
        self._overtakers: dict[CheckpointId, int] = {}

    def hold(self, item: ChannelItem) -> None:
        """Keep an item that arrived behind a barrier that can block."""
        self.held.append(item)
        self.held_bytes += _bytes(item)

    def release_next(self) -> ChannelItem:
        """Take the oldest held item."""
        item = self.held.popleft()
        self.held_bytes -= _bytes(item)
        return item

    def wait(self, item: ChannelItem) -> None:
        """Append an item to the waiting items. A segment may be in flight."""
        self.waiting.append(item)
        if isinstance(item, Barrier):
            self._note_barrier(item.checkpoint)
        elif self.newest_barrier < self.recording_for and isinstance(item, SourceSlice | StagedSegment):
            self.recorded.append(item)

    def take(self) -> ChannelItem:
        """Take the oldest waiting item."""
        self._taken += 1
        return self.waiting.popleft()

    def overtake(self, barrier: Barrier) -> None:
        """Let a barrier overtake all waiting items."""
        self._overtakers[barrier.checkpoint] = self._taken + len(self.waiting)
        self._note_barrier(barrier.checkpoint)

    def pull_last(self) -> ChannelItem:
        """Remove and return the newest waiting item."""
        return self.waiting.pop()

    def record(self, checkpoint: CheckpointId) -> None:
        """Record the segments before that checkpoint's barrier: those that wait, and those still to come (C5)."""
        self.recorded = [i for i in self._before(checkpoint) if isinstance(i, SourceSlice | StagedSegment)]
        self.recording_for = checkpoint

    def stop_recording(self, checkpoint: CheckpointId) -> tuple[Segment, ...]:
        """Return the recorded segments, and forget them and all barriers up to that checkpoint."""
        recorded = tuple(self.recorded)
        self.recorded = []
        self.recording_for = NEVER
        self._overtakers = {n: place for n, place in self._overtakers.items() if n > checkpoint}
        return recorded

    def _before(self, checkpoint: CheckpointId) -> Iterator[ChannelItem]:
        if checkpoint in self._overtakers:
            overtaken = max(0, self._overtakers[checkpoint] - self._taken)
            return iter([item for _, item in zip(range(overtaken), self.waiting, strict=False)])
        if self.newest_barrier < checkpoint or self._ends_with(checkpoint):
            return iter(self.waiting)
        return iter(())

    def _ends_with(self, checkpoint: CheckpointId) -> bool:
        last = self.waiting[-1] if self.waiting else None
        return isinstance(last, Barrier) and last.checkpoint == checkpoint

    def _note_barrier(self, checkpoint: CheckpointId) -> None:
        self.newest_barrier = max(self.newest_barrier, checkpoint)

    def snapshot(self) -> ChannelSnapshot:
        """Return the channel's state as one hashable value."""
        return ChannelSnapshot(
            waiting=tuple(self.waiting),
            held=tuple(self.held),
            stopped=self.stopped,
            ended=self.ended,
            newest_barrier=self.newest_barrier,
            overtakers=tuple(sorted((n, max(0, place - self._taken)) for n, place in self._overtakers.items())),
            recording_for=self.recording_for,
            recorded=tuple(self.recorded),
        )


def _bytes(item: ChannelItem) -> int:
    return item.bytes if isinstance(item, SourceSlice | StagedSegment) else 0


@dataclass(frozen=True, slots=True)
class ChannelsSnapshot:
    """The whole state of Channels, channel by channel."""

    channels: tuple[ChannelSnapshot, ...]
    turns: tuple[ChannelId, ...]
    priority: tuple[tuple[ChannelId, Barrier | Announcement], ...]


class Channels:
    """The channels that deliver items to the barrier handler (Flink: `CheckpointableInput`).

    `may_block(barrier)` says whether the items behind this barrier are held. `announces` says whether barriers with a
    timeout are announced.
    """

    def __init__(
        self, names: Iterable[ChannelId], *, may_block: Callable[[Barrier], bool], announces: bool = False
    ) -> None:
        """Begin with every channel empty."""
        self._channels = {name: Channel(name) for name in names}
        self.may_block = may_block
        self._announces = announces
        self._turns: OrderedDict[ChannelId, None] = OrderedDict()
        self._priority: OrderedDict[ChannelId, deque[Barrier | Announcement]] = OrderedDict()

    def __getitem__(self, name: ChannelId) -> Channel:
        """Return the channel. Raise GateProtocolError if the gate has no channel of this name."""
        try:
            return self._channels[name]
        except KeyError:
            message = f"channel {name} is none of this gate's; it has {', '.join(map(str, self._channels))}"
            raise GateProtocolError(message) from None

    # -------------------------------------------------------------- arriving and taking

    def arrive(self, name: ChannelId, item: ChannelItem) -> None:
        """Append an item to the channel. Raise GateProtocolError if the channel has ended."""
        channel = self[name]
        if channel.ended:
            message = f"channel {name} has ended; {type(item).__name__} came after its end"
            raise GateProtocolError(message)
        channel.ended = isinstance(item, EndOfChannel)
        if channel.stopped:
            channel.hold(item)
        else:
            self._admit(channel, item)

    @property
    def has_next(self) -> bool:
        """True if some channel has an item to take."""
        return bool(self._priority or self._turns)

    def take(self) -> tuple[ChannelId, GateItem] | None:
        """Take the next item in turn, or None."""
        if self._priority:
            name, entries = self._priority.popitem(last=False)
            entry = entries.popleft()
            if entries:
                self._priority[name] = entries
            self._to_the_back(self._channels[name])
            return name, entry
        if self._turns:
            name, _ = self._turns.popitem(last=False)
            item = self._channels[name].take()
            self._to_the_back(self._channels[name])
            return name, item
        return None

    def _admit(self, channel: Channel, item: ChannelItem) -> None:
        if isinstance(item, Barrier):
            self._admit_barrier(channel, item)
        else:
            channel.wait(item)
        if channel.waiting:
            self._turns.setdefault(channel.id)

    def _admit_barrier(self, channel: Channel, barrier: Barrier) -> None:
        if self._announces and barrier.alignment is AlignmentType.UNALIGNED:
            channel.overtake(barrier)
            self._prefer(channel.id, barrier)
            return
        channel.wait(barrier)
        channel.stopped = self.may_block(barrier)
        if self._announces and may_time_out(barrier):
            self._prefer(channel.id, Announcement(barrier))

    def _prefer(self, name: ChannelId, entry: Barrier | Announcement) -> None:
        self._priority.setdefault(name, deque()).append(entry)

    def _to_the_back(self, channel: Channel) -> None:
        self._turns.pop(channel.id, None)
        if channel.waiting:
            self._turns[channel.id] = None

    # -------------------------------------------------------------- what the barrier handler asks for

    def resume(self, name: ChannelId) -> None:
        """Go on reading the channel. Held items follow, up to the next barrier that can block."""
        channel = self._channels[name]
        channel.stopped = False
        while channel.held and not channel.stopped:
            self._admit(channel, channel.release_next())

    def prioritise(self, name: ChannelId, checkpoint: CheckpointId) -> None:
        """Let the channel's announced barrier overtake the items before it.

        Do nothing if the barrier was taken already.
        """
        channel = self._channels[name]
        last = channel.waiting[-1] if channel.waiting else None
        if not isinstance(last, Barrier) or last.checkpoint != checkpoint:
            return
        channel.pull_last()
        channel.overtake(last)
        self._prefer(name, last)

    def start_recording(self, checkpoint: CheckpointId) -> None:
        """Record the segments before that checkpoint's barrier, on every channel."""
        for channel in self._channels.values():
            channel.record(checkpoint)

    def stop_recording(self, checkpoint: CheckpointId) -> tuple[ChannelState, ...]:
        """Return and forget the recorded segments of each channel. Leave out channels without recorded segments."""
        states = (ChannelState(c.id, c.stop_recording(checkpoint)) for c in self._channels.values())
        return tuple(state for state in states if state.segments)

    def held_bytes(self) -> int:
        """Return how many bytes are held behind barriers, in all channels."""
        return sum(channel.held_bytes for channel in self._channels.values())

    # -------------------------------------------------------------- state

    def snapshot(self) -> ChannelsSnapshot:
        """Return the state of all channels as one hashable value."""
        return ChannelsSnapshot(
            channels=tuple(channel.snapshot() for channel in self._channels.values()),
            turns=tuple(self._turns),
            priority=tuple((name, entry) for name, entries in self._priority.items() for entry in entries),
        )


# ------------------------------------------------------------------
# ALIGNED_BUFFERING: keeps items of blocked channels, and replays them after the alignment (C2).
#
# When an alignment completes or aborts, the items that it put aside become the next sequence to replay. They come
# before new input, and before the rest of an older replay. A replayed item is handled as if it had just arrived, and
# may be put aside again (Flink up to 1.10: `BarrierBuffer`, `CachedBufferStorage`).


Queued = tuple[ChannelId, ChannelItem]


@dataclass(frozen=True, slots=True)
class BufferSnapshot:
    """The whole state of an AlignmentBuffer. The first of `sequences` is being replayed."""

    aside: tuple[Queued, ...]
    sequences: tuple[tuple[Queued, ...], ...]


class _Sequence:
    """Items in order, and their bytes."""

    __slots__ = ("bytes", "items")

    def __init__(self, items: Iterable[Queued] = ()) -> None:
        self.items: deque[Queued] = deque(items)
        self.bytes = sum(_bytes(item) for _, item in self.items)

    def append(self, queued: Queued) -> None:
        self.items.append(queued)
        self.bytes += _bytes(queued[1])

    def popleft(self) -> Queued:
        queued = self.items.popleft()
        self.bytes -= _bytes(queued[1])
        return queued


class AlignmentBuffer:
    """Keeps items that were read from blocked channels, and counts their bytes until a replay hands them out."""

    def __init__(self, max_bytes: int) -> None:
        """Begin empty; -1 means no limit."""
        self._max_bytes = max_bytes
        self._aside = _Sequence()
        self._replay = _Sequence()
        self._pushed_back: deque[_Sequence] = deque()
        self._pushed_back_bytes = 0

    def held_bytes(self) -> int:
        """Bytes put aside, or waiting behind a newer replay."""
        return self._aside.bytes + self._pushed_back_bytes

    @property
    def over_limit(self) -> bool:
        """True if more bytes are held than the limit allows."""
        return self._max_bytes != UNLIMITED and self.held_bytes() > self._max_bytes

    def put_aside(self, channel: ChannelId, item: ChannelItem) -> None:
        """Keep an item until the alignment is over."""
        self._aside.append((channel, item))

    def resume(self, name: ChannelId) -> None:  # noqa: ARG002 - a release always frees all channels
        """End the alignment. Items put aside on any channel are replayed next."""
        if not self._aside.items:
            return
        if self._replay.items:
            self._pushed_back.appendleft(self._replay)
            self._pushed_back_bytes += self._replay.bytes
        self._replay, self._aside = self._aside, _Sequence()

    @property
    def has_next(self) -> bool:
        """True if there is an item to replay."""
        return bool(self._replay.items)

    def take(self) -> Queued | None:
        """Take the next item of the replay, or None if nothing is left to replay."""
        if not self._replay.items:
            return None
        queued = self._replay.popleft()
        if not self._replay.items and self._pushed_back:
            self._replay = self._pushed_back.popleft()
            self._pushed_back_bytes -= self._replay.bytes
        return queued

    def snapshot(self) -> BufferSnapshot:
        """Return the buffer's state as one hashable value."""
        sequences = [self._replay, *self._pushed_back]
        return BufferSnapshot(tuple(self._aside.items), tuple(tuple(s.items) for s in sequences if s.items))
