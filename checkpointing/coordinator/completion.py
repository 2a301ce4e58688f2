"""Ends pending checkpoints: they are committed, declined, expired or subsumed (E1 to E5, F1)."""

from collections.abc import Callable

from checkpointing.coordinator.completed import CompletedCheckpoint, DiscardCause, StoreChange
from checkpointing.coordinator.coordinator_state import Books
from checkpointing.coordinator.messages import (
    AcknowledgeResult,
    AnswerAcknowledge,
    CommitCheckpoint,
    CommitFailed,
    CommitSucceeded,
    DiscardState,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    NotifyOperatorCoordinatorAborted,
    NotifyOperatorCoordinatorComplete,
    RequestFailed,
    RequestSucceeded,
    TaskAcknowledged,
    TaskDeclined,
)
from checkpointing.coordinator.pending import PendingCheckpoint, PendingPhase
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId


class Completion:
    """Handles the answers of tasks and of the store, and ends pending checkpoints."""

    __slots__ = ("_books",)

    def __init__(self, books: Books) -> None:
        """Work on this state of the coordinator."""
        self._books = books

    # -------------------------------------------------------------- answers of tasks

    def acknowledge(self, fact: TaskAcknowledged) -> None:
        """Handle an acknowledgement (E1). Its shared state is registered in any case, except for savepoints (D4)."""
        books = self._books
        if books.is_shut_down:
            self._answer(fact, AcknowledgeResult.DISCARDED, accepted=False)
            return
        if fact.job != books.settings.job:
            self._answer(fact, AcknowledgeResult.FOREIGN, accepted=False)
            return
        pending = books.pending.get(fact.checkpoint)
        if fact.state is not None and (pending is None or not pending.properties.is_savepoint):
            self._register_shared(fact.checkpoint, fact.state)
        if pending is None:
            self._acknowledge_late(fact)
        else:
            self._acknowledge_pending(pending, fact)

    def decline(self, fact: TaskDeclined) -> None:
        """Abort the checkpoint that a task declined. A late decline, or one of another job, changes nothing."""
        pending = self._books.pending.get(fact.checkpoint)
        if pending is not None and fact.job == self._books.settings.job:
            self.abort(pending, fact.reason, fact.message, by_task=True)

    def _acknowledge_pending(self, pending: PendingCheckpoint, fact: TaskAcknowledged) -> None:
        result = pending.acknowledge(fact.task, fact.state)
        self._answer(fact, result, accepted=True)
        if result is AcknowledgeResult.SUCCESS:
            self._books.statistics.acknowledged(pending.id, fact.task, fact.metrics)
            self.commit_if_full(pending)
        elif result is AcknowledgeResult.UNKNOWN and fact.state is not None:
            self._discard(pending.id, fact.state.private)

    def _acknowledge_late(self, fact: TaskAcknowledged) -> None:
        self._books.statistics.measured(fact.checkpoint, fact.task, fact.metrics)
        self._answer(fact, AcknowledgeResult.DISCARDED, accepted=fact.checkpoint in self._books.recent_expired)
        if fact.state is not None:
            self._discard(fact.checkpoint, fact.state.private)

    def _answer(self, fact: TaskAcknowledged, result: AcknowledgeResult, *, accepted: bool) -> None:
        self._books.emit(AnswerAcknowledge(fact.task, fact.checkpoint, result, accepted))

    def _register_shared(self, checkpoint: CheckpointId, state: AcknowledgedState) -> None:
        for key, handle in state.shared:
            self._books.store.registry.register(key, handle, checkpoint)

    # -------------------------------------------------------------- commit

    def commit_if_full(self, pending: PendingCheckpoint) -> None:
        """Commit a checkpoint once all tasks have answered. Only one commit runs at a time, in order of id."""
        if pending.is_fully_acknowledged:
            pending.advance(PendingPhase.ACKNOWLEDGED)
            self._commit_next()

    def committed(self, fact: CommitSucceeded) -> None:
        """Keep a checkpoint that is stored, end the older pending ones, and notify all tasks (E2, E4, F1)."""
        pending = self._take_committing(fact.checkpoint)
        if pending is None:
            return
        books = self._books
        completed = pending.complete(books.settings.discard_on)
        change = self._keep(completed)
        books.failures.succeeded(pending.id)
        books.statistics.completed(pending.id, pending.properties, books.now_ms)
        books.last_completion_ms = books.now_ms
        if pending.request is not None:
            books.emit(RequestSucceeded(pending.request, pending.id))
        if pending.properties.commits:
            self._subsume_older(pending.id)
            self._notify_complete(pending, _reported(change.subsumed))
        self.let_go(pending.id, change)
        self._commit_next()

    def commit_failed(self, fact: CommitFailed) -> None:
        """Fail a checkpoint that is certainly not stored, and discard its private state (E3)."""
        pending = self._take_committing(fact.checkpoint)
        if pending is not None:
            self._end(pending, fact.reason, fact.message, by_task=False)
            self._commit_next()

    def _commit_next(self) -> None:
        books = self._books
        waiting = [p for p in books.pending.values() if p.phase is PendingPhase.ACKNOWLEDGED]
        if books.committing is not None or not waiting:
            return
        pending = min(waiting, key=lambda p: p.id)
        pending.advance(PendingPhase.FINALISING)
        books.committing = pending.id
        books.timers_touched = True
        books.emit(
            CommitCheckpoint(
                checkpoint=pending.id,
                properties=pending.properties,
                triggered_ms=pending.triggered_ms,
                states=pending.states,
                coordinator_states={k: v for k, v in pending.coordinator_states.items() if v is not None},
                master_states=pending.master_states,
                subsumed=self._will_subsume(pending),
            )
        )

    def _will_subsume(self, pending: PendingCheckpoint) -> tuple[CheckpointId, ...]:
        if pending.properties.is_savepoint:
            return ()
        return tuple(c.id for c in self._books.store.would_subsume(pending.complete(self._books.settings.discard_on)))

    def _take_committing(self, checkpoint: CheckpointId) -> PendingCheckpoint | None:
        books = self._books
        if books.committing != checkpoint:
            return None
        books.committing = None
        books.queue_stirred = books.timers_touched = True
        return books.pending.pop(checkpoint)

    def _keep(self, completed: CompletedCheckpoint) -> StoreChange:
        if completed.properties.is_savepoint:
            return StoreChange()
        self._books.force_full = False
        return self._books.store.add(completed)

    def _subsume_older(self, checkpoint: CheckpointId) -> None:
        self.abort_where(
            lambda pending: pending.id < checkpoint and pending.properties.can_be_subsumed,
            CheckpointFailureReason.CHECKPOINT_SUBSUMED,
        )

    def _notify_complete(self, pending: PendingCheckpoint, subsumed: CheckpointId | None) -> None:
        for task in pending.plan.tasks:
            self._books.emit(NotifyCheckpointComplete(task, pending.id, subsumed))
        for coordinator in self._books.settings.operator_coordinators:
            self._books.emit(NotifyOperatorCoordinatorComplete(coordinator, pending.id))

    def let_go(self, checkpoint: CheckpointId, change: StoreChange) -> None:
        """Discard the state that nobody uses any more after `checkpoint` was added to the store."""
        for cleaned in change.cleaned:
            self._discard(cleaned.id, cleaned.private_handles)
        self._discard(checkpoint, tuple(str(handle) for handle in change.shared))

    # -------------------------------------------------------------- abort

    def abort(
        self,
        pending: PendingCheckpoint,
        reason: CheckpointFailureReason,
        message: str = "",
        *,
        by_task: bool = False,
    ) -> None:
        """Fail a pending checkpoint, unless its commit is in progress."""
        if pending.is_finalising:
            return
        del self._books.pending[pending.id]
        self._end(pending, reason, message, by_task=by_task)

    def abort_where(
        self, applies: Callable[[PendingCheckpoint], bool], reason: CheckpointFailureReason, message: str = ""
    ) -> None:
        """Fail every pending checkpoint to which `applies`."""
        for pending in [each for each in self._books.pending.values() if applies(each)]:
            self.abort(pending, reason, message)

    def expire(self, checkpoint: CheckpointId) -> None:
        """Fail a checkpoint whose timeout has passed, if it is still pending."""
        pending = self._books.pending.get(checkpoint)
        if pending is not None:
            self.abort(pending, CheckpointFailureReason.CHECKPOINT_EXPIRED, self._late(pending))

    def _late(self, pending: PendingCheckpoint) -> str:
        """Return a text that says which tasks the checkpoint was waiting for, or '' if it waited for no task.

        Upstream tasks come first, because downstream tasks wait for them.
        """
        late = [
            vertex.name
            for vertex in self._books.topology.vertices
            if not pending.unacknowledged.isdisjoint(vertex.tasks)
        ]
        if not late:
            return ""
        waited_s = (self._books.now_ms - pending.triggered_ms) // 1000
        return (
            f"no snapshot came from vertex {', '.join(late)} within {waited_s} s: if a function hangs, correct it; "
            "if it is slow, set a longer timeout_ms or smaller micro-batches (micro_batch_rows_max)"
        )

    def _end(
        self,
        pending: PendingCheckpoint,
        reason: CheckpointFailureReason,
        message: str,
        *,
        by_task: bool,
    ) -> None:
        books = self._books
        books.queue_stirred = books.timers_touched = True
        books.statistics.failed(pending.id, reason, books.now_ms)
        if reason is CheckpointFailureReason.CHECKPOINT_EXPIRED:
            books.recent_expired.append(pending.id)
        if pending.request is not None:
            books.emit(RequestFailed(pending.request, reason, message or reason.message, pending.id))
        self._discard(pending.id, pending.private_handles)
        fail_job = books.failures.failed(pending.properties, reason, pending.id, by_task=by_task, message=message)
        if fail_job is not None:
            books.emit(fail_job)
        self._notify_aborted(pending, reason, message or reason.message)

    def _notify_aborted(self, pending: PendingCheckpoint, reason: CheckpointFailureReason, message: str) -> None:
        latest_id = self._books.store.latest_id
        latest = None if latest_id == NO_CHECKPOINT else latest_id
        for task in pending.plan.tasks:
            self._books.emit(NotifyCheckpointAborted(task, pending.id, reason, message, latest))
        for coordinator in self._books.settings.operator_coordinators:
            self._books.emit(NotifyOperatorCoordinatorAborted(coordinator, pending.id))

    def discard_late(self, checkpoint: CheckpointId, handle: str) -> None:
        """Discard a private handle that came after the end of its checkpoint (A7)."""
        self._discard(checkpoint, (handle,))

    def _discard(self, checkpoint: CheckpointId, handles: tuple[str, ...]) -> None:
        if handles:
            self._books.deleting += 1
            self._books.emit(DiscardState(checkpoint, handles))


def _reported(subsumed: tuple[CompletedCheckpoint, ...]) -> CheckpointId | None:
    """Return the newest subsumed checkpoint, if the job may discard it (`extractIdIfDiscardedOnSubsumed`)."""
    newest = max(subsumed, key=lambda c: c.id, default=None)
    return newest.id if newest is not None and DiscardCause.SUBSUMED in newest.discard_on else None
