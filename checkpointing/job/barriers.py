"""Translates a job's configuration into the barriers that sources send and the gates' configuration (C1 to C6)."""

from checkpointing.channel_items import AlignmentType, Barrier
from checkpointing.config import UNLIMITED, CheckpointConfig, CheckpointingMode
from checkpointing.coordinator.messages import TriggerTask
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.gate.config import GateConfig, GatePolicy
from checkpointing.identifiers import CheckpointId
from checkpointing.task.messages import SnapshotRequested


def gate_config(config: CheckpointConfig) -> GateConfig:
    """Return the configuration of the gates for a job's configuration."""
    limit = UNLIMITED if config.max_alignment_bytes is None else config.max_alignment_bytes
    return GateConfig(_policy(config), limit)


def _policy(config: CheckpointConfig) -> GatePolicy:
    if config.mode is CheckpointingMode.AT_LEAST_ONCE:
        return GatePolicy.AT_LEAST_ONCE
    if config.unaligned:
        return GatePolicy.UNALIGNED if config.alignment_timeout_ms is None else GatePolicy.ALTERNATING
    return GatePolicy.ALIGNED_BLOCKING if config.max_alignment_bytes is None else GatePolicy.ALIGNED_BUFFERING


def _barrier(
    checkpoint: CheckpointId, properties: CheckpointProperties, config: CheckpointConfig, now_ms: int
) -> Barrier:
    """Return the barrier that the sources send for this checkpoint. The barrier of a savepoint is always aligned."""
    if config.mode is CheckpointingMode.AT_LEAST_ONCE:
        return Barrier(checkpoint, now_ms, AlignmentType.AT_LEAST_ONCE)
    if not config.unaligned:
        return Barrier(checkpoint, now_ms, AlignmentType.ALIGNED)
    if properties.is_savepoint:
        return Barrier(checkpoint, now_ms, AlignmentType.FORCED_ALIGNED)
    if config.alignment_timeout_ms is None:
        return Barrier(checkpoint, now_ms, AlignmentType.UNALIGNED)
    return Barrier(checkpoint, now_ms, AlignmentType.ALIGNED, config.alignment_timeout_ms)


def snapshot_for(effect: TriggerTask, config: CheckpointConfig, now_ms: int) -> SnapshotRequested:
    """Return what a source's subtask must do: send its barrier, and for a drain the end of its data first."""
    properties = effect.properties
    barrier = _barrier(effect.checkpoint, properties, config, now_ms)
    return SnapshotRequested(barrier, synchronous=properties.is_synchronous, advance_to_max=properties.terminate)
