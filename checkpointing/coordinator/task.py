"""What the coordinator knows of a task: an opaque identity, a state, and what it hands over."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

Task = Hashable
"""A subtask's identity: opaque here, compared and hashed only (`SubtaskId` in the job door)."""


class TaskState(Enum):
    """Where an execution attempt stands (Flink: `ExecutionState`)."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    RECONCILING = "RECONCILING"


@dataclass(frozen=True, slots=True)
class AcknowledgedState:
    """The state that a task hands over: handles as names, and a payload opaque to the coordinator.

    `private` handles belong to this one checkpoint and are discarded with it. `shared` are pairs
    (registry key, handle): they go to the shared state registry and outlive an aborted checkpoint.
    """

    private: tuple[str, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()
    payload: object = None

    @property
    def handles(self) -> tuple[str, ...]:
        """All handles, private ones first."""
        return (*self.private, *(handle for _, handle in self.shared))


NO_STATE = AcknowledgedState()


@dataclass(frozen=True, slots=True)
class SnapshotMetrics:
    """What a task measured of its snapshot (E6, C7). Statistics never steer."""

    total_bytes: int = 0
    sync_ms: int = 0
    async_ms: int = 0
    alignment_ms: int = 0
    alignment_bytes: int = 0
    start_delay_ms: int = 0


NO_METRICS = SnapshotMetrics()
