"""The messages between the coordinator and its caller: facts (past tense) in, effects (imperative) out.

The caller steps the door with one fact at a time. It carries out the effects of a step in their order. It answers each
asynchronous effect later, with the fact that the effect's docstring names. A fact's time is the time of the last
TimeAdvanced.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from checkpointing.coordinator.properties import CheckpointProperties, CheckpointType
from checkpointing.coordinator.task import NO_METRICS, AcknowledgedState, SnapshotMetrics, Task
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId

# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class CoordinatorTimeAdvanced:
    """The clock shows `now_ms`. Every timer that is due by then fires, in order of its time."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class SchedulerStarted:
    """The job is RUNNING: trigger periodically (A1). `seed` decides the first, random delay (A2)."""

    seed: int


@dataclass(frozen=True, slots=True)
class SchedulerStopped:
    """The job is no longer RUNNING: stop periodic triggers, and fail what is pending or queued (A1)."""


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The coordinator ends for good. Everything that is pending or queued, or that is requested later, fails."""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A checkpoint was requested. `request` names the request in RequestSucceeded or RequestFailed.

    `periodic`: treat it like a request of the periodic timer, so that the minimum pause delays it (A3).
    """

    request: str
    properties: CheckpointProperties
    periodic: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointIdFetched:
    """Answer to FetchCheckpointId: an id that was never used before (A6)."""

    id: CheckpointId


@dataclass(frozen=True, slots=True)
class LocationCreated:
    """Answer to CreateLocation."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class OperatorCoordinatorAnswered:
    """Answer to AskOperatorCoordinator: a private handle, or None if the state is kept elsewhere (A7)."""

    coordinator: str
    checkpoint: CheckpointId
    state: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorCoordinatorFailed:
    """Answer to AskOperatorCoordinator: there is no snapshot, so the checkpoint fails."""

    coordinator: str
    checkpoint: CheckpointId
    message: str = ""
    reason: CheckpointFailureReason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE


@dataclass(frozen=True, slots=True)
class HookAnswered:
    """Answer to AskHook. The checkpoint keeps `state`, or nothing if it is None (A8)."""

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
class TaskAcknowledged:
    """A task took its snapshot (E1). `state` is None if the task has no state."""

    job: str
    task: Task
    checkpoint: CheckpointId
    state: AcknowledgedState | None = None
    metrics: SnapshotMetrics = NO_METRICS


@dataclass(frozen=True, slots=True)
class TaskDeclined:
    """A task declined the checkpoint and takes no snapshot, so the checkpoint fails."""

    job: str
    task: Task
    checkpoint: CheckpointId
    reason: CheckpointFailureReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class CommitSucceeded:
    """Answer to CommitCheckpoint: it is stored. THE COMMIT POINT is passed."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """Answer to CommitCheckpoint: it is certainly not stored."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
    message: str = ""


@dataclass(frozen=True, slots=True)
class StateDiscarded:
    """Answer to DiscardState: one deletion is done. Too many deletions in progress delay triggers (A3)."""

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
    | TaskAcknowledged
    | TaskDeclined
    | CommitSucceeded
    | CommitFailed
    | StateDiscarded
)


# ------------------------------------------------------------------ effects


class AcknowledgeResult(Enum):
    """The result of an acknowledgement (E1; Flink: `TaskAcknowledgeResult`)."""

    SUCCESS = "SUCCESS"
    DUPLICATE = "DUPLICATE"
    """This task had already acknowledged. Nothing is changed or discarded."""
    UNKNOWN = "UNKNOWN"
    """The checkpoint's plan has no such task. The task's private state is discarded."""
    DISCARDED = "DISCARDED"
    """No such checkpoint is pending, or it is no longer pending. The task's private state is discarded."""
    FOREIGN = "FOREIGN"
    """The message is for another job. Nothing is changed or discarded."""


@dataclass(frozen=True, slots=True)
class FetchCheckpointId:
    """Fetch a new checkpoint id. Answer with CheckpointIdFetched or CheckpointIdFailed.

    At most one answer is outstanding.
    """


@dataclass(frozen=True, slots=True)
class CreateLocation:
    """Create the place for the checkpoint's metadata. Answer with LocationCreated or LocationFailed."""

    checkpoint: CheckpointId
    properties: CheckpointProperties


