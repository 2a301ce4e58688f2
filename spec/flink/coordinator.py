"""The product's coordinator, told besides what only Flink's own cases tell it (`spec.flink.messages`).

Flink's cases fire timers by hand, fail single tasks and locations, and restore a job inside a living coordinator.
"""

from dataclasses import replace

from checkpointing.coordinator.completed import CompletedCheckpointStore
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.triggering import Triggering
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.flink.messages import (
    AbortRequested,
    CheckpointIdFailed,
    CheckpointTimeoutFired,
    CommitUnknown,
    FlinkEffect,
    FlinkFact,
    HandedFact,
    LocationFailed,
    PeriodicTimerFired,
    RestoreRequested,
    TaskFailed,
    TaskMeasured,
    TriggerFailed,
)
from spec.flink.recovery import Recovery


class ForcedCheckpointSubsumedError(RuntimeError):
    """Somebody asked to abort a forced checkpoint as subsumed, which it can never be."""

    def __init__(self, checkpoint: CheckpointId) -> None:
        super().__init__(f"checkpoint {checkpoint} is forced, none may subsume it: abort it for another reason")


class InvalidHookError(ValueError):
    """A master hook without an id."""

    def __init__(self, hook: str | None) -> None:
        super().__init__(f"master hook id {hook!r}: a hook needs an id that is not blank, its state is kept under it")


class FlinkCompletion(Completion):
    """Ends checkpoints, and knows commits of which nobody knows the outcome."""

    __slots__ = ()

    def commit_unknown(self, fact: CommitUnknown) -> None:
        """Fail what is perhaps stored: nothing is deleted (FLINK-22494)."""
        pending = self._take_committing(fact.checkpoint)
        if pending is not None:
            kept = replace(pending, states={}, coordinator_states={})
            self._end(kept, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, fact.message, by_task=False)
            self._commit_next()


class FlinkTriggering(Triggering):
    """Triggers checkpoints, and knows that an id may not be fetched."""

    __slots__ = ()

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return len(self._decider)

    def id_failed(self, fact: CheckpointIdFailed) -> None:
        """Fail the request: there is no checkpoint yet."""
        procedure = self.procedure
        if procedure is not None and procedure.checkpoint is None:
            self._fail_early(procedure.request, _io_or_trigger_failure(io_error=fact.io_error), fact.message)


class FlinkCoordinator(CheckpointCoordinator):
    """A coordinator that takes every fact of Flink's cases; the rules are the product's."""

    __slots__ = ("_recovery",)

    def __init__(
        self,
        settings: CoordinatorSettings,
        topology: Topology,
        store: CompletedCheckpointStore,
        *,
        now_ms: int = 0,
    ) -> None:
        """Begin as the product's coordinator does."""
        super().__init__(settings, topology, store, now_ms=now_ms)
        self._completion: FlinkCompletion = FlinkCompletion(self._books)
        self._triggering: FlinkTriggering = FlinkTriggering(self._books, self._completion)
        self._recovery = Recovery(self._books, self._completion)

    def tell(self, fact: FlinkFact) -> tuple[FlinkEffect, ...]:
        """Take one fact and return what is to be done, as `step` does.

        Raises RestoreRefusedError for a restore that does not fit and ForcedCheckpointSubsumedError for an abort that
        cannot be, and changes nothing then.
        """
        if isinstance(fact, RestoreRequested):
            restored: list[FlinkEffect] = []
            others = self._collect(lambda: restored.extend(self._recovery.restore(fact)))
            return (*restored, *others)
        if isinstance(fact, HandedFact):
            return self._collect(lambda: self._take_handed(fact))
        return self.step(fact)

    def add_hook(self, hook: str | None) -> bool:
        """Register a master hook; return False if its id is known. Raises InvalidHookError for a blank id (A8)."""
        if hook is None or not hook.strip():
            raise InvalidHookError(hook)
        if hook in self._books.hooks:
            return False
        self._books.hooks.append(hook)
        return True

    def _take_handed(self, fact: HandedFact) -> None:
        trigger_failure = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
        match fact:
            case PeriodicTimerFired():
                self._triggering.request_periodically()
            case CheckpointTimeoutFired():
                self._completion.expire(fact.checkpoint)
            case CheckpointIdFailed():
                self._triggering.id_failed(fact)
            case LocationFailed():
                reason = _io_or_trigger_failure(io_error=fact.io_error)
                self._triggering.failed(fact.checkpoint, reason, fact.message)
            case TriggerFailed():
                self._triggering.failed(fact.checkpoint, trigger_failure, fact.message)
            case TaskFailed():
                reason = CheckpointFailureReason.TASK_FAILURE
                self._completion.abort_where(lambda each: fact.task in each.unacknowledged, reason, fact.message)
            case TaskMeasured():
                self._books.statistics.measured(fact.checkpoint, fact.task, fact.metrics)
            case CommitUnknown():
                self._completion.commit_unknown(fact)
            case AbortRequested():
                self._abort_as_asked(fact)

    def _abort_as_asked(self, fact: AbortRequested) -> None:
        forced = [pending.id for pending in self.pending if pending.properties.forced]
        if fact.reason is CheckpointFailureReason.CHECKPOINT_SUBSUMED and forced:
            raise ForcedCheckpointSubsumedError(forced[0])
        self._completion.abort_where(lambda _: True, fact.reason, fact.message)

    # -------------------------------------------------------------- what cases look at

    @property
    def is_triggering(self) -> bool:
        """Whether a trigger procedure is under way."""
        return self._triggering.procedure is not None

    @property
    def has_periodic_timer(self) -> bool:
        """Whether the periodic timer runs."""
        return self._books.scheduler.next_ms is not None

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return self._triggering.queued

    @property
    def recent_expired(self) -> tuple[CheckpointId, ...]:
        """The checkpoints that expired last, oldest first."""
        return tuple(self._books.recent_expired)

    @property
    def is_forced_full(self) -> bool:
        """Whether the next checkpoint must be full: restored without a claim, and nothing completed since."""
        return self._books.force_full


def _io_or_trigger_failure(*, io_error: bool) -> CheckpointFailureReason:
    return CheckpointFailureReason.IO_EXCEPTION if io_error else CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
