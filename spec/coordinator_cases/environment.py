"""The whole coordinator in the environment that the legend describes: executor, clock, storage, tasks, hooks."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import assert_never

from checkpointing.coordinator.completed import (
    CompletedCheckpoint,
    CompletedCheckpointStore,
    JobStatus,
)
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.id_counter import CheckpointIdCounter
from checkpointing.coordinator.messages import (
    AbortRequested,
    AnswerAcknowledge,
    AskHook,
    AskOperatorCoordinator,
    AssignState,
    CheckpointIdFailed,
    CheckpointIdFetched,
    CheckpointRequested,
    CheckpointTimeoutFired,
    CloseHook,
    CommitCheckpoint,
    CommitFailed,
    CommitSucceeded,
    CommitUnknown,
    CoordinatorEffect,
    CoordinatorFact,
    CoordinatorTimeAdvanced,
    CreateLocation,
    DiscardState,
    FailJob,
    FetchCheckpointId,
    HookAnswered,
    HookFailed,
    LocationCreated,
    LocationFailed,
    NotifyAborted,
    NotifyComplete,
    NotifyOperatorCoordinatorAborted,
    NotifyOperatorCoordinatorComplete,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    PeriodicTimerFired,
    RequestFailed,
    RequestSucceeded,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreFinished,
    RestoreHook,
    RestoreKind,
    RestoreRequested,
    SchedulerStarted,
    SchedulerStopped,
    SetNextCheckpointId,
    ShutDown,
    StateDiscarded,
    TaskAcknowledged,
    TaskDeclined,
    TaskStateChanged,
    TriggerFailed,
    TriggerTask,
    WakeAt,
)
from checkpointing.coordinator.properties import (
    CHECKPOINT,
    CheckpointProperties,
    RequestedType,
    savepoint,
    synchronous_savepoint,
)
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.shared_state import Handle, RestoreMode, SharedStateRegistry
from checkpointing.coordinator.task import AcknowledgedState, SnapshotMetrics, TaskState
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.coordinator_cases.statistics_facts import counters, history, latest, statistics_of
from spec.coordinator_cases.topology import topology_of
from spec.coordinator_cases.unit import Step, StepError, Value

JOB = "job"
LONG_AGO_MS = 10**12
"""Where the clock starts: no pause lies behind."""
FAR_AWAY_MS = 10**15
"""The default interval: only a tick fires the timer."""
SEED = 20_240_924


class CountingRegistry(SharedStateRegistry):
    """A registry that tells how often each handle was handed in."""

    def __init__(self, registrations: dict[str, int]) -> None:
        super().__init__()
        self._registrations = registrations

    def register(
        self,
        key: str,
        handle: Handle,
        checkpoint: CheckpointId,
        *,
        prevent_discarding_created_checkpoint: bool = False,
    ) -> Handle:
        """Count, then register."""
        self._registrations[str(handle)] += 1
        return super().register(
            key, handle, checkpoint, prevent_discarding_created_checkpoint=prevent_discarding_created_checkpoint
        )


class CoordinatorUnit:
    """Drives a CheckpointCoordinator and plays everything around it."""

    def __init__(self, given: Mapping[str, Value]) -> None:
        """Build the environment and the coordinator from `given`."""
        self.given = given
        self.now_ms = LONG_AGO_MS
        self.counter = CheckpointIdCounter()
        self.pieces: deque[Callable[[], None]] = deque()
        self.stalled: dict[str, list[Callable[[bool], None]]] = {call: [] for call in given.get("stall", ())}
        self.faults = set(given.get("fault", ()))
        self.errors: list[str] = []
        self.in_piece = False
        self.futures: dict[str, str] = {}
        self.messages: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.types: dict[str, dict[str, str]] = defaultdict(dict)
        self.abort_latest: dict[str, int] = {}
        self.complete_subsumed: dict[str, int | None] = {}
        self.discarded: list[str] = []
        self.registrations: dict[str, int] = defaultdict(int)
        self.hook_calls: dict[str, dict[str, Value]] = defaultdict(_no_hook_calls)
        self.coordinator_calls: dict[str, dict[str, list[int]]] = defaultdict(_no_coordinator_calls)
        self.restored_state: dict[str, list[str]] = {}
        self.finished_state_checked = 0
        self.job_failed = 0
        self.acknowledged: AnswerAcknowledge | None = None
        self.result: Value = None
        self.store_open = True
        self.kept: tuple[CompletedCheckpoint, ...] | None = None
        self.store = CompletedCheckpointStore(
            given.get("retained", 1),
            CountingRegistry(self.registrations),
            [
                CompletedCheckpoint(
                    id=CheckpointId(known["id"]), properties=CHECKPOINT, master_states=known.get("master_states", {})
                )
                for known in given.get("store", ())
            ],
        )
        self.unaligned = bool(given.get("unaligned"))
        self.max_parallelisms: dict[str, int] = {}
        self.task_states: dict[str, TaskState] = _initial_states(given)
        self.door = self._new_door()

    def _new_door(self) -> CheckpointCoordinator:
        given = self.given
        min_pause_ms = given.get("min_pause_ms", 0)
        tolerable = given.get("tolerable_failures", "unlimited")
        max_concurrent = given.get("max_concurrent", "inf")
        settings = CoordinatorSettings(
            job=JOB,
            interval_ms=max(given.get("interval_ms", FAR_AWAY_MS), min_pause_ms),
            min_pause_ms=min_pause_ms,
            timeout_ms=given.get("timeout_ms"),
            max_concurrent=None if max_concurrent == "inf" else max_concurrent,
            tolerable_failures=None if tolerable == "unlimited" else tolerable,
            after_tasks_finish=given.get("allow_after_finish", True),
            queue_max=given.get("max_queued", 1000),
            history_max=given.get("history", 100),
            operator_coordinators=tuple(given.get("operator_coordinators", {})),
            hooks=tuple(given.get("hooks", {})),
        )
        topology = topology_of(given, self.max_parallelisms)
        door = CheckpointCoordinator(settings, topology, self.store, now_ms=self.now_ms)
        for task, state in self.task_states.items():
            door.step(TaskStateChanged(task, state))
        return door

    # -------------------------------------------------------------- steps

    def do(self, step: Step) -> None:
        """Do a step and run to idle after it, unless the step says otherwise."""
        self.errors.clear()
        self.acknowledged = None
        self.result = None
        try:
            self._call(step)
        except ValueError:
            self.errors.append("illegal_argument")
        except RuntimeError:
            self.errors.append("illegal_state")
        if step.options.get("run", True):
            self._run_to_idle()
        if self.errors:
            raise StepError(self.errors[0])

    def _call(self, step: Step) -> None:
        getattr(self, f"_do_{step.word}")(step)

    def _do_trigger(self, step: Step) -> None:
        wish = step.options.get("type", "CONFIGURED")
        properties = CheckpointProperties(requested_type=RequestedType(wish))
        self._request(step.args[0], properties, periodic=bool(step.options.get("periodic", False)))

    def _do_savepoint(self, step: Step) -> None:
        self._request(step.args[0], savepoint(unaligned=self.unaligned))

    def _do_stop_with_savepoint(self, step: Step) -> None:
        self._request(step.args[0], synchronous_savepoint(unaligned=self.unaligned, terminate=False))

    def _request(self, name: str, properties: CheckpointProperties, *, periodic: bool = False) -> None:
        self.futures[name] = "pending"
        self.tell(CheckpointRequested(name, properties, periodic))

    def _do_run(self, _step: Step) -> None:
        """Nothing but the run to idle."""

    def _do_ack(self, step: Step) -> None:
        job = JOB if step.options.get("job", JOB) == JOB else "another job"
        metrics = SnapshotMetrics(**step.options.get("metrics", {}))
        task, checkpoint = step.args[:2]
        self.tell(TaskAcknowledged(job, task, checkpoint, _state_of(step.argument(2)), metrics))

    def _do_decline(self, step: Step) -> None:
        task, checkpoint, reason = step.args
        self.tell(TaskDeclined(JOB, task, checkpoint, CheckpointFailureReason[reason]))

    def _do_expire(self, step: Step) -> None:
        checkpoint = step.args[0]
        self.pieces.append(lambda: self.tell(CheckpointTimeoutFired(checkpoint)))

    def _do_abort_pending(self, step: Step) -> None:
        self.tell(AbortRequested(CheckpointFailureReason[step.args[0]]))

    def _do_set_task_state(self, step: Step) -> None:
        task, state = step.args
        self.task_states[task] = TaskState(state)
        self.tell(TaskStateChanged(task, TaskState(state)))

    def _do_tick(self, step: Step) -> None:
        for _ in range(step.argument(0, 1)):
            self.pieces.append(lambda: self.tell(PeriodicTimerFired()))
            self._run_to_idle()

    def _do_advance_ms(self, step: Step) -> None:
        target = self.now_ms + step.args[0]
        while (due := self.door.wake_at_ms) is not None and due <= target:
            self._advance_to(max(due, self.now_ms))
        self._advance_to(target)

    def _advance_to(self, at_ms: int) -> None:
        self.now_ms = at_ms
        self.pieces.append(lambda: self.tell(CoordinatorTimeAdvanced(at_ms)))
        self._run_to_idle()

    def _do_start_scheduler(self, _step: Step) -> None:
        self.tell(SchedulerStarted(SEED))

    def _do_stop_scheduler(self, _step: Step) -> None:
        self.tell(SchedulerStopped())

    def _do_shutdown(self, _step: Step) -> None:
        self.tell(ShutDown())

    def _do_release(self, step: Step) -> None:
        for answer in self.stalled.pop(step.args[0], ()):
            failed = bool(step.options.get("fail", False))
            self.pieces.append(lambda answer=answer, failed=failed: answer(failed))  # type: ignore[misc]

    def _do_add_hook(self, step: Step) -> None:
        self.result = self.door.add_hook(step.args[0])

    def _do_restore(self, step: Step) -> None:
        kind = RestoreKind(step.args[0])
        source = self.given.get("savepoint")
        self.tell(
            RestoreRequested(
                kind,
                allow_non_restored=bool(step.options.get("allow_non_restored", False)),
                savepoint=None if source is None else _savepoint_of(source),
                mode=RestoreMode(step.options.get("mode", "NO_CLAIM")),
            )
        )

    def _do_store_shutdown(self, step: Step) -> None:
        self.kept = self.store.checkpoints
        change = self.store.shut_down(JobStatus(step.args[0]))
        self.store_open = False
        for checkpoint in change.cleaned:
            self.discarded.extend(checkpoint.private_handles)
        self.discarded.extend(str(handle) for handle in change.shared)

    def _do_new_coordinator(self, step: Step) -> None:
        self.max_parallelisms.update(step.options.get("max", {}))
        self.unaligned = bool(step.options.get("unaligned", self.unaligned))
        if step.options.get("store", "same") == "recovered":
            kept = self.store.checkpoints if self.kept is None else self.kept
            registry = CountingRegistry(self.registrations)
            self.store = CompletedCheckpointStore(self.given.get("retained", 1), registry, kept)
            for checkpoint in kept:
                registry.register_restored(checkpoint.id, checkpoint.shared_handles, RestoreMode.CLAIM)
            self.store_open, self.kept = True, None
        self.door = self._new_door()

    # -------------------------------------------------------------- effects

    def tell(self, fact: CoordinatorFact, door: CheckpointCoordinator | None = None) -> None:
        """Step the door (or an older one that asked) and carry out what it wants."""
        asked = self.door if door is None else door
        for effect in asked.step(fact):
            self._carry_out(effect, asked)

    def _run_to_idle(self) -> None:
        self.in_piece = True
        while self.pieces:
            self.pieces.popleft()()
        self.in_piece = False

    def _answer(self, call: str, door: CheckpointCoordinator, answer: Callable[[bool], CoordinatorFact]) -> None:
        """Answer in a piece of its own, or when the call is released."""

        def give(failed: bool) -> None:  # noqa: FBT001 - one flag
            self.tell(answer(failed), door)

        if call in self.stalled:
            self.stalled[call].append(give)
        else:
            self.pieces.append(lambda: give(False))  # noqa: FBT003 - one flag

    def _carry_out(self, effect: CoordinatorEffect, door: CheckpointCoordinator) -> None:  # noqa: C901, PLR0912, PLR0915 - one line an effect
        match effect:
            case FetchCheckpointId():
                self.pieces.append(lambda: self._answer("id", door, self._fetched))
            case CreateLocation():
                created = effect
                self._answer("location", door, lambda failed: self._located(created, failed=failed))
            case AskOperatorCoordinator():
                self._ask_coordinator(effect, door)
            case AskHook():
                asked = effect
                self.pieces.append(lambda: self._ask_hook(asked, door))
            case TriggerTask():
                self._trigger(effect, door)
            case CommitCheckpoint():
                self._commit(effect, door)
            case NotifyComplete():
                self.messages["complete"][str(effect.task)].append(effect.checkpoint)
                self.complete_subsumed[str(effect.checkpoint)] = effect.subsumed
            case NotifyAborted():
                self.messages["abort"][str(effect.task)].append(effect.checkpoint)
                self.abort_latest[str(effect.task)] = effect.latest_completed or 0
            case NotifyOperatorCoordinatorComplete():
                self.coordinator_calls[effect.coordinator]["complete"].append(effect.checkpoint)
            case NotifyOperatorCoordinatorAborted():
                self.coordinator_calls[effect.coordinator]["aborted"].append(effect.checkpoint)
            case RequestSucceeded():
                self.futures[effect.request] = "ok"
            case RequestFailed():
                self.futures[effect.request] = f"failed:{effect.reason.name}"
            case FailJob():
                self.job_failed += 1
                self._raise_if_called("fail_job_error")
            case DiscardState():
                self.discarded.extend(effect.handles)
                discarded = effect
                self.pieces.append(lambda: self.tell(StateDiscarded(discarded.checkpoint), door))
            case AnswerAcknowledge():
                self.acknowledged = effect
            case AssignState():
                self.restored_state[str(effect.task)] = [] if effect.state is None else list(effect.state.handles)
            case RestoreHook():
                self.hook_calls[effect.hook]["restore"].append([effect.checkpoint, effect.state])
            case ResetHook():
                self.hook_calls[effect.hook]["reset"] += 1
            case CloseHook():
                self.hook_calls[effect.hook]["close"] += 1
            case SetNextCheckpointId():
                self.counter.go_on_at(effect.next_id)
            case RestoreFinished():
                self.result = effect.checkpoint is not None
                self.finished_state_checked += effect.finished_checked
            case WakeAt() | ResetOperatorCoordinator():
                pass
            case _:
                assert_never(effect)

    def _raise_if_called(self, fault: str) -> None:
        if fault in self.faults and not self.in_piece:
            self.errors.append(fault)

    def _fetched(self, failed: bool) -> CoordinatorFact:  # noqa: FBT001 - one flag
        if "id_io_error" in self.faults:
            return CheckpointIdFailed(io_error=True)
        if failed or "first_id_error" in self.faults:
            self.faults.discard("first_id_error")
            return CheckpointIdFailed(io_error=False)
        return CheckpointIdFetched(self.counter.fetch())

    def _located(self, effect: CreateLocation, *, failed: bool) -> CoordinatorFact:
        if failed or "location_io_error" in self.faults:
            return LocationFailed(effect.checkpoint, io_error=not failed)
        return LocationCreated(effect.checkpoint)

    def _ask_coordinator(self, effect: AskOperatorCoordinator, door: CheckpointCoordinator) -> None:
        name, checkpoint = effect.coordinator, effect.checkpoint
        self.coordinator_calls[name]["snapshot"].append(checkpoint)
        state = self.given["operator_coordinators"][name].get("state")

        def answer(failed: bool) -> CoordinatorFact:  # noqa: FBT001 - one flag
            if failed:
                return OperatorCoordinatorFailed(name, checkpoint)
            return OperatorCoordinatorAnswered(name, checkpoint, state)

        self._answer(f"oc:{name}", door, answer)

    def _ask_hook(self, effect: AskHook, door: CheckpointCoordinator) -> None:
        hook, checkpoint = effect.hook, effect.checkpoint
        calls = self.hook_calls[hook]
        calls["trigger"] += 1
        calls["saw_pending"].append([pending.id for pending in door.pending])
        behaviour = self.given.get("hooks", {}).get(hook, {})
        for task in behaviour.get("acks", ()):
            self.tell(TaskAcknowledged(JOB, task, checkpoint), door)
        state = behaviour.get("state")

        def answer(failed: bool) -> CoordinatorFact:  # noqa: FBT001 - one flag
            return HookFailed(hook, checkpoint) if failed else HookAnswered(hook, checkpoint, state)

        self._answer(f"hook:{hook}", door, answer)

    def _trigger(self, effect: TriggerTask, door: CheckpointCoordinator) -> None:
        task = str(effect.task)
        self.messages["trigger"][task].append(effect.checkpoint)
        self.types[task][str(effect.checkpoint)] = effect.type.value
        if f"trigger_rpc_error:{task}" in self.faults:
            self.pieces.append(lambda: self.tell(TaskStateChanged(effect.task, TaskState.FINISHED), door))
            self.pieces.append(lambda: self.tell(TriggerFailed(effect.task, effect.checkpoint), door))

    def _commit(self, effect: CommitCheckpoint, door: CheckpointCoordinator) -> None:
        answer = self._committed(effect)
        if not isinstance(answer, CommitSucceeded) and not self.in_piece:
            self.errors.append("FINALIZE_CHECKPOINT_FAILURE")
        self.tell(answer, door)

    def _committed(self, effect: CommitCheckpoint) -> CommitSucceeded | CommitFailed | CommitUnknown:
        if "metadata_io_error" in self.faults:
            return CommitFailed(effect.checkpoint, message="the metadata could not be written")
        if effect.properties.is_savepoint:
            return CommitSucceeded(effect.checkpoint)
        if "store_add_error" in self.faults or not self.store_open:
            return CommitFailed(effect.checkpoint, message="the store refused the checkpoint")
        if "store_add_unknown" in self.faults:
            return CommitUnknown(effect.checkpoint, message="the store did not answer")
        return CommitSucceeded(effect.checkpoint)

    # -------------------------------------------------------------- facts

    def fact(self, name: str, expected: Value) -> Value:
        """Return what holds for a fact."""
        return getattr(self, f"_fact_{name}")(expected)

    def _fact_pending(self, _: Value) -> Value:
        return [pending.id for pending in self.door.pending]

    def _fact_completed(self, _: Value) -> Value:
        return [checkpoint.id for checkpoint in self.store.checkpoints]

    def _fact_future(self, _: Value) -> Value:
        return self.futures

    def _fact_acked(self, _: Value) -> Value:
        return {str(pending.id): len(pending.states) for pending in self.door.pending}

    def _fact_unacked(self, _: Value) -> Value:
        return {str(pending.id): len(pending.unacknowledged) for pending in self.door.pending}

    def _fact_ack_result(self, _: Value) -> Value:
        return None if self.acknowledged is None else self.acknowledged.result.value

    def _fact_ack_return(self, _: Value) -> Value:
        return None if self.acknowledged is None else self.acknowledged.accepted

    def _messages(self, sort: str, expected: Value) -> Value:
        return {task: self.messages[sort][task] for task in expected}

    def _fact_trigger_msgs(self, expected: Value) -> Value:
        return self._messages("trigger", expected)

    def _fact_complete_msgs(self, expected: Value) -> Value:
        return self._messages("complete", expected)

    def _fact_abort_msgs(self, expected: Value) -> Value:
        return self._messages("abort", expected)

    def _fact_abort_latest_completed(self, _: Value) -> Value:
        return self.abort_latest

    def _fact_complete_subsumed(self, _: Value) -> Value:
        return self.complete_subsumed

    def _fact_checkpoint_type(self, _: Value) -> Value:
        return self.types

    def _fact_timers(self, _: Value) -> Value:
        return len(self.door.pending)

    def _fact_periodic_timers(self, _: Value) -> Value:
        _running, next_ms = self.door.snapshot().scheduler
        return 0 if next_ms is None else 1

    def _fact_queued(self, _: Value) -> Value:
        return len(self.door.snapshot().queued)

    def _fact_triggering(self, _: Value) -> Value:
        return self.door.is_triggering

    def _fact_next_id(self, _: Value) -> Value:
        return self.counter.next_id

    def _fact_recent_expired(self, _: Value) -> Value:
        return list(self.door.snapshot().recent_expired)

    def _fact_can_be_subsumed(self, _: Value) -> Value:
        return {str(pending.id): pending.properties.can_be_subsumed for pending in self.door.pending}

    def _fact_discarded(self, expected: Value) -> Value:
        return [handle for handle in expected if self.discarded.count(handle) == 1]

    def _fact_not_discarded(self, expected: Value) -> Value:
        return [handle for handle in expected if handle not in self.discarded]

    def _fact_shared_registrations(self, expected: Value) -> Value:
        return {handle: self.registrations[handle] for handle in expected}

    def _fact_operator_states(self, _: Value) -> Value:
        return {str(checkpoint.id): checkpoint.operator_states() for checkpoint in self.store.checkpoints}

    def _fact_master_states(self, _: Value) -> Value:
        return {str(checkpoint.id): dict(checkpoint.master_states) for checkpoint in self.store.checkpoints}

    def _fact_hook_calls(self, expected: Value) -> Value:
        return {hook: self.hook_calls[hook] for hook in expected}

    def _fact_oc_calls(self, expected: Value) -> Value:
        return {name: self.coordinator_calls[name] for name in expected}

    def _fact_job_failed(self, _: Value) -> Value:
        return self.job_failed

    def _fact_counters(self, _: Value) -> Value:
        return counters(self.door.statistics)

    def _fact_stats(self, expected: Value) -> Value:
        return {id_: statistics_of(self.door.statistics, int(id_)) for id_ in expected}

    def _fact_history(self, _: Value) -> Value:
        return history(self.door.statistics)

    def _fact_latest(self, _: Value) -> Value:
        return latest(self.door.statistics)

    def _fact_finished_state_checked(self, _: Value) -> Value:
        return self.finished_state_checked

    def _fact_restored_state(self, expected: Value) -> Value:
        return {task: self.restored_state.get(task, []) for task in expected}

    def _fact_result(self, _: Value) -> Value:
        return self.result


def _no_hook_calls() -> dict[str, Value]:
    return {"trigger": 0, "reset": 0, "close": 0, "restore": [], "saw_pending": []}


def _no_coordinator_calls() -> dict[str, list[int]]:
    return {"snapshot": [], "complete": [], "aborted": []}


def _initial_states(given: Mapping[str, Value]) -> dict[str, TaskState]:
    states = {task: TaskState(state) for task, state in given.get("task_state", {}).items()}
    for name, vertex in given.get("vertices", {}).items():
        states.update({f"{name}/{index}": TaskState.FINISHED for index in vertex.get("finished", ())})
    return states


def _state_of(raw: Value) -> AcknowledgedState | None:
    match raw:
        case None:
            return None
        case str():
            return AcknowledgedState(private=(raw,))
        case _:
            return AcknowledgedState(tuple(raw.get("private", ())), tuple(raw.get("shared", {}).items()))


def _savepoint_of(raw: Mapping[str, Value]) -> CompletedCheckpoint:
    return CompletedCheckpoint(id=CheckpointId(raw["id"]), properties=savepoint(unaligned=False))
