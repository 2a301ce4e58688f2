"""Drives one coordinator for its machine: its settings, its tasks, its stores, and the models that judge each step.

Each question of the coordinator lies in a list until a rule answers it, well or badly, or never. Tasks take
their snapshots in order of id and build on their live files; what they send may come late, twice or not at all.
"""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.completed import (
    DISCARD_ALWAYS,
    CompletedCheckpointStore,
    DiscardCause,
    SharedStateRegistry,
)
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import NO_METRICS, AcknowledgedState, SnapshotMetrics, Task, TaskState
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from spec.explore_branching import branch
from spec.flink import messages as flink
from spec.flink.completed_store import shared_handles
from spec.flink.coordinator import FlinkCoordinator
from spec.machines.coordinator_model import CoordinatorModel
from spec.machines.coordinator_queue import QueueModel, TimerModel
from spec.machines.coordinator_tasks import INTERVAL_MS, JOB, PAUSE_MS, TASKS, TOPOLOGY, LiveFiles
from spec.machines.coordinator_telling import CoordinatorTelling
from spec.machines.judging import expect

DECLINES = st.sampled_from([Reason.CHECKPOINT_DECLINED, Reason.CHECKPOINT_ASYNC_EXCEPTION, Reason.QUALITY])
_pick = st.integers(0, 30)
_Question = told.CreateLocation | told.AskOperatorCoordinator | told.AskHook


