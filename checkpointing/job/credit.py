"""Back-pressure: counts the bytes in each channel that were sent and not yet processed."""

from checkpointing.graph import JobGraph
from checkpointing.identifiers import ChannelId, SubtaskId


class Credit:
    """Counts bytes by channel. A subtask has credit while each of its channels is below the limit.

    The limit stops new work upstream, never a barrier. So no alignment waits for credit.
    """

    def __init__(self, graph: JobGraph, limit_bytes: int) -> None:
        """Begin with empty channels."""
        self._limit_bytes = limit_bytes
        self._bytes = {channel: 0 for vertex in graph.vertices for channel in graph.channels_into(vertex.id)}
        self._out: dict[SubtaskId, list[ChannelId]] = {}
        self._full: dict[SubtaskId, int] = {}
        for channel in self._bytes:
            self._out.setdefault(_sender(channel), []).append(channel)

    def sent(self, channel: ChannelId, size_bytes: int) -> None:
        """Add bytes that entered the channel."""
        self._put(channel, self._bytes[channel] + size_bytes)

    def processed(self, channel: ChannelId, size_bytes: int) -> None:
        """Subtract bytes that a finished micro-batch has processed."""
        self._put(channel, self._bytes[channel] - size_bytes)

    def channels_from(self, subtask: SubtaskId) -> list[ChannelId]:
        """Return the channels that a subtask sends into."""
        return self._out.get(subtask, [])

    def has(self, subtask: SubtaskId) -> bool:
        """Return whether the subtask may send more."""
        return not self._full.get(subtask)

    def _put(self, channel: ChannelId, size_bytes: int) -> None:
        was_full = self._bytes[channel] >= self._limit_bytes
        self._bytes[channel] = size_bytes
        turned = (size_bytes >= self._limit_bytes) - was_full
        if turned:
            sender = _sender(channel)
            self._full[sender] = self._full.get(sender, 0) + turned


def _sender(channel: ChannelId) -> SubtaskId:
    return SubtaskId(channel.edge.upstream, channel.subtask)
