"""Lists the facts that only Flink's cases send to a coordinator, and the effects that only they expect.

The product needs none of them. It takes an id from a claim's block, and creates no location. A source gets its facts in
the same step. A failed task ends the attempt, and an append with an unknown outcome ends the tick. `job.restoring`
restores a job.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from checkpointing.coordinator.completed import (
    CompletedCheckpoint,
    Handle,
    SharedStateEntry,
    SharedStateRegistry,
    Unregistered,
)
from checkpointing.coordinator.messages import CoordinatorEffect, CoordinatorFact
from checkpointing.coordinator.task import NO_STATE, AcknowledgedState, SnapshotMetrics, Task
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId


def shared_handles(checkpoint: CompletedCheckpoint) -> dict[str, str]:
    """Return the handles that a checkpoint shares with others, as a dict from each key to its handle."""
    return {key: handle for state in checkpoint.states.values() for key, handle in state.shared}


def operator_states(checkpoint: CompletedCheckpoint) -> dict[str, int]:
    """Return how many subtask states each operator has. An operator without state has an entry too."""
    counts = dict.fromkeys(checkpoint.coordinator_states, 0)
    for vertex in checkpoint.vertices:
        states = (checkpoint.states.get(task) for task in vertex.tasks)
        counts[vertex.name] = sum(1 for state in states if state not in {None, NO_STATE})
    return counts


class RestoreMode(Enum):
    """Determines who owns the files of the checkpoint from which a job was restored (G3; Flink: `RestoreMode`)."""

    CLAIM = "CLAIM"
    """The job owns them and deletes them when they are unused."""
    NO_CLAIM = "NO_CLAIM"
    """Somebody else owns them. The job never deletes them, and its checkpoints are full until one completes."""
    LEGACY = "LEGACY"
    """Somebody else owns them, but the job goes on referring to them."""


class RestoredKind(Enum):
    """Determines where the shared files of a restored checkpoint lie (Flink: `SharingFilesStrategy`)."""

    RETAINED_CHECKPOINT = "retained_checkpoint"
    """Outside its own folder. That folder may be deleted while the files are in use."""
    NATIVE_SAVEPOINT = "native_savepoint"
    """In its own folder. That folder must stay while one of the files is in use."""


class FlinkRegistry(SharedStateRegistry):
    """The product's registry, which also knows the files that a restore did not claim."""

    __slots__ = ("_keeping", "_restored", "_unclaimed_up_to")

    def __init__(self) -> None:
        super().__init__()
        self._keeping: set[str] = set()
        self._restored: dict[CheckpointId, RestoredKind] = {}
        self._unclaimed_up_to: CheckpointId | None = None

    def register_restored(
        self,
        checkpoint: CheckpointId,
        shared: Mapping[str, Handle],
        mode: RestoreMode,
        kind: RestoredKind = RestoredKind.RETAINED_CHECKPOINT,
    ) -> None:
        """Register a restored checkpoint's shared files.

        Its unclaimed files, and all older ones, stay (FLINK-26985).
        """
        for key, handle in shared.items():
            self.register(key, handle, checkpoint)
        self._restored[checkpoint] = kind
        if mode is not RestoreMode.CLAIM:
            self._unclaimed_up_to = max(checkpoint, self._unclaimed_up_to or checkpoint)

    def keep_creator(self, key: str) -> None:
        """Keep the restored checkpoint that created the file for as long as the file is used. Ignore an unknown key."""
        if key in self._entries:
            self._keeping.add(key)

    def unregister_unused(self, lowest: CheckpointId) -> Unregistered:
        """Remove each file from the registry that no checkpoint from `lowest` on has used.

        An unclaimed file is removed from the registry and not deleted. All other such files are also deleted.
        """
        dropped = self._drop_unused(lowest)
        self._keeping &= self._entries.keys()
        return Unregistered(
            discarded=tuple(entry.handle for entry in dropped if not self._is_unclaimed(entry)),
            in_use=frozenset(e.created_by for key, e in self._entries.items() if self._keeps_creator(key, e)),
        )

    def _is_unclaimed(self, entry: SharedStateEntry) -> bool:
        return self._unclaimed_up_to is not None and entry.created_by <= self._unclaimed_up_to

    def _keeps_creator(self, key: str, entry: SharedStateEntry) -> bool:
        kind = self._restored.get(entry.created_by)
        return kind is RestoredKind.NATIVE_SAVEPOINT or (kind is not None and key in self._keeping)


# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class PeriodicTimerFired:
    """The periodic timer fires now, regardless of the clock. If there is no timer, nothing happens."""


@dataclass(frozen=True, slots=True)
class CheckpointTimeoutFired:
    """The timeout of a pending checkpoint fires now, regardless of the clock."""

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
    """Determines how much of the job a restore covers (Flink: the four restore calls of `CheckpointCoordinator`)."""

    LATEST = "latest"
    """All tasks and coordinators, from the newest checkpoint of the store. If the store is empty, they are reset."""
    INITIAL = "initial"
    """As LATEST, but when a job starts after a failover. Finished operators must fit the job graph."""
    REGION = "region"
    """Some tasks only. Coordinators keep their state, and state that no task takes is ignored."""
    SAVEPOINT = "savepoint"
    """From a savepoint, which enters the store first."""


@dataclass(frozen=True, slots=True)
class RestoreRequested:
    """Restore tasks, hooks and coordinators (G1). Raises RestoreRefusedError if the state does not fit (G2).

    RestoreKind.SAVEPOINT loads `savepoint`. `mode` determines who owns the savepoint's files from now on (G3).
    """

    kind: RestoreKind
    allow_non_restored: bool = False
    savepoint: CompletedCheckpoint | None = None
    mode: RestoreMode = RestoreMode.NO_CLAIM


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkMetrics(SnapshotMetrics):
    """The measurements that only Flink's tasks make. In Tidemark a vertex makes them (`VertexStatistics`)."""

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
