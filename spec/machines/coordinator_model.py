"""What a coordinator must do after the facts that it got: who acknowledged what, which checkpoints end, and how.

The model is written over plain sets. It knows no phases, queues, timers or registries, but only what each fact may
cause. The tasks themselves decide which shared files are still in use.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.completed import DiscardCause
from checkpointing.coordinator.properties import CheckpointProperties, SnapshotKind
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import AcknowledgedState, Task
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId
from spec.flink import messages as flink
from spec.machines.judging import expect

ACKNOWLEDGED: Final = "acknowledged"
"""Each acknowledgement gets its answer: success, duplicate, unknown, foreign or discarded. An entry has exactly the
states that its tasks acknowledged."""
ANSWERED_ONCE: Final = "answered-once"
"""A request is answered exactly once, and nothing is answered without a request."""
COMMIT_ORDER: Final = "commit-order"
"""Of the checkpoints that all tasks have acknowledged, the oldest is committed first, and one at a time."""
CONCURRENT: Final = "concurrent"
"""No checkpoint begins while as many checkpoints are pending as the settings allow, unless it is forced."""
ENDS_ONCE: Final = "ends-once"
"""A checkpoint ends once, exactly when a fact ends it, and for that fact's reason. Nothing begins for it afterwards."""
NO_COMMIT_AFTER_ABORT: Final = "no-commit-after-abort"
"""A checkpoint is committed only after all its tasks have acknowledged it, and never after it was declined."""
FAILURES: Final = "failures"
"""The job fails as soon as there are more failures in a row than it tolerates. Which failures count depends on their
reason, as in Flink. After some reasons the job fails at once."""
PAUSE: Final = "pause"
"""After a checkpoint, a periodic one begins only when the minimum pause is over. If the pause has held it up, it begins
then."""
PRIVATE: Final = "private"
"""If a checkpoint fails or leaves the store, its private files are deleted, once. So are the private files of an
acknowledgement that comes too late."""
SHARED: Final = "shared"
"""A shared file is deleted at a completion, as soon as all checkpoints that used it are older than those that are
kept."""
STATISTICS_ADD_UP: Final = "statistics-add-up"
"""The statistics record of each checkpoint when it began, when and how it ended, and with which measurements. The
counters add up, and each percentile is one of the numbers."""
_COUNTED = {
    Reason.IO_EXCEPTION,
    Reason.CHECKPOINT_ASYNC_EXCEPTION,
    Reason.CHECKPOINT_EXPIRED,
    Reason.CHECKPOINT_DECLINED,
    Reason.FINALIZE_CHECKPOINT_FAILURE,
}
_BY_STORE = Reason.IO_EXCEPTION
_FATAL = {Reason.QUALITY, Reason.TABLE_CHANGED, Reason.FENCED}


def _is_plain(properties: CheckpointProperties) -> bool:
    """Return whether this is a savepoint after which the job goes on.

    Such a savepoint notifies nobody and ends nothing.
    """
    return properties.kind is SnapshotKind.SAVEPOINT


class Fate(Enum):
    """The state or the end of a checkpoint."""

    PENDING = "pending"
    COMMITTING = "committing"
    COMPLETED = "completed"
    ABORTED = "aborted"


OVER = (Fate.COMPLETED, Fate.ABORTED)


@dataclass(slots=True)
class Known:
    """One checkpoint that was begun."""

    properties: CheckpointProperties
    begun_ms: int
    unacknowledged: set[Task]
    fate: Fate = Fate.PENDING
    told: bool = False
    states: dict[Task, AcknowledgedState] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    after_pause: bool = True
    """True if the minimum pause was over when its request was chosen."""
    ended_ms: tuple[int, int] | None = None
    """The earliest and the latest time of its end."""
    reason: Reason | None = None
    """Why it was aborted."""

    @property
    def is_full(self) -> bool:
        """True if it only waits for its commit."""
        return self.fate is Fate.PENDING and self.told and not self.unacknowledged


