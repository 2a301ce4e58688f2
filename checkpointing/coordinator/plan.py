"""Decides which tasks are triggered, acknowledge and are notified (A5; Flink: `DefaultCheckpointPlanCalculator`)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from checkpointing.coordinator.completed import CompletedVertex, FinishedState
from checkpointing.coordinator.task import Task, TaskState
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph


class EdgePattern(Enum):
    """Which upstream subtasks feed a subtask (Flink: `DistributionPattern`)."""

    ALL_TO_ALL = "all_to_all"
    POINTWISE = "pointwise"


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
    pattern: EdgePattern = EdgePattern.ALL_TO_ALL


@dataclass(frozen=True, slots=True)
class Topology:
    """Vertices in topological order, and the edges between them. A vertex without inputs is a source."""

    vertices: tuple[PlannedVertex, ...]
    edges: tuple[PlannedEdge, ...] = ()

    @classmethod
    def of(cls, graph: JobGraph, max_parallelism: int) -> "Topology":
        """Return the topology of a job graph. Its tasks are `SubtaskId`s, and every edge feeds all subtasks."""
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
    """The tasks that take part in one checkpoint."""

    to_trigger: tuple[Task, ...]
    to_acknowledge: tuple[Task, ...]
    to_commit: tuple[Task, ...]
    finished: tuple[Task, ...]
    vertices: tuple[CompletedVertex, ...]


class PlanRefusedError(Exception):
    """No checkpoint can be taken now. `reason` and the message say why."""

    def __init__(self, reason: CheckpointFailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def compute_plan(topology: Topology, states: Mapping[Task, TaskState], *, after_tasks_finish: bool) -> CheckpointPlan:
    """Return the plan. Raise PlanRefusedError unless every task runs, or has finished where that is allowed.

    If all upstream tasks of a running task have finished, no barrier can reach it. So it is triggered itself.
    """
    finished = frozenset(task for task in topology.tasks() if states[task] is TaskState.FINISHED)
    _refuse_unless_running(topology, states, after_tasks_finish=after_tasks_finish)
    running = tuple(task for task in topology.tasks() if task not in finished)
    return CheckpointPlan(
        to_trigger=tuple(_to_trigger(topology, finished)),
        to_acknowledge=running,
        to_commit=running,
        finished=tuple(task for task in topology.tasks() if task in finished),
        vertices=tuple(
            CompletedVertex(v.name, v.tasks, v.max_parallelism, finished_state(v, finished)) for v in topology.vertices
        ),
    )


def finished_state(vertex: PlannedVertex, finished: frozenset[Task]) -> FinishedState:
    """Return how much of a vertex has finished."""
    count = sum(1 for task in vertex.tasks if task in finished)
    if count == 0:
        return FinishedState.RUNNING
    return FinishedState.FULLY_FINISHED if count == len(vertex.tasks) else FinishedState.PARTIALLY_FINISHED


def _refuse_unless_running(topology: Topology, states: Mapping[Task, TaskState], *, after_tasks_finish: bool) -> None:
    for task in topology.tasks():
        state = states[task]
        if state is TaskState.RUNNING or (state is TaskState.FINISHED and after_tasks_finish):
            continue
        raise PlanRefusedError(
            CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, f"task {task} is {state.value}, not RUNNING"
        )


def _to_trigger(topology: Topology, finished: frozenset[Task]) -> Iterator[Task]:
    vertices = {vertex.name: vertex for vertex in topology.vertices}
    for vertex in topology.vertices:
        inputs = [(vertices[e.upstream], e.pattern) for e in topology.edges if e.downstream == vertex.name]
        if any(_feeds_all(upstream, pattern, finished) for upstream, pattern in inputs):
            continue
        pointwise = [upstream for upstream, pattern in inputs if pattern is EdgePattern.POINTWISE]
        for index, task in enumerate(vertex.tasks):
            if task not in finished and not _is_fed(index, vertex, pointwise, finished):
                yield task


def _feeds_all(upstream: PlannedVertex, pattern: EdgePattern, finished: frozenset[Task]) -> bool:
    return pattern is EdgePattern.ALL_TO_ALL and any(task not in finished for task in upstream.tasks)


def _is_fed(index: int, vertex: PlannedVertex, pointwise: list[PlannedVertex], finished: frozenset[Task]) -> bool:
    return any(
        upstream.tasks[feeder] not in finished
        for upstream in pointwise
        for feeder in _feeders(index, len(vertex.tasks), len(upstream.tasks))
    )


def _feeders(index: int, parallelism: int, upstream: int) -> range:
    """Return the upstream subtasks that feed one subtask pointwise (Flink: `VertexInputInfoComputationUtils`)."""
    if upstream <= parallelism:
        feeder = index * upstream // parallelism
        return range(feeder, feeder + 1)
    return range(index * upstream // parallelism, (index + 1) * upstream // parallelism)
