"""Runs the coordinator cases, and builds what they describe: task states, a savepoint, a registry that counts."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, assert_never

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.completed import CompletedCheckpoint, CompletedCheckpointStore, Handle
from checkpointing.coordinator.messages import AnswerAcknowledge
from checkpointing.coordinator.properties import (
    CHECKPOINT,
    CheckpointProperties,
    RequestedType,
    savepoint,
    synchronous_savepoint,
)
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.flink import messages as flink
from spec.flink.coordinator import CheckpointIdCounter, FlinkCoordinator
from spec.flink.coordinator_units import (
    DeciderUnit,
    FailureUnit,
    IdCounterUnit,
    PlanUnit,
    StatisticsUnit,
    Step,
    StepError,
    Unit,
    UnitFactory,
    Value,
    counters,
    history,
    latest,
    statistics_of,
    topology_of,
)
from spec.flink.messages import (
    FlinkRegistry,
    RestoreMode,
    operator_states,
    shared_handles,
)
from spec.flink.vectors import named_step


class CountingRegistry(FlinkRegistry):
    """A registry that counts how often each handle was registered."""

    def __init__(self, registrations: dict[str, int]) -> None:
        super().__init__()
        self._registrations = registrations

    def register(self, key: str, handle: Handle, checkpoint: CheckpointId) -> Handle:
        """Count, then register."""
        self._registrations[str(handle)] += 1
        return super().register(key, handle, checkpoint)


def no_hook_calls() -> dict[str, Value]:
    return {"trigger": 0, "reset": 0, "close": 0, "restore": [], "saw_pending": []}


def no_coordinator_calls() -> dict[str, list[int]]:
    """Return the calls of an operator coordinator that was never called."""
    return {"snapshot": [], "complete": [], "aborted": []}


def state_of(raw: Value) -> AcknowledgedState | None:
    """Return what a task acknowledges."""
    match raw:
        case None:
            return None
        case str():
            return AcknowledgedState(private=(raw,))
        case _:
            return AcknowledgedState(tuple(raw.get("private", ())), tuple(raw.get("shared", {}).items()))


def savepoint_of(raw: Mapping[str, Value]) -> CompletedCheckpoint:
    """Return the finished savepoint that a case describes."""
    return CompletedCheckpoint(id=CheckpointId(raw["id"]), properties=savepoint(unaligned=False))


# ------------------------------------------------------------------
# What a case may ask about the coordinator and its environment: one method for each fact of the legend.


class ObservedCoordinator:
    """The facts of a coordinator under test. The class that drives the coordinator sets the attributes."""

    abort_latest: dict[str, int]
    acknowledged: AnswerAcknowledge | None
    complete_subsumed: dict[str, int | None]
    coordinator_calls: dict[str, dict[str, list[int]]]
    counter: CheckpointIdCounter
    discarded: list[str]
    door: FlinkCoordinator
    futures: dict[str, str]
    hook_calls: dict[str, dict[str, Value]]
    job_failed: int
    messages: dict[str, dict[str, list[int]]]
    registrations: dict[str, int]
    restored_state: dict[str, list[str]]
    result: Value
    store: CompletedCheckpointStore
    types: dict[str, dict[str, str]]

    def fact(self, name: str, expected: Value) -> Value:
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
        return int(self.door.has_periodic_timer)

    def _fact_queued(self, _: Value) -> Value:
        return self.door.queued

    def _fact_triggering(self, _: Value) -> Value:
        return self.door.is_triggering

    def _fact_next_id(self, _: Value) -> Value:
        return self.counter.next_id

    def _fact_recent_expired(self, _: Value) -> Value:
        return list(self.door.recent_expired)

    def _fact_can_be_subsumed(self, _: Value) -> Value:
        return {str(pending.id): pending.properties.can_be_subsumed for pending in self.door.pending}

    def _fact_discarded(self, expected: Value) -> Value:
        return [handle for handle in expected if self.discarded.count(handle) == 1]

    def _fact_not_discarded(self, expected: Value) -> Value:
        return [handle for handle in expected if handle not in self.discarded]

    def _fact_shared_registrations(self, expected: Value) -> Value:
        return {handle: self.registrations[handle] for handle in expected}

    def _fact_operator_states(self, _: Value) -> Value:
        return {str(checkpoint.id): operator_states(checkpoint) for checkpoint in self.store.checkpoints}

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

    def _fact_restored_state(self, expected: Value) -> Value:
        return {task: self.restored_state.get(task, []) for task in expected}

    def _fact_result(self, _: Value) -> Value:
        return self.result


# ------------------------------------------------------------------
# The whole coordinator in the environment that the legend describes: executor, clock, storage, tasks, hooks.


JOB = "job"
LONG_AGO_MS = 10**12
"""The clock's start. It is so large that no pause is in progress."""
FAR_AWAY_MS = 10**15
"""The default interval. It is so long that only a case's own step fires the timer."""
SEED = 20_240_924
_METRICS = {"total_bytes": "state_bytes"}
"""Maps the name of a measurement in the cases to its name in the coordinator."""


