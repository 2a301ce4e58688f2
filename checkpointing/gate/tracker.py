"""At least once: barriers are counted for each checkpoint, and no channel is ever blocked (C4).

Several checkpoints may be pending. A newer barrier drops none of the older ones. When a checkpoint is complete, all
older ones are dropped silently. A cancel marker aborts its checkpoint and all older ones, each once. At most 50
checkpoints are remembered (Flink: `CheckpointBarrierTracker`).
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from checkpointing.channel_items import Barrier
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate.aligner import NEVER, Effects
from checkpointing.gate.messages import AbortCheckpoint, Ignored, TriggerCheckpoint
from checkpointing.identifiers import ChannelId, CheckpointId

MAX_CHECKPOINTS_TO_TRACK = 50


@dataclass(slots=True)
class _BarrierCount:
    """The count of one checkpoint. `barrier` is None if only a cancel marker came, so that it can only be aborted."""

    barrier: Barrier | None
    target: int
    started_ms: int
    processed_before: int
    aligned: set[ChannelId] = field(default_factory=set)
    aborted: bool = False

    def align(self, channel: ChannelId) -> bool:
        """Record that the channel has aligned. Return whether all channels have."""
        self.aligned.add(channel)
        return len(self.aligned) == self.target


@dataclass(frozen=True, slots=True)
class BarrierCountSnapshot:
    """The state of one pending checkpoint. `bytes_processed` are counted since its first barrier."""

    checkpoint: CheckpointId
    barrier: Barrier | None
    target: int
    started_ms: int
    bytes_processed: int
    aligned: frozenset[ChannelId]
    aborted: bool


@dataclass(frozen=True, slots=True)
class TrackerSnapshot:
    """The whole state of a BarrierTracker."""

    open_channels: int
    latest: CheckpointId
    counts: tuple[BarrierCountSnapshot, ...]


class BarrierTracker:
    """The barrier handler that never blocks."""

    def __init__(self, channel_count: int, *, end_counts_as_barrier: bool) -> None:
        """Begin with nothing pending."""
        self.open_channels = channel_count
        self.latest = NEVER
        self._end_counts_as_barrier = end_counts_as_barrier
        self._counts: OrderedDict[CheckpointId, _BarrierCount] = OrderedDict()
        self._processed = 0

    def barrier(self, channel: ChannelId, barrier: Barrier, now_ms: int) -> Effects:
        """Count the barrier. Trigger if it is the last one of its checkpoint."""
        checkpoint = barrier.checkpoint
        if checkpoint not in self._counts:
            if checkpoint <= self.latest:
                return [Ignored(channel, barrier)]
            self._track(checkpoint, barrier, now_ms)
        return self._align(channel, checkpoint, now_ms)

    def cancel(self, channel: ChannelId, checkpoint: CheckpointId) -> Effects | None:
        """Abort the checkpoint and all older pending ones. Return None if the cancel marker is not new."""
        if checkpoint > self.latest and self.open_channels == 1:
            self.latest = checkpoint
            return [_aborted(checkpoint, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)]
        effects = self._abort_older_than(checkpoint)
        if checkpoint > self.latest:
            self._track(checkpoint, None, 0)
        if checkpoint in self._counts:
            effects += self._abort_once(checkpoint, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)
            if self._counts[checkpoint].align(channel):
                del self._counts[checkpoint]
        return effects or None

    def end(self, channel: ChannelId, now_ms: int) -> Effects:
        """Count the channel out. For all pending checkpoints it has then aligned, or all of them are aborted."""
        self.open_channels -= 1
        if self._end_counts_as_barrier:
            return self._align_all(channel, now_ms)
        return self.abort_pending(Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM)

    def announcement(self, channel: ChannelId, barrier: Barrier) -> Effects:  # noqa: ARG002 - told, of no interest
        """Do nothing: the tracker counts barriers, and not their announcements."""
        return []

    def time_advanced(self, now_ms: int) -> Effects:  # noqa: ARG002 - told, of no interest
        """Do nothing: there is no timer."""
        return []

    def abort_pending(self, reason: Reason) -> Effects:
        """Abort all pending checkpoints that were not aborted before, and forget all."""
        effects: Effects = []
        for checkpoint in tuple(self._counts):
            effects += self._abort_once(checkpoint, reason)
        self._counts.clear()
        return effects

    def _track(self, checkpoint: CheckpointId, barrier: Barrier | None, now_ms: int) -> None:
        self.latest = checkpoint
        self._counts[checkpoint] = _BarrierCount(barrier, self.open_channels, now_ms, self._processed)
        if len(self._counts) > MAX_CHECKPOINTS_TO_TRACK:
            self._counts.popitem(last=False)

    def _align(self, channel: ChannelId, checkpoint: CheckpointId, now_ms: int) -> Effects:
        if not self._counts[checkpoint].align(channel):
            return []
        return self._complete(checkpoint, now_ms)

    def _align_all(self, channel: ChannelId, now_ms: int) -> Effects:
        complete = [checkpoint for checkpoint, count in self._counts.items() if count.align(channel)]
        return self._complete(complete[-1], now_ms) if complete else []

    def _complete(self, checkpoint: CheckpointId, now_ms: int) -> Effects:
        count = self._counts[checkpoint]
        while self._counts and next(iter(self._counts)) <= checkpoint:
            self._counts.popitem(last=False)
        if count.aborted or count.barrier is None:
            return []
        return [
            TriggerCheckpoint(
                count.barrier,
                alignment_ms=now_ms - count.started_ms,
                bytes_processed=self._processed - count.processed_before,
            )
        ]

    def _abort_older_than(self, checkpoint: CheckpointId) -> Effects:
        effects: Effects = []
        while self._counts and (oldest := next(iter(self._counts))) < checkpoint:
            effects += self._abort_once(oldest, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)
            del self._counts[oldest]
        return effects

    def _abort_once(self, checkpoint: CheckpointId, reason: Reason) -> Effects:
        count = self._counts[checkpoint]
        if count.aborted:
            return []
        count.aborted = True
        return [_aborted(checkpoint, reason)]

    def blocked(self) -> frozenset[ChannelId]:
        """Return no channel. A tracker never blocks."""
        return frozenset()

    def pending(self) -> tuple[CheckpointId, ...]:
        """Return the remembered ids in rising order, including aborted ones."""
        return tuple(self._counts)

    def delivered(self, size_bytes: int) -> None:
        """Count bytes that were given to the operator."""
        self._processed += size_bytes

    def snapshot(self) -> TrackerSnapshot:
        """Return the handler's state as one hashable value."""
        counts = tuple(
            BarrierCountSnapshot(
                checkpoint=checkpoint,
                barrier=count.barrier,
                target=count.target,
                started_ms=count.started_ms,
                bytes_processed=self._processed - count.processed_before,
                aligned=frozenset(count.aligned),
                aborted=count.aborted,
            )
            for checkpoint, count in self._counts.items()
        )
        return TrackerSnapshot(open_channels=self.open_channels, latest=self.latest, counts=counts)


def _aborted(checkpoint: CheckpointId, reason: Reason) -> AbortCheckpoint:
    return AbortCheckpoint(checkpoint, reason)
