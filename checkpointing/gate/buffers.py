"""ALIGNED_BUFFERING: keeps items of blocked channels, and replays them after the alignment (C2).

When an alignment completes or aborts, its items become the next sequence to replay. They come before new input, and
before the rest of an older replay. A replayed item is handled as if it had just arrived, and may be put aside again
(Flink up to 1.10: `BarrierBuffer`, `CachedBufferStorage`).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from checkpointing.channel_items import ChannelItem, SourceSlice, StagedSegment
from checkpointing.config import UNLIMITED
from checkpointing.identifiers import ChannelId

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


def _bytes(item: ChannelItem) -> int:
    return item.bytes if isinstance(item, SourceSlice | StagedSegment) else 0
