"""Turns a checkpoint request into TriggerTask effects, one request at a time (A3 to A8; `startTriggeringCheckpoint`).

The steps are: check, plan, fetch an id, check again, register the pending checkpoint, create its location, ask all
operator coordinators, then all master hooks, then tell the tasks. Each step waits for a fact. If the checkpoint is
aborted at any point, the procedure ends. So no request is stuck (FLINK-26394), and no task is asked for a checkpoint
that was aborted (FLINK-27148).
"""

from bisect import insort
from dataclasses import dataclass, replace

from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.coordinator_state import Books
from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CheckpointRequested,
    CreateLocation,
    FetchCheckpointId,
    HookAnswered,
    OperatorCoordinatorAnswered,
    RequestFailed,
    TriggerTask,
)
from checkpointing.coordinator.pending import PendingCheckpoint, PendingPhase
from checkpointing.coordinator.plan import compute_plan
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId

# ------------------------------------------------------------------
# Decides which request may start a checkpoint now (A3; Flink: `CheckpointRequestDecider`).


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request in the queue. `sequence` is its place in the order of arrival.

    `name` is None if the request came from the periodic timer. Nobody waits for its result.
    """

    name: str | None
    properties: CheckpointProperties
    periodic: bool
    sequence: int

    @property
    def urgency(self) -> tuple[bool, bool, bool, int]:
        """Sort key: savepoint before checkpoint, forced before unforced, user's before periodic, older before newer."""
        return (not self.properties.is_savepoint, not self.properties.forced, self.periodic, self.sequence)