@dataclass(slots=True)
class Failures:
    """How many failures in a row there were, and how often the job should have failed in this step."""

    tolerable: int | None
    in_a_row: int = 0
    newest_success: CheckpointId = NO_CHECKPOINT
    fatal: int = 0

    def failed(
        self, properties: CheckpointProperties, reason: Reason, checkpoint: CheckpointId | None, *, by_task: bool
    ) -> None:
        """Count a failure."""
        if reason in _FATAL or (by_task and properties.is_synchronous):
            self.fatal += 1
        elif self._counts(properties, reason, checkpoint, by_task=by_task):
            self.in_a_row += 1
            if self.tolerable is not None and self.in_a_row > self.tolerable:
                self.fatal, self.in_a_row = self.fatal + 1, 0

    def _counts(
        self, properties: CheckpointProperties, reason: Reason, checkpoint: CheckpointId | None, *, by_task: bool
    ) -> bool:
        if (properties.is_savepoint and not by_task) or self.tolerable is None:
            return False
        return reason in _COUNTED and (checkpoint is None or checkpoint > self.newest_success)


class CoordinatorModel:
    """Processes every fact with its effects, and raises BrokenRuleError for a broken rule."""

    def __init__(self, settings: CoordinatorSettings, tasks: tuple[Task, ...], retained: int) -> None:
        self.settings = settings
        self.now_ms = 0
        self.is_shut_down = False
        self._tasks = tasks
        self.checkpoints: dict[CheckpointId, Known] = {}
        self.requests: dict[str, CheckpointProperties] = {}
        self.periodic: set[str] = set()
        """Requests that wait for the minimum pause, as the timer's do."""
        self.answered: set[str] = set()
        self.refused = 0
        """How many requests failed before a checkpoint began. Firings of timers count too, since they get no answer."""
        self.refused_by_store = 0
        """How many requests failed before a checkpoint began because the store of ids failed."""
        self.kept: list[CheckpointId] = []
        self.failures = Failures(settings.tolerable_failures)
        self.used_by: dict[str, CheckpointId] = {}
        """Shared file -> the newest checkpoint that was acknowledged with it."""
        self.deleted: set[str] = set()
        self._retained = retained
        self._aborted: list[CheckpointId] = []
        self.completed_ms: int | None = None
        self._after_pause = True

    def pending(self) -> list[CheckpointId]:
        """Return the checkpoints that have not ended."""
        return [n for n, known in self.checkpoints.items() if known.fate in (Fate.PENDING, Fate.COMMITTING)]

    def ended(self) -> Counter[Fate]:
        """Return how many checkpoints have each fate."""
        return Counter(known.fate for known in self.checkpoints.values())

    def fate(self, checkpoint: CheckpointId) -> Fate | None:
        """Return the state or the end of a checkpoint, or None if it never began."""
        return self.checkpoints[checkpoint].fate if checkpoint in self.checkpoints else None

    # -------------------------------------------------------------- one step

    def take(self, fact: flink.FlinkFact, effects: tuple[flink.FlinkEffect, ...]) -> None:
        """Judge one step."""
        self.refused += isinstance(fact, flink.PeriodicTimerFired | told.CoordinatorTimeAdvanced)
        ends, reason = self._must_end(fact)
        goes = self._private_of_late(fact)
        acknowledged = self._acknowledge(fact)
        answers = [(e.result, e.accepted) for e in effects if isinstance(e, told.AnswerAcknowledge)]
        expect([r for r, _ in answers] == acknowledged, ACKNOWLEDGED, f"{acknowledged} is due, not {answers}")
        left = self._complete(fact)
        self._aborted = []
        self.failures.fatal = 0
        for effect in effects:
            self._see(fact, effect)
        expect(set(self._aborted) == ends, ENDS_ONCE, f"{fact} must end {ends}, it ended {self._aborted}")
        for checkpoint in (*self._aborted, *self._completed(fact)):
            self._judge_end(fact, effects, checkpoint, reason)
        self._count_failures(fact, effects, reason)
        for effect in effects:
            if isinstance(effect, told.RequestFailed) and effect.checkpoint is not None:
                expect(effect.reason is reason, ENDS_ONCE, f"{effect} for {fact}")
        spared = isinstance(fact, flink.CommitUnknown)
        for checkpoint in () if spared else [*self._aborted, *left]:
            goes |= self.checkpoints[checkpoint].private
        self._deleted_exactly(fact, effects, goes)

    def _completed(self, fact: flink.FlinkFact) -> tuple[CheckpointId, ...]:
        if not isinstance(fact, told.CommitSucceeded) or self.fate(fact.checkpoint) is not Fate.COMPLETED:
            return ()
        return (fact.checkpoint,) if self.checkpoints[fact.checkpoint].ended_ms is None else ()

    def _judge_end(
        self,
        fact: flink.FlinkFact,
        effects: tuple[flink.FlinkEffect, ...],
        checkpoint: CheckpointId,
        reason: Reason | None,
    ) -> None:
        """Judge that the requester learns of the checkpoint's end. The timer's requests get no answer."""
        known = self.checkpoints[checkpoint]
        known.ended_ms = (self.now_ms, self.latest_ms(fact))
        known.reason = reason if checkpoint in self._aborted else None
        answers = (e for e in effects if isinstance(e, told.RequestSucceeded | told.RequestFailed))
        names = {answer.request for answer in answers if answer.checkpoint == checkpoint}
        early = names <= self.periodic and not known.after_pause
        expect(not early, PAUSE, f"{checkpoint} was triggered periodically before the pause was over")

    def latest_ms(self, fact: flink.FlinkFact) -> int:
        """Return the time after this fact."""
        return max(self.now_ms, fact.now_ms) if isinstance(fact, told.CoordinatorTimeAdvanced) else self.now_ms

    def _must_end(  # noqa: PLR0911, PLR0912 - one line a fact
        self, fact: flink.FlinkFact
    ) -> tuple[set[CheckpointId], Reason | None]:
        waiting = {n for n, known in self.checkpoints.items() if known.fate is Fate.PENDING}
        match fact:
            case told.TaskDeclined():
                ours = fact.job == self.settings.job and not self.is_shut_down
                return (waiting & {fact.checkpoint} if ours else set()), fact.reason
            case flink.CheckpointTimeoutFired():
                return waiting & {fact.checkpoint}, Reason.CHECKPOINT_EXPIRED
            case told.CoordinatorTimeAdvanced():
                limit = self.settings.timeout_ms
                due = {n for n in waiting if limit is not None and self.checkpoints[n].begun_ms + limit <= fact.now_ms}
                return due, Reason.CHECKPOINT_EXPIRED
            case flink.LocationFailed():
                return waiting & {fact.checkpoint}, Reason.IO_EXCEPTION
            case told.OperatorCoordinatorFailed() | told.HookFailed() | flink.TriggerFailed():
                return waiting & {fact.checkpoint}, Reason.TRIGGER_CHECKPOINT_FAILURE
            case flink.TaskFailed():
                return {n for n in waiting if fact.task in self.checkpoints[n].unacknowledged}, Reason.TASK_FAILURE
            case flink.AbortRequested():
                return waiting, fact.reason
            case told.SchedulerStarted() | told.SchedulerStopped():
                return waiting, Reason.CHECKPOINT_COORDINATOR_SUSPEND
            case told.ShutDown():
                return waiting, Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
            case told.CommitFailed():
                return self._committing(fact.checkpoint), fact.reason
            case flink.CommitUnknown():
                return self._committing(fact.checkpoint), Reason.FINALIZE_CHECKPOINT_FAILURE
            case told.CommitSucceeded():
                return self._older(fact.checkpoint, waiting), Reason.CHECKPOINT_SUBSUMED
            case _:
                return set(), None

    def _committing(self, checkpoint: CheckpointId) -> set[CheckpointId]:
        return {checkpoint} if self.fate(checkpoint) is Fate.COMMITTING else set()

    def _older(self, checkpoint: CheckpointId, waiting: set[CheckpointId]) -> set[CheckpointId]:
        if not self._committing(checkpoint) or _is_plain(self.checkpoints[checkpoint].properties):
            return set()
        return {n for n in waiting if n < checkpoint and not self.checkpoints[n].properties.is_savepoint}

    # -------------------------------------------------------------- what a fact changes

    def _acknowledge(self, fact: flink.FlinkFact) -> list[told.AcknowledgeResult]:
        if not isinstance(fact, told.TaskAcknowledged):
            return []
        if self.is_shut_down:
            return [told.AcknowledgeResult.DISCARDED]
        if fact.job != self.settings.job:
            return [told.AcknowledgeResult.FOREIGN]
        for _, handle in fact.state.shared if fact.state is not None else ():
            self.used_by[handle] = max(self.used_by.get(handle, CheckpointId(0)), fact.checkpoint)
            self.deleted.discard(handle)
        if fact.checkpoint not in self.pending():
            return [told.AcknowledgeResult.DISCARDED]
        known = self.checkpoints[fact.checkpoint]
        if fact.task in known.states:
            return [told.AcknowledgeResult.DUPLICATE]
        if fact.task not in known.unacknowledged:
            return [told.AcknowledgeResult.UNKNOWN]
        known.unacknowledged.remove(fact.task)
        known.states[fact.task] = fact.state or AcknowledgedState()
        known.private |= set(known.states[fact.task].private)
        return [told.AcknowledgeResult.SUCCESS]

    def _private_of_late(self, fact: flink.FlinkFact) -> set[str]:
        """Return the private files of a message that comes too late."""
        match fact:
            case told.TaskAcknowledged() if not self.is_shut_down and fact.job == self.settings.job:
                known = self.checkpoints.get(fact.checkpoint)
                over = known is None or known.fate not in (Fate.PENDING, Fate.COMMITTING)
                strange = known is None or fact.task not in {*known.states, *known.unacknowledged}
                return set(fact.state.private) if fact.state is not None and (over or strange) else set()
            case told.OperatorCoordinatorAnswered(_, checkpoint, str(state)):
                if checkpoint in self.pending():
                    self.checkpoints[checkpoint].private.add(state)
                    return set()
                return {state}
            case _:
                return set()

    def _complete(self, fact: flink.FlinkFact) -> list[CheckpointId]:
        """Process a completion. Return the checkpoints that it removes from the store."""
        if not isinstance(fact, told.CommitSucceeded) or self.fate(fact.checkpoint) is not Fate.COMMITTING:
            return []
        known = self.checkpoints[fact.checkpoint]
        known.fate = Fate.COMPLETED
        self.completed_ms = self.now_ms
        if fact.checkpoint > self.failures.newest_success:
            self.failures.newest_success, self.failures.in_a_row = fact.checkpoint, 0
        if known.properties.is_savepoint:
            return []
        kept = [*self.kept, fact.checkpoint]
        self.kept = kept[-self._retained :]
        return kept[: -self._retained] if DiscardCause.SUBSUMED in self.settings.discard_on else []

    def _count_failures(
        self, fact: flink.FlinkFact, effects: tuple[flink.FlinkEffect, ...], reason: Reason | None
    ) -> None:
        by_task = isinstance(fact, told.TaskDeclined)
        for checkpoint in self._aborted:
            if reason is not None:
                self.failures.failed(self.checkpoints[checkpoint].properties, reason, checkpoint, by_task=by_task)
        if isinstance(fact, flink.CheckpointIdFailed) and fact.io_error:
            refused = [e.request for e in effects if isinstance(e, told.RequestFailed)]
            properties = self.requests[refused[0]] if refused else CheckpointProperties()
            self.failures.failed(properties, Reason.IO_EXCEPTION, None, by_task=False)
        failed = sum(isinstance(effect, told.FailJob) for effect in effects)
        expect(failed == self.failures.fatal, FAILURES, f"{fact}: the job fails {failed} times, model {self.failures}")

    # -------------------------------------------------------------- what an effect says

    def _see(self, fact: flink.FlinkFact, effect: flink.FlinkEffect) -> None:
        match effect:
            case told.FetchCheckpointId():
                over_ms = self.completed_ms
                pause_ms = self.settings.min_pause_ms
                self._after_pause = over_ms is None or self.latest_ms(fact) >= over_ms + pause_ms
            case told.CreateLocation():
                self._begun(fact, effect)
            case told.TriggerTask():
                expect(self.fate(effect.checkpoint) is Fate.PENDING, ENDS_ONCE, f"{effect} after its end")
                self.checkpoints[effect.checkpoint].told = True
            case told.CommitCheckpoint():
                self._commits(effect)
            case told.NotifyCheckpointAborted():
                self._ended(effect)
            case told.NotifyCheckpointComplete():
                known = self.checkpoints[effect.checkpoint]
                truly = known.fate is Fate.COMPLETED and not _is_plain(known.properties)
                expect(truly, "told-truly", f"{effect} of {known.fate}")
            case told.RequestSucceeded() | told.RequestFailed():
                self._answers(effect)
            case _:
                pass

    def _begun(self, fact: flink.FlinkFact, effect: told.CreateLocation) -> None:
        fetched = isinstance(fact, told.CheckpointIdFetched) and fact.id == effect.checkpoint
        rises = all(n < effect.checkpoint for n in self.checkpoints)
        expect(fetched and rises, "ids-rise", f"{effect} for {fact} after {list(self.checkpoints)}")
        limit = self.settings.max_concurrent
        crowded = limit is not None and len(self.pending()) >= limit and not effect.properties.forced
        expect(not crowded, CONCURRENT, f"{effect} while {self.pending()} are pending")
        self.checkpoints[effect.checkpoint] = Known(
            effect.properties, self.now_ms, {*self._tasks}, after_pause=self._after_pause
        )

    def _commits(self, effect: told.CommitCheckpoint) -> None:
        known = self.checkpoints[effect.checkpoint]
        alone = all(each.fate is not Fate.COMMITTING for each in self.checkpoints.values())
        expect(known.is_full, NO_COMMIT_AFTER_ABORT, f"{effect.checkpoint} is committed: {known}")
        first = min(n for n, each in self.checkpoints.items() if each.is_full)
        expect(alone and first == effect.checkpoint, COMMIT_ORDER, f"{effect.checkpoint} is not next")
        expect(dict(effect.states) == known.states, ACKNOWLEDGED, f"{effect.checkpoint} is committed otherwise")
        leaving = [] if known.properties.is_savepoint else [*self.kept, effect.checkpoint][: -self._retained]
        expect(list(effect.subsumed) == leaving, "retention", f"{leaving} leave, not {effect.subsumed}")
        known.fate = Fate.COMMITTING

    def _ended(self, effect: told.NotifyCheckpointAborted) -> None:
        if effect.checkpoint in self._aborted:
            return
        known = self.checkpoints[effect.checkpoint]
        ends = known.fate in (Fate.PENDING, Fate.COMMITTING)
        expect(ends, ENDS_ONCE, f"{effect.checkpoint} is aborted after it was {known.fate}")
        known.fate = Fate.ABORTED
        self._aborted.append(effect.checkpoint)
        newest = self.kept[-1] if self.kept else None
        expect(effect.latest_completed == newest, "told-truly", f"the newest is {newest}, not {effect}")

    def _answers(self, effect: told.RequestSucceeded | told.RequestFailed) -> None:
        known = effect.request in self.requests
        expect(known and effect.request not in self.answered, ANSWERED_ONCE, f"{effect} is its second answer")
        self.answered.add(effect.request)
        if isinstance(effect, told.RequestFailed) and effect.checkpoint is None:
            self.refused += 1
            self.refused_by_store += effect.reason is _BY_STORE
        if isinstance(effect, told.RequestSucceeded):
            expect(self.fate(effect.checkpoint) is Fate.COMPLETED, "told-truly", effect)

    # -------------------------------------------------------------- files

    def _deleted_exactly(
        self, fact: flink.FlinkFact, effects: tuple[flink.FlinkEffect, ...], private: set[str]
    ) -> None:
        gone = [h for effect in effects if isinstance(effect, told.DiscardState) for h in effect.handles]
        shared = {handle for handle in gone if handle in self.used_by}
        expect(set(gone) - shared == private, PRIVATE, f"{fact}: {private} must go, gone are {set(gone) - shared}")
        expect(len(gone) == len(set(gone)), PRIVATE, f"{gone} are deleted twice")
        unused: set[str] = set()
        if isinstance(fact, told.CommitSucceeded) and self.kept and self.kept[-1] == fact.checkpoint:
            unused = {h for h, newest in self.used_by.items() if newest < self.kept[0] and h not in self.deleted}
        expect(shared == unused, SHARED, f"{fact}: {unused} must go, gone are {shared}; kept is {self.kept}")
        self.deleted |= shared
