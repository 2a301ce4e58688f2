"""Drives one coordinator for its machine: its settings, its tasks, its stores, and the models that judge each step.

Each question of the coordinator lies in a list until a rule answers it, well or badly, or never. Tasks take their
snapshots in order of id, and reuse the shared files that they still hold. Their messages may come late, twice or not at
all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.completed import (
    DISCARD_ALWAYS,
    CompletedCheckpointStore,
    DiscardCause,
    SharedStateRegistry,
)
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.coordinator.plan import PlannedEdge, PlannedVertex, Topology
from checkpointing.coordinator.properties import CheckpointProperties, CheckpointType
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import NO_METRICS, AcknowledgedState, SnapshotMetrics, Task
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId
from spec.flink import messages as flink
from spec.flink.coordinator import FlinkCoordinator
from spec.flink.messages import shared_handles
from spec.machines.coordinator_model import PAUSE, STATISTICS_ADD_UP, CoordinatorModel, Fate
from spec.machines.judging import expect

# ------------------------------------------------------------------
# What a coordinator must do with requests that wait, and with its timer, judged by facts and effects (A1 to A3).


QUEUE: Final = "queue"
"""Of the waiting requests, the most urgent one begins first: savepoints, then forced requests, then those of users. A
full queue refuses the newest periodic request."""
QUEUE_HELD: Final = "queue-held"
"""A request waits only for a trigger under way, for pending checkpoints, for deletions, or for the minimum pause."""
WAKE: Final = "wake"
"""The coordinator asks to be woken when it is due next. With an interval, it triggers no later than the interval, or
the pause if that is longer."""
FIXED_RATE: Final = "fixed-rate"
"""If the clock leaps over several intervals, one checkpoint begins for all of them. The timer then goes on at its old
rate."""
STATISTICS_NEVER_STEER: Final = "statistics-never-steer"
"""What the coordinator does never depends on its statistics."""
Urgency = tuple[bool, bool, bool, int]


@dataclass(slots=True)
class QueueModel:
    """Knows the requests that have a name.

    The periodic timer's requests have none, and are less urgent than any user's.
    """

    settings: CoordinatorSettings
    waiting: dict[str, Urgency] = field(default_factory=dict)
    """The unanswered requests that are no pending checkpoints yet, with their urgency.

    The id of one of them may be on its way.
    """
    is_fetching: bool = False
    chosen: str | None = None
    """The request that must begin next. None if it may be a request of the timer."""
    asked: int = 0
    is_over: bool = False
    """True after the shutdown. A second shutdown changes nothing."""
    deleting: int = 0
    """How many deletions are outstanding."""

    def take(
        self, fact: flink.FlinkFact, effects: Sequence[flink.FlinkEffect], pending: Iterable[PendingCheckpoint]
    ) -> None:
        """Judge one step. `pending` are the checkpoints that have not ended after the step."""
        if isinstance(fact, told.CheckpointRequested):
            self.asked += 1
            self.waiting[fact.request] = _urgency(fact.properties, periodic=fact.periodic, place=self.asked)
        if isinstance(fact, told.CheckpointIdFetched | flink.CheckpointIdFailed):
            self.is_fetching = False
        self.deleting -= isinstance(fact, told.StateDiscarded) and self.deleting > 0
        begun = {each.request for each in pending}
        for effect in effects:
            match effect:
                case told.RequestFailed(request, Reason.TOO_MANY_CHECKPOINT_REQUESTS):
                    self._refused(request)
                case told.CreateLocation():
                    right = self.chosen is None or self.chosen in begun
                    expect(right, QUEUE, f"{effect.checkpoint} is of {begun}, {self.chosen} is more urgent")
                case told.DiscardState():
                    self.deleting += 1
                case told.FetchCheckpointId():
                    expect(not self._deletes_too_much, QUEUE_HELD, f"a request begins beside {self.deleting} deletions")
                case _:
                    pass
            if isinstance(effect, told.RequestFailed | told.RequestSucceeded):
                self.waiting.pop(effect.request, None)
        self.waiting = {name: urgency for name, urgency in self.waiting.items() if name not in begun}
        if any(isinstance(effect, told.FetchCheckpointId) for effect in effects):
            self._chooses()
        self._bounded(fact)

    @property
    def _deletes_too_much(self) -> bool:
        """True if more deletions are outstanding than checkpoints may be in progress."""
        most = self.settings.max_concurrent
        return most is not None and self.deleting > most

    def rested(self, pending: int, *, is_asking: bool) -> None:
        """Judge a coordinator that has nothing more to do: a request waits only if something holds it (A3).

        Either a trigger is under way (`is_asking`), or too many checkpoints are `pending`, or too many deletions are
        outstanding. A forced request does not wait for pending checkpoints. If the first request is periodic, it may
        also wait for the end of the minimum pause.
        """
        most = self.settings.max_concurrent
        first = min(self.waiting.values(), default=None)
        if first is None or first[2] or is_asking or self._deletes_too_much:
            return
        is_forced = not first[1]
        held = most is not None and pending >= most and not is_forced
        expect(held, QUEUE_HELD, f"{[*self.waiting]} wait for {pending} pending ones and {self.deleting} deletions")

    def judge_next(self, next_ms: int | None, now_ms: int, *, runs: bool) -> None:
        """Judge when the next checkpoint is due: at once if a request waits, and otherwise by the interval."""
        if len(self.waiting) > self.is_fetching:
            expect(next_ms == now_ms, QUEUE_HELD, f"{[*self.waiting]} wait at {now_ms}, the next is due at {next_ms}")
        elif not self.waiting:
            expect((next_ms is not None) == runs, QUEUE_HELD, f"the timer runs: {runs}, the next is due at {next_ms}")

    def _chooses(self) -> None:
        self.is_fetching = True
        first = min(self.waiting, key=lambda name: self.waiting[name], default=None)
        is_users = first is not None and not self.waiting[first][2]
        self.chosen = first if is_users else None

    def _refused(self, request: str) -> None:
        """Judge what a full queue refuses: the newest periodic request, or the new request if no periodic one waits."""
        periodic = [name for name, (_, _, is_periodic, _) in self.waiting.items() if is_periodic]
        if len(periodic) > self.is_fetching:
            newest = max(periodic, key=lambda name: self.waiting[name])
            expect(request == newest, QUEUE, f"{request} is refused, {newest} can wait for the next interval")

    def _bounded(self, fact: flink.FlinkFact) -> None:
        most = (self.settings.queue_max or 0) + self.is_fetching
        limited = self.settings.queue_max is not None
        expect(not limited or len(self.waiting) <= most, QUEUE, f"{len(self.waiting)} requests wait, {most} may")
        if isinstance(fact, told.SchedulerStarted | told.SchedulerStopped | told.ShutDown) and not self.is_over:
            left = len(self.waiting) <= self.is_fetching
            expect(left, QUEUE, f"{fact} leaves {[*self.waiting]} in the queue")
            self.is_over = isinstance(fact, told.ShutDown)


def _urgency(properties: CheckpointProperties, *, periodic: bool, place: int) -> Urgency:
    return (not properties.is_savepoint, not properties.forced, periodic, place)


@dataclass(slots=True)
class TimerModel:
    """Knows when the coordinator must be woken at the latest and at the earliest."""

    settings: CoordinatorSettings
    is_running: bool = False
    told_ms: int | None = None
    """The time of the coordinator's newest timer."""

    def take(
        self, fact: flink.FlinkFact, effects: Sequence[flink.FlinkEffect], wake_ms: int | None, now_ms: int
    ) -> None:
        """Judge one step. `wake_ms` is the time of the coordinator's next timer."""
        for effect in effects:
            if isinstance(effect, told.WakeCoordinatorAt):
                self.told_ms = effect.at_ms
        expect(wake_ms is None or wake_ms == self.told_ms, WAKE, f"it is due at {wake_ms}, it asked for {self.told_ms}")
        expect(wake_ms is None or wake_ms > now_ms, WAKE, f"it is {now_ms}, and it is due at {wake_ms}")
        interval_ms, pause_ms = self.settings.interval_ms, self.settings.min_pause_ms
        match fact:
            case told.SchedulerStarted() if interval_ms is not None:
                self.is_running = True
                right = wake_ms is not None and now_ms + pause_ms <= wake_ms <= now_ms + interval_ms
                expect(right, PAUSE, f"started at {now_ms}, it triggers at {wake_ms}")
            case told.SchedulerStopped() | told.ShutDown():
                self.is_running = False
            case _:
                pass
        if self.is_running:
            late = wake_ms is None or wake_ms > now_ms + max(interval_ms or 0, pause_ms)
            expect(not late, WAKE, f"it is {now_ms}, and it triggers only at {wake_ms}")

    def refused(self, wake_ms: int | None, over_ms: int) -> None:
        """Judge a coordinator that has just refused the timer's request because of the minimum pause alone."""
        expect(wake_ms == over_ms, PAUSE, f"the pause is over at {over_ms}, it triggers again at {wake_ms}")

    def leapt(self, first_ms: int | None, begun: int, due_ms: int | None, wake_ms: int | None) -> None:
        """Judge a timer after a leap of the clock: all missed firings count as one, and the rate stays fixed.

        `begun` checkpoints have begun since. The timer was due at `first_ms` before the leap, at `due_ms` right after
        it, and is due at `wake_ms` now.
        """
        expect(begun <= 1, FIXED_RATE, f"{begun} checkpoints began for the firings that the clock leapt over")
        expect(wake_ms == due_ms, FIXED_RATE, f"due at {due_ms}, it triggers at {wake_ms}")
        if first_ms is not None and due_ms is not None:
            keeps = (due_ms - first_ms) % (self.settings.interval_ms or 1) == 0
            expect(keeps, FIXED_RATE, f"due at {first_ms}, it triggers again at {due_ms}")


