"""What every unit of the coordinator vectors offers: it does steps and returns facts."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.plan import (
    CheckpointPlan,
    PlannedEdge,
    PlannedVertex,
    Topology,
    compute_plan,
)
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties, SnapshotKind
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import SnapshotMetrics, Task
from checkpointing.coordinator.triggering import CheckpointRequest, DeciderView, Decision, RequestDecider
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.flink.coordinator import CheckpointIdCounter
from spec.flink.messages import FlinkMetrics

Value = Any
"""JSON as the case files hold it."""


class StepError(Exception):
    """A step raised an error. `kind` is the legend's word for it."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class UnknownWordError(Exception):
    """A case uses a word that its unit does not know: the runner is older than the file."""

    def __init__(self, word: str) -> None:
        super().__init__(f"this unit does not know the word {word!r}")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a case: its word, its arguments and its options."""

    word: str
    args: tuple[Value, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, raw: list[Value], legend: Mapping[str, Value]) -> "Step":
        """Parse a step from a list: the step's word, its arguments and, if it has any, its options.

        The last element holds the options if it is a JSON object, and each of its keys is `run` or one of the options
        that `legend` lists for this word.
        """
        word, *args = raw
        known = {*legend["steps"][word]["opts"], "run"}
        if args and isinstance(args[-1], dict) and args[-1].keys() <= known:
            return cls(word, tuple(args[:-1]), args[-1])
        return cls(word, tuple(args))

    def argument(self, index: int, default: Value = None) -> Value:
        """Return an argument, or the default if it was left out."""
        return self.args[index] if index < len(self.args) else default


class Unit(Protocol):
    """A component under test with its environment."""

    def do(self, step: Step) -> None:
        """Do a step. Raise StepError if the step raises an error."""

    def fact(self, name: str, expected: Value) -> Value:
        """Return the present value of the fact with this name, in the form that cases use."""


UnitFactory = Callable[[Mapping[str, Value]], Unit]


# ------------------------------------------------------------------
# A case's tasks, vertices and edges as the coordinator's topology.


_MAX_PARALLELISM = 128


def topology_of(given: Mapping[str, Value], max_parallelisms: Mapping[str, int] | None = None) -> Topology:
    """Return the topology. `max_parallelisms` override those of `given`."""
    changed = max_parallelisms or {}
    vertices = tuple(_vertices(given, changed))
    return Topology(vertices, tuple(_edges(given, tuple(vertex.name for vertex in vertices))))


def _vertices(given: Mapping[str, Value], changed: Mapping[str, int]) -> Iterator[PlannedVertex]:
    for task in given.get("tasks", ()):
        yield PlannedVertex(task, (task,), changed.get(task, _MAX_PARALLELISM), task in changed)
    for name, vertex in given.get("vertices", {}).items():
        chosen = changed.get(name, vertex.get("max"))
        tasks = tuple(f"{name}/{index}" for index in range(vertex["parallelism"]))
        yield PlannedVertex(name, tasks, chosen or _MAX_PARALLELISM, chosen is not None)


def _edges(given: Mapping[str, Value], names: tuple[str, ...]) -> Iterator[PlannedEdge]:
    for upstream, downstream, _ in given.get("edges", ()):
        yield PlannedEdge(upstream, downstream)
    sources = given.get("sources")
    if sources is None or "edges" in given:
        return
    for name in names:
        if name not in sources:
            yield from (PlannedEdge(source, name) for source in sources)


# ------------------------------------------------------------------
# The statistics tracker's content in the form in which cases write it.


def counters(tracker: StatisticsTracker) -> Value:
    """Return a dict from the name of each counter to its value."""
    c = tracker.counters
    return {
        "total": c.total,
        "in_progress": c.in_progress,
        "completed": c.completed,
        "failed": c.failed,
        "restored": c.restored,
    }


def statistics_of(tracker: StatisticsTracker, checkpoint: int) -> Value:
    """Return what is known of one checkpoint, or None."""
    known = tracker.of(CheckpointId(checkpoint))
    if known is None:
        return None
    measured = {task: _by_flink(metrics) for task, metrics in known.tasks.items()}
    tasks = {
        str(task): {
            "alignment_ms": metrics.alignment_ms,
            "async_ms": metrics.async_ms,
            "start_delay_ms": metrics.start_delay_ms,
        }
        for task, metrics in measured.items()
    }
    return {
        "status": known.status.value,
        "acked_subtasks": known.acknowledged_subtasks,
        "state_size": sum(metrics.state_bytes or 0 for metrics in measured.values()),
        "tasks": tasks,
    }


def _by_flink(metrics: SnapshotMetrics) -> FlinkMetrics:
    return metrics if isinstance(metrics, FlinkMetrics) else FlinkMetrics()


def history(tracker: StatisticsTracker) -> Value:
    """Return the id and status of each checkpoint in the history, newest first."""
    return [[known.id, known.status.value] for known in tracker.history()]


def latest(tracker: StatisticsTracker) -> Value:
    """Return the newest id of each sort."""
    known = tracker.latest
    return {
        "completed": known.completed,
        "savepoint": known.savepoint,
        "failed": known.failed,
        "restored": known.restored,
    }


# ------------------------------------------------------------------
# The small units of the coordinator vectors. Each drives one component alone.


class DeciderUnit:
    """The request decider.

    The case sets how many checkpoints are pending or being cleaned up, and whether one is being triggered.
    """

    def __init__(self, given: Mapping[str, Value]) -> None:
        self._decider = RequestDecider(
            max_concurrent=None if given.get("max_concurrent", "inf") == "inf" else given["max_concurrent"],
            queue_max=given.get("max_queued"),
        )
        self._view: dict[str, Value] = {
            "pending": given.get("pending", 0),
            "cleaning": given.get("cleaning", 0),
            "triggering": given.get("triggering", False),
        }
        since = given.get("ms_since_completion")
        self._pause_left_ms = 0 if since is None else given.get("min_pause_ms", 0) - since
        self._futures: dict[str, str] = {}
        self._failed: dict[str, int] = defaultdict(int)
        self._chosen: str | None = None
        self._sequence = 0

    def do(self, step: Step) -> None:
        self._chosen = None
        match step.word:
            case "request":
                self._request(step)
            case "choose":
                self._note(self._decider.choose(self._current_view()))
            case "set":
                what, value = step.args
                self._view[what] = value
            case _:
                raise UnknownWordError(step.word)

    def _request(self, step: Step) -> None:
        self._sequence += 1
        kind = SnapshotKind(step.options.get("what", "checkpoint"))
        properties = CheckpointProperties(kind=kind, forced=bool(step.options.get("forced", False)))
        name = step.args[0]
        self._futures[name] = "pending"
        request = CheckpointRequest(name, properties, bool(step.options.get("periodic", False)), self._sequence)
        for decision in self._decider.submit(request, self._current_view()):
            self._note(decision)

    def _current_view(self) -> DeciderView:
        view = self._view
        return DeciderView(bool(view["triggering"]), view["pending"], view["cleaning"], self._pause_left_ms)

    def _note(self, decision: Decision) -> None:
        if decision.chosen is not None:
            self._chosen = decision.chosen.name
        if decision.refused is not None:
            request, reason = decision.refused
            self._futures[str(request.name)] = f"failed:{reason.name}"
            self._failed[reason.name] += 1

    def fact(self, name: str, _expected: Value) -> Value:
        facts = {
            "chosen": self._chosen,
            "future": self._futures,
            "failed_count": dict(self._failed),
            "queued": len(self._decider),
            "pending": self._view["pending"],
            "triggering": self._view["triggering"],
        }
        return facts[name]


class FailureUnit:
    """The failure policy, with plain checkpoints and failures that the coordinator notices."""

    def __init__(self, given: Mapping[str, Value]) -> None:
        tolerable = given.get("tolerable_failures", "unlimited")
        self._policy = FailurePolicy(None if tolerable == "unlimited" else tolerable)
        self._job_failed = 0

    def do(self, step: Step) -> None:
        event, checkpoint = step.args
        if event == "completed":
            self._policy.succeeded(CheckpointId(checkpoint))
            return
        reason = CheckpointFailureReason[step.options["reason"]]
        if self._policy.failed(CHECKPOINT, reason, checkpoint) is not None:
            self._job_failed += 1

    def fact(self, name: str, _expected: Value) -> Value:
        return {"job_failed": self._job_failed}[name]


class IdCounterUnit:
    """The counter of checkpoint ids."""

    def __init__(self, _given: Mapping[str, Value]) -> None:
        self._counter = CheckpointIdCounter()
        self._result: Value = None

    def do(self, step: Step) -> None:
        self._result = None
        if step.word == "set":
            self._counter.go_on_at(step.args[1])
        elif "threads" in step.options:
            callers: list[list[int]] = [[] for _ in range(step.options["threads"])]
            for _ in range(step.options["each"]):
                for fetched in callers:
                    fetched.append(self._counter.fetch())
            different = {id_ for fetched in callers for id_ in fetched}
            rising = all(a < b for fetched in callers for a, b in pairwise(fetched))
            self._result = [len(different), rising]
        else:
            self._result = self._counter.fetch()

    def fact(self, name: str, _expected: Value) -> Value:
        return {"result": self._result, "next_id": self._counter.next_id}[name]


class StatisticsUnit:
    """The statistics tracker."""

    def __init__(self, given: Mapping[str, Value]) -> None:
        self._tracker = StatisticsTracker(given.get("history", 100))
        self._properties: dict[int, CheckpointProperties] = {}

    def do(self, step: Step) -> None:
        event, checkpoint = step.args
        match event:
            case "pending":
                properties = CheckpointProperties(kind=SnapshotKind(step.options.get("what", "checkpoint")))
                self._properties[checkpoint] = properties
                self._tracker.began(checkpoint, properties, 0)
            case "completed":
                self._tracker.completed(checkpoint, self._properties.get(checkpoint, CHECKPOINT), 0)
            case "failed" if checkpoint is None:
                self._tracker.failed_before_pending()
            case "failed":
                self._tracker.failed(checkpoint, CheckpointFailureReason.CHECKPOINT_DECLINED, 0)
            case "restored":
                self._tracker.restored(checkpoint)
            case _:
                raise UnknownWordError(event)

    def fact(self, name: str, expected: Value) -> Value:
        match name:
            case "counters":
                return counters(self._tracker)
            case "history":
                return history(self._tracker)
            case "latest":
                return latest(self._tracker)
            case _:
                return {id_: statistics_of(self._tracker, int(id_)) for id_ in expected}


class PlanUnit:
    """The computation of the plan."""

    def __init__(self, given: Mapping[str, Value]) -> None:
        self._topology = topology_of(given)
        self._plan: CheckpointPlan | None = None

    def do(self, step: Step) -> None:
        del step
        self._plan = compute_plan(self._topology)

    def fact(self, name: str, expected: Value) -> Value:
        plan = self._plan
        if name != "plan" or plan is None:
            return None
        told = {
            "to_trigger": self._by_vertex(plan.to_trigger, expected.get("to_trigger", {})),
            "to_ack": self._by_vertex(plan.tasks, expected.get("to_ack", {})),
            "to_commit": self._by_vertex(plan.tasks, expected.get("to_commit", {})),
        }
        return {part: told[part] for part in expected}

    def _by_vertex(self, tasks: tuple[Task, ...], wanted: Mapping[str, Value]) -> dict[str, list[int]]:
        chosen = frozenset(tasks)
        found = {
            vertex.name: [index for index, task in enumerate(vertex.tasks) if task in chosen]
            for vertex in self._topology.vertices
        }
        return {vertex: indexes for vertex, indexes in found.items() if indexes or vertex in wanted}