@dataclass(frozen=True, slots=True)
class DeciderView:
    """What the decision depends on, besides the queue. If `pause_left_ms` <= 0, the minimum pause is over."""

    triggering: bool
    pending: int
    deleting: int
    pause_left_ms: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The request to run, the refused request with the reason, and when the periodic timer tries again."""

    chosen: CheckpointRequest | None = None
    refused: tuple[CheckpointRequest, CheckpointFailureReason] | None = None
    retry_after_ms: int | None = None


NOTHING = Decision()


class RequestDecider:
    """A bounded queue of requests. One is chosen at a time."""

    __slots__ = ("_max_concurrent", "_queue", "_queue_max")

    def __init__(self, *, max_concurrent: int | None, queue_max: int | None) -> None:
        """Begin empty, with these limits. None means no limit."""
        self._max_concurrent = max_concurrent
        self._queue_max = queue_max
        self._queue: list[CheckpointRequest] = []

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._queue)

    def submit(self, request: CheckpointRequest, view: DeciderView) -> tuple[Decision, ...]:
        """Queue a request, then choose one.

        A full queue refuses its least urgent periodic request, or else the new one.
        """
        full = self._queue_max is not None and len(self._queue) >= self._queue_max
        if full and self._queue and not self._queue[-1].periodic:
            return (Decision(refused=(request, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)),)
        insort(self._queue, request, key=lambda waiting: waiting.urgency)
        if not full:
            return (self.choose(view),)
        dropped = self._queue.pop()
        refusal = Decision(refused=(dropped, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS))
        return (refusal, self.choose(view))

    def choose(self, view: DeciderView) -> Decision:
        """Take the first request if it may run now. Refuse it if it is periodic and the minimum pause is not over."""
        if view.triggering or not self._queue or self._reached(view.deleting - 1):
            return NOTHING
        head = self._queue[0]
        if self._reached(view.pending):
            return Decision(chosen=self._queue.pop(0)) if head.properties.forced else NOTHING
        if head.periodic and not head.properties.forced and view.pause_left_ms > 0:
            self._queue.pop(0)
            reason = CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
            return Decision(refused=(head, reason), retry_after_ms=view.pause_left_ms)
        return Decision(chosen=self._queue.pop(0))

    def drop_all(self) -> tuple[CheckpointRequest, ...]:
        """Empty the queue, and return the requests that waited in it."""
        dropped = tuple(self._queue)
        self._queue.clear()
        return dropped

    def _reached(self, count: int) -> bool:
        return self._max_concurrent is not None and count >= self._max_concurrent


@dataclass(frozen=True, slots=True)
class TriggerProcedure:
    """The procedure in progress. `checkpoint` is None while its id is being fetched."""

    request: CheckpointRequest
    checkpoint: CheckpointId | None = None


class Triggering:
    """Takes requests, and turns one at a time into a triggered checkpoint."""

    __slots__ = ("_books", "_completion", "_decider", "_plan", "_sequence", "procedure")

    def __init__(self, books: Books, completion: Completion) -> None:
        """Work on this state of the coordinator. `completion` ends the checkpoints that fail here."""
        self._books = books
        self._completion = completion
        self._decider = RequestDecider(max_concurrent=books.settings.max_concurrent, queue_max=books.settings.queue_max)
        self._plan = compute_plan(books.topology)
        self._sequence = 0
        self.procedure: TriggerProcedure | None = None

    # -------------------------------------------------------------- requests

    @property
    def requests_wait(self) -> bool:
        """Whether a request waits in the queue."""
        return len(self._decider) > 0

    def request(self, fact: CheckpointRequested) -> None:
        """Queue a request, and start one if it may start."""
        self._submit(fact.request, fact.properties, periodic=fact.periodic)

    def request_periodically(self) -> None:
        """Queue a plain checkpoint for the periodic timer, if there is one."""
        if self._books.scheduler.fire(self._books.now_ms):
            self._books.timers_touched = True
            self._submit(None, self._books.settings.periodic, periodic=True)

    def drop_queued(self, reason: CheckpointFailureReason) -> None:
        """Fail every request in the queue."""
        for request in self._decider.drop_all():
            self._refuse(request, reason, reason.message)

    def settle(self) -> None:
        """End the procedure if its checkpoint has ended. Choose from the queue if something has changed."""
        under_way = None if self.procedure is None else self.procedure.checkpoint
        if under_way is not None and under_way not in self._books.pending:
            self._finish()
        while self._books.queue_stirred:
            self._books.queue_stirred = False
            self._apply(self._decider.choose(self._view()))

    def _submit(self, name: str | None, properties: CheckpointProperties, *, periodic: bool) -> None:
        self._sequence += 1
        request = CheckpointRequest(name, properties, periodic, self._sequence)
        for decision in self._decider.submit(request, self._view()):
            self._apply(decision)

    def _view(self) -> DeciderView:
        books = self._books
        pause_left_ms = 0
        if books.last_completion_ms is not None:
            pause_left_ms = books.last_completion_ms + books.settings.min_pause_ms - books.now_ms
        return DeciderView(self.procedure is not None, len(books.pending), books.deleting, pause_left_ms)

    def _apply(self, decision: Decision) -> None:
        if decision.refused is not None:
            request, reason = decision.refused
            self._refuse(request, reason, reason.message)
        if decision.retry_after_ms is not None:
            self._books.scheduler.postpone_to(self._books.now_ms + decision.retry_after_ms)
            self._books.timers_touched = True
        if decision.chosen is not None:
            self._start(decision.chosen)

    def _refuse(self, request: CheckpointRequest, reason: CheckpointFailureReason, message: str) -> None:
        if request.name is not None:
            self._books.emit(RequestFailed(request.name, reason, message))

    # -------------------------------------------------------------- the procedure

    def _start(self, request: CheckpointRequest) -> None:
        self.procedure = TriggerProcedure(request)
        if self._is_allowed(request):
            self._books.emit(FetchCheckpointId())

    def id_fetched(self, checkpoint: CheckpointId) -> None:
        """Register the pending checkpoint under its id before anybody is asked for a snapshot (FLINK-6404)."""
        procedure = self.procedure
        if procedure is None or procedure.checkpoint is not None:
            return
        request = procedure.request
        if not self._is_allowed(request):
            return
        self.procedure = replace(procedure, checkpoint=checkpoint)
        self._books.pending[checkpoint] = self._pending(checkpoint, request)
        self._books.timers_touched = True
        self._books.statistics.began(checkpoint, request.properties, self._books.now_ms)
        self._books.emit(CreateLocation(checkpoint, request.properties))

    def location_created(self, checkpoint: CheckpointId) -> None:
        """Ask all operator coordinators, or go on if there are none."""
        pending = self._under_way(checkpoint, PendingPhase.LOCATING)
        if pending is None:
            return
        pending.advance(PendingPhase.TRIGGERING)
        for coordinator in self._books.settings.operator_coordinators:
            self._books.emit(AskOperatorCoordinator(coordinator, checkpoint))
        if not pending.unanswered_coordinators:
            self._ask_hooks(pending)

    def coordinator_answered(self, fact: OperatorCoordinatorAnswered) -> None:
        """Record the snapshot. Ask the hooks when all operator coordinators have answered.

        A late snapshot is discarded (A7).
        """
        pending = self._under_way(fact.checkpoint, PendingPhase.TRIGGERING)
        if pending is None or fact.coordinator not in pending.unanswered_coordinators:
            if fact.state is not None and fact.checkpoint not in self._books.pending:
                self._completion.discard_late(fact.checkpoint, fact.state)
            return
        pending.answer_coordinator(fact.coordinator, fact.state)
        if not pending.unanswered_coordinators:
            self._ask_hooks(pending)

    def hook_answered(self, fact: HookAnswered) -> None:
        """Record the answer. Tell the tasks when all hooks have answered (A8)."""
        pending = self._under_way(fact.checkpoint, PendingPhase.TRIGGERING)
        if pending is None or pending.unanswered_coordinators or fact.hook not in pending.unanswered_hooks:
            return
        pending.answer_hook(fact.hook, fact.state)
        if not pending.unanswered_hooks:
            self._trigger_tasks(pending)

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str) -> None:
        """Fail a checkpoint because an operator coordinator or a hook failed to answer."""
        pending = self._books.pending.get(checkpoint)
        if pending is not None:
            self._completion.abort(pending, reason, message)

    def _ask_hooks(self, pending: PendingCheckpoint) -> None:
        for hook in self._books.hooks:
            self._books.emit(AskHook(hook, pending.id, pending.triggered_ms))
        if not pending.unanswered_hooks:
            self._trigger_tasks(pending)

    def _trigger_tasks(self, pending: PendingCheckpoint) -> None:
        type_ = pending.properties.checkpoint_type(force_full=self._books.force_full)
        for task in pending.plan.to_trigger:
            self._books.emit(TriggerTask(task, pending.id, pending.properties, type_))
        pending.advance(PendingPhase.TRIGGERED)
        self._finish()
        self._completion.commit_if_full(pending)

    def _under_way(self, checkpoint: CheckpointId, phase: PendingPhase) -> PendingCheckpoint | None:
        """Return the procedure's checkpoint if it awaits an answer in this phase. An answer counts once."""
        procedure = self.procedure
        if procedure is None or procedure.checkpoint != checkpoint:
            return None
        pending = self._books.pending.get(checkpoint)
        return pending if pending is not None and pending.phase is phase else None

    def _pending(self, checkpoint: CheckpointId, request: CheckpointRequest) -> PendingCheckpoint:
        books = self._books
        timeout_ms = books.settings.timeout_ms
        return PendingCheckpoint(
            id=checkpoint,
            request=request.name,
            properties=request.properties,
            plan=self._plan,
            triggered_ms=books.now_ms,
            expires_ms=None if timeout_ms is None else books.now_ms + timeout_ms,
            unacknowledged=set(self._plan.tasks),
            unanswered_coordinators=set(books.settings.operator_coordinators),
            unanswered_hooks=set(books.hooks),
        )

    # -------------------------------------------------------------- pre-checks

    def _is_allowed(self, request: CheckpointRequest) -> bool:
        """Return whether a checkpoint may be taken now. If not, fail the request with the reason (A4)."""
        reason = self._forbidden(request)
        if reason is not None:
            self._fail_early(request, reason, reason.message)
        return reason is None

    def _forbidden(self, request: CheckpointRequest) -> CheckpointFailureReason | None:
        if self._books.is_shut_down:
            return CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        if request.periodic and not self._books.scheduler.running:
            return CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN
        return None

    def _fail_early(self, request: CheckpointRequest, reason: CheckpointFailureReason, message: str) -> None:
        self._refuse(request, reason, message)
        self._books.statistics.failed_before_pending()
        fail_job = self._books.failures.failed(request.properties, reason, None, message=message)
        if fail_job is not None:
            self._books.emit(fail_job)
        self._finish()

    def _finish(self) -> None:
        self.procedure = None
        self._books.queue_stirred = True
