"""The alphabet between the coordinator and the code that drives it: facts (past tense) in, effects (imperative) out.

The caller's duties: step the door with one fact at a time; carry out the effects of a step in their
order; answer each asynchronous effect with the fact its docstring names, at any later time. Time is a
fact of its own; every other fact happens at the time told last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from checkpointing.coordinator.properties import CheckpointProperties, CheckpointType
from checkpointing.coordinator.task import NO_METRICS, AcknowledgedState, SnapshotMetrics, Task, TaskState
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId

# ------------------------------------------------------------------ facts


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
    """A task will not take its snapshot: the checkpoint fails, no matter which task it is."""

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


# ------------------------------------------------------------------ effects


class AcknowledgeResult(Enum):
    """What became of an acknowledgement (E1; Flink: `TaskAcknowledgeResult`)."""

    SUCCESS = "SUCCESS"
    DUPLICATE = "DUPLICATE"
    """That task had acknowledged already: changes nothing, discards nothing."""
    UNKNOWN = "UNKNOWN"
    """No such task in the checkpoint's plan: its private state is discarded."""
    DISCARDED = "DISCARDED"
    """No such pending checkpoint (late or never known): its private state is discarded."""
    FOREIGN = "FOREIGN"
    """Another job's message: not touched."""


@dataclass(frozen=True, slots=True)
class FetchCheckpointId:
    """Answer with CheckpointIdFetched or CheckpointIdFailed. At most one is outstanding."""


@dataclass(frozen=True, slots=True)
class CreateLocation:
    """Make the place where the checkpoint's metadata will lie; answer LocationCreated or LocationFailed."""

    checkpoint: CheckpointId
    properties: CheckpointProperties


@dataclass(frozen=True, slots=True)
class AskOperatorCoordinator:
    """Ask for a snapshot; answer OperatorCoordinatorAnswered or OperatorCoordinatorFailed."""

    coordinator: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class AskHook:
    """Ask a master hook for its state at a checkpoint; answer HookAnswered or HookFailed (A8)."""

    hook: str
    checkpoint: CheckpointId
    triggered_ms: int


@dataclass(frozen=True, slots=True)
class TriggerTask:
    """Tell a task to start checkpoint n; TriggerFailed if it cannot be told."""

    task: Task
    checkpoint: CheckpointId
    properties: CheckpointProperties
    type: CheckpointType = CheckpointType.CHECKPOINT


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """Store the checkpoint, metadata and row in one atomic commit; answer CommitSucceeded, -Failed or -Unknown.

    Shared state was registered before this effect (FLINK-6640). Until the answer the checkpoint is
    FINALISING. A plain or synchronous savepoint is written, but does not enter the line of checkpoints
    that are retained (`properties.is_savepoint`). `subsumed` are the checkpoints that leave the store
    in the same commit.
    """

    checkpoint: CheckpointId
    properties: CheckpointProperties
    triggered_ms: int
    states: Mapping[Task, AcknowledgedState]
    coordinator_states: Mapping[str, str] = field(default_factory=dict)
    master_states: Mapping[str, str] = field(default_factory=dict)
    finished: tuple[Task, ...] = ()
    """Tasks that had finished before the trigger: they have nothing to restore (B4)."""
    subsumed: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True)
class NotifyCheckpointComplete:
    """Tell a task that checkpoint n is complete; `subsumed` is the newest one that thereby left the store."""

    task: Task
    checkpoint: CheckpointId
    subsumed: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class NotifyCheckpointAborted:
    """Tell a task that checkpoint n failed, and the latest completed id, so a missed complete is made good."""

    task: Task
    checkpoint: CheckpointId
    latest_completed: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class NotifyOperatorCoordinatorComplete:
    """Tell an operator coordinator that checkpoint n is complete (F1)."""

    coordinator: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class NotifyOperatorCoordinatorAborted:
    """Tell an operator coordinator that checkpoint n failed (F1)."""

    coordinator: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class RequestSucceeded:
    """The request became this completed checkpoint."""

    request: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request failed, before its checkpoint was pending (`checkpoint` is None) or after."""

    request: str
    reason: CheckpointFailureReason
    message: str = ""
    checkpoint: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class FailJob:
    """Too many checkpoints failed, or a stopping savepoint did: fail the whole job (E5, FLINK-12858)."""

    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class DiscardState:
    """Delete these handles: certainly referenced by nothing. Answer StateDiscarded when it is done."""

    checkpoint: CheckpointId
    handles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnswerAcknowledge:
    """The reply to TaskAcknowledged. `accepted`: the checkpoint is pending, or was and has just expired."""

    task: Task
    checkpoint: CheckpointId
    result: AcknowledgeResult
    accepted: bool


@dataclass(frozen=True, slots=True)
class WakeCoordinatorAt:
    """Step the door with CoordinatorTimeAdvanced at `at_ms` at the latest (replaces the earlier wish)."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class RestoreHook:
    """Restore a master hook; `state` None: the checkpoint holds none of it (A8)."""

    hook: str
    checkpoint: CheckpointId
    state: str | None


@dataclass(frozen=True, slots=True)
class ResetHook:
    """Tell a master hook that the job restarts without a checkpoint."""

    hook: str


@dataclass(frozen=True, slots=True)
class CloseHook:
    """Tell a master hook that the coordinator is shut down."""

    hook: str


@dataclass(frozen=True, slots=True)
class ResetOperatorCoordinator:
    """Restore an operator coordinator; `checkpoint` None: to its empty state. No run reaches it: it waits for A7."""

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
