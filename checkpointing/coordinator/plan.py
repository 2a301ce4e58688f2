"""Decides which tasks are triggered, must acknowledge, and are notified (A5; Flink: `DefaultCheckpointPlanCalculator`).

One process runs all tasks of a job, so none can be missing, and none finishes before the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from checkpointing.coordinator.completed import CompletedVertex
from checkpointing.coordinator.task import Task
from checkpointing.graph import JobGraph


@dataclass(frozen=True, slots=True)
class PlannedVertex:
    """A vertex and its tasks in order of subtask index.

    `max_parallelism_set`: a user has fixed it, so a restore with another one is refused (D3).
    """

    name: str
    tasks: tuple[Task, ...]
    max_parallelism: int = 128
    max_parallelism_set: bool = True


@dataclass(frozen=True, slots=True)
class PlannedEdge:
    """An edge between two vertices."""

    upstream: str
    downstream: str


@dataclass(frozen=True, slots=True)
class Topology:
    """Vertices in topological order, and the edges between them. A vertex without inputs is a source."""

    vertices: tuple[PlannedVertex, ...]
    edges: tuple[PlannedEdge, ...] = ()

    @classmethod
    def of(cls, graph: JobGraph, max_parallelism: int) -> "Topology":
        """Return the topology of a job graph. Its tasks are `SubtaskId`s."""
        return cls(
            tuple(PlannedVertex(v.id, v.subtasks(), max_parallelism) for v in graph.vertices),
            tuple(PlannedEdge(edge.upstream, edge.downstream) for edge in graph.edges),
        )

    def tasks(self) -> Iterator[Task]:
        """Yield every task, in topological order."""
        for vertex in self.vertices:
            yield from vertex.tasks


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The tasks of each checkpoint: the sources' tasks are triggered, and all tasks acknowledge and are notified."""

    to_trigger: tuple[Task, ...]
    tasks: tuple[Task, ...]
    vertices: tuple[CompletedVertex, ...]


def compute_plan(topology: Topology) -> CheckpointPlan:
    """Return the plan of the job's checkpoints."""
    fed = {edge.downstream for edge in topology.edges}
    return CheckpointPlan(
        to_trigger=tuple(task for vertex in topology.vertices if vertex.name not in fed for task in vertex.tasks),
        tasks=tuple(topology.tasks()),
        vertices=tuple(CompletedVertex(v.name, v.tasks, v.max_parallelism) for v in topology.vertices),
    )
