"""What a case gives: task states, acknowledged states, a savepoint, a registry that counts."""

from collections.abc import Mapping

from checkpointing.coordinator.completed import CompletedCheckpoint, Handle
from checkpointing.coordinator.properties import savepoint
from checkpointing.coordinator.task import AcknowledgedState, TaskState
from checkpointing.identifiers import CheckpointId
from spec.coordinator_cases.unit import Value
from spec.flink.shared_state import FlinkRegistry


class CountingRegistry(FlinkRegistry):
    """A registry that tells how often each handle was handed in."""

    def __init__(self, registrations: dict[str, int]) -> None:
        super().__init__()
        self._registrations = registrations

    def register(self, key: str, handle: Handle, checkpoint: CheckpointId) -> Handle:
        """Count, then register."""
        self._registrations[str(handle)] += 1
        return super().register(key, handle, checkpoint)


def no_hook_calls() -> dict[str, Value]:
    """Return the calls of a hook that was never called."""
    return {"trigger": 0, "reset": 0, "close": 0, "restore": [], "saw_pending": []}


def no_coordinator_calls() -> dict[str, list[int]]:
    """Return the calls of an operator coordinator that was never called."""
    return {"snapshot": [], "complete": [], "aborted": []}


def initial_states(given: Mapping[str, Value]) -> dict[str, TaskState]:
    """Return the states of the tasks that are not RUNNING at the start."""
    states = {task: TaskState(state) for task, state in given.get("task_state", {}).items()}
    for name, vertex in given.get("vertices", {}).items():
        states.update({f"{name}/{index}": TaskState.FINISHED for index in vertex.get("finished", ())})
    return states


def state_of(raw: Value) -> AcknowledgedState | None:
    """Return what a task acknowledges."""
    match raw:
        case None:
            return None
        case str():
            return AcknowledgedState(private=(raw,))
        case _:
            return AcknowledgedState(tuple(raw.get("private", ())), tuple(raw.get("shared", {}).items()))


def savepoint_of(raw: Mapping[str, Value]) -> CompletedCheckpoint:
    """Return the finished savepoint that a case gives."""
    return CompletedCheckpoint(id=CheckpointId(raw["id"]), properties=savepoint(unaligned=False))
