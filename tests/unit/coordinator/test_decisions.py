"""Pure decisions: which request runs, which failures count, which plan and id are used, what statistics remember."""

import pytest

from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.completed import DISCARD_ALWAYS, DISCARD_UNLESS_STOPPED
from checkpointing.coordinator.failure_policy import COUNTED, NEVER_TOLERATED, FailurePolicy
from checkpointing.coordinator.messages import FailJob
from checkpointing.coordinator.plan import (
    EdgePattern,
    PlannedEdge,
    PlannedVertex,
    PlanRefusedError,
    Topology,
    compute_plan,
)
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties, savepoint, synchronous_savepoint
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.statistics import CheckpointStatus, StatisticsTracker
from checkpointing.coordinator.task import SnapshotMetrics, TaskState
from checkpointing.coordinator.triggering import CheckpointRequest, DeciderView, RequestDecider
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import EdgeId, JobGraph, Vertex, VertexKind

IDLE = DeciderView(triggering=False, pending=0, deleting=0, pause_left_ms=0)
BUSY = DeciderView(triggering=True, pending=0, deleting=0, pause_left_ms=0)
FORCED = CheckpointProperties(kind=savepoint(unaligned=False).kind, forced=True)
SAVEPOINT = savepoint(unaligned=True)
STOP = synchronous_savepoint(unaligned=False, terminate=False)
DECLINED = CheckpointFailureReason.CHECKPOINT_DECLINED


def request(name, properties=CHECKPOINT, *, periodic=False, sequence=0):
    """Return a request."""
    return CheckpointRequest(name, properties, periodic, sequence)


def decider(*requests, max_concurrent=1, queue_max=None):
    """Return a decider with these requests in its queue."""
    made = RequestDecider(max_concurrent=max_concurrent, queue_max=queue_max)
    for sequence, queued in enumerate(requests):
        made.submit(CheckpointRequest(queued.name, queued.properties, queued.periodic, sequence), BUSY)
    return made


def test_requests_are_served_in_order_of_priority():
    """Savepoints come before checkpoints, forced before unforced, users' before periodic, older before newer (A3)."""
    queue = decider(
        request("periodic", periodic=True),
        request("older"),
        request("newer"),
        request("savepoint", SAVEPOINT),
        request("forced", FORCED),
    )
    assert ["forced", "savepoint", "older", "newer", "periodic"] == [r.name for r in queue._queue]


@pytest.mark.parametrize(
    ("view", "properties", "chosen"),
    [
        (IDLE, CHECKPOINT, "r"),
        (BUSY, FORCED, None),
        (DeciderView(False, 1, 0, 0), CHECKPOINT, None),
        (DeciderView(False, 1, 0, 0), FORCED, "r"),
        (DeciderView(False, 1, 0, 0), SAVEPOINT, None),
        (DeciderView(False, 0, 1, 0), CHECKPOINT, "r"),
        (DeciderView(False, 0, 2, 0), FORCED, None),
        (DeciderView(False, 0, 0, 5), CHECKPOINT, "r"),
    ],
)
def test_the_first_request_waits_for_its_turn(view, properties, chosen):
    """One at a time; at most max concurrent, which forced ones ignore; not during more deletions than that (A3)."""
    decision = decider(request("r", properties)).choose(view)
    assert chosen == (decision.chosen and decision.chosen.name)


def test_a_periodic_request_inside_the_pause_is_refused_and_postponed():
    """It fails with its reason, and the decision says when the pause ends (A3)."""
    decision = decider(request("r", periodic=True)).choose(DeciderView(False, 0, 0, 5))
    reason = CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
    assert (reason, 5, None) == (decision.refused[1], decision.retry_after_ms, decision.chosen)


def test_a_full_queue_drops_periodic_requests_before_a_users():
    """If all requests in a full queue are users', the new one is refused. Otherwise a periodic one is dropped (A3)."""
    for queued, new, dropped in (("user", "periodic", "periodic"), ("periodic", "user", "periodic")):
        queue = decider(request(queued, periodic=queued == "periodic"), queue_max=1)
        refusal, *_ = queue.submit(request(new, periodic=new == "periodic", sequence=9), BUSY)
        assert dropped == refusal.refused[0].name
        assert refusal.refused[1] is CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
        assert len(queue) == 1


@pytest.mark.parametrize("reason", CheckpointFailureReason)
def test_five_reasons_count_and_three_are_never_tolerated(reason):
    """The other reasons belong to the normal life of a job (E5)."""
    fails = FailurePolicy(0).failed(CHECKPOINT, reason, 1)
    assert (reason in COUNTED | NEVER_TOLERATED) == (fails is not None)


def test_the_job_fails_above_the_tolerable_number_and_counts_from_zero_again():
    """Consecutive failures count, one for each checkpoint. A failure of the job resets the count (E5)."""
    policy = FailurePolicy(1)
    outcomes = [policy.failed(CHECKPOINT, DECLINED, checkpoint) is not None for checkpoint in (1, 1, 2, 3, 4)]
    assert [False, False, True, False, True] == outcomes


def test_a_success_resets_and_older_failures_no_longer_count():
    """Failures with ids up to the last success are ignored (E5)."""
    policy = FailurePolicy(0)
    policy.succeeded(5)
    policy.succeeded(3)
    assert policy.failed(CHECKPOINT, DECLINED, 5) is None
    assert policy.failed(CHECKPOINT, DECLINED, 6) is not None


@pytest.mark.parametrize(
    ("properties", "by_task", "fails"),
    [(SAVEPOINT, False, False), (SAVEPOINT, True, True), (STOP, False, False), (STOP, True, True)],
)
def test_savepoints_count_only_when_a_task_declined_them(properties, by_task, fails):
    """Other failures of a savepoint concern only the user who asked for it (Flink: CheckpointFailureManager)."""
    assert fails == (FailurePolicy(0).failed(properties, DECLINED, 1, by_task=by_task) is not None)


