"""Keeps the book of one alignment: the current checkpoint, the channels that have aligned, and what it cost (C1, C7).

At most one checkpoint is pending at a time. Its target is the number of channels that must align. That is the number of
open channels at its first barrier or announcement, and it stays (Flink: `SingleCheckpointBarrierHandler`).

The meaning of an id depends on how it compares with the current one, and on whether the current one is still pending:

| id      | current pending       | current settled |
|---------|-----------------------|-----------------|
| older   | obsolete              | obsolete        |
| same    | belongs to it         | obsolete        |
| newer   | subsumes it           | begins          |
"""

from dataclasses import dataclass, replace
from enum import Enum

from checkpointing.channel_items import AlignmentType, Barrier
from checkpointing.identifiers import ChannelId, CheckpointId

NEVER = CheckpointId(-1)
"""Below every id, because 0 may be an id."""


class IdStanding(Enum):
    """What an id means for the current alignment."""

    OBSOLETE = "obsolete"
    BELONGS = "belongs"
    SUBSUMES = "subsumes"
    BEGINS = "begins"


class _Order(Enum):
    OLDER = "older"
    SAME = "same"
    NEWER = "newer"


_STANDING: dict[tuple[_Order, bool], IdStanding] = {
    # (order of the id, current is pending)
    (_Order.OLDER, True): IdStanding.OBSOLETE,
    (_Order.OLDER, False): IdStanding.OBSOLETE,
    (_Order.SAME, True): IdStanding.BELONGS,
    (_Order.SAME, False): IdStanding.OBSOLETE,
    (_Order.NEWER, True): IdStanding.SUBSUMES,
    (_Order.NEWER, False): IdStanding.BEGINS,
}


@dataclass(frozen=True, slots=True)
class AlignmentSnapshot:
    """The whole state of an Alignment."""

    current: CheckpointId
    settled: CheckpointId
    barrier: Barrier | None
    aligned: frozenset[ChannelId]
    target: int
    open_channels: int
    started_ms: int | None
    processed: int
    duration_ms: int
    bytes_processed: int


class Alignment:
    """Keeps the book. It decides only what an id means."""

    def __init__(self, channel_count: int) -> None:
        """Begin with all channels open and no checkpoint seen."""
        self.current = NEVER
        self.barrier: Barrier | None = None
        self.open_channels = channel_count
        self.target = channel_count
        self.duration_ms = 0
        self.bytes_processed = 0
        self._settled = NEVER
        self._aligned: set[ChannelId] = set()
        self._started_ms: int | None = None
        self._processed = 0

    @property
    def pending(self) -> bool:
        """True if the current checkpoint is neither complete nor aborted."""
        return self.current != self._settled

    @property
    def complete(self) -> bool:
        """True if every channel of the target has aligned."""
        return len(self._aligned) == self.target

    def standing(self, checkpoint: CheckpointId) -> IdStanding:
        """Return what this id means for the current alignment."""
        return _STANDING[_order(checkpoint, self.current), self.pending]

    def begin(self, barrier: Barrier) -> None:
        """Make the barrier's checkpoint the current one. The previous one has ended, so no channel is aligned yet."""
        self.current = barrier.checkpoint
        self.barrier = barrier
        self.target = self.open_channels

    def align(self, channel: ChannelId, now_ms: int) -> None:
        """Note that the channel's barrier, or its end, is in. A second note changes nothing."""
        self._aligned.add(channel)
        if self._started_ms is None:
            self._started_ms = now_ms
            self._processed = 0
        self.duration_ms = now_ms - self._started_ms
        self.bytes_processed = self._processed

    def abandon(self, checkpoint: CheckpointId) -> None:
        """Note that the checkpoint, and with it the current one, is aborted. It has cost nothing."""
        self.settle(checkpoint)
        self.duration_ms = 0
        self.bytes_processed = 0

    def settle(self, checkpoint: CheckpointId) -> None:
        """Note that the checkpoint, and with it the current one, is over."""
        self.current = max(self.current, checkpoint)
        self._settled = self.current
        self.barrier = None
        self._aligned.clear()
        self._started_ms = None

    def close_channel(self) -> None:
        """Note that a channel has ended. The target of the current checkpoint stays."""
        self.open_channels -= 1

    def delivered(self, size_bytes: int) -> None:
        """Count bytes that were delivered during the alignment."""
        self._processed += size_bytes

    def snapshot(self) -> AlignmentSnapshot:
        """Return the book as one hashable value."""
        return AlignmentSnapshot(
            current=self.current,
            settled=self._settled,
            barrier=self.barrier,
            aligned=frozenset(self._aligned),
            target=self.target,
            open_channels=self.open_channels,
            started_ms=self._started_ms,
            processed=0 if self._started_ms is None else self._processed,
            duration_ms=self.duration_ms,
            bytes_processed=self.bytes_processed,
        )


def _order(checkpoint: CheckpointId, current: CheckpointId) -> _Order:
    if checkpoint < current:
        return _Order.OLDER
    return _Order.SAME if checkpoint == current else _Order.NEWER


def may_time_out(barrier: Barrier) -> bool:
    """Return whether the barrier's checkpoint may turn unaligned when it is too old (Flink: `isTimeoutable`)."""
    return barrier.alignment is AlignmentType.ALIGNED and barrier.alignment_timeout_ms is not None


def as_unaligned(barrier: Barrier) -> Barrier:
    """Return the barrier to send on once its checkpoint is unaligned (Flink: `asUnaligned`)."""
    return replace(barrier, alignment=AlignmentType.UNALIGNED, alignment_timeout_ms=None)
