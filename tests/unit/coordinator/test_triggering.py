"""From a request to triggered tasks: pre-checks, the order of the steps, and no way to get stuck."""

import pytest

from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.completed import DISCARD_ALWAYS, DISCARD_UNLESS_STOPPED
from checkpointing.coordinator.coordinator import CoordinatorShutDownError
from checkpointing.coordinator.failure_policy import COUNTED, NEVER_TOLERATED, FailurePolicy
from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CheckpointIdFetched,
    CloseHook,
    CoordinatorTimeAdvanced,
    DiscardState,
    FailJob,
    HookAnswered,
    HookFailed,
    LocationCreated,
    NotifyCheckpointAborted,
    OperatorCoordinatorAnswered,
    RequestFailed,
    SchedulerStarted,
    ShutDown,
    StateDiscarded,
    TaskAcknowledged,
    TriggerTask,
    WakeCoordinatorAt,
)
from checkpointing.coordinator.plan import (
    Topology,
    compute_plan,
)
from checkpointing.coordinator.properties import (
    CHECKPOINT,
    CheckpointProperties,
    CheckpointType,
    RequestedType,
    SnapshotKind,
    TerminationRefusedError,
    savepoint,
    synchronous_savepoint,
)
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.statistics import CheckpointStatus, StatisticsTracker
from checkpointing.coordinator.task import AcknowledgedState, SnapshotMetrics
from checkpointing.coordinator.triggering import CheckpointRequest, DeciderView, RequestDecider
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import EdgeId, JobGraph, Vertex, VertexKind
from checkpointing.tick.attempts import (
    NO_FAILURES,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    after_failure,
    may_restart,
    strategy_of,
)
from spec.flink.coordinator import InvalidHookError
from spec.flink.messages import CheckpointIdFailed, PeriodicTimerFired, TriggerFailed


def failures(driven, effects):
    return [(effect.request, effect.reason.name) for effect in driven.of_type(effects, RequestFailed)]


def test_only_sources_are_triggered(drive):
    """The barriers carry the trigger to the other tasks (A5)."""
    driven = drive()
    assert ["source"] == [effect.task for effect in driven.of_type(driven.trigger(), TriggerTask)]


def test_operator_coordinators_come_before_hooks_and_hooks_before_tasks(drive):
    """Each step waits for the one before, so an externally induced source is triggered last (A7, A8)."""
    driven = drive(operator_coordinators=("oc",), hooks=("h",))
    asked = (AskOperatorCoordinator, AskHook, TriggerTask)
    seen = [driven.of_type(driven.trigger(), *asked)]
    seen.append(driven.of_type(driven.tell(OperatorCoordinatorAnswered("oc", 1, "so")), *asked))
    seen.append(driven.of_type(driven.tell(HookAnswered("h", 1, "A")), *asked))
    assert [[AskOperatorCoordinator], [AskHook], [TriggerTask]] == [[type(e) for e in effects] for effects in seen]


@pytest.mark.parametrize("fact", [HookFailed("h", 1), TriggerFailed("source", 1)])
def test_a_failing_hook_or_trigger_fails_the_checkpoint(drive, fact):
    """A failing hook or an undeliverable trigger aborts the checkpoint, and the tasks hear of it (A8)."""
    driven = drive(hooks=("h",))
    driven.trigger()
    effects = driven.tell(fact)
    assert failures(driven, effects) == [("c", "TRIGGER_CHECKPOINT_FAILURE")]
    assert len(driven.of_type(effects, NotifyCheckpointAborted)) == 2


def test_an_answer_counts_once_and_only_if_it_was_requested(drive):
    """A second location is ignored. So is a hook that answers before it was asked."""
    driven = drive(operator_coordinators=("oc",), hooks=("h",))
    driven.trigger()
    assert driven.tell(LocationCreated(1), HookAnswered("h", 1, "A")) == []
    assert driven.of_type(driven.tell(OperatorCoordinatorAnswered("oc", 1)), AskHook) == [AskHook("h", 1, 0)]
    assert driven.of_type(driven.tell(HookAnswered("h", 1, "A")), TriggerTask) != []
    assert driven.tell(HookAnswered("h", 1, "A")) == []


def test_a_late_coordinator_state_is_discarded(drive):
    """No checkpoint owns the state of an aborted one."""
    driven = drive(operator_coordinators=("oc",))
    driven.trigger()
    driven.decline(1)
    effects = driven.tell(OperatorCoordinatorAnswered("oc", 1, "so"))
    assert driven.of_type(effects, DiscardState) == [DiscardState(1, ("so",))]
    assert driven.of_type(effects, AskHook, TriggerTask) == []