def test_a_declined_stopping_savepoint_fails_the_job_whatever_is_tolerated():
    """Half of the job has stopped (FLINK-12858). Even unlimited tolerance does not help."""
    failed = FailurePolicy(None).failed(
        STOP, CheckpointFailureReason.TASK_FAILURE, 1, by_task=True, message="full disk"
    )
    said = "the savepoint of the stop failed: full disk"
    assert FailJob(CheckpointFailureReason.TASK_FAILURE, said) == failed


@pytest.mark.parametrize(
    ("upstream", "downstream", "finished", "told"),
    [(2, 4, {"a/0"}, {"b/0", "b/1"}), (4, 2, {"a/0", "a/1"}, {"b/0"}), (4, 2, {"a/0"}, set())],
)
def test_a_subtask_behind_pointwise_edges_is_triggered_after_its_inputs(upstream, downstream, finished, told):
    """This holds for edges between vertices of any two parallelisms (A5)."""
    tasks = {name: tuple(f"{name}/{i}" for i in range(count)) for name, count in (("a", upstream), ("b", downstream))}
    topology = Topology(
        tuple(PlannedVertex(name, of) for name, of in tasks.items()), (PlannedEdge("a", "b", EdgePattern.POINTWISE),)
    )
    states = {task: TaskState.FINISHED if task in finished else TaskState.RUNNING for task in topology.tasks()}
    plan = compute_plan(topology, states, after_tasks_finish=True)
    assert told == {task for task in plan.to_trigger if task.startswith("b")}


def test_the_plan_refuses_finished_tasks_if_they_are_switched_off():
    """The setting switches off checkpoints after tasks finish (B4)."""
    topology = Topology((PlannedVertex("a", ("a",)),))
    with pytest.raises(PlanRefusedError, match="task a is FINISHED"):
        compute_plan(topology, {"a": TaskState.FINISHED}, after_tasks_finish=False)


def test_the_topology_of_a_job_graph_has_its_subtasks():
    """The job graph becomes the coordinator's topology. A source is a vertex without an input."""
    graph = JobGraph(
        (Vertex("s", VertexKind.SOURCE, 2, splits=("x", "y")), Vertex("k", VertexKind.KEYED, 2)), (EdgeId("s", "k"),)
    )
    topology = Topology.of(graph, 16)
    states = dict.fromkeys(topology.tasks(), TaskState.RUNNING)
    assert tuple(graph.vertex("s").subtasks()) == compute_plan(topology, states, after_tasks_finish=True).to_trigger
    assert [16, 16] == [vertex.max_parallelism for vertex in topology.vertices]


def test_statistics_remember_the_last_and_count_all():
    """The history is bounded, pending checkpoints included. The counters are not (E6)."""
    tracker = StatisticsTracker(2)
    for checkpoint in (1, 2, 3):
        tracker.began(checkpoint, CHECKPOINT, now_ms=checkpoint, finished=0)
    tracker.completed(1, CHECKPOINT, 10)
    tracker.failed(3, DECLINED, 11)
    assert [(3, CheckpointStatus.FAILED), (2, CheckpointStatus.IN_PROGRESS)] == [
        (known.id, known.status) for known in tracker.history()
    ]
    assert (3, 1, 1, 1) == (
        tracker.counters.total,
        tracker.counters.in_progress,
        tracker.counters.completed,
        tracker.counters.failed,
    )


def test_metrics_that_come_late_replace_none():
    """The numbers of a task's acknowledgement stay, whatever a late message says (E6)."""
    tracker = StatisticsTracker(2)
    tracker.began(1, CHECKPOINT, 0, finished=0)
    tracker.acknowledged(1, "a", SnapshotMetrics(checkpointed_bytes=7))
    tracker.measured(1, "a", SnapshotMetrics(checkpointed_bytes=8))
    assert (7, 1) == (tracker.of(1).tasks["a"].checkpointed_bytes, tracker.of(1).acknowledged_subtasks)


def test_settings_follow_the_configuration():
    """Every setting of a configuration reaches the coordinator. Its interval is never shorter than the pause (H1)."""
    given = {"min_pause_ms": 300, "timeout_ms": 7_000, "tolerable_failures": 5}
    config = CheckpointConfig(interval_ms=100, retain_on_cancellation=True, **given)
    expected = CoordinatorSettings(job="job", interval_ms=300, discard_on=DISCARD_UNLESS_STOPPED, **given)
    assert expected == CoordinatorSettings.of("job", config)
    other = CheckpointConfig(max_concurrent=4, retain_on_cancellation=False)
    defaults = {"timeout_ms": other.timeout_ms, "tolerable_failures": other.tolerable_failures}
    expected = CoordinatorSettings(job="job", max_concurrent=4, discard_on=DISCARD_ALWAYS, **defaults)
    assert expected == CoordinatorSettings.of("job", other)


def test_the_newest_completed_and_failed_checkpoints_are_known_without_a_history():
    """Pending checkpoints are known until they end."""
    tracker = StatisticsTracker(0)
    for checkpoint in (1, 2, 3, 4):
        tracker.began(checkpoint, CHECKPOINT, 0, 0)
    tracker.completed(1, CHECKPOINT, 5)
    tracker.completed(2, CHECKPOINT, 6)
    tracker.failed(3, CheckpointFailureReason.CHECKPOINT_EXPIRED, 7)
    status = {n: known and known.status.value for n in (1, 2, 3, 4) for known in [tracker.of(n)]}
    assert {1: None, 2: "COMPLETED", 3: "FAILED", 4: "IN_PROGRESS"} == status
    assert () == tracker.history()
