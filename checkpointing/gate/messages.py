"""The messages of the gate: facts (past tense) in, effects (imperative) out.

The caller steps one fact at a time. Effects come in the order in which they take place. None needs an answer.
"""

from dataclasses import dataclass
from enum import Enum

from checkpointing.channel_items import (
    Barrier,
    CancelMarker,
    ChannelItem,
    ChannelState,
    EndOfChannel,
    EndOfData,
    Segment,
)
from checkpointing.config import UNLIMITED
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import ChannelId, CheckpointId


class GateProtocolError(ValueError):
    """A fact that breaks the gate's protocol. The message names the channel and the rule. The gate is unchanged."""


# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class ItemArrived:
    """An item arrived at the end of the channel's queue."""

    channel: ChannelId
    item: ChannelItem


@dataclass(frozen=True, slots=True)
class Polled:
    """The vertex asks for ONE item, which the gate handles. If there is no item, the step does nothing at all."""


@dataclass(frozen=True, slots=True)
class ClockRead:
    """The clock shows `now_ms`; no timer fires. If a clock goes back, the gate's time does not change."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class GateTimeAdvanced:
    """The clock shows `now_ms`, and the alignment's timer fires if it is due."""

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
    """Notify the operator that no more rows come on the channel. Barriers may still come (Flink: `EndOfData`)."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class DeliverEnd:
    """Notify the operator that the channel has ended. It is the last effect of its step.

    No run reaches it, because all tasks of a job finish together (C3).
    """

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """Take the snapshot for `barrier` now, and send this barrier on. If it is unaligned, the barrier says so.

    `alignment_ms` is the time from the first barrier to the last. `bytes_processed` were delivered in that time.
    `bytes_held` wait behind barriers of blocked channels (C7). For an unaligned checkpoint, `alignment_ms` and
    `bytes_processed` are 0 here, and come with InFlightComplete.
    """

    barrier: Barrier
    unaligned: bool = False
    alignment_ms: int = 0
    bytes_processed: int = 0
    bytes_held: int = 0


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Decline the checkpoint, and send a cancel marker downstream. This comes at most once for each id."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class BlockChannel:
    """The channel is blocked from now on."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class ResumeChannel:
    """The channel is read again. Its block is over, or the barrier that stopped it is obsolete."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class InFlightComplete:
    """All segments in flight of the unaligned checkpoint are known. Channels without any are left out (C5)."""

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
    """The barrier was taken from the channel at this time. This is the first effect of its step."""

    channel: ChannelId
    barrier: Barrier
    at_ms: int

    @property
    def checkpoint(self) -> CheckpointId:
        """The barrier's checkpoint."""
        return self.barrier.checkpoint


@dataclass(frozen=True, slots=True)
class AnnouncementReceived:
    """For the statistics: the announcement of a barrier was taken. This is the first effect of its step."""

    channel: ChannelId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class PutAside:
    """ALIGNED_BUFFERING: the item came on a blocked channel, and waits until the alignment ends."""

    channel: ChannelId
    item: ChannelItem


@dataclass(frozen=True, slots=True)
class WakeGateAt:
    """Step the gate with GateTimeAdvanced at `at_ms`. A timer that is no longer needed does nothing."""

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
    """Announces that a barrier with a timeout waits in the channel. The announcement is a priority item."""

    barrier: Barrier


GateItem = Segment | Barrier | CancelMarker | EndOfData | EndOfChannel | Announcement
"""What a poll takes."""


# ------------------------------------------------------------------
# The configuration of one gate: its policy for barriers, and the limits that belong to the policy (C1 to C6).


class GatePolicy(Enum):
    """How barriers pass the gate."""

    ALIGNED_BLOCKING = "aligned_blocking"
    """Exactly once. Items behind a barrier stay in their channel (Flink 1.11 and later)."""
    ALIGNED_BUFFERING = "aligned_buffering"
    """Exactly once. Items behind a barrier are read and put aside, up to a limit (Flink 1.5 to 1.10)."""
    AT_LEAST_ONCE = "at_least_once"
    """Barriers are counted, and no channel is ever blocked (Flink: `CheckpointBarrierTracker`)."""
    UNALIGNED = "unaligned"
    """The first barrier triggers the snapshot, and barriers overtake segments. Savepoints are aligned nevertheless."""
    ALTERNATING = "alternating"
    """Aligned. If a barrier has a timeout, its checkpoint turns unaligned when it is older than the timeout (C6)."""


@dataclass(frozen=True, slots=True)
class GateConfig:
    """The configuration of one gate. Raises ValueError, naming field and rule.

    `max_alignment_bytes` matters under ALIGNED_BUFFERING only: if more bytes are put aside, the pending checkpoint is
    aborted. It must be positive, or -1 for no limit (C2). `checkpoint_after_tasks_finished`: the end of a channel
    counts as its barrier (FLIP-147). Otherwise, and always under ALIGNED_BUFFERING, the end aborts the pending
    checkpoint.
    """

    policy: GatePolicy = GatePolicy.ALIGNED_BLOCKING
    max_alignment_bytes: int = UNLIMITED
    checkpoint_after_tasks_finished: bool = True

    def __post_init__(self) -> None:
        """Refuse a limit that is neither positive nor -1."""
        if self.max_alignment_bytes <= 0 and self.max_alignment_bytes != UNLIMITED:
            message = f"max_alignment_bytes is {self.max_alignment_bytes}: it must be positive, or -1 for no limit"
            raise ValueError(message)
