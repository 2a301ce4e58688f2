"""The door of the gate: the inputs of one vertex (C1 to C7). Facts in, effects out; see `messages`.

The caller steps one fact at a time, and carries out the effects in their order. It sends every item of a channel as
ItemArrived, also the items behind a barrier. The gate itself keeps these items while the channel is blocked. One object
serves all subtasks of a vertex, since the driver gives a channel's items to all of them in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from checkpointing.channel_items import (
    AlignmentType,
    Barrier,
    CancelMarker,
    ChannelItem,
    EndOfChannel,
    EndOfData,
    Segment,
    SourceSlice,
    StagedSegment,
)
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate.aligner import Aligner, AlignerRules, AlignerSnapshot, AlternatingAligner, Effects, as_unaligned
from checkpointing.gate.channels import AlignmentBuffer, BufferSnapshot, Channels, ChannelsSnapshot
from checkpointing.gate.messages import (
    Announcement,
    AnnouncementReceived,
    BarrierReceived,
    ClockRead,
    Deliver,
    DeliverEnd,
    DeliverEndOfData,
    GateConfig,
    GateEffect,
    GateFact,
    GatePolicy,
    GateProtocolError,
    GateTimeAdvanced,
    Ignored,
    ItemArrived,
    Polled,
    PutAside,
)
from checkpointing.gate.tracker import BarrierTracker, TrackerSnapshot
from checkpointing.identifiers import ChannelId, CheckpointId

_BLOCKING = frozenset({GatePolicy.ALIGNED_BLOCKING, GatePolicy.UNALIGNED, GatePolicy.ALTERNATING})
_ALIGNED = frozenset({GatePolicy.ALIGNED_BLOCKING, GatePolicy.ALIGNED_BUFFERING})
_OVERTAKING = frozenset({GatePolicy.UNALIGNED, GatePolicy.ALTERNATING})


@dataclass(frozen=True, slots=True)
class GateSnapshot:
    """The whole state of a gate, canonical and hashable."""

    clock_ms: int
    open_channels: frozenset[ChannelId]
    channels: ChannelsSnapshot
    handler: AlignerSnapshot | TrackerSnapshot
    buffer: BufferSnapshot


class InputGate:
    """Takes items from the channels in turn, and decides what each barrier, cancel marker and end does."""

    def __init__(self, config: GateConfig, channels: Sequence[ChannelId]) -> None:
        """Begin with all channels open and empty."""
        self.config = config
        policy = config.policy
        self._channels = Channels(
            channels,
            may_block=_stops if policy in _BLOCKING else _never_stops,
            announces=policy in _OVERTAKING,
        )
        self._puts_aside = policy is GatePolicy.ALIGNED_BUFFERING
        self._buffer = AlignmentBuffer(config.max_alignment_bytes)
        self._open = set(channels)
        self._clock_ms = 0
        self._handler = _handler(config, self._channels, self._buffer, len(channels))

    def step(self, fact: GateFact) -> tuple[GateEffect, ...]:
        """Take one fact. Return the effects in the order in which they take place.

        Raise GateProtocolError, and change nothing, if the gate has no such channel, if the channel has ended, or if an
        unaligned barrier comes to a gate with an aligned policy.
        """
        effects: Effects = []
        match fact:
            case ItemArrived(channel, item):
                self._channels.arrive(channel, self._admissible(channel, item))
            case Polled():
                effects = self._poll()
            case ClockRead(now_ms):
                self._read_clock(now_ms)
            case GateTimeAdvanced(now_ms):
                self._read_clock(now_ms)
                effects = self._handler.time_advanced(self._clock_ms)
            case _:
                assert_never(fact)
        return tuple(effects)

    def _read_clock(self, now_ms: int) -> None:
        self._clock_ms = max(self._clock_ms, now_ms)

    # -------------------------------------------------------------- questions

    def has_deliverable(self) -> bool:
        """Return whether a poll would take an item."""
        return self._buffer.has_next or self._channels.has_next

    def blocked(self) -> frozenset[ChannelId]:
        """Return the channels that are blocked."""
        return self._handler.blocked()

    def pending(self) -> tuple[CheckpointId, ...]:
        """Return the ids of the checkpoints in progress, in rising order."""
        return self._handler.pending()

    def open_channels(self) -> frozenset[ChannelId]:
        """Return the channels whose end was not handled yet."""
        return frozenset(self._open)

    # -------------------------------------------------------------- taking

    def _poll(self) -> Effects:
        taken = self._buffer.take() or self._channels.take()
        if taken is None:
            return []
        channel, item = taken
        if isinstance(item, Announcement):
            return self._announced(channel, item.barrier)
        if self._puts_aside and channel in self._handler.blocked():
            return self._put_aside(channel, item)
        return self._handle(channel, item)

    def _handle(self, channel: ChannelId, item: ChannelItem) -> Effects:
        match item:
            case SourceSlice() | StagedSegment():
                return self._deliver(channel, item)
            case Barrier():
                received = BarrierReceived(channel, item, self._clock_ms)
                return [received, *self._handler.barrier(channel, item, self._clock_ms)]
            case CancelMarker():
                return self._cancel(channel, item)
            case EndOfData():
                return [DeliverEndOfData(channel)]
            case EndOfChannel():
                self._open.discard(channel)
                return [*self._handler.end(channel, self._clock_ms), DeliverEnd(channel)]
            case _:
                assert_never(item)

    def _deliver(self, channel: ChannelId, segment: Segment) -> Effects:
        self._handler.delivered(segment.bytes)
        return [Deliver(channel, segment)]

    def _cancel(self, channel: ChannelId, marker: CancelMarker) -> Effects:
        effects = self._handler.cancel(channel, marker.checkpoint)
        return [Ignored(channel, marker)] if effects is None else effects

    # -------------------------------------------------------------- what only some policies do

    def _put_aside(self, channel: ChannelId, item: ChannelItem) -> Effects:
        self._buffer.put_aside(channel, item)
        effects: Effects = [PutAside(channel, item)]
        if self._buffer.over_limit:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED
            effects += self._handler.abort_pending(reason)
        return effects

    def _announced(self, channel: ChannelId, barrier: Barrier) -> Effects:
        received = AnnouncementReceived(channel, barrier.checkpoint)
        return [received, *self._handler.announcement(channel, barrier)]

    def _admissible(self, channel: ChannelId, item: ChannelItem) -> ChannelItem:
        if not isinstance(item, Barrier):
            return item
        policy = self.config.policy
        if policy is GatePolicy.UNALIGNED and item.alignment is not AlignmentType.FORCED_ALIGNED:
            return as_unaligned(item)
        if policy in _ALIGNED and item.alignment is AlignmentType.UNALIGNED:
            message = f"unaligned barrier {item.checkpoint} came on channel {channel}; the policy is {policy.value}"
            raise GateProtocolError(message)
        return item

    # -------------------------------------------------------------- state

    def snapshot(self) -> GateSnapshot:
        """Return the gate's state as one hashable value."""
        return GateSnapshot(
            clock_ms=self._clock_ms,
            open_channels=frozenset(self._open),
            channels=self._channels.snapshot(),
            handler=self._handler.snapshot(),
            buffer=self._buffer.snapshot(),
        )


def _handler(
    config: GateConfig, channels: Channels, buffer: AlignmentBuffer, channel_count: int
) -> Aligner | BarrierTracker:
    ends_count = config.checkpoint_after_tasks_finished
    match config.policy:
        case GatePolicy.ALIGNED_BLOCKING:
            return Aligner(channels, channel_count, AlignerRules(end_counts_as_barrier=ends_count))
        case GatePolicy.ALIGNED_BUFFERING:
            rules = AlignerRules(barrier_stops_channel=False, end_counts_as_barrier=False, cancel_aborts_older=True)
            return Aligner(buffer, channel_count, rules)
        case GatePolicy.AT_LEAST_ONCE:
            return BarrierTracker(channel_count, end_counts_as_barrier=ends_count)
        case GatePolicy.UNALIGNED | GatePolicy.ALTERNATING:
            return AlternatingAligner(channels, channel_count, AlignerRules(end_counts_as_barrier=ends_count))
        case _:
            assert_never(config.policy)


def _stops(barrier: Barrier) -> bool:
    return barrier.alignment is not AlignmentType.UNALIGNED


def _never_stops(barrier: Barrier) -> bool:  # noqa: ARG001 - the form of a rule
    return False