# ------------------------------------------------------------------
# The tasks of the coordinator's machine: their names, their connections, and the shared files that they reuse.


JOB = "job"
TASKS: tuple[Task, ...] = ("source/0", "source/1", "sink/0")
TOPOLOGY = Topology(
    (PlannedVertex("source", TASKS[:2]), PlannedVertex("sink", TASKS[2:])), (PlannedEdge("source", "sink"),)
)
INTERVAL_MS = 100
PAUSE_MS = 20
ROUNDS_MAX = 200
"""The most questions that are answered before a machine gives up."""


@dataclass(slots=True)
class LiveFiles:
    """The shared files that a task still uses, and the newest checkpoint of which it took a snapshot."""

    shared: tuple[str, ...] = ()
    newest: CheckpointId = NO_CHECKPOINT


# ------------------------------------------------------------------
# Judges the effects of a coordinator for each checkpoint: whom it asks, what it gives to the store, whom it notifies.
#
# From the facts, the judge knows who has answered, and which tasks ran when the checkpoint began. No effect may be
# missing, and none may name a wrong checkpoint, task, time or request.


TELLS: Final = "coordinator-tells"
"""A coordinator asks, commits and notifies at the right time, with the values that it was given. It leaves nobody
out."""
EXPIRED_MAX: Final = 16


