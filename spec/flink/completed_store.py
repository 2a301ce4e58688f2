"""Extends the product's store of completed checkpoints: Flink's cases also close it, and remove its oldest entry.

The product never closes a store. `tidemark cancel` deletes what is not retained (`jobs.tick.at_rest.cancellation`).
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from checkpointing.coordinator.completed import (
    CompletedCheckpoint,
    CompletedCheckpointStore,
    DiscardCause,
    Handle,
    SharedStateEntry,
    SharedStateRegistry,
    StoreChange,
    Unregistered,
)
from checkpointing.coordinator.task import NO_STATE
from checkpointing.identifiers import CheckpointId


class JobStatus(Enum):
    """The status of a job (Flink: `JobStatus`)."""

    INITIALIZING = "INITIALIZING"
    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    """This coordinator gives the job up and another one may take it over, so the status is not final for the data."""
    RECONCILING = "RECONCILING"

    @property
    def is_final(self) -> bool:
        """Return True if the job has ended for good (Flink: `isGloballyTerminalState`)."""
        return self in {JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED}


class CheckpointPart(Enum):
    """One of the parts of a checkpoint on disk."""

    STATE = "state"
    METADATA = "metadata"
    LOCATION = "location"


BEYOND_ALL = CheckpointId(2**63 - 1)
"""An id above all others. If no checkpoint is kept, no checkpoint below this id uses a shared file."""


def parts_to_discard(discard_on: frozenset[DiscardCause], cause: DiscardCause) -> tuple[CheckpointPart, ...]:
    """Return the parts of a checkpoint to delete because of `cause`: all of them, or none."""
    return tuple(CheckpointPart) if cause in discard_on else ()


def shared_handles(checkpoint: CompletedCheckpoint) -> dict[str, str]:
    """Return the handles that a checkpoint shares with others, by key."""
    return {key: handle for state in checkpoint.states.values() for key, handle in state.shared}


def operator_states(checkpoint: CompletedCheckpoint) -> dict[str, int]:
    """Return how many subtask states each operator has. An operator without state has an entry too."""
    counts = dict.fromkeys(checkpoint.coordinator_states, 0)
    for vertex in checkpoint.vertices:
        states = (checkpoint.states.get(task) for task in vertex.tasks)
        counts[vertex.name] = sum(1 for state in states if state not in {None, NO_STATE})
    return counts


class StoreShutDownError(RuntimeError):
    """The store is closed, and takes no further checkpoint."""

    def __init__(self, checkpoint: CheckpointId) -> None:
        super().__init__(f"checkpoint {checkpoint} can't be added: the store is shut down; make a new store")


class FlinkCheckpointStore(CompletedCheckpointStore):
    """The product's store, which can also be closed."""

    __slots__ = ("_durable", "is_open")

    def __init__(
        self,
        retained: int,
        registry: SharedStateRegistry,
        checkpoints: Iterable[CompletedCheckpoint] = (),
        *,
        durable: bool = True,
    ) -> None:
        """Hold `checkpoints`, as the product's store does.

        If `durable` is False, nothing outlives this object. A suspension then ends its checkpoints too (Flink:
        `StandaloneCompletedCheckpointStore`).
        """
        super().__init__(retained, registry, checkpoints)
        self._durable = durable
        self.is_open = True

    def add(self, checkpoint: CompletedCheckpoint) -> StoreChange:
        """Keep a checkpoint that is stored durably. Raise StoreShutDownError if the store is closed."""
        if not self.is_open:
            raise StoreShutDownError(checkpoint.id)
        return super().add(checkpoint)

    def remove_oldest(self) -> StoreChange:
        """Remove the oldest checkpoint. Raise IndexError if the store is empty."""
        return self._let_go((self._checkpoints[0],))

    def shut_down(self, status: JobStatus) -> StoreChange:
        """Close the store because the job got `status`.

        After a final status, the store gives up each checkpoint whose settings ask for it. It also gives up the shared
        files that only checkpoints older than the oldest remaining one use. After any other status it deletes nothing,
        because another coordinator recovers the checkpoints. A store that is not durable also gives up its checkpoints
        when it is suspended, but no shared file.
        """
        kept, self._checkpoints, self.is_open = self._checkpoints, [], False
        if not status.is_final and (self._durable or status is not JobStatus.SUSPENDED):
            return StoreChange()
        cause = DiscardCause(status.value)
        going = tuple(c for c in kept if cause in c.discard_on)
        if not status.is_final:
            return StoreChange(subsumed=tuple(kept), cleaned=going)
        staying = [c.id for c in kept if cause not in c.discard_on]
        unregistered = self.registry.unregister_unused(min(staying, default=BEYOND_ALL))
        return StoreChange(subsumed=tuple(kept), cleaned=going, shared=unregistered.discarded)


# ------------------------------------------------------------------
# Says who owns the shared files of a checkpoint that a job was restored from, as Flink's cases have it (G3).
#
# The product copies the files that it restores from elsewhere into its own warehouse. So it owns every file.


class RestoreMode(Enum):
    """Says who owns the files of the checkpoint that a job was restored from (G3; Flink: `RestoreMode`)."""

    CLAIM = "CLAIM"
    """The job owns them and deletes them when they are unused."""
    NO_CLAIM = "NO_CLAIM"
    """Somebody else owns them. The job never deletes them, and its checkpoints are full until one completes."""
    LEGACY = "LEGACY"
    """Somebody else owns them, but the job goes on referring to them."""


class RestoredKind(Enum):
    """Says where the shared files of a restored checkpoint lie (Flink: `SharingFilesStrategy`)."""

    RETAINED_CHECKPOINT = "retained_checkpoint"
    """Outside its own folder. That folder may go while the files are in use."""
    NATIVE_SAVEPOINT = "native_savepoint"
    """In its own folder. That folder must stay while one of the files is in use."""


class FlinkRegistry(SharedStateRegistry):
    """The product's registry, which also knows the files that a restore did not claim."""

    __slots__ = ("_keeping", "_restored", "_unclaimed_up_to")

    def __init__(self) -> None:
        """Begin with no file."""
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
        """Forget each file that no checkpoint from `lowest` on has used.

        Unclaimed files are forgotten, but not deleted.
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
