"""What only Flink's cases tell a coordinator, and what it answers to that.

In the product an id comes from a claim's block, nobody makes a location, a source is told in the same step, a task
that fails ends the attempt, and an append with an unknown outcome ends the tick. `job.restoring` restores a job.
"""

from dataclasses import dataclass
from enum import Enum

from checkpointing.coordinator.completed import CompletedCheckpoint
from checkpointing.coordinator.messages import CoordinatorEffect, CoordinatorFact
from checkpointing.coordinator.task import AcknowledgedState, SnapshotMetrics, Task
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.flink.shared_state import RestoreMode

# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class PeriodicTimerFired:
    """The periodic timer fires now, whatever the clock says; without one nothing happens."""


@dataclass(frozen=True, slots=True)
class CheckpointTimeoutFired:
    """The timeout of a pending checkpoint fires now, whatever the clock says."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointIdFailed:
    """Answer to FetchCheckpointId: `io_error` tells an input or output error from any other."""

    io_error: bool = True
    message: str = ""


@dataclass(frozen=True, slots=True)
class LocationFailed:
    """Answer to CreateLocation: `io_error` tells an input or output error from any other."""

    checkpoint: CheckpointId
    io_error: bool = True
    message: str = ""


@dataclass(frozen=True, slots=True)
class TriggerFailed:
    """Answer to TriggerTask: the message did not reach the task; the checkpoint fails."""

    task: Task
    checkpoint: CheckpointId
    message: str = ""


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task failed: every pending checkpoint that it has not acknowledged fails with TASK_FAILURE."""

    task: Task
    message: str = ""


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """Answer to CommitCheckpoint: perhaps it is stored. It fails here, and nothing is deleted (E3)."""

    checkpoint: CheckpointId
    message: str = ""


@dataclass(frozen=True, slots=True)
class AbortRequested:
    """All pending checkpoints fail with this reason (not the queued requests)."""

    reason: CheckpointFailureReason
    message: str = ""


class RestoreKind(Enum):
    """How much of the job is restored (Flink: the four restore calls of `CheckpointCoordinator`)."""

    LATEST = "latest"
    """All tasks and coordinators, from the newest checkpoint of the store; without one they are reset."""
    INITIAL = "initial"
    """The same at the start of a job after a failover: finished operators must fit the job graph."""
    REGION = "region"
    """Some tasks: coordinators are left alone, state without a taker is ignored."""
    SAVEPOINT = "savepoint"
    """From a savepoint, which enters the store first."""


@dataclass(frozen=True, slots=True)
class RestoreRequested:
    """Restore tasks, hooks and coordinators (G1); raises RestoreRefusedError when it does not fit (G2).

    `savepoint` is what RestoreKind.SAVEPOINT loads; `mode` says who owns its files from now on (G3).
    """

    kind: RestoreKind
    allow_non_restored: bool = False
    savepoint: CompletedCheckpoint | None = None
    mode: RestoreMode = RestoreMode.NO_CLAIM


@dataclass(frozen=True, slots=True)
class TaskMeasured:
    """A task's measurements come in a message of their own, at times after the checkpoint failed (E6)."""

    job: str
    task: Task
    checkpoint: CheckpointId
    metrics: SnapshotMetrics


HandedFact = (
    PeriodicTimerFired
    | CheckpointTimeoutFired
    | CheckpointIdFailed
    | LocationFailed
    | TriggerFailed
    | TaskFailed
    | TaskMeasured
    | CommitUnknown
    | AbortRequested
)
"""What the coordinator takes at once, without a restore."""

FlinkFact = CoordinatorFact | HandedFact | RestoreRequested


# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class AssignState:
    """Give a task the state it restores from; None: it starts empty."""

    task: Task
    checkpoint: CheckpointId
    state: AcknowledgedState | None


@dataclass(frozen=True, slots=True)
class SetNextCheckpointId:
    """The id counter goes on at `next_id`."""

    next_id: CheckpointId


@dataclass(frozen=True, slots=True)
class RestoreFinished:
    """The reply to RestoreRequested: what was restored; None: there was no checkpoint.

    `finished_checked`: operators that had finished were checked against the job graph.
    """

    checkpoint: CheckpointId | None
    finished_checked: bool


FlinkEffect = CoordinatorEffect | AssignState | SetNextCheckpointId | RestoreFinished