class CoordinatorDriver(RuleBasedStateMachine):
    """One coordinator, its twin that keeps other statistics, its tasks and stores, and the model that judges it."""

    def __init__(self) -> None:
        """Begin with the defaults: `open` draws the settings."""
        super().__init__()
        self.open(0, 1, 1, None, bystanders=(0, 0), keeps=False)

    @initialize(
        tolerable=st.sampled_from([1, 0, 1, 2, None]),
        concurrent=st.sampled_from([2, 1, 3, None]),
        retained=st.integers(1, 3),
        timeout_ms=st.sampled_from([None, 300]),
        bystanders=st.sampled_from([(0, 0), (2, 2), (2, 0), (0, 2)]),
        keeps=st.sampled_from([False, False, True]),
    )
    def open(
        self,
        tolerable: int | None,
        concurrent: int | None,
        retained: int,
        timeout_ms: int | None,
        bystanders: tuple[int, int],
        keeps: bool,  # noqa: FBT001 - Hypothesis names it
    ) -> None:
        """Start a coordinator with operator coordinators and hooks.

        If `keeps` is true, it deletes no old checkpoints.
        """
        self.settings = CoordinatorSettings(
            job=JOB,
            interval_ms=INTERVAL_MS,
            min_pause_ms=PAUSE_MS,
            timeout_ms=timeout_ms,
            max_concurrent=concurrent,
            tolerable_failures=tolerable,
            queue_max=4,
            history_max=6,
            operator_coordinators=("enumerator", "other enumerator")[: bystanders[0]],
            hooks=("hook", "other hook")[: bystanders[1]],
            discard_on=DISCARD_ALWAYS - {DiscardCause.SUBSUMED} if keeps else DISCARD_ALWAYS,
        )
        self.retained = retained
        self.coordinator = self._coordinator(self.settings)
        self.twin = self._coordinator(replace(self.settings, history_max=1))
        self.model = CoordinatorModel(self.settings, TASKS, retained)
        self.telling = CoordinatorTelling(self.settings, TOPOLOGY, self.model)
        self.answers: list[told.OperatorCoordinatorAnswered | told.HookAnswered | told.LocationCreated] = []
        self.queue = QueueModel(self.settings)
        self.timer = TimerModel(self.settings)
        self.next_id = 1
        self.fetching = 0
        self.questions: list[_Question] = []
        self.triggered: list[CheckpointId] = []
        self.commits: list[CheckpointId] = []
        self.deletions: list[CheckpointId] = []
        self.messages: list[told.TaskAcknowledged] = []
        self.live = {task: LiveFiles() for task in TASKS}
        self.files = 0

    def _coordinator(self, settings: CoordinatorSettings) -> FlinkCoordinator:
        return FlinkCoordinator(settings, TOPOLOGY, CompletedCheckpointStore(self.retained, SharedStateRegistry()))

    # -------------------------------------------------------------- stores and bystanders answer

    @precondition(lambda self: self.fetching)
    @rule(outcome=st.sampled_from(["fetched", "fetched", "fetched", "skipped", "failed"]))
    def answer_id(self, outcome: str) -> None:
        """Fetch an id, perhaps a later one, or fail to."""
        self.fetching -= 1
        if outcome == "failed":
            self._tell(flink.CheckpointIdFailed())
            return
        self.next_id += 1 + (outcome == "skipped")
        self._tell(told.CheckpointIdFetched(CheckpointId(self.next_id)))

    @precondition(lambda self: self.questions)
    @rule(pick=_pick, fails=st.sampled_from([False, False, False, True]))
    def answer(self, pick: int, fails: bool) -> None:  # noqa: FBT001
        """Answer a question about a location, or to a bystander."""
        question = self.questions.pop(pick % len(self.questions))
        checkpoint = question.checkpoint
        match question:
            case told.CreateLocation() if fails:
                self._tell(flink.LocationFailed(checkpoint))
            case told.CreateLocation():
                self._answered(told.LocationCreated(checkpoint))
            case told.AskOperatorCoordinator(name) if fails:
                self._tell(told.OperatorCoordinatorFailed(name, checkpoint))
            case told.AskOperatorCoordinator(name):
                state = None if pick % 3 == 1 else f"private/{name}-{checkpoint}"
                self._answered(told.OperatorCoordinatorAnswered(name, checkpoint, state))
            case told.AskHook(name) if fails:
                self._tell(told.HookFailed(name, checkpoint))
            case told.AskHook(name):
                self._answered(told.HookAnswered(name, checkpoint, None if pick % 3 == 1 else f"{name} {checkpoint}"))

    def _answered(self, fact: told.OperatorCoordinatorAnswered | told.HookAnswered | told.LocationCreated) -> None:
        self.answers = [*self.answers[-3:], fact]
        self._tell(fact)

    @precondition(lambda self: self.answers)
    @rule(pick=_pick)
    def answer_again(self, pick: int) -> None:
        """Repeat an answer. The coordinator must count it once."""
        again = self.answers[pick % len(self.answers)]
        if not (isinstance(again, told.OperatorCoordinatorAnswered) and again.checkpoint not in self.model.pending()):
            self._tell(again)

    @precondition(lambda self: self.questions)
    @rule(pick=_pick)
    def answer_late(self, pick: int) -> None:
        """End a checkpoint. Only then answer a question about it."""
        question = self.questions[pick % len(self.questions)]
        self._tell(flink.CheckpointTimeoutFired(question.checkpoint))
        self.answer(self.questions.index(question), fails=False)

    @precondition(lambda self: self.commits)
    @rule(outcome=st.sampled_from([told.CommitSucceeded, told.CommitSucceeded, told.CommitFailed, flink.CommitUnknown]))
    def answer_commit(
        self, outcome: type[told.CommitSucceeded] | type[told.CommitFailed] | type[flink.CommitUnknown]
    ) -> None:
        """The commit succeeds, certainly fails, or nobody knows."""
        self._tell(outcome(self.commits.pop()))

    @precondition(lambda self: self.deletions)
    @rule()
    def answer_deletion(self) -> None:
        """A deletion is done."""
        self._tell(told.StateDiscarded(self.deletions.pop(0)))

    # -------------------------------------------------------------- tasks

    @precondition(lambda self: self.triggered)
    @rule(task=st.sampled_from(TASKS), adds=st.booleans(), drops=st.booleans())
    def take_snapshot(self, task: Task, adds: bool, drops: bool) -> None:  # noqa: FBT001
        """A task passes its next barrier: its acknowledgement is on its way."""
        self._take_snapshot(task, adds=adds, drops=drops)

    @precondition(lambda self: self.triggered)
    @rule(adds=st.booleans(), drops=st.booleans(), times=st.sampled_from([1, 2]))
    def take_snapshots(self, adds: bool, drops: bool, times: int) -> None:  # noqa: FBT001
        """Every task passes its next barrier, and all are heard, perhaps twice."""
        for task in TASKS:
            if self._take_snapshot(task, adds=adds, drops=drops):
                message = self.messages.pop()
                for _ in range(times):
                    self._tell(message)

    def _take_snapshot(self, task: Task, *, adds: bool, drops: bool) -> bool:
        live = self.live[task]
        due = [n for n in self.triggered if n > live.newest]
        if not due:
            return False
        live.newest = due[0]
        self.files += 1
        live.shared = live.shared[1:] if drops else live.shared
        live.shared += (f"shared/{task}-{self.files}",) if adds else ()
        user_owned = self.model.checkpoints[live.newest].properties.is_savepoint
        shared = () if user_owned else tuple((f"key of {handle}", handle) for handle in live.shared)
        state = AcknowledgedState((f"private/{task}-{self.files}",), shared)
        self.messages.append(told.TaskAcknowledged(JOB, task, live.newest, state))
        return True

    @precondition(lambda self: self.messages)
    @rule(pick=_pick, times=st.sampled_from([1, 1, 2]), job=st.sampled_from([JOB, JOB, JOB, "other"]))
    def acknowledge(self, pick: int, times: int, job: str) -> None:
        """An acknowledgement arrives, perhaps twice, perhaps at another job's coordinator."""
        place = pick % len(self.messages)
        message = self.messages[place] if job != JOB else self.messages.pop(place)
        for _ in range(times):
            self._tell(replace(message, job=job, metrics=SnapshotMetrics(checkpointed_bytes=pick, sync_ms=pick)))

    @rule(pick=_pick)
    def acknowledge_as_stranger(self, pick: int) -> None:
        """A task that is in no plan acknowledges a checkpoint that there may be."""
        self.files += 1
        state = AcknowledgedState((f"private/stranger-{self.files}",))
        self._tell(told.TaskAcknowledged(JOB, "stranger/0", self._some_checkpoint(pick), state))

    @rule(task=st.sampled_from(TASKS), pick=_pick, reason=DECLINES, kind=st.integers(0, 6))
    def complain(self, task: Task, pick: int, reason: Reason, kind: int) -> None:
        """A task declines, fails, or can't be told; it reports what it measured; or somebody gives up."""
        checkpoint = self._some_checkpoint(pick)
        facts: tuple[flink.FlinkFact, ...] = (
            told.TaskDeclined(JOB, task, checkpoint, reason, f"{task} has no snapshot"),
            told.TaskDeclined("other", task, checkpoint, reason),
            flink.TaskFailed(task),
            flink.TriggerFailed(task, checkpoint),
            flink.TaskMeasured(JOB, task, checkpoint, SnapshotMetrics(checkpointed_bytes=pick)),
            flink.CheckpointTimeoutFired(checkpoint),
            flink.AbortRequested(Reason.JOB_FAILOVER_REGION),
        )
        self._tell(facts[kind])

    @rule(state=st.sampled_from([TaskState.RUNNING, TaskState.RUNNING, TaskState.FINISHED, TaskState.DEPLOYING]))
    def change_task_state(self, state: TaskState) -> None:
        """A source task's state changes."""
        self._change_task_state(TASKS[1], state)

    @precondition(lambda self: self.model.task_states[TASKS[1]] is TaskState.FINISHED)
    @rule()
    def finish_sources(self) -> None:
        """The other source task finishes too. No barrier comes from the source until one of its tasks runs again."""
        self._change_task_state(TASKS[0], TaskState.FINISHED)

    def _change_task_state(self, task: Task, state: TaskState) -> None:
        if self.model.task_states[task] is TaskState.FINISHED:  # a new execution begins, without shared files
            self.live[task].shared = ()
        self.model.task_states[task] = state
        self._tell(told.TaskStateChanged(task, state))

    def _some_checkpoint(self, pick: int) -> CheckpointId:
        known = [*self.model.checkpoints][-4:]
        return known[pick % len(known)] if known else CheckpointId(pick)

    # -------------------------------------------------------------- the door

    @rule()
    def resume_as_a_branch(self) -> None:
        """Go on with a branch of the coordinator, as the explorer makes it."""
        self.coordinator = branch(self.coordinator)

    def _tell(self, fact: flink.FlinkFact) -> None:
        effects = self.coordinator.tell(fact)
        self._tell_twin(fact, effects)
        self.model.take(fact, effects)
        self.telling.take(fact, effects, self.coordinator.pending)
        self.queue.take(fact, effects, self.coordinator.pending)
        self.timer.take(fact, effects, self.coordinator.wake_at_ms, self.model.latest_ms(fact))
        for effect in effects:
            match effect:
                case told.FetchCheckpointId():
                    self.fetching += 1
                case told.CreateLocation() | told.AskOperatorCoordinator() | told.AskHook():
                    self.questions.append(effect)
                case told.TriggerTask():
                    self.triggered = sorted({*self.triggered, effect.checkpoint})
                case told.CommitCheckpoint():
                    self.commits.append(effect.checkpoint)
                case told.DiscardState():
                    self.deletions.append(effect.checkpoint)
                    self._nobody_builds_on(effect)
                case _:
                    pass
        self.queue.rested(len(self.coordinator.pending), is_asking=bool(self.fetching or self.questions))

    def _tell_twin(self, fact: flink.FlinkFact, effects: tuple[flink.FlinkEffect, ...]) -> None:
        if isinstance(fact, flink.TaskMeasured):
            expect(not effects, "statistics-never-steer", f"{fact} caused {effects}")
            return
        plain = replace(fact, metrics=NO_METRICS) if isinstance(fact, told.TaskAcknowledged) else fact
        other = self.twin.tell(plain)
        expect(effects == other, "statistics-never-steer", f"{fact}: {effects}, with other statistics {other}")

    def _nobody_builds_on(self, effect: told.DiscardState) -> None:
        works = [task for task, state in self.model.task_states.items() if state is not TaskState.FINISHED]
        live = {handle for task in works for handle in self.live[task].shared}
        named = {h for c in self.coordinator.store.checkpoints for h in shared_handles(c).values()}
        needed = (live | named) & set(effect.handles)
        expect(not needed, "shared-needed", f"{needed} is deleted, but a task or a kept checkpoint needs it")

    def _answer_one(self) -> bool:
        if self.fetching:
            self.answer_id("fetched")
        elif self.questions:
            self.answer(self.next_id, fails=False)
        elif self.commits:
            self.answer_commit(told.CommitSucceeded)
        elif self.deletions:
            self.answer_deletion()
        elif self.messages:
            self.acknowledge(0, 1, JOB)
        else:
            taken = [self._take_snapshot(task, adds=True, drops=False) for task in TASKS]
            return any(taken)
        return True
