"""Extends the product's coordinator by the facts that only Flink's own cases send (`spec.flink.messages`).

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
    """A case asked to abort a forced checkpoint as subsumed. Nothing can subsume a forced checkpoint."""

    def __init__(self, checkpoint: CheckpointId) -> None:
        super().__init__(f"checkpoint {checkpoint} is forced, so no other may subsume it: abort it for another reason")


class InvalidHookError(ValueError):
    """A master hook has no id."""

    def __init__(self, hook: str | None) -> None:
        super().__init__(f"master hook id {hook!r}: it must not be blank, because the hook's state is kept under it")


class FlinkCompletion(Completion):
    """Ends checkpoints. It also accepts a commit whose outcome is unknown."""

    __slots__ = ()

    def commit_unknown(self, fact: CommitUnknown) -> None:
        """Fail the checkpoint and delete nothing, because the checkpoint may be stored (FLINK-22494)."""
        pending = self._take_committing(fact.checkpoint)
        if pending is not None:
            kept = replace(pending, states={}, coordinator_states={})
            self._end(kept, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, fact.message, by_task=False)
            self._commit_next()


class FlinkTriggering(Triggering):
    """Triggers checkpoints. It also accepts that no id could be fetched."""

    __slots__ = ()

    @property
    def queued(self) -> int:
        """Return how many requests wait."""
        return len(self._decider)

    def id_failed(self, fact: CheckpointIdFailed) -> None:
        """Fail the request. It has no checkpoint yet."""
        procedure = self.procedure
        if procedure is not None and procedure.checkpoint is None:
            self._fail_early(procedure.request, _io_or_trigger_failure(io_error=fact.io_error), fact.message)


class FlinkCoordinator(CheckpointCoordinator):
    """A coordinator that takes every fact of Flink's cases, and follows the product's rules."""

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
        """Take one fact and return the effects, as `step` does.

        Raises RestoreRefusedError for a restore that does not fit, and ForcedCheckpointSubsumedError for an abort that
        is impossible. Both change nothing.
        """
        if isinstance(fact, RestoreRequested):
            restored: list[FlinkEffect] = []
            others = self._collect(lambda: restored.extend(self._recovery.restore(fact)))
            return (*restored, *others)
        if isinstance(fact, HandedFact):
            return self._collect(lambda: self._take_handed(fact))
        return self.step(fact)

    def add_hook(self, hook: str | None) -> bool:
        """Register a master hook. Return False if its id is registered already.

        Raise InvalidHookError if it is blank (A8).
        """
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

    # -------------------------------------------------------------- what the cases look at

    @property
    def is_triggering(self) -> bool:
        """Return True while a trigger procedure runs."""
        return self._triggering.procedure is not None

    @property
    def has_periodic_timer(self) -> bool:
        """Return True while the periodic timer runs."""
        return self._books.scheduler.next_ms is not None

    @property
    def queued(self) -> int:
        """Return how many requests wait."""
        return self._triggering.queued

    @property
    def recent_expired(self) -> tuple[CheckpointId, ...]:
        """Return the newest expired checkpoints, oldest first."""
        return tuple(self._books.recent_expired)

    @property
    def is_forced_full(self) -> bool:
        """Return True if the next checkpoint must be full: none has completed since a restore without a claim."""
        return self._books.force_full


def _io_or_trigger_failure(*, io_error: bool) -> CheckpointFailureReason:
    return CheckpointFailureReason.IO_EXCEPTION if io_error else CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
