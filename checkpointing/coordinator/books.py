"""The data that the coordinator's modules share. The rules are in those modules."""

from collections import deque
from dataclasses import dataclass, field

from checkpointing.coordinator.completed import CompletedCheckpointStore
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import CoordinatorEffect
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.scheduler import PeriodicScheduler
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import Task, TaskState
from checkpointing.identifiers import CheckpointId

EXPIRED_REMEMBERED = 16
"""Flink: `CheckpointCoordinator.NUM_GHOST_CHECKPOINT_IDS`."""


@dataclass(slots=True, kw_only=True)
class Books:
    """The coordinator's memory. `effects` are those of the current step."""

    settings: CoordinatorSettings
    topology: Topology
    store: CompletedCheckpointStore
    scheduler: PeriodicScheduler
    failures: FailurePolicy
    statistics: StatisticsTracker
    hooks: list[str]
    task_states: dict[Task, TaskState]
    now_ms: int = 0
    effects: list[CoordinatorEffect] = field(default_factory=list)
    pending: dict[CheckpointId, PendingCheckpoint] = field(default_factory=dict)
    committing: CheckpointId | None = None
    """The one checkpoint that is FINALISING."""
    recent_expired: deque[CheckpointId] = field(default_factory=lambda: deque(maxlen=EXPIRED_REMEMBERED))
    last_completion_ms: int | None = None
    deleting: int = 0
    """How many deletions are in progress."""
    force_full: bool = False
    """True if the job was restored without a claim and no checkpoint has completed since (G3)."""
    is_shut_down: bool = False
    queue_stirred: bool = False
    """True if a completion, an abort or the end of a trigger procedure may let a queued request start."""
    timers_touched: bool = False

    def emit(self, effect: CoordinatorEffect) -> None:
        """Add an effect to the current step."""
        self.effects.append(effect)