def test_the_first_periodic_trigger_lies_between_pause_and_interval(drive):
    """The random delay comes from the seed. The same seed gives the same delay (A2)."""
    driven = drive(interval_ms=1000, min_pause_ms=400)
    delays = []
    for seed in range(200):
        driven.tell(SchedulerStarted(seed))
        delays.append(driven.door.wake_at_ms)
    assert 400 <= min(delays) < 450
    assert 950 < max(delays) <= 1000


def test_a_late_clock_does_not_change_the_rate(drive):
    """Later triggers come whole intervals after the first. Those that a late clock missed count as one (A2)."""
    driven = drive(interval_ms=1000)
    driven.tell(SchedulerStarted(3))
    first = driven.door.wake_at_ms
    driven.tell(CoordinatorTimeAdvanced(first + 3500))
    assert driven.pending == [1]
    assert driven.door.wake_at_ms == first + 4000


def test_without_an_interval_there_is_no_timer(drive):
    """With interval None, the scheduler runs, but triggers nothing (A2)."""
    driven = drive(interval_ms=None)
    assert driven.tell(SchedulerStarted(3), PeriodicTimerFired(), CoordinatorTimeAdvanced(10**12)) == []


def test_starting_again_cancels_the_earlier_timer(drive):
    """At most one periodic timer exists. The pending checkpoints fail (A1)."""
    driven = drive(interval_ms=1000)
    driven.tell(SchedulerStarted(3))
    driven.trigger()
    assert failures(driven, driven.tell(SchedulerStarted(4))) == [("c", "CHECKPOINT_COORDINATOR_SUSPEND")]
    driven.tell(CoordinatorTimeAdvanced(1000))
    assert driven.pending == [2]


def test_the_scheduler_survives_any_abort(drive):
    """FLINK-13256: a failover aborts the pending checkpoints, and the periodic timer stays."""
    driven = drive(interval_ms=1000, max_concurrent=1)
    driven.tell(SchedulerStarted(3), CoordinatorTimeAdvanced(1000))
    driven.decline(1, CheckpointFailureReason.JOB_FAILOVER_REGION)
    driven.tell(CoordinatorTimeAdvanced(2000))
    assert driven.pending == [2]


def test_the_pause_holds_back_periodic_triggers_only(drive):
    """Inside the pause, a periodic trigger is postponed to its end, and a user's request runs (A3)."""
    driven = drive(interval_ms=1000, min_pause_ms=1000)
    driven.tell(SchedulerStarted(3), CoordinatorTimeAdvanced(1000))
    driven.acknowledge(1)
    driven.tell(CoordinatorTimeAdvanced(1500), PeriodicTimerFired())
    assert ([], 2000) == (driven.pending, driven.door.wake_at_ms)
    driven.trigger("user")
    assert driven.pending == [2]
    driven.tell(CoordinatorTimeAdvanced(2000))
    assert driven.pending == [2, 3]


def test_wake_at_follows_the_earliest_timer(drive):
    """If the earliest of timeouts and periodic trigger changes, the driver hears its time."""
    driven = drive(timeout_ms=100)
    assert driven.of_type(driven.trigger(), WakeCoordinatorAt) == [WakeCoordinatorAt(100)]
    driven.tell(CoordinatorTimeAdvanced(40))
    assert driven.of_type(driven.trigger("c2"), WakeCoordinatorAt) == []
    assert driven.of_type(driven.decline(1), WakeCoordinatorAt) == [WakeCoordinatorAt(140)]


def test_a_shut_down_coordinator_refuses_everything(drive):
    """Queued and pending requests fail, hooks are closed, later requests fail, and a start is refused (A4)."""
    driven = drive(hooks=("h",), max_concurrent=1)
    driven.trigger("c1")
    driven.trigger("c2")
    effects = driven.tell(ShutDown())
    assert {("c1", "CHECKPOINT_COORDINATOR_SHUTDOWN"), ("c2", "CHECKPOINT_COORDINATOR_SHUTDOWN")} == set(
        failures(driven, effects)
    )
    assert driven.of_type(effects, CloseHook) == [CloseHook("h")]
    assert failures(driven, driven.trigger("c3")) == [("c3", "CHECKPOINT_COORDINATOR_SHUTDOWN")]
    with pytest.raises(CoordinatorShutDownError):
        driven.tell(SchedulerStarted(1))


def test_a_hook_needs_an_id_of_its_own(drive):
    """A hook's state is kept under its id. A missing, blank or known id is refused (A8)."""
    driven = drive()
    assert (True, False) == (driven.door.add_hook("h"), driven.door.add_hook("h"))
    for blank in (None, "", "   "):
        with pytest.raises(InvalidHookError, match="it must not be blank"):
            driven.door.add_hook(blank)


@pytest.mark.parametrize("kind", [SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT])
def test_only_a_synchronous_savepoint_may_terminate(kind):
    """Any other request with the MAX watermark is refused with this message (A9)."""
    with pytest.raises(TerminationRefusedError, match="only synchronous savepoints are allowed to advance"):
        CheckpointProperties(kind=kind, terminate=True)


