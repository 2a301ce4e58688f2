"""Extends the product's coordinator by the facts that only Flink's own cases send (`spec.flink.messages`).

Flink's cases fire timers by hand, fail single tasks and locations, and restore a job inside a running coordinator.
"""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.coordinator.completed import (
    DISCARD_NEVER,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    DiscardCause,
)
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.coordinator import (
    CheckpointCoordinator,
    RestoreRefusedError,
    reset_hooks,
    restore_coordinators,
    restore_hooks,
)
from checkpointing.coordinator.coordinator_state import Books
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties, SnapshotKind
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.triggering import Triggering
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.flink.messages import (
    AbortRequested,
    AssignState,
    CheckpointIdFailed,
    CheckpointTimeoutFired,
    CommitUnknown,
    FlinkEffect,
    FlinkFact,
    FlinkRegistry,
    HandedFact,
    LocationFailed,
    PeriodicTimerFired,
    RestoreFinished,
    RestoreKind,
    RestoreMode,
    RestoreRequested,
    SetNextCheckpointId,
    TaskFailed,
    TaskMeasured,
    TriggerFailed,
    shared_handles,
)

# ------------------------------------------------------------------
# Carries out a restore as Flink's coordinator does: it selects the checkpoint and assigns its state (G1 to G3).
#
# The product restores in `checkpointing.job.restoring`, before it makes a coordinator.


class Recovery:
    """Restores the job from the newest completed checkpoint, or from a savepoint."""

    __slots__ = ("_books", "_completion")

    def __init__(self, books: Books, completion: Completion) -> None:
        self._books = books
        self._completion = completion

    def restore(self, fact: RestoreRequested) -> list[FlinkEffect]:
        """Return the effects of a restore.

        Raise RestoreRefusedError if the checkpoint does not fit, or if the coordinator is shut down. A savepoint is
        checked before it enters the store, so a refusal changes nothing.
        """
        if self._books.is_shut_down:
            raise RestoreRefusedError("the coordinator is shut down; a new one must restore the job")
        source = self._source(fact)
        if source is None:
            return self._restart(fact.kind)
        allow = fact.allow_non_restored or fact.kind is RestoreKind.REGION
        effects = self._effects(source, fact.kind, allow_non_restored=allow)
        if fact.kind is RestoreKind.SAVEPOINT:
            self._adopt(source, fact.mode)
        self._books.force_full = source.unclaimed
        self._books.statistics.restored(source.id)
        return effects

    def _source(self, fact: RestoreRequested) -> CompletedCheckpoint | None:
        if fact.kind is not RestoreKind.SAVEPOINT:
            return self._books.store.latest
        if fact.savepoint is None:
            raise RestoreRefusedError("no savepoint was given to restore from; name one")
        return _adopted(fact.savepoint, fact.mode, self._books.settings.discard_on)

    def _effects(
        self, source: CompletedCheckpoint, kind: RestoreKind, *, allow_non_restored: bool
    ) -> list[FlinkEffect]:
        books = self._books
        effects: list[FlinkEffect] = []
        if kind is RestoreKind.SAVEPOINT:
            effects.append(SetNextCheckpointId(CheckpointId(source.id + 1)))
        effects.extend(assign(source, books.topology, allow_non_restored=allow_non_restored))
        hooks = restore_hooks(source.id, source.master_states, books.hooks, allow_non_restored=allow_non_restored)
        effects.extend(hooks)
        if kind is not RestoreKind.REGION:
            names = books.settings.operator_coordinators
            effects.extend(
                restore_coordinators(source.id, dict.fromkeys(names) | dict(source.coordinator_states), names)
            )
        effects.append(RestoreFinished(source.id))
        return effects

    def _adopt(self, savepoint: CompletedCheckpoint, mode: RestoreMode) -> None:
        store = self._books.store
        if not isinstance(store.registry, FlinkRegistry):
            raise TypeError("a store that takes a savepoint in needs a FlinkRegistry: it says who owns the files")
        store.registry.register_restored(savepoint.id, shared_handles(savepoint), mode)
        self._completion.let_go(savepoint.id, store.add(savepoint))

    def _restart(self, kind: RestoreKind) -> list[FlinkEffect]:
        effects: list[FlinkEffect] = [*reset_hooks(self._books.hooks)]
        if kind is RestoreKind.LATEST:
            effects.extend(restore_coordinators(None, {}, self._books.settings.operator_coordinators))
        return [*effects, RestoreFinished(None)]


def _adopted(
    savepoint: CompletedCheckpoint, mode: RestoreMode, discard_on: frozenset[DiscardCause]
) -> CompletedCheckpoint:
    """Return the savepoint as the store keeps it. `mode` determines who owns its files (Flink: `restoreSavepoint`)."""
    match mode:
        case RestoreMode.CLAIM:
            return replace(savepoint, properties=CHECKPOINT, discard_on=discard_on)
        case RestoreMode.NO_CLAIM:
            return replace(savepoint, properties=CHECKPOINT, discard_on=DISCARD_NEVER, unclaimed=True)
        case RestoreMode.LEGACY:
            legacy = CheckpointProperties(kind=SnapshotKind.SAVEPOINT)
            return replace(savepoint, properties=legacy, discard_on=DISCARD_NEVER)


