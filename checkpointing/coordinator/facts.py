"""What the coordinator is told: facts, past tense, one a step (see `messages` for the caller's duties)."""

from dataclasses import dataclass

from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.task import NO_METRICS, AcknowledgedState, SnapshotMetrics, Task, TaskState
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId


@dataclass(frozen=True, slots=True)
class CoordinatorTimeAdvanced:
    """The clock shows `now_ms`: every timer due by then fires, in order of its time."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class SchedulerStarted:
    """The job turned RUNNING: trigger periodically (A1). `seed` draws the first, random delay (A2)."""

    seed: int


@dataclass(frozen=True, slots=True)
class SchedulerStopped:
    """The job left RUNNING: no periodic trigger; what is pending or queued fails (A1)."""


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The coordinator ends for good: whatever is pending, queued or asked later fails."""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """Somebody wants a checkpoint; `request` names it in RequestSucceeded or RequestFailed.

    `periodic` means: as if by the periodic timer, so the minimum pause holds it back (A3).
    """

    request: str
    properties: CheckpointProperties
    periodic: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointIdFetched:
    """Answer to FetchCheckpointId: an id never handed out before (A6)."""

    id: CheckpointId


@dataclass(frozen=True, slots=True)
class LocationCreated:
    """Answer to CreateLocation."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class OperatorCoordinatorAnswered:
    """Answer to AskOperatorCoordinator: `state` is a private handle of the checkpoint, or None.

    No run reaches it yet: it waits for source coordinators (A7).
    """

    coordinator: str
    checkpoint: CheckpointId
    state: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorCoordinatorFailed:
    """Answer to AskOperatorCoordinator: no snapshot; the checkpoint fails. No run reaches it yet: it waits for A7."""

    coordinator: str
    checkpoint: CheckpointId
    message: str = ""


@dataclass(frozen=True, slots=True)
class HookAnswered:
    """Answer to AskHook: `state` is kept in the checkpoint; None leaves no entry (A8)."""

    hook: str
    checkpoint: CheckpointId
    state: str | None = None


@dataclass(frozen=True, slots=True)
class HookFailed:
    """Answer to AskHook: the checkpoint fails (A8)."""

    hook: str
    checkpoint: CheckpointId
    message: str = ""
    reason: CheckpointFailureReason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE


@dataclass(frozen=True, slots=True)
class TaskStateChanged:
    """An execution attempt is in that state from now on. No run reaches it yet: it waits for finished inputs (B4)."""

    task: Task
    state: TaskState


@dataclass(frozen=True, slots=True)
class TaskAcknowledged:
    """A task took its snapshot (E1). `state` None: it has none."""

    job: str
    task: Task
    checkpoint: CheckpointId
    state: AcknowledgedState | None = None
    metrics: SnapshotMetrics = NO_METRICS


@dataclass(frozen=True, slots=True)
class TaskDeclined:
    """A task will not take its snapshot: the checkpoint fails, whoever says so."""

    job: str
    task: Task
    checkpoint: CheckpointId
    reason: CheckpointFailureReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class CommitSucceeded:
    """Answer to CommitCheckpoint: it is stored. THE COMMIT POINT lies behind."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """Answer to CommitCheckpoint: it is certainly not stored."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
    message: str = ""


@dataclass(frozen=True, slots=True)
class StateDiscarded:
    """Answer to DiscardState: one deletion is done; too many under way hold triggers back (A3)."""

    checkpoint: CheckpointId


CoordinatorFact = (
    CoordinatorTimeAdvanced
    | SchedulerStarted
    | SchedulerStopped
    | ShutDown
    | CheckpointRequested
    | CheckpointIdFetched
    | LocationCreated
    | OperatorCoordinatorAnswered
    | OperatorCoordinatorFailed
    | HookAnswered
    | HookFailed
    | TaskStateChanged
    | TaskAcknowledged
    | TaskDeclined
    | CommitSucceeded
    | CommitFailed
    | StateDiscarded
)
