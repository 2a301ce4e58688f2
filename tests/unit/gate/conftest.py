"""Drives a gate in a few words. The gate is the product's, extended by the facts of Flink's own cases."""

from collections.abc import Callable

import pytest

from checkpointing.channel_items import AlignmentType, Barrier, CancelMarker, ChannelItem, EndOfChannel, SourceSlice
from checkpointing.gate import GateConfig, GateEffect, GatePolicy, ItemArrived, Polled
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, SplitId, VertexId
from spec.flink.gate_cases import FlinkGate, ItemHanded

EDGE = EdgeId(VertexId("upstream"), VertexId("task"))


class Story:
    """Delivers items to a gate by channel number, and collects the gate's effects."""

    def __init__(self, config: GateConfig, channel_count: int) -> None:
        self.channels = tuple(ChannelId(EDGE, index) for index in range(channel_count))
        self.gate = FlinkGate(config, self.channels)

    def segment(self, number: int, size_bytes: int = 10) -> SourceSlice:
        """Return segment `number`, which has one row."""
        return SourceSlice(
            VertexId("upstream"), SplitId("0"), str(number), str(number + 1), "{}", rows=1, bytes=size_bytes
        )

    def put(self, channel: int, *items: ChannelItem | int) -> None:
        """Add items to the end of a channel. A number stands for a segment with this number."""
        for item in items:
            arrived = self.segment(item) if isinstance(item, int) else item
            self.gate.tell(ItemArrived(self.channels[channel], arrived))

    def hand(self, channel: int, item: ChannelItem) -> tuple[GateEffect, ...]:
        return self.gate.tell(ItemHanded(self.channels[channel], item))

    def poll(self) -> tuple[GateEffect, ...]:
        return self.gate.tell(Polled())

    def drain(self) -> list[GateEffect]:
        effects: list[GateEffect] = []
        while self.gate.has_deliverable():
            effects += self.poll()
        return effects

    def blocked(self) -> list[int]:
        return sorted(channel.subtask for channel in self.gate.blocked())


StoryMaker = Callable[..., Story]


@pytest.fixture
def story() -> StoryMaker:
    """Return a function that makes drivers: `story(policy, channels, **config)`."""

    def make(policy: GatePolicy = GatePolicy.ALIGNED_BLOCKING, channels: int = 2, **config: bool | int) -> Story:
        return Story(GateConfig(policy=policy, **config), channels)  # type: ignore[arg-type]

    return make


@pytest.fixture
def barrier() -> Callable[..., Barrier]:
    def make(
        number: int,
        alignment: AlignmentType = AlignmentType.ALIGNED,
        timeout_ms: int | None = None,
        created_ms: int = 0,
    ) -> Barrier:
        return Barrier(CheckpointId(number), created_ms, alignment, timeout_ms)

    return make


@pytest.fixture
def cancel() -> Callable[[int], CancelMarker]:
    return lambda number: CancelMarker(CheckpointId(number))


@pytest.fixture
def end() -> EndOfChannel:
    return EndOfChannel()
