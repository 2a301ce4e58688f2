"""The settings of the coordinator: the limits and times of one job's checkpoints."""

from dataclasses import dataclass
from typing import Self

from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.completed import DISCARD_ALWAYS, DISCARD_UNLESS_STOPPED, DiscardCause
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The settings of one coordinator. Where None is allowed, it means no limit, or never.

    `interval_ms` is the effective interval, which is never shorter than `min_pause_ms`. `operator_coordinators` and
    `hooks` are asked in this order.
    """

    job: str
    interval_ms: int | None = None
    periodic: CheckpointProperties = CHECKPOINT
    """The properties of the checkpoints that the scheduler requests."""
    min_pause_ms: int = 0
    timeout_ms: int | None = None
    max_concurrent: int | None = 1
    tolerable_failures: int | None = 0
    queue_max: int = 1000
    """The most requests that may wait (Flink: `CheckpointRequestDecider.DEFAULT_MAX_QUEUED_REQUESTS`)."""
    history_max: int = 10
    """How many checkpoints the statistics remember."""
    discard_on: frozenset[DiscardCause] = DISCARD_ALWAYS
    """When a completed checkpoint of this job may be deleted (G3)."""
    operator_coordinators: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        job: str,
        config: CheckpointConfig,
        hooks: tuple[str, ...] = (),
        operator_coordinators: tuple[str, ...] = (),
        periodic: CheckpointProperties = CHECKPOINT,
    ) -> Self:
        """Return the settings that follow from a job's validated configuration."""
        return cls(
            job=job,
            operator_coordinators=operator_coordinators,
            hooks=hooks,
            periodic=periodic,
            interval_ms=config.effective_interval_ms,
            min_pause_ms=config.min_pause_ms,
            timeout_ms=config.timeout_ms,
            max_concurrent=config.max_concurrent,
            tolerable_failures=config.tolerable_failures,
            discard_on=DISCARD_UNLESS_STOPPED if config.retain_on_cancellation else DISCARD_ALWAYS,
        )