@dataclass(frozen=True, slots=True)
class AskOperatorCoordinator:
    """Ask for a snapshot. Answer with OperatorCoordinatorAnswered or OperatorCoordinatorFailed."""

    coordinator: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class AskHook:
    """Ask a master hook for its state at a checkpoint. Answer with HookAnswered or HookFailed (A8)."""

    hook: str
    checkpoint: CheckpointId
    triggered_ms: int


@dataclass(frozen=True, slots=True)
class TriggerTask:
    """Tell a task to start checkpoint n. Answer with TriggerFailed if the task cannot be reached."""

    task: Task
    checkpoint: CheckpointId
    properties: CheckpointProperties
    type: CheckpointType = CheckpointType.CHECKPOINT


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """Store the checkpoint in one atomic commit. Answer with CommitSucceeded, CommitFailed or CommitUnknown.

    Shared state was registered before this effect (FLINK-6640). Until the answer comes, the checkpoint is FINALISING. A
    plain or synchronous savepoint is written, but is not among the retained checkpoints (`properties.is_savepoint`).
    `subsumed` are the checkpoints that leave the store in the same commit.
    """

    checkpoint: CheckpointId
    properties: CheckpointProperties
    triggered_ms: int
    states: Mapping[Task, AcknowledgedState]
    coordinator_states: Mapping[str, str] = field(default_factory=dict)
    master_states: Mapping[str, str] = field(default_factory=dict)
    subsumed: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True)
class NotifyCheckpointComplete:
    """Notify a task that checkpoint n is complete.

    `subsumed`: the newest checkpoint that left the store because of it.
    """

    task: Task
    checkpoint: CheckpointId
    subsumed: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class NotifyCheckpointAborted:
    """Notify a task that checkpoint n failed, and why. `latest_completed` makes up for a missed notification."""

    task: Task
    checkpoint: CheckpointId
    reason: CheckpointFailureReason
    message: str
    latest_completed: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class NotifyOperatorCoordinatorComplete:
    """Notify an operator coordinator that checkpoint n is complete (F1)."""

    coordinator: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class NotifyOperatorCoordinatorAborted:
    """Notify an operator coordinator that checkpoint n failed (F1)."""

    coordinator: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class RequestSucceeded:
    """The request has led to this completed checkpoint."""

    request: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request failed. `checkpoint` is None if it failed before its checkpoint was pending."""

    request: str
    reason: CheckpointFailureReason
    message: str = ""
    checkpoint: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class FailJob:
    """Fail the whole job: too many checkpoints failed, or the savepoint of a stop did (E5, FLINK-12858)."""

    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class DiscardState:
    """Delete these handles. Certainly nothing refers to them. Answer with StateDiscarded when they are deleted."""

    checkpoint: CheckpointId
    handles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnswerAcknowledge:
    """The reply to TaskAcknowledged. `accepted`: the checkpoint is pending, or has just expired."""

    task: Task
    checkpoint: CheckpointId
    result: AcknowledgeResult
    accepted: bool


@dataclass(frozen=True, slots=True)
class WakeCoordinatorAt:
    """Step the door with CoordinatorTimeAdvanced at `at_ms` at the latest. This replaces the last such effect."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class RestoreHook:
    """Restore a master hook. `state` is None if the checkpoint holds no state of the hook (A8)."""

    hook: str
    checkpoint: CheckpointId
    state: str | None


@dataclass(frozen=True, slots=True)
class ResetHook:
    """Notify a master hook that the job restarts without a checkpoint."""

    hook: str


@dataclass(frozen=True, slots=True)
class CloseHook:
    """Notify a master hook that the coordinator is shut down."""

    hook: str


@dataclass(frozen=True, slots=True)
class ResetOperatorCoordinator:
    """Restore an operator coordinator. If `checkpoint` is None, reset it to its empty state (A7)."""

    coordinator: str
    checkpoint: CheckpointId | None
    state: str | None = None


CoordinatorEffect = (
    FetchCheckpointId
    | CreateLocation
    | AskOperatorCoordinator
    | AskHook
    | TriggerTask
    | CommitCheckpoint
    | NotifyCheckpointComplete
    | NotifyCheckpointAborted
    | NotifyOperatorCoordinatorComplete
    | NotifyOperatorCoordinatorAborted
    | RequestSucceeded
    | RequestFailed
    | FailJob
    | DiscardState
    | AnswerAcknowledge
    | WakeCoordinatorAt
    | RestoreHook
    | ResetHook
    | CloseHook
    | ResetOperatorCoordinator
)
