"""Lists the facts that only Flink's cases send to a coordinator, and the effects that only they expect.

The product needs none of them. An id comes from a claim's block, and nobody makes a location. A source gets its facts
in the same step. A failed task ends the attempt, and an append with an unknown outcome ends the tick. `job.restoring`
restores a job.
"""

from dataclasses import dataclass
from enum import Enum

from checkpointing.coordinator.completed import CompletedCheckpoint
from checkpointing.coordinator.messages import CoordinatorEffect, CoordinatorFact
from checkpointing.coordinator.task import AcknowledgedState, SnapshotMetrics, Task
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.flink.completed_store import RestoreMode

# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class PeriodicTimerFired:
    """The periodic timer fires now, whatever the clock says. If there is no timer, nothing happens."""


@dataclass(frozen=True, slots=True)
class CheckpointTimeoutFired:
    """The timeout of a pending checkpoint fires now, whatever the clock says."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointIdFailed:
    """FetchCheckpointId failed. `io_error` says whether an input or output error was the cause."""

    io_error: bool = True
    message: str = ""


@dataclass(frozen=True, slots=True)
class LocationFailed:
    """CreateLocation failed. `io_error` says whether an input or output error was the cause."""

    checkpoint: CheckpointId
    io_error: bool = True
    message: str = ""


@dataclass(frozen=True, slots=True)
class TriggerFailed:
    """TriggerTask failed: the message did not reach the task. The checkpoint fails."""

    task: Task
    checkpoint: CheckpointId
    message: str = ""


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task failed. Every pending checkpoint that it has not acknowledged fails with TASK_FAILURE."""

    task: Task
    message: str = ""


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """CommitCheckpoint has an unknown outcome.

    The checkpoint fails, and nothing is deleted, because it may be stored (E3).
    """

    checkpoint: CheckpointId
    message: str = ""


@dataclass(frozen=True, slots=True)
class AbortRequested:
    """All pending checkpoints fail with this reason. Queued requests stay."""

    reason: CheckpointFailureReason
    message: str = ""


class RestoreKind(Enum):
    """Says how much of the job a restore covers (Flink: the four restore calls of `CheckpointCoordinator`)."""

    LATEST = "latest"
    """All tasks and coordinators, from the newest checkpoint of the store. If the store is empty, they are reset."""
    INITIAL = "initial"
    """The same when a job starts after a failover. Finished operators must fit the job graph."""
    REGION = "region"
    """Some tasks only. Coordinators keep their state, and state that no task takes is ignored."""
    SAVEPOINT = "savepoint"
    """From a savepoint, which enters the store first."""


@dataclass(frozen=True, slots=True)
class RestoreRequested:
    """Restore tasks, hooks and coordinators (G1). Raises RestoreRefusedError if the state does not fit (G2).

    RestoreKind.SAVEPOINT loads `savepoint`. `mode` says who owns its files from now on (G3).
    """

    kind: RestoreKind
    allow_non_restored: bool = False
    savepoint: CompletedCheckpoint | None = None
    mode: RestoreMode = RestoreMode.NO_CLAIM


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkMetrics(SnapshotMetrics):
    """What Flink's tasks measure in addition. In Tidemark a vertex measures this (`VertexStatistics`)."""

    state_bytes: int | None = None
    """Bytes of all state files that the snapshot refers to."""
    start_delay_ms: int | None = None
    alignment_ms: int | None = None
    async_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TaskMeasured:
    """A task reports its measurements in a message of their own, which may arrive after the checkpoint failed (E6)."""

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
"""The facts that the coordinator handles itself, without a restore."""

FlinkFact = CoordinatorFact | HandedFact | RestoreRequested


# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class AssignState:
    """Give a task the state that it restores from. None means that it starts empty."""

    task: Task
    checkpoint: CheckpointId
    state: AcknowledgedState | None


@dataclass(frozen=True, slots=True)
class SetNextCheckpointId:
    """Let the id counter continue at `next_id`."""

    next_id: CheckpointId


@dataclass(frozen=True, slots=True)
class RestoreFinished:
    """Answers RestoreRequested with the checkpoint that was restored, or None if there was no checkpoint."""

    checkpoint: CheckpointId | None


FlinkEffect = CoordinatorEffect | AssignState | SetNextCheckpointId | RestoreFinished
