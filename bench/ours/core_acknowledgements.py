"""The core alone: a checkpoint of many subtasks, from its trigger to its completion, without I/O or clock.

`python -m bench.ours.core_acknowledgements` prints the acknowledgements a second of each of many checkpoints that
one coordinator takes, one after the other. CPU seconds: nothing is waited for. Making the facts does not count.
"""

import argparse
import time
from typing import Final

from bench.measures import print_result
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.completed import CompletedCheckpointStore
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.plan import PlannedEdge, PlannedVertex, Topology
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.shared_state import SharedStateRegistry
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.identifiers import CheckpointId, SubtaskId, VertexId

_JOB: Final = "core"
_SOURCES: Final = 10


class NotCompletedError(RuntimeError):
    """The coordinator did not complete a fully acknowledged checkpoint."""


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subtasks", type=int, default=10_000)
    parser.add_argument("--checkpoints", type=int, default=60)
    parser.add_argument("--scratch", help="ignored: nothing is written")
    asked = parser.parse_args()
    sources = tuple(SubtaskId(VertexId("source"), index) for index in range(_SOURCES))
    sums = tuple(SubtaskId(VertexId("sums"), index) for index in range(asked.subtasks - _SOURCES))
    topology = Topology(
        (PlannedVertex("source", sources), PlannedVertex("sums", sums)), (PlannedEdge("source", "sums"),)
    )
    coordinator = CheckpointCoordinator(
        CoordinatorSettings(job=_JOB), topology, CompletedCheckpointStore(1, SharedStateRegistry())
    )
    tasks = (*sources, *sums)
    rates = [len(tasks) / _seconds(coordinator, tasks, CheckpointId(n)) for n in range(1, asked.checkpoints + 1)]
    print_result({"program": "core-acknowledgements", "subtasks": asked.subtasks, "per_second": rates})


def _seconds(coordinator: CheckpointCoordinator, tasks: tuple[SubtaskId, ...], checkpoint: CheckpointId) -> float:
    """Return what the acknowledgements of one checkpoint took, its commit and what follows on it included."""
    coordinator.step(told.CheckpointRequested("bench", CHECKPOINT))
    coordinator.step(told.CheckpointIdFetched(checkpoint))
    coordinator.step(told.LocationCreated(checkpoint))
    facts = [told.TaskAcknowledged(_JOB, task, checkpoint, _state(task, checkpoint)) for task in tasks]
    started = time.process_time()
    for fact in facts:
        coordinator.step(fact)
    ended = coordinator.step(told.CommitSucceeded(checkpoint))
    took = time.process_time() - started
    for effect in ended:
        if isinstance(effect, told.DiscardState):
            coordinator.step(told.StateDiscarded(effect.checkpoint))
    if coordinator.store.latest_id != checkpoint:
        raise NotCompletedError(f"checkpoint {checkpoint} of {len(tasks)} subtasks")
    return took


def _state(task: SubtaskId, checkpoint: CheckpointId) -> AcknowledgedState:
    """Return a state of two shared files: one that every checkpoint names, and one that is this one's own."""
    name = f"{task.vertex}/{task.index}"
    return AcknowledgedState(
        shared=((f"{name}/base", f"{name}/base"), (f"{name}/{checkpoint}", f"{name}/{checkpoint}"))
    )


if __name__ == "__main__":
    main()
