"""All channels of a gate, and the order in which they are read.

Channels with priority items come first. They take turns in the order in which they got their first priority item. Then
the other channels take turns in the order in which they became non-empty. When an item is taken from a channel, also a
priority item, the channel goes to the end of the queue if it has more (Flink: `SingleInputGate`, `PrioritizedDeque`). A
held item does not count as an item of its channel.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from checkpointing.channel_items import AlignmentType, Barrier, ChannelItem, EndOfChannel
from checkpointing.gate.alignment import may_time_out
from checkpointing.gate.channel import Channel, ChannelSnapshot
from checkpointing.gate.messages import Announcement, GateItem, GateProtocolError
from checkpointing.identifiers import ChannelId, CheckpointId
from checkpointing.snapshots import ChannelState


@dataclass(frozen=True, slots=True)
class ChannelsSnapshot:
    """The whole state of Channels, channel by channel."""

    channels: tuple[ChannelSnapshot, ...]
    turns: tuple[ChannelId, ...]
    priority: tuple[tuple[ChannelId, Barrier | Announcement], ...]


class Channels:
    """The transport below the barrier handler (Flink: `CheckpointableInput`).

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
        """Go on reading the channel. Held items follow, up to the next barrier that may block."""
        channel = self._channels[name]
        channel.stopped = False
        while channel.held and not channel.stopped:
            self._admit(channel, channel.release_next())

    def prioritise(self, name: ChannelId, checkpoint: CheckpointId) -> None:
        """Let the channel's announced barrier overtake what waits before it. No effect once the barrier was taken."""
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
        """Return the recorded segments by channel, without channels that have none, and forget them."""
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
