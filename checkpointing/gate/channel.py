"""One input channel of a gate: its waiting items, its held items, and its rows in flight.

If a barrier may block its channel, the gate *holds* everything behind the barrier until the channel is resumed, as if
the sender had stopped there (Flink: `PipelinedSubpartition.isBlocked`). So a blocked channel is never read, and items
that an unaligned barrier overtook can still be delivered.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from checkpointing.channel_items import Barrier, ChannelItem, Segment, SourceSlice, StagedSegment
from checkpointing.gate.alignment import NEVER
from checkpointing.identifiers import ChannelId, CheckpointId


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
    """The queues of one channel, in order of arrival. `stopped`: what arrives now is held."""

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
        """Begin empty and open."""
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
        """Keep an item that arrived behind a barrier that may block."""
        self.held.append(item)
        self.held_bytes += _bytes(item)

    def release_next(self) -> ChannelItem:
        """Take the oldest held item."""
        item = self.held.popleft()
        self.held_bytes -= _bytes(item)
        return item

    def wait(self, item: ChannelItem) -> None:
        """Append an item to the waiting ones. A segment may be in flight."""
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
        """Let a barrier pass all waiting items."""
        self._overtakers[barrier.checkpoint] = self._taken + len(self.waiting)
        self._note_barrier(barrier.checkpoint)

    def pull_last(self) -> ChannelItem:
        """Remove and return the newest waiting item."""
        return self.waiting.pop()

    def record(self, checkpoint: CheckpointId) -> None:
        """Record the segments before that checkpoint's barrier: the waiting ones, and those still to come (C5)."""
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
