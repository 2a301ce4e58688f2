"""Extends the product's gate: Flink's cases hand it items past its queues, and close it.

In the product every item goes through its channel's queue, and a gate lives as long as its job.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from checkpointing.channel_items import Barrier, ChannelItem, EndOfChannel
from checkpointing.gate import GateConfig, GateEffect, GateFact, GateTimeAdvanced, InputGate, Polled
from checkpointing.identifiers import ChannelId


@dataclass(frozen=True, slots=True)
class ItemHanded:
    """A case handed an item to the gate past the channel's queue and past a block. The gate handles it at once."""

    channel: ChannelId
    item: ChannelItem


@dataclass(frozen=True, slots=True)
class AnnouncementHanded:
    """A case told the gate that this barrier waits in the channel (Flink: `EventAnnouncement`)."""

    channel: ChannelId
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class GateClosed:
    """The task is gone. From now on timers do nothing, and the gate hands out nothing."""


class FlinkGate(InputGate):
    """A gate that takes every fact of Flink's cases, and follows the product's rules."""

    def __init__(self, config: GateConfig, channels: Sequence[ChannelId]) -> None:
        """Begin as the product's gate does."""
        super().__init__(config, channels)
        self._closed = False

    def tell(self, fact: GateFact | ItemHanded | AnnouncementHanded | GateClosed) -> tuple[GateEffect, ...]:
        """Take one fact and return the effects, as `step` does."""
        match fact:
            case ItemHanded(channel, item):
                admitted = self._admissible(channel, item)
                self._pass_the_queue(channel, admitted)
                return tuple(self._handle(channel, admitted))
            case AnnouncementHanded(channel, barrier):
                return tuple(self._announced(channel, barrier))
            case GateClosed():
                self._closed = True
                return ()
            case Polled() | GateTimeAdvanced() if self._closed:
                return ()
            case _:
                return self.step(fact)

    def has_deliverable(self) -> bool:
        """Return whether a poll would take an item. A closed gate has none."""
        return not self._closed and super().has_deliverable()

    def _pass_the_queue(self, name: ChannelId, item: ChannelItem) -> None:
        """Record an item that was handled without passing the queue.

        Items that wait in the queue now lie behind a barrier.
        """
        channel = self._channels[name]
        if isinstance(item, EndOfChannel):
            channel.ended = True
        elif isinstance(item, Barrier):
            if self._channels.may_block(item):
                waiting = tuple(channel.waiting)
                channel.waiting.clear()
                held = [channel.release_next() for _ in range(len(channel.held))]
                for behind in (*waiting, *held):
                    channel.hold(behind)
                channel.stopped = True
                self._channels._to_the_back(channel)  # noqa: SLF001 - only Flink's cases empty a queue like this
            channel.overtake(item)
