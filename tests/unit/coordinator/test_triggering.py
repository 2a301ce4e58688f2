"""From a request to triggered tasks: pre-checks, the order of the steps, and no way to get stuck."""

import pytest

from checkpointing.coordinator.coordinator import CoordinatorShutDownError
from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CheckpointIdFetched,
    CheckpointRequested,
    CloseHook,
    CommitCheckpoint,
    CoordinatorTimeAdvanced,
    DiscardState,
    FailJob,
    FetchCheckpointId,
    HookAnswered,
    HookFailed,
    LocationCreated,
    NotifyCheckpointAborted,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    RequestFailed,
    SchedulerStarted,
    ShutDown,
    StateDiscarded,
    TaskAcknowledged,
    TaskStateChanged,
    TriggerTask,
    WakeCoordinatorAt,
)
from checkpointing.coordinator.properties import (
    CHECKPOINT,
    CheckpointProperties,
    CheckpointType,
    RequestedType,
    SnapshotKind,
    TerminationRefusedError,
    savepoint,
)
from checkpointing.coordinator.task import AcknowledgedState, TaskState
from checkpointing.failures import CheckpointFailureReason
from spec.flink.coordinator import InvalidHookError
from spec.flink.messages import CheckpointIdFailed, LocationFailed, PeriodicTimerFired, TriggerFailed


def failures(driven, effects):
    """Return (request, reason) of the requests that failed."""
    return [(effect.request, effect.reason.name) for effect in driven.of_type(effects, RequestFailed)]


def test_only_sources_are_triggered(drive):
    """The barriers carry the trigger to the other tasks (A5)."""
    driven = drive()
    assert ["source"] == [effect.task for effect in driven.of_type(driven.trigger(), TriggerTask)]


@pytest.mark.parametrize("state", [state for state in TaskState if state is not TaskState.RUNNING])
def test_a_task_that_does_not_run_refuses_the_trigger_by_name(drive, state):
    """No id is used. The reason names the task and its state (A4). Whether finished tasks are allowed is a setting."""
    driven = drive(after_tasks_finish=False)
    driven.tell(TaskStateChanged("sink", state))
    effects = driven.trigger()
    assert failures(driven, effects) == [("c", "NOT_ALL_REQUIRED_TASKS_RUNNING")]
    assert f"task sink is {state.value}" in driven.of_type(effects, RequestFailed)[0].message
    assert driven.of_type(effects, FetchCheckpointId) == []


def test_a_task_that_stops_while_the_id_is_fetched_refuses_the_trigger(drive):
    """The second pre-check finds the change since the first one."""
    driven = drive()
    driven.door.step(CheckpointRequested("c", CHECKPOINT))
    driven.door.step(TaskStateChanged("sink", TaskState.FAILED))
    effects = list(driven.door.step(CheckpointIdFetched(1)))
    assert failures(driven, effects) == [("c", "NOT_ALL_REQUIRED_TASKS_RUNNING")]
    assert driven.pending == []


def test_a_finished_source_has_its_reader_triggered(drive):
    """If all inputs of a task have finished, no barrier reaches it, so it is triggered directly (B4)."""
    driven = drive()
    driven.tell(TaskStateChanged("source", TaskState.FINISHED))
    effects = driven.trigger()
    assert ["sink"] == [effect.task for effect in driven.of_type(effects, TriggerTask)]
    (commit,) = driven.of_type(driven.acknowledge(1, "sink"), CommitCheckpoint)
    assert ("source",) == commit.finished


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


def test_a_failing_operator_coordinator_frees_the_procedure(drive):
    """The next request in the queue starts at once."""
    driven = drive(operator_coordinators=("oc",))
    driven.trigger("c1")
    driven.trigger("c2")
    driven.tell(OperatorCoordinatorFailed("oc", 1))
    assert driven.pending == [2]


def test_expiry_while_coordinators_snapshot_does_not_wedge_triggering(drive):
    """FLINK-26394: the expiry ends the procedure, and the next trigger works."""
    driven = drive(operator_coordinators=("oc",), timeout_ms=10, max_concurrent=1)
    driven.trigger("c1")
    driven.tell(CoordinatorTimeAdvanced(10))
    assert not driven.door.is_triggering
    driven.trigger("c2")
    assert driven.pending == [2]


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


def test_no_task_is_triggered_after_the_abort(drive):
    """FLINK-27148: an answer that comes after the abort triggers nothing."""
    driven = drive(hooks=("h",))
    driven.trigger()
    driven.decline(1)
    assert driven.tell(HookAnswered("h", 1, "A")) == []


def test_a_failed_id_fails_the_request_and_the_queue_goes_on(drive):
    """An I/O error before a checkpoint exists still counts as a failure (E5)."""
    driven = drive(tolerable_failures=0)
    driven.door.step(CheckpointRequested("c", CHECKPOINT))
    effects = list(driven.door.tell(CheckpointIdFailed(io_error=True)))
    assert failures(driven, effects) == [("c", "IO_EXCEPTION")]
    assert len(driven.of_type(effects, FailJob)) == 1
    driven.trigger("c2")
    assert driven.pending == [1]


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


@pytest.mark.parametrize(("io_error", "reason"), [(True, "IO_EXCEPTION"), (False, "TRIGGER_CHECKPOINT_FAILURE")])
def test_a_location_that_cannot_be_created_fails_the_checkpoint(drive, io_error, reason):
    """The statistics have the checkpoint, and the reason says that it was an I/O error (FLINK-26049)."""
    driven = drive()
    driven.door.step(CheckpointRequested("c", CHECKPOINT))
    driven.door.step(CheckpointIdFetched(1))
    effects = list(driven.door.tell(LocationFailed(1, io_error=io_error)))
    assert failures(driven, effects) == [("c", reason)]
    assert "FAILED" == driven.door.statistics.of(1).status.value


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