class CoordinatorUnit(ObservedCoordinator):
    """Drives a FlinkCoordinator, and plays its whole environment."""

    def __init__(self, given: Mapping[str, Value]) -> None:
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
        self.hook_calls: dict[str, dict[str, Value]] = defaultdict(no_hook_calls)
        self.coordinator_calls: dict[str, dict[str, list[int]]] = defaultdict(no_coordinator_calls)
        self.restored_state: dict[str, list[str]] = {}
        self.job_failed = 0
        self.acknowledged: told.AnswerAcknowledge | None = None
        self.result: Value = None
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
        self.door = self._new_door()

    def _new_door(self) -> FlinkCoordinator:
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
            queue_max=given.get("max_queued", 1000),
            history_max=given.get("history", 100),
            operator_coordinators=tuple(given.get("operator_coordinators", {})),
            hooks=tuple(given.get("hooks", {})),
        )
        topology = topology_of(given, self.max_parallelisms)
        return FlinkCoordinator(settings, topology, self.store, now_ms=self.now_ms)

    # -------------------------------------------------------------- steps

    def do(self, step: Step) -> None:
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
        self.tell(told.CheckpointRequested(name, properties, periodic))

    def _do_run(self, _step: Step) -> None:
        """Do nothing. Every step runs the environment until it is idle."""

    def _do_ack(self, step: Step) -> None:
        job = JOB if step.options.get("job", JOB) == JOB else "another job"
        named = {_METRICS.get(name, name): value for name, value in step.options.get("metrics", {}).items()}
        metrics = flink.FlinkMetrics(**named)
        task, checkpoint = step.args[:2]
        self.tell(told.TaskAcknowledged(job, task, checkpoint, state_of(step.argument(2)), metrics))

    def _do_decline(self, step: Step) -> None:
        task, checkpoint, reason = step.args
        self.tell(told.TaskDeclined(JOB, task, checkpoint, CheckpointFailureReason[reason]))

    def _do_expire(self, step: Step) -> None:
        checkpoint = step.args[0]
        self.pieces.append(lambda: self.tell(flink.CheckpointTimeoutFired(checkpoint)))

    def _do_abort_pending(self, step: Step) -> None:
        self.tell(flink.AbortRequested(CheckpointFailureReason[step.args[0]]))

    def _do_tick(self, step: Step) -> None:
        for _ in range(step.argument(0, 1)):
            self.pieces.append(lambda: self.tell(flink.PeriodicTimerFired()))
            self._run_to_idle()

    def _do_advance_ms(self, step: Step) -> None:
        target = self.now_ms + step.args[0]
        while (due := self.door.wake_at_ms) is not None and due <= target:
            self._advance_to(max(due, self.now_ms))
        self._advance_to(target)

    def _advance_to(self, at_ms: int) -> None:
        self.now_ms = at_ms
        self.pieces.append(lambda: self.tell(told.CoordinatorTimeAdvanced(at_ms)))
        self._run_to_idle()

    def _do_start_scheduler(self, _step: Step) -> None:
        self.tell(told.SchedulerStarted(SEED))

    def _do_stop_scheduler(self, _step: Step) -> None:
        self.tell(told.SchedulerStopped())

    def _do_shutdown(self, _step: Step) -> None:
        self.tell(told.ShutDown())

    def _do_release(self, step: Step) -> None:
        for answer in self.stalled.pop(step.args[0], ()):
            failed = bool(step.options.get("fail", False))
            self.pieces.append(lambda answer=answer, failed=failed: answer(failed))  # type: ignore[misc]

    def _do_add_hook(self, step: Step) -> None:
        self.result = self.door.add_hook(step.args[0])

    def _do_restore(self, step: Step) -> None:
        kind = flink.RestoreKind(step.args[0])
        source = self.given.get("savepoint")
        self.tell(
            flink.RestoreRequested(
                kind,
                allow_non_restored=bool(step.options.get("allow_non_restored", False)),
                savepoint=None if source is None else savepoint_of(source),
                mode=RestoreMode(step.options.get("mode", "NO_CLAIM")),
            )
        )

    def _do_new_coordinator(self, step: Step) -> None:
        self.max_parallelisms.update(step.options.get("max", {}))
        self.unaligned = bool(step.options.get("unaligned", self.unaligned))
        if step.options.get("store", "same") == "recovered":
            kept = self.store.checkpoints
            registry = CountingRegistry(self.registrations)
            self.store = CompletedCheckpointStore(self.given.get("retained", 1), registry, kept)
            for checkpoint in kept:
                registry.register_restored(checkpoint.id, shared_handles(checkpoint), RestoreMode.CLAIM)
        self.door = self._new_door()

    # -------------------------------------------------------------- effects

    def tell(self, fact: flink.FlinkFact, door: FlinkCoordinator | None = None) -> None:
        """Step the door, or the older door that asked, and carry out its effects."""
        asked = self.door if door is None else door
        for effect in asked.tell(fact):
            self._carry_out(effect, asked)

    def _run_to_idle(self) -> None:
        self.in_piece = True
        while self.pieces:
            self.pieces.popleft()()
        self.in_piece = False

    def _answer(self, call: str, door: FlinkCoordinator, answer: Callable[[bool], flink.FlinkFact]) -> None:
        """Answer in a separate piece of work, or when the case releases the call."""

        def give(failed: bool) -> None:  # noqa: FBT001 - one flag
            self.tell(answer(failed), door)

        if call in self.stalled:
            self.stalled[call].append(give)
        else:
            self.pieces.append(lambda: give(False))  # noqa: FBT003 - one flag

    def _carry_out(self, effect: flink.FlinkEffect, door: FlinkCoordinator) -> None:  # noqa: C901, PLR0912, PLR0915 - one line an effect
        match effect:
            case told.FetchCheckpointId():
                self.pieces.append(lambda: self._answer("id", door, self._fetched))
            case told.CreateLocation():
                created = effect
                self._answer("location", door, lambda failed: self._located(created, failed=failed))
            case told.AskOperatorCoordinator():
                self._ask_coordinator(effect, door)
            case told.AskHook():
                asked = effect
                self.pieces.append(lambda: self._ask_hook(asked, door))
            case told.TriggerTask():
                self._trigger(effect, door)
            case told.CommitCheckpoint():
                self._commit(effect, door)
            case told.NotifyCheckpointComplete():
                self.messages["complete"][str(effect.task)].append(effect.checkpoint)
                self.complete_subsumed[str(effect.checkpoint)] = effect.subsumed
            case told.NotifyCheckpointAborted():
                self.messages["abort"][str(effect.task)].append(effect.checkpoint)
                self.abort_latest[str(effect.task)] = effect.latest_completed or 0
            case told.NotifyOperatorCoordinatorComplete():
                self.coordinator_calls[effect.coordinator]["complete"].append(effect.checkpoint)
            case told.NotifyOperatorCoordinatorAborted():
                self.coordinator_calls[effect.coordinator]["aborted"].append(effect.checkpoint)
            case told.RequestSucceeded():
                self.futures[effect.request] = "ok"
            case told.RequestFailed():
                self.futures[effect.request] = f"failed:{effect.reason.name}"
            case told.FailJob():
                self.job_failed += 1
                self._raise_if_called("fail_job_error")
            case told.DiscardState():
                self.discarded.extend(effect.handles)
                discarded = effect
                self.pieces.append(lambda: self.tell(told.StateDiscarded(discarded.checkpoint), door))
            case told.AnswerAcknowledge():
                self.acknowledged = effect
            case flink.AssignState():
                self.restored_state[str(effect.task)] = [] if effect.state is None else list(effect.state.handles)
            case told.RestoreHook():
                self.hook_calls[effect.hook]["restore"].append([effect.checkpoint, effect.state])
            case told.ResetHook():
                self.hook_calls[effect.hook]["reset"] += 1
            case told.CloseHook():
                self.hook_calls[effect.hook]["close"] += 1
            case flink.SetNextCheckpointId():
                self.counter.go_on_at(effect.next_id)
            case flink.RestoreFinished():
                self.result = effect.checkpoint is not None
            case told.WakeCoordinatorAt() | told.ResetOperatorCoordinator():
                pass
            case _:
                assert_never(effect)

    def _raise_if_called(self, fault: str) -> None:
        if fault in self.faults and not self.in_piece:
            self.errors.append(fault)

    def _fetched(self, failed: bool) -> flink.FlinkFact:  # noqa: FBT001 - one flag
        if "id_io_error" in self.faults:
            return flink.CheckpointIdFailed(io_error=True)
        if failed or "first_id_error" in self.faults:
            self.faults.discard("first_id_error")
            return flink.CheckpointIdFailed(io_error=False)
        return told.CheckpointIdFetched(self.counter.fetch())

    def _located(self, effect: told.CreateLocation, *, failed: bool) -> flink.FlinkFact:
        if failed or "location_io_error" in self.faults:
            return flink.LocationFailed(effect.checkpoint, io_error=not failed)
        return told.LocationCreated(effect.checkpoint)

    def _ask_coordinator(self, effect: told.AskOperatorCoordinator, door: FlinkCoordinator) -> None:
        name, checkpoint = effect.coordinator, effect.checkpoint
        self.coordinator_calls[name]["snapshot"].append(checkpoint)
        state = self.given["operator_coordinators"][name].get("state")

        def answer(failed: bool) -> flink.FlinkFact:  # noqa: FBT001 - one flag
            if failed:
                return told.OperatorCoordinatorFailed(name, checkpoint)
            return told.OperatorCoordinatorAnswered(name, checkpoint, state)

        self._answer(f"oc:{name}", door, answer)

    def _ask_hook(self, effect: told.AskHook, door: FlinkCoordinator) -> None:
        hook, checkpoint = effect.hook, effect.checkpoint
        calls = self.hook_calls[hook]
        calls["trigger"] += 1
        calls["saw_pending"].append([pending.id for pending in door.pending])
        behaviour = self.given.get("hooks", {}).get(hook, {})
        for task in behaviour.get("acks", ()):
            self.tell(told.TaskAcknowledged(JOB, task, checkpoint), door)
        state = behaviour.get("state")

        def answer(failed: bool) -> flink.FlinkFact:  # noqa: FBT001 - one flag
            return told.HookFailed(hook, checkpoint) if failed else told.HookAnswered(hook, checkpoint, state)

        self._answer(f"hook:{hook}", door, answer)

    def _trigger(self, effect: told.TriggerTask, door: FlinkCoordinator) -> None:
        task = str(effect.task)
        self.messages["trigger"][task].append(effect.checkpoint)
        self.types[task][str(effect.checkpoint)] = effect.type.value
        if f"trigger_rpc_error:{task}" in self.faults:
            self.pieces.append(lambda: self.tell(flink.TriggerFailed(effect.task, effect.checkpoint), door))

    def _commit(self, effect: told.CommitCheckpoint, door: FlinkCoordinator) -> None:
        answer = self._committed(effect)
        if not isinstance(answer, told.CommitSucceeded) and not self.in_piece:
            self.errors.append("FINALIZE_CHECKPOINT_FAILURE")
        self.tell(answer, door)

    def _committed(self, effect: told.CommitCheckpoint) -> flink.FlinkFact:
        if "metadata_io_error" in self.faults:
            return told.CommitFailed(effect.checkpoint, message="the metadata could not be written")
        if effect.properties.is_savepoint:
            return told.CommitSucceeded(effect.checkpoint)
        if "store_add_error" in self.faults:
            return told.CommitFailed(effect.checkpoint, message="the store refused the checkpoint")
        if "store_add_unknown" in self.faults:
            return flink.CommitUnknown(effect.checkpoint, message="the store did not answer")
        return told.CommitSucceeded(effect.checkpoint)


