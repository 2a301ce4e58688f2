"""The alphabet of the gate: facts (past tense) in, effects (imperative) out.

A fact is stepped one at a time. Effects come in the order in which they take place; none waits for an answer.
"""

from dataclasses import dataclass

from checkpointing.channel_items import Barrier, CancelMarker, ChannelItem, EndOfChannel, EndOfData, Segment
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import ChannelId, CheckpointId
from checkpointing.snapshots import ChannelState


class GateProtocolError(ValueError):
    """A fact that breaks the gate's protocol; names the channel and the rule. The gate is as it was before."""


# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class ItemArrived:
    """An item came to the end of the channel's queue."""

    channel: ChannelId
    item: ChannelItem


@dataclass(frozen=True, slots=True)
class Polled:
    """The task asked for ONE item: it is taken and handled. If there is none, the step has no effect at all."""


@dataclass(frozen=True, slots=True)
class ClockRead:
    """The clock shows `now_ms`; no timer runs. A clock that goes back is read as standing still."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class GateTimeAdvanced:
    """The clock shows `now_ms`, and the alignment's timer runs if it is due."""

    now_ms: int


GateFact = ItemArrived | Polled | ClockRead | GateTimeAdvanced


# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give the segment to the operator."""

    channel: ChannelId
    segment: Segment


@dataclass(frozen=True, slots=True)
class DeliverEndOfData:
    """Tell the operator that no row follows on the channel; it stays open, barriers may follow (Flink: `EndOfData`)."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class DeliverEnd:
    """Tell the operator that the channel has ended; the last effect of its step.

    No run reaches it yet: it waits for finished inputs (B4).
    """

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """Take the snapshot for `barrier` now, and send that very barrier on (an unaligned one is marked so).

    `alignment_ms` from the first barrier to the last, `bytes_processed` delivered meanwhile, `bytes_held` the
    bytes that wait behind the blocks (C7). For an unaligned checkpoint the first two come with
    InFlightComplete, and are 0 here.
    """

    barrier: Barrier
    unaligned: bool = False
    alignment_ms: int = 0
    bytes_processed: int = 0
    bytes_held: int = 0


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Decline the checkpoint and tell those downstream with a cancel marker; at most once per id."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class BlockChannel:
    """From here on the channel is blocked."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class ResumeChannel:
    """The channel is read on: its block is over, or the barrier that stopped it is obsolete."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class InFlightComplete:
    """The in-flight segments of the unaligned checkpoint are all known; channels without any are left out (C5)."""

    checkpoint: CheckpointId
    channels: tuple[ChannelState, ...]
    alignment_ms: int = 0
    bytes_processed: int = 0


@dataclass(frozen=True, slots=True)
class Ignored:
    """An obsolete barrier or cancel marker was dropped."""

    channel: ChannelId
    item: Barrier | CancelMarker


@dataclass(frozen=True, slots=True)
class BarrierReceived:
    """For the statistics: the barrier was taken from the channel at that time; first effect of its step."""

    channel: ChannelId
    checkpoint: CheckpointId
    at_ms: int


@dataclass(frozen=True, slots=True)
class AnnouncementReceived:
    """For the statistics: the announcement of a barrier was taken; first effect of its step."""

    channel: ChannelId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class PutAside:
    """ALIGNED_BUFFERING: the item came on a blocked channel and waits for the end of the alignment."""

    channel: ChannelId
    item: ChannelItem


@dataclass(frozen=True, slots=True)
class WakeGateAt:
    """Step the gate with GateTimeAdvanced at `at_ms`; a timer that comes for nothing does nothing."""

    at_ms: int


GateEffect = (
    Deliver
    | DeliverEndOfData
    | DeliverEnd
    | TriggerCheckpoint
    | AbortCheckpoint
    | BlockChannel
    | ResumeChannel
    | InFlightComplete
    | Ignored
    | BarrierReceived
    | AnnouncementReceived
    | PutAside
    | WakeGateAt
)


@dataclass(frozen=True, slots=True)
class Announcement:
    """In the priority part of the gate: a barrier with a timeout waits in the channel."""

    barrier: Barrier


GateItem = Segment | Barrier | CancelMarker | EndOfData | EndOfChannel | Announcement
"""What a poll takes."""
