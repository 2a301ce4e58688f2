"""The ports between a barrier handler and the channels below it."""

from typing import Protocol

from checkpointing.gate.messages import GateEffect
from checkpointing.identifiers import ChannelId, CheckpointId
from checkpointing.snapshots import ChannelState

Effects = list[GateEffect]


class BlockableInput(Protocol):
    """The channels as an aligner sees them."""

    def resume(self, name: ChannelId, /) -> None:
        """Go on reading the channel."""

    def held_bytes(self) -> int:
        """Return how many bytes wait behind blocks."""


class CheckpointableInput(BlockableInput, Protocol):
    """The channels as a handler of unaligned checkpoints sees them (Flink: `CheckpointableInput`)."""

    def prioritise(self, name: ChannelId, checkpoint: CheckpointId, /) -> None:
        """Let the announced barrier overtake what waits before it."""

    def start_recording(self, checkpoint: CheckpointId, /) -> None:
        """Record the segments in flight before that checkpoint's barriers."""

    def stop_recording(self, checkpoint: CheckpointId, /) -> tuple[ChannelState, ...]:
        """Return the recorded segments."""