# ------------------------------------------------------------------
# Runs the coordinator cases on the real doors of `checkpointing.coordinator`.
#
# Every case names a unit, and the unit's environment carries out the steps. After each step, the facts that the case
# lists for it are compared: maps by the listed keys, lists exactly.


_UNITS: dict[str, UnitFactory] = {
    "coordinator": CoordinatorUnit,
    "decider": DeciderUnit,
    "failure_manager": FailureUnit,
    "id_counter": IdCounterUnit,
    "stats": StatisticsUnit,
    "plan": PlanUnit,
}
_COMPLETE = frozenset({"operator_states", "master_states"})
"""Facts whose listed values are maps, which are compared completely."""
_SETS = frozenset({"discarded", "not_discarded"})


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether this is the legend of coordinator cases. Some of its units may be unknown to Tidemark."""
    units = legend.get("words", {}).get("unit", ()) if isinstance(legend.get("words"), dict) else ()
    return "coordinator" in units


def run_case(legend: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    """Run one case. Return its problems."""
    name = case["given"].get("unit", "coordinator")
    if name not in _UNITS:
        return [f"Tidemark has no {name}: its units are {', '.join(_UNITS)}"]
    unit, problems = _UNITS[name](case["given"]), list[str]()
    for index, raw in enumerate(case["steps"]):
        with named_step(index, raw[0]):
            problems += [f"step {index} {raw[0]}: {problem}" for problem in _run_step(legend, case, unit, index)]
    return problems


def _run_step(legend: Mapping[str, Any], case: Mapping[str, Any], unit: Unit, index: int) -> Iterator[str]:
    error = _do(unit, Step.of(case["steps"][index], legend))
    entries = [entry for entry in case["expect"] if entry["after"] == index]
    if error is not None and not any("error" in entry for entry in entries):
        yield f"expected no error, got {error}"
    for entry in entries:
        yield from _compare(unit, entry, error)


def _do(unit: Unit, step: Step) -> str | None:
    try:
        unit.do(step)
    except StepError as error:
        return error.kind
    return None


def _compare(unit: Unit, entry: Mapping[str, Value], error: str | None) -> Iterator[str]:
    for name, expected in entry.items():
        if name == "after":
            continue
        got = error if name == "error" else unit.fact(name, expected)
        if not _holds(name, expected, got):
            yield f"{name}: expected {expected}, got {got}"


def _holds(name: str, expected: Value, got: Value) -> bool:
    match name:
        case "future":
            return all(_is_future(state, got.get(request)) for request, state in expected.items())
        case "failed_count":
            return bool(expected == got)
        case "plan":
            return bool(_as_sets(expected) == _as_sets(got))
        case _ if name in _COMPLETE:
            return all(got.get(key) == value for key, value in expected.items())
        case _ if name in _SETS:
            return sorted(expected) == sorted(got)
        case _:
            return _matches(expected, got)


def _is_future(expected: str, got: str | None) -> bool:
    return got is not None and (got == expected or (expected == "failed" and got.startswith("failed")))


def _as_sets(plan: Value) -> Value:
    if plan is None:
        return None
    return {
        part: {vertex: frozenset(subtasks) for vertex, subtasks in value.items()}
        if isinstance(value, dict)
        else frozenset(value)
        for part, value in plan.items()
    }


def _matches(expected: Value, got: Value) -> bool:
    if isinstance(expected, dict) and isinstance(got, dict):
        return all(key in got and _matches(value, got[key]) for key, value in expected.items())
    return bool(expected == got)