@pytest.mark.parametrize(
    ("requested", "force_full", "told"),
    [
        (RequestedType.CONFIGURED, False, CheckpointType.CHECKPOINT),
        (RequestedType.INCREMENTAL, False, CheckpointType.CHECKPOINT),
        (RequestedType.FULL, False, CheckpointType.FULL_CHECKPOINT),
        (RequestedType.INCREMENTAL, True, CheckpointType.FULL_CHECKPOINT),
    ],
)
def test_force_full_wins_over_the_request(requested, force_full, told):
    """After NO_CLAIM, checkpoints are full, whatever was requested (G3)."""
    assert told is CheckpointProperties(requested_type=requested).checkpoint_type(force_full=force_full)


def test_a_savepoint_stays_a_savepoint_under_force_full():
    """A savepoint is always complete, so the flag does not change what the tasks are told."""
    assert CheckpointType.SAVEPOINT is savepoint(unaligned=True).checkpoint_type(force_full=True)


def test_an_id_that_was_not_requested_is_ignored(drive):
    """A second answer to a fetch starts no second checkpoint (A6)."""
    driven = drive()
    driven.trigger()
    assert driven.tell(CheckpointIdFetched(7), CheckpointIdFailed()) == []
    assert driven.pending == [1]


def test_many_running_deletions_delay_triggers(drive):
    """If there are more deletions than max concurrent checkpoints, the queue waits until one is done (A3)."""
    driven = drive(max_concurrent=1)
    private = AcknowledgedState(private=("p",))
    for checkpoint in (8, 9):
        driven.door.step(TaskAcknowledged("job", "source", checkpoint, private))
    driven.trigger("c")
    assert driven.pending == []
    driven.tell(StateDiscarded(8))
    assert driven.pending == [1]


# ------------------------------------------------------------------
# Pure decisions: which request runs, which failures count, which plan and id are used, what statistics remember.


BUSY = DeciderView(triggering=True, pending=0, deleting=0, pause_left_ms=0)
FORCED = CheckpointProperties(kind=savepoint(unaligned=False).kind, forced=True)
SAVEPOINT = savepoint(unaligned=True)
STOP = synchronous_savepoint(unaligned=False, terminate=False)
DECLINED = CheckpointFailureReason.CHECKPOINT_DECLINED


def request(name, properties=CHECKPOINT, *, periodic=False, sequence=0):
    return CheckpointRequest(name, properties, periodic, sequence)


def decider(*requests, max_concurrent=1, queue_max=None):
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


def test_a_declined_stopping_savepoint_fails_the_job_whatever_is_tolerated():
    """Half of the job has stopped (FLINK-12858). Even unlimited tolerance does not help."""
    failed = FailurePolicy(None).failed(
        STOP, CheckpointFailureReason.TASK_FAILURE, 1, by_task=True, message="full disk"
    )
    said = "the savepoint of the stop failed: full disk"
    assert FailJob(CheckpointFailureReason.TASK_FAILURE, said) == failed


def test_the_topology_of_a_job_graph_has_its_subtasks():
    """The job graph becomes the coordinator's topology. A source is a vertex without an input."""
    graph = JobGraph(
        (Vertex("s", VertexKind.SOURCE, 2, splits=("x", "y")), Vertex("k", VertexKind.KEYED, 2)), (EdgeId("s", "k"),)
    )
    topology = Topology.of(graph, 16)
    assert tuple(graph.vertex("s").subtasks()) == compute_plan(topology).to_trigger
    assert [16, 16] == [vertex.max_parallelism for vertex in topology.vertices]


def test_statistics_remember_the_last_and_count_all():
    """The history is bounded, pending checkpoints included. The counters are not (E6)."""
    tracker = StatisticsTracker(2)
    for checkpoint in (1, 2, 3):
        tracker.began(checkpoint, CHECKPOINT, now_ms=checkpoint)
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
    tracker.began(1, CHECKPOINT, 0)
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
        tracker.began(checkpoint, CHECKPOINT, 0)
    tracker.completed(1, CHECKPOINT, 5)
    tracker.completed(2, CHECKPOINT, 6)
    tracker.failed(3, CheckpointFailureReason.CHECKPOINT_EXPIRED, 7)
    status = {n: known and known.status.value for n in (1, 2, 3, 4) for known in [tracker.of(n)]}
    assert {1: None, 2: "COMPLETED", 3: "FAILED", 4: "IN_PROGRESS"} == status
    assert () == tracker.history()


# ------------------------------------------------------------------
# Restart strategies: how often and when a failed job restarts inside its tick (G4).


