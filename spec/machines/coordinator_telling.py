"""Judges the effects of a coordinator for each checkpoint: whom it asks, what it gives to the store, whom it notifies.

The judge knows from the facts who has answered, and which tasks ran when the checkpoint began. No effect may be
missing, and none may name a wrong checkpoint, task, time or request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.properties import CheckpointType
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import SnapshotMetrics, Task, TaskState
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from spec.flink import messages as flink
from spec.machines.coordinator_model import CoordinatorModel, Fate
from spec.machines.judging import expect

TELLS: Final = "coordinator-tells"
"""A coordinator asks, commits and notifies at the right time with the values that it was given. It skips nobody."""
EXPIRED_MAX: Final = 16


@dataclass(slots=True)
class Life:
    """How one checkpoint began, and who has answered since."""

    request: str | None
    running: tuple[Task, ...]
    finished: tuple[Task, ...]
    to_trigger: tuple[Task, ...]
    located: bool = False
    coordinators: dict[str, str | None] = field(default_factory=dict)
    hooks: dict[str, str | None] = field(default_factory=dict)
    measured: dict[Task, SnapshotMetrics] = field(default_factory=dict)


class CoordinatorTelling:
    """Judges every fact with its effects, after the model has taken them. Raises BrokenRuleError."""

    def __init__(self, settings: CoordinatorSettings, topology: Topology, model: CoordinatorModel) -> None:
        """Begin with nothing told."""
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
        states = self._model.task_states
        running = tuple(task for task in self._topology.tasks() if states[task] is TaskState.RUNNING)
        finished = tuple(task for task in self._topology.tasks() if states[task] is TaskState.FINISHED)
        request = next((each.request for each in pending if each.id == checkpoint), None)
        return Life(request, running, finished, tuple(self._fed_by_nobody(running)))

    def _fed_by_nobody(self, running: tuple[Task, ...]) -> Iterable[Task]:
        """Yield the tasks that no barrier can reach: every task that feeds them has finished."""
        for vertex in self._topology.vertices:
            feeding = [edge.upstream for edge in self._topology.edges if edge.downstream == vertex.name]
            feeders = [task for each in self._topology.vertices if each.name in feeding for task in each.tasks]
            if not any(task in running for task in feeders):
                yield from (task for task in vertex.tasks if task in running)

    # -------------------------------------------------------------- whom it asks

    def _asks(self, fact: flink.FlinkFact) -> list[flink.FlinkEffect]:
        """Return the questions that must follow this answer: operator coordinators first, then hooks, then tasks."""
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
        expect(effect.finished == life.finished, TELLS, f"{effect}: {life.finished} had finished")

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
        """Note measurements. An acknowledgement's numbers replace earlier ones.

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

        Of the older checkpoints, only the last of each kind and the pending ones are still known.
        """
        ids = [*self._lives]
        shown = {known.id: known for known in tracker.history()}
        expect(
            [*shown] == ids[::-1][: self._settings.history_max], "statistics-add-up", f"{[*shown]} are shown of {ids}"
        )
        for checkpoint, known in shown.items():
            due = self._lives[checkpoint].measured
            expect(dict(known.tasks) == due, "statistics-add-up", f"{known}: {due} was measured")
        newest = {tracker.latest.completed, tracker.latest.savepoint, tracker.latest.failed, *self._model.pending()}
        for checkpoint in ids:
            known_still = checkpoint in shown or checkpoint in newest
            is_known = tracker.of(checkpoint) is not None
            expect(
                is_known == known_still, "statistics-add-up", f"{checkpoint} is known: {is_known}, due {known_still}"
            )


def _said(fact: flink.FlinkFact) -> str:
    """Return the message of a fact that fails a checkpoint, or '' if the fact has none."""
    says = told.TaskDeclined | told.CommitFailed | told.HookFailed | told.OperatorCoordinatorFailed
    return fact.message if isinstance(fact, says) else ""


def _given(answers: dict[str, str | None]) -> dict[str, str]:
    return {name: state for name, state in answers.items() if state is not None}
