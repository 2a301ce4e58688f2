"""Measures the core alone: one checkpoint of many subtasks from trigger to completion, without I/O or a clock.

`python -m bench.ours.core_acknowledgements` prints the acknowledgements per second for each checkpoint of a series that
one coordinator takes. It counts CPU seconds, since the core never waits. The time to make the facts is left out.
Python's garbage collector visits all live objects, among them the facts. So its seconds are shown separately.
"""

import argparse
import gc
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.measures import print_result
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.completed import CompletedCheckpointStore, SharedStateRegistry
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.plan import PlannedEdge, PlannedVertex, Topology
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.identifiers import CheckpointId, SubtaskId, VertexId

_JOB: Final = "core"
_SOURCES: Final = 10


class NotCompletedError(RuntimeError):
    """The coordinator did not complete a checkpoint although all subtasks had acknowledged it."""


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
    with _collecting() as collecting:
        taken = [_taken(coordinator, tasks, CheckpointId(n), collecting) for n in range(1, asked.checkpoints + 1)]
    print_result(
        {
            "program": "core-acknowledgements",
            "subtasks": asked.subtasks,
            "per_second": [len(tasks) / seconds for seconds, _ in taken],
            "without_collector_per_second": [len(tasks) / (seconds - collected) for seconds, collected in taken],
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    )


@contextmanager
def _collecting() -> Iterator[list[float]]:
    """Record the CPU seconds of every garbage collection inside the context."""
    seconds: list[float] = []

    def note(phase: str, _: dict[str, int]) -> None:
        now = time.process_time()
        if phase == "start":
            seconds.append(-now)
        else:
            seconds[-1] += now

    gc.callbacks.append(note)
    try:
        yield seconds
    finally:
        gc.callbacks.remove(note)


def _taken(
    coordinator: CheckpointCoordinator, tasks: tuple[SubtaskId, ...], checkpoint: CheckpointId, collecting: list[float]
) -> tuple[float, float]:
    """Return the seconds of a checkpoint's acknowledgements, and how many of them the garbage collector took."""
    coordinator.step(told.CheckpointRequested("bench", CHECKPOINT))
    coordinator.step(told.CheckpointIdFetched(checkpoint))
    coordinator.step(told.LocationCreated(checkpoint))
    facts = [told.TaskAcknowledged(_JOB, task, checkpoint, _state(task, checkpoint)) for task in tasks]
    collecting.clear()
    seconds = _seconds(coordinator, facts, checkpoint)
    return seconds, sum(collecting)


def _seconds(coordinator: CheckpointCoordinator, facts: list[told.TaskAcknowledged], checkpoint: CheckpointId) -> float:
    """Return the seconds of the acknowledgements of one checkpoint, with its commit and completion."""
    started = time.process_time()
    for fact in facts:
        coordinator.step(fact)
    ended = coordinator.step(told.CommitSucceeded(checkpoint))
    took = time.process_time() - started
    for effect in ended:
        if isinstance(effect, told.DiscardState):
            coordinator.step(told.StateDiscarded(effect.checkpoint))
    if coordinator.store.latest_id != checkpoint:
        raise NotCompletedError(f"checkpoint {checkpoint} of {len(facts)} subtasks")
    return took


def _state(task: SubtaskId, checkpoint: CheckpointId) -> AcknowledgedState:
    """Return a state of two shared files. One is in every checkpoint, and the other is only in this checkpoint."""
    name = f"{task.vertex}/{task.index}"
    return AcknowledgedState(
        shared=((f"{name}/base", f"{name}/base"), (f"{name}/{checkpoint}", f"{name}/{checkpoint}"))
    )


if __name__ == "__main__":
    main()