@dataclass(slots=True)
class Life:
    """How one checkpoint began, and who has answered for it."""

    request: str | None
    running: tuple[Task, ...]
    to_trigger: tuple[Task, ...]
    located: bool = False
    coordinators: dict[str, str | None] = field(default_factory=dict)
    hooks: dict[str, str | None] = field(default_factory=dict)
    measured: dict[Task, SnapshotMetrics] = field(default_factory=dict)


class CoordinatorTelling:
    """Judges every fact with its effects, after the model has processed them. Raises BrokenRuleError."""

    def __init__(self, settings: CoordinatorSettings, topology: Topology, model: CoordinatorModel) -> None:
        self._settings = settings
        self._topology = topology
        self._model = model
        self._lives: dict[CheckpointId, Life] = {}
        self._of: dict[str, CheckpointId] = {}
        """Private file -> the checkpoint that it was made for."""
        self._expired: list[CheckpointId] = []
        self._is_closed = False

    def take(
        self, fact: flink.FlinkFact, effects: Sequence[flink.FlinkEffect], pending: Iterable[PendingCheckpoint]
    ) -> None:
        """Judge one step. `pending` are the checkpoints that have not ended after it."""
        for effect in effects:
            if isinstance(effect, told.CreateLocation):
                self._lives[effect.checkpoint] = self._begun(effect.checkpoint, pending)
        due = [*self._asks(fact), *self._closes(fact)]
        for effect in effects:
            due += self._follows(effect)
        self._hears(fact, effects)
        kinds = (
            told.AskOperatorCoordinator,
            told.AskHook,
            told.TriggerTask,
            told.CloseHook,
            told.NotifyCheckpointComplete,
            told.NotifyCheckpointAborted,
            told.NotifyOperatorCoordinatorComplete,
            told.NotifyOperatorCoordinatorAborted,
        )
        ours = [effect for effect in effects if isinstance(effect, kinds)]
        expect(sorted(map(repr, ours)) == sorted(map(repr, due)), TELLS, f"{fact}: {due} is due, told is {ours}")
        for effect in effects:
            self._says(fact, effect)

    def _begun(self, checkpoint: CheckpointId, pending: Iterable[PendingCheckpoint]) -> Life:
        running = tuple(self._topology.tasks())
        request = next((each.request for each in pending if each.id == checkpoint), None)
        return Life(request, running, tuple(self._sources()))

    def _sources(self) -> Iterable[Task]:
        """Yield the tasks that no barrier can reach, because they have no running input."""
        for vertex in self._topology.vertices:
            if not any(edge.downstream == vertex.name for edge in self._topology.edges):
                yield from vertex.tasks

    # -------------------------------------------------------------- whom it asks

    def _asks(self, fact: flink.FlinkFact) -> list[flink.FlinkEffect]:
        """Return the questions that must follow this answer: first to coordinators, then to hooks, then to tasks."""
        checkpoint = getattr(fact, "checkpoint", None)
        life = self._lives.get(checkpoint) if checkpoint is not None else None
        if checkpoint is None or life is None or self._model.fate(checkpoint) is not Fate.PENDING:
            return []
        match fact:
            case told.LocationCreated() if not life.located:
                life.located = True
                asked = self._settings.operator_coordinators
                questions = [told.AskOperatorCoordinator(name, checkpoint) for name in asked]
                return [*questions] or self._asks_hooks(checkpoint, life)
            case told.OperatorCoordinatorAnswered(name, _, state) if life.located and name not in life.coordinators:
                life.coordinators[name] = state
                full = len(life.coordinators) == len(self._settings.operator_coordinators)
                return self._asks_hooks(checkpoint, life) if full else []
            case told.HookAnswered(name, _, state) if self._is_asked(life) and name not in life.hooks:
                life.hooks[name] = state
                return self._triggers(checkpoint, life) if len(life.hooks) == len(self._settings.hooks) else []
            case _:
                return []

    def _is_asked(self, life: Life) -> bool:
        return life.located and len(life.coordinators) == len(self._settings.operator_coordinators)

    def _asks_hooks(self, checkpoint: CheckpointId, life: Life) -> list[flink.FlinkEffect]:
        begun_ms = self._model.checkpoints[checkpoint].begun_ms
        questions = [told.AskHook(name, checkpoint, begun_ms) for name in self._settings.hooks]
        return [*questions] or self._triggers(checkpoint, life)

    def _triggers(self, checkpoint: CheckpointId, life: Life) -> list[flink.FlinkEffect]:
        properties = self._model.checkpoints[checkpoint].properties
        kind = CheckpointType.SAVEPOINT if properties.is_savepoint else CheckpointType.CHECKPOINT
        return [told.TriggerTask(task, checkpoint, properties, kind) for task in life.to_trigger]

    def _closes(self, fact: flink.FlinkFact) -> list[flink.FlinkEffect]:
        if not isinstance(fact, told.ShutDown) or self._is_closed:
            return []
        self._is_closed = True
        return [told.CloseHook(name) for name in self._settings.hooks]

    # -------------------------------------------------------------- whom it notifies

    def _follows(self, effect: flink.FlinkEffect) -> list[flink.FlinkEffect]:
        """Return the notices that must follow the first notice of an end.

        All tasks that ran and all coordinators get one.
        """
        match effect:
            case told.NotifyCheckpointComplete(task, checkpoint, subsumed) if task == self._first(checkpoint):
                everybody = [
                    told.NotifyCheckpointComplete(each, checkpoint, subsumed) for each in self._ran(checkpoint)
                ]
                names = self._settings.operator_coordinators
                return [*everybody, *(told.NotifyOperatorCoordinatorComplete(name, checkpoint) for name in names)]
            case told.NotifyCheckpointAborted(task, checkpoint) if task == self._first(checkpoint):
                names = self._settings.operator_coordinators
                told_aborted = [replace(effect, task=each) for each in self._ran(checkpoint)]
                return [*told_aborted, *(told.NotifyOperatorCoordinatorAborted(name, checkpoint) for name in names)]
            case _:
                return []

    def _ran(self, checkpoint: CheckpointId) -> tuple[Task, ...]:
        return self._lives[checkpoint].running if checkpoint in self._lives else ()

    def _first(self, checkpoint: CheckpointId) -> Task:
        return next(iter(self._ran(checkpoint)), None)

    # -------------------------------------------------------------- what the effects say

    def _says(self, fact: flink.FlinkFact, effect: flink.FlinkEffect) -> None:
        match effect:
            case told.CommitCheckpoint(checkpoint):
                self._commits(effect, self._lives[checkpoint])
            case told.NotifyCheckpointComplete():
                commits = isinstance(fact, told.CommitSucceeded) and fact.checkpoint == effect.checkpoint
                expect(commits, TELLS, f"{effect} for {fact}")
            case told.NotifyCheckpointAborted(_, checkpoint):
                due = self._reason(checkpoint), _said(fact)
                truly = effect.reason is due[0] and due[1] in effect.message != ""
                expect(truly, TELLS, f"{effect} for {fact}: {due} is due")
            case told.AnswerAcknowledge():
                self._answers(fact, effect)
            case told.RequestSucceeded(request, checkpoint) | told.RequestFailed(request, _, _, int(checkpoint)):
                own = self._lives[checkpoint].request
                expect(request == own, TELLS, f"{effect}, checkpoint {checkpoint} was asked for by {own}")
            case told.DiscardState(checkpoint, handles):
                made_for = {self._of[handle] for handle in handles if handle in self._of}
                expect(made_for <= {checkpoint}, TELLS, f"{effect}: they were made for {made_for}")
            case _:
                pass
        if isinstance(effect, told.RequestFailed | told.FailJob) and not isinstance(fact, flink.CheckpointIdFailed):
            expect(bool(effect.message), TELLS, f"{effect} says nothing")
        if isinstance(effect, told.FailJob) and isinstance(fact, told.TaskDeclined | told.CommitFailed):
            expect(effect.reason is fact.reason, TELLS, f"{effect} for {fact}")

    def _commits(self, effect: told.CommitCheckpoint, life: Life) -> None:
        known = self._model.checkpoints[effect.checkpoint]
        said = (effect.triggered_ms, effect.properties, dict(effect.coordinator_states), dict(effect.master_states))
        due = (known.begun_ms, known.properties, _given(life.coordinators), _given(life.hooks))
        expect(said == due, TELLS, f"{effect}: {due} is due")

    def _answers(self, fact: flink.FlinkFact, effect: told.AnswerAcknowledge) -> None:
        if not isinstance(fact, told.TaskAcknowledged):
            expect(holds=False, invariant=TELLS, what=f"{effect} for {fact}")
            return
        ours = fact.job == self._settings.job and not self._model.is_shut_down
        expired = fact.checkpoint in self._expired[-EXPIRED_MAX:]
        due = (fact.task, fact.checkpoint, ours and (effect.result is not told.AcknowledgeResult.DISCARDED or expired))
        expect((effect.task, effect.checkpoint, effect.accepted) == due, TELLS, f"{effect} for {fact}")

    def judge_end(self, ended: Iterable[CheckpointId]) -> None:
        """Raise unless the requester of each ended checkpoint has been answered."""
        for checkpoint in ended:
            request = self._lives[checkpoint].request
            expect(request is None or request in self._model.answered, TELLS, f"{request} never heard of {checkpoint}")

    # -------------------------------------------------------------- what it hears

    def _hears(self, fact: flink.FlinkFact, effects: Sequence[flink.FlinkEffect]) -> None:
        for effect in effects:
            if isinstance(effect, told.NotifyCheckpointAborted) and effect.task == self._first(effect.checkpoint):
                self._expired += [effect.checkpoint] * (self._reason(effect.checkpoint) is Reason.CHECKPOINT_EXPIRED)
        match fact:
            case told.TaskAcknowledged() if fact.state is not None:
                self._of |= dict.fromkeys(fact.state.private, fact.checkpoint)
            case told.OperatorCoordinatorAnswered(_, checkpoint, str(state)):
                self._of[state] = checkpoint
            case _:
                pass
        self._measures(fact, effects)

    def _reason(self, checkpoint: CheckpointId) -> Reason | None:
        return self._model.checkpoints[checkpoint].reason

    def _measures(self, fact: flink.FlinkFact, effects: Sequence[flink.FlinkEffect]) -> None:
        """Record measurements. An acknowledgement's numbers replace earlier ones.

        Late numbers, and numbers without an acknowledgement, count only if there were none before.
        """
        if isinstance(fact, told.TaskAcknowledged | flink.TaskMeasured) and fact.checkpoint in self._lives:
            measured = self._lives[fact.checkpoint].measured
            results = [effect.result for effect in effects if isinstance(effect, told.AnswerAcknowledge)]
            late = told.AcknowledgeResult.DISCARDED in results and not self._model.is_shut_down
            if told.AcknowledgeResult.SUCCESS in results:
                measured[fact.task] = fact.metrics
            elif late or isinstance(fact, flink.TaskMeasured):
                measured.setdefault(fact.task, fact.metrics)

    def judge_statistics(self, tracker: StatisticsTracker) -> None:
        """Judge the statistics: the history has the newest checkpoints, each with its measurements.

        Of older checkpoints, the tracker only knows the last one of each kind and the pending ones.
        """
        ids = [*self._lives]
        shown = {known.id: known for known in tracker.history()}
        expect([*shown] == ids[::-1][: self._settings.history_max], STATISTICS_ADD_UP, f"{[*shown]} are shown of {ids}")
        for checkpoint, known in shown.items():
            due = self._lives[checkpoint].measured
            expect(dict(known.tasks) == due, STATISTICS_ADD_UP, f"{known}: {due} was measured")
        newest = {tracker.latest.completed, tracker.latest.savepoint, tracker.latest.failed, *self._model.pending()}
        for checkpoint in ids:
            known_still = checkpoint in shown or checkpoint in newest
            is_known = tracker.of(checkpoint) is not None
            expect(is_known == known_still, STATISTICS_ADD_UP, f"{checkpoint} is known: {is_known}, due {known_still}")


