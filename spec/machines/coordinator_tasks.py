"""The tasks of the coordinator's machine: their names, how they hang together, and the shared files they build on."""

from dataclasses import dataclass

from checkpointing.coordinator.plan import PlannedEdge, PlannedVertex, Topology
from checkpointing.coordinator.task import Task
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId

JOB = "job"
TASKS: tuple[Task, ...] = ("source/0", "source/1", "sink/0")
TOPOLOGY = Topology(
    (PlannedVertex("source", TASKS[:2]), PlannedVertex("sink", TASKS[2:])), (PlannedEdge("source", "sink"),)
)
INTERVAL_MS = 100
PAUSE_MS = 20
ROUNDS_MAX = 200
"""How many questions are answered at most before a machine gives up."""


@dataclass(slots=True)
class LiveFiles:
    """The shared files that a task builds on, and the newest checkpoint it took a snapshot for."""

    shared: tuple[str, ...] = ()
    newest: CheckpointId = NO_CHECKPOINT