def delays(strategy, *times_ms):
    """Return the delay after each failure."""
    history, seen = NO_FAILURES, []
    for now_ms in times_ms:
        decision = after_failure(strategy, history, now_ms)
        history = decision.history
        seen.append(decision.delay_ms)
    return seen


def growing(initial_ms, max_ms, *, reset_after_ms=60_000, jitter=0.0, attempts=None):
    return ExponentialDelay(initial_ms, max_ms, 2.0, reset_after_ms, jitter, attempts)


def test_no_restart_ends_at_the_first_failure():
    """The next tick recovers the job."""
    assert [None] == delays(NoRestart(), 5)


def test_a_fixed_delay_allows_a_number_of_restarts():
    """The failure after the last allowed restart ends the tick (Flink: FixedDelayRestartBackoffTimeStrategy)."""
    assert [7, 7, None, None] == delays(FixedDelay(2, 7), 1, 2, 3, 4)


def test_a_failure_rate_looks_at_the_last_failures_only():
    """More failures than the number within the interval, its end included, end the tick. Slow failures never do."""
    assert [1, 1, None] == delays(FailureRate(2, 100, 1), 0, 50, 100)
    assert [1, 1, 1, 1] == delays(FailureRate(2, 100, 1), 0, 50, 101, 152)
    assert [1, None] == delays(FailureRate(1, 100, 1), 0, 100)


def test_an_exponential_delay_grows_to_its_limit_and_resets_after_quiet():
    """It doubles up to the limit. After a quiet time, which begins at the end of the delay, it starts again."""
    strategy = growing(10, 35, reset_after_ms=100)
    assert [10, 20, 35, 35, 10] == delays(strategy, 0, 1, 2, 3, 3 + 100 + 35)
    assert [10, 20, 35, 35, 35] == delays(strategy, 0, 1, 2, 3, 3 + 100 + 34)


def test_an_exponential_delay_may_end():
    """With a number of attempts, the tick ends after them. A quiet time restores all attempts."""
    assert [10, 20, None] == delays(growing(10, 90, attempts=2), 0, 1, 2)
    assert [10, 20, 10, 20, None] == delays(growing(10, 90, reset_after_ms=5, attempts=2), 0, 1, 26, 27, 28)


def test_jitter_spreads_within_its_share_and_its_limit():
    """Every seed gives a delay within the share of the backoff. Both sides are reached, and none is above the limit."""
    strategy = growing(100, 110, jitter=0.2)
    drawn = [after_failure(strategy, NO_FAILURES, 0, seed).delay_ms for seed in range(500)]
    assert (80, 110) == (min(drawn), max(drawn))
    assert drawn == [after_failure(strategy, NO_FAILURES, 0, seed).delay_ms for seed in range(500)]


def test_jitter_does_not_change_the_growth_of_the_delay():
    """The random part changes one delay only. The next one grows from the plain backoff."""
    strategy = growing(100, 1_000, jitter=1.0)
    first = after_failure(strategy, NO_FAILURES, 0, seed=3)
    assert (100, 200) == (first.history.backoff_ms, after_failure(strategy, first.history, 1).history.backoff_ms)


@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        ({}, NoRestart()),
        ({"restart_strategy": "fixed_delay"}, FixedDelay(1, 1_000)),
        ({"restart_strategy": "fixed_delay", "restart_attempts": 3, "restart_delay_ms": 0}, FixedDelay(3, 0)),
        ({"restart_strategy": "failure_rate"}, FailureRate(1, 60_000, 1_000)),
        (
            {"restart_strategy": "failure_rate", "restart_failures_max": 4, "restart_failures_interval_ms": 9},
            FailureRate(4, 9, 1_000),
        ),
        ({"restart_strategy": "exponential_delay"}, ExponentialDelay(1_000, 300_000, 2.0, 3_600_000, 0.1, None)),
        (
            {
                "restart_strategy": "exponential_delay",
                "restart_delay_ms": 5,
                "restart_delay_max_ms": 50,
                "restart_multiplier": 1.5,
                "restart_reset_after_ms": 100,
                "restart_jitter": 0,
                "restart_attempts": 7,
            },
            ExponentialDelay(5, 50, 1.5, 100, 0.0, 7),
        ),
    ],
)
def test_the_configuration_decides_the_strategy(values, strategy):
    """Settings that are left out have Flink's defaults. Every number that is set arrives."""
    assert strategy == strategy_of(CheckpointConfig(**values))


def test_a_failure_that_the_next_attempt_would_meet_again_causes_no_restart():
    """A verdict, a changed table and a newer claim end the tick with every strategy.

    Other failures may be restarted.
    """
    never = {reason for reason in CheckpointFailureReason if not may_restart(reason)}
    reasons = CheckpointFailureReason
    assert {reasons.QUALITY, reasons.TABLE_CHANGED, reasons.FENCED} == never
