"""What the coordinator knows of a task: an opaque identity, and the state that the task hands over."""

from collections.abc import Hashable
from dataclasses import dataclass

Task = Hashable
"""The identity of a subtask. Here it is only compared and hashed (`SubtaskId` in the job door)."""


@dataclass(frozen=True, slots=True)
class AcknowledgedState:
    """The state that a task hands over: the names of its handles, and a payload that the coordinator does not read.

    `private` handles belong to this one checkpoint and are discarded with it. `shared` are pairs (registry key,
    handle). Shared handles go to the shared state registry, and stay there if the checkpoint is aborted.
    """

    private: tuple[str, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()
    payload: object = None

    @property
    def handles(self) -> tuple[str, ...]:
        """All handles, private ones first."""
        return (*self.private, *(handle for _, handle in self.shared))


NO_STATE = AcknowledgedState()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMetrics:
    """The measurements of one subtask's snapshot and its epoch (E6, C7; Flink: `CheckpointMetrics`).

    None means that nobody measured it. No decision depends on them.
    """

    checkpointed_bytes: int | None = None
    """Bytes of the state files that were written since the last barrier."""
    sync_ms: int | None = None
    """How long the subtask's tasks wrote files, and so took in no row, since the last barrier."""
    task_ms: int | None = None
    """How long the subtask's tasks ran since the last barrier."""
    rows_in: int | None = None
    rows_out: int | None = None
    bytes_out: int | None = None


NO_METRICS = SnapshotMetrics()