def _said(fact: flink.FlinkFact) -> str:
    """Return the message of a fact that fails a checkpoint, or '' if the fact has none."""
    says = told.TaskDeclined | told.CommitFailed | told.HookFailed | told.OperatorCoordinatorFailed
    return fact.message if isinstance(fact, says) else ""


def _given(answers: dict[str, str | None]) -> dict[str, str]:
    return {name: state for name, state in answers.items() if state is not None}


DECLINES = st.sampled_from([Reason.CHECKPOINT_DECLINED, Reason.CHECKPOINT_ASYNC_EXCEPTION, Reason.QUALITY])
_pick = st.integers(0, 30)
_Question = told.CreateLocation | told.AskOperatorCoordinator | told.AskHook


class CoordinatorDriver(RuleBasedStateMachine):
    """One coordinator, its twin that keeps other statistics, its tasks and stores, and the model that judges it."""

    def __init__(self) -> None:
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
        """Fetch an id, perhaps with a gap, or fail to fetch one."""
        self.fetching -= 1
        if outcome == "failed":
            self._tell(flink.CheckpointIdFailed())
            return
        self.next_id += 1 + (outcome == "skipped")
        self._tell(told.CheckpointIdFetched(CheckpointId(self.next_id)))

    @precondition(lambda self: self.questions)
    @rule(pick=_pick, fails=st.sampled_from([False, False, False, True]))
    def answer(self, pick: int, fails: bool) -> None:  # noqa: FBT001
        """Answer for a location, an operator coordinator or a hook."""
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
        """The commit succeeds, fails, or has an unknown outcome."""
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
        """Every task passes its next barrier, and all acknowledgements arrive, perhaps twice."""
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
        """A task that is in no plan acknowledges a checkpoint, which may exist."""
        self.files += 1
        state = AcknowledgedState((f"private/stranger-{self.files}",))
        self._tell(told.TaskAcknowledged(JOB, "stranger/0", self._some_checkpoint(pick), state))

    @rule(task=st.sampled_from(TASKS), pick=_pick, reason=DECLINES, kind=st.integers(0, 6))
    def complain(self, task: Task, pick: int, reason: Reason, kind: int) -> None:
        """Something goes wrong: a task declines, fails or is unreachable, or checkpoints are given up.

        Or it only measures.
        """
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

    def _some_checkpoint(self, pick: int) -> CheckpointId:
        known = [*self.model.checkpoints][-4:]
        return known[pick % len(known)] if known else CheckpointId(pick)

    # -------------------------------------------------------------- the door

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
            expect(not effects, STATISTICS_NEVER_STEER, f"{fact} caused {effects}")
            return
        plain = replace(fact, metrics=NO_METRICS) if isinstance(fact, told.TaskAcknowledged) else fact
        other = self.twin.tell(plain)
        expect(effects == other, STATISTICS_NEVER_STEER, f"{fact}: {effects}, with other statistics {other}")

    def _nobody_builds_on(self, effect: told.DiscardState) -> None:
        live = {handle for task in TASKS for handle in self.live[task].shared}
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