def assign(checkpoint: CompletedCheckpoint, topology: Topology, *, allow_non_restored: bool) -> Iterator[AssignState]:
    """Yield each task's own state.

    Raise RestoreRefusedError for state that no task takes, and for changed key groups. The parallelism must be the same
    as the checkpoint's. `checkpointing.job.restoring` redistributes state by key groups, because it knows the files.
    """
    _check_takers(checkpoint, topology, allow_non_restored=allow_non_restored)
    _check_key_groups(checkpoint, topology)
    return (AssignState(task, checkpoint.id, checkpoint.states.get(task)) for task in topology.tasks())


def _check_takers(checkpoint: CompletedCheckpoint, topology: Topology, *, allow_non_restored: bool) -> None:
    known = {vertex.name for vertex in topology.vertices}
    for vertex in checkpoint.vertices:
        if vertex.name not in known and not allow_non_restored:
            raise RestoreRefusedError(
                f"checkpoint {checkpoint.id} holds state of operator {vertex.name!r}, which the job no longer has; "
                "put the operator back, or allow non-restored state to lose it"
            )


def _check_key_groups(checkpoint: CompletedCheckpoint, topology: Topology) -> None:
    stored = {vertex.name: vertex for vertex in checkpoint.vertices}
    for vertex in topology.vertices:
        was = stored.get(vertex.name)
        if was is None:
            continue
        if vertex.max_parallelism_set and was.max_parallelism != vertex.max_parallelism:
            raise RestoreRefusedError(
                f"operator {vertex.name!r} has max parallelism {vertex.max_parallelism}, but checkpoint "
                f"{checkpoint.id} was taken with {was.max_parallelism}; set it back to {was.max_parallelism}"
            )


class ForcedCheckpointSubsumedError(RuntimeError):
    """A case asked to abort a forced checkpoint as subsumed. Nothing can subsume a forced checkpoint."""

    def __init__(self, checkpoint: CheckpointId) -> None:
        super().__init__(f"checkpoint {checkpoint} is forced, so no other may subsume it: abort it for another reason")


class InvalidHookError(ValueError):
    """A master hook has no id."""

    def __init__(self, hook: str | None) -> None:
        super().__init__(f"master hook id {hook!r}: it must not be blank, because the hook's state is kept under it")


class FlinkCompletion(Completion):
    """Ends checkpoints. This class also accepts a commit of unknown outcome."""

    __slots__ = ()

    def commit_unknown(self, fact: CommitUnknown) -> None:
        """Fail the checkpoint and delete nothing, because the checkpoint may be stored (FLINK-22494)."""
        pending = self._take_committing(fact.checkpoint)
        if pending is not None:
            kept = replace(pending, states={}, coordinator_states={})
            self._end(kept, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, fact.message, by_task=False)
            self._commit_next()


class FlinkTriggering(Triggering):
    """Triggers checkpoints. This class also accepts that no id could be fetched."""

    __slots__ = ()

    @property
    def queued(self) -> int:
        """Return how many requests wait."""
        return len(self._decider)

    def id_failed(self, fact: CheckpointIdFailed) -> None:
        """Fail the request, which has no checkpoint yet."""
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
        super().__init__(settings, topology, store, now_ms=now_ms)
        self._completion: FlinkCompletion = FlinkCompletion(self._books)
        self._triggering: FlinkTriggering = FlinkTriggering(self._books, self._completion)
        self._recovery = Recovery(self._books, self._completion)

    def tell(self, fact: FlinkFact) -> tuple[FlinkEffect, ...]:
        """Process one fact and return the effects, as `step` does.

        Raises RestoreRefusedError if a restore does not fit, and ForcedCheckpointSubsumedError if an abort is
        impossible. In both cases nothing changes.
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


# ------------------------------------------------------------------
# Counts checkpoint ids, which rise strictly. None is handed out twice (A6; `CheckpointIDCounter`).


FIRST_ID = CheckpointId(1)


class CheckpointIdCounter:
    """Counts up from 1, or from the id that the persisted claim has.

    A caller with several threads fetches under its own lock. `fetch` itself does not await, and calls no callback.
    """

    __slots__ = ("_next",)

    def __init__(self, next_id: CheckpointId = FIRST_ID) -> None:
        self._next = _positive(next_id)

    @property
    def next_id(self) -> CheckpointId:
        """Return the id that `fetch` would hand out."""
        return self._next

    def fetch(self) -> CheckpointId:
        """Return the next id and advance."""
        fetched = self._next
        self._next = CheckpointId(fetched + 1)
        return fetched

    def go_on_at(self, next_id: CheckpointId) -> None:
        """Continue at `next_id`, after a restore. Raise ValueError for an id below the first one."""
        self._next = _positive(next_id)


def _positive(next_id: CheckpointId) -> CheckpointId:
    if next_id < FIRST_ID:
        raise ValueError(f"checkpoint id {next_id}: ids begin at {FIRST_ID}")
    return next_id
