"""What Flink's cases do with a store of completed checkpoints besides the product: close it, and empty it from below.

The product never closes a store: `tidemark cancel` deletes what is not retained (`jobs.at_rest.cancelling`).
"""

from collections.abc import Iterable
from enum import Enum

from checkpointing.coordinator.completed import (
    CompletedCheckpoint,
    CompletedCheckpointStore,
    DiscardCause,
    StoreChange,
)
from checkpointing.coordinator.shared_state import SharedStateRegistry
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
    """This coordinator gives the job up, another may take it over: not final for the data."""
    RECONCILING = "RECONCILING"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended for good (Flink: `isGloballyTerminalState`)."""
        return self in {JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED}


class CheckpointPart(Enum):
    """What a checkpoint consists of on disk."""

    STATE = "state"
    METADATA = "metadata"
    LOCATION = "location"


BEYOND_ALL = CheckpointId(2**63 - 1)
"""Greater than any id: nothing is kept, so no shared file has a user."""


def parts_to_discard(discard_on: frozenset[DiscardCause], cause: DiscardCause) -> tuple[CheckpointPart, ...]:
    """Return what of a checkpoint is deleted because of `cause`: all of it or nothing."""
    return tuple(CheckpointPart) if cause in discard_on else ()


def shared_handles(checkpoint: CompletedCheckpoint) -> dict[str, str]:
    """Return the handles that a checkpoint shares with others, by key."""
    return {key: handle for state in checkpoint.states.values() for key, handle in state.shared}


def operator_states(checkpoint: CompletedCheckpoint) -> dict[str, int]:
    """Return how many subtask states each operator has; one without any has an entry too."""
    counts = dict.fromkeys(checkpoint.coordinator_states, 0)
    for vertex in checkpoint.vertices:
        states = (checkpoint.states.get(task) for task in vertex.tasks)
        counts[vertex.name] = sum(1 for state in states if state not in {None, NO_STATE})
    return counts


class StoreShutDownError(RuntimeError):
    """The store is closed: nothing can be added."""

    def __init__(self, checkpoint: CheckpointId) -> None:
        super().__init__(f"checkpoint {checkpoint} can't be added: the store is shut down; make a new store")


class FlinkCheckpointStore(CompletedCheckpointStore):
    """The product's store, which can be closed besides."""

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

        `durable` False: nothing outlives this object, so a suspension ends its checkpoints as well
        (Flink: `StandaloneCompletedCheckpointStore`).
        """
        super().__init__(retained, registry, checkpoints)
        self._durable = durable
        self.is_open = True

    def add(self, checkpoint: CompletedCheckpoint) -> StoreChange:
        """Keep a checkpoint that is stored durably; raise StoreShutDownError after a shutdown."""
        if not self.is_open:
            raise StoreShutDownError(checkpoint.id)
        return super().add(checkpoint)

    def remove_oldest(self) -> StoreChange:
        """Let the oldest go; raises IndexError for an empty store."""
        return self._let_go((self._checkpoints[0],))

    def shut_down(self, status: JobStatus) -> StoreChange:
        """Close the store because the job got `status`.

        After a final status what wants to be discarded goes, and shared files below the oldest that
        stays on disk. After any other status nothing is deleted: another coordinator recovers it. A store that
        is not durable lets its checkpoints go when it is suspended too, but no shared file.
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
