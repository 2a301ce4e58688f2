"""Says who owns the shared files of a checkpoint that a job was restored from, as Flink's cases have it (G3).

The product copies the files that it restores from elsewhere into its own warehouse. So it owns every file.
"""

from collections.abc import Mapping
from enum import Enum

from checkpointing.coordinator.completed import (
    CompletedCheckpoint,
    Handle,
    SharedStateEntry,
    SharedStateRegistry,
    Unregistered,
)
from checkpointing.coordinator.task import NO_STATE
from checkpointing.identifiers import CheckpointId


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
