"""Plants bugs in the coordinator's minimum pause, its timer, its queue, its commits, and its reports."""

from collections.abc import Callable
from dataclasses import replace

from checkpointing.coordinator import scheduler
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.messages import CheckpointRequested, CommitSucceeded, CoordinatorFact, StateDiscarded
from checkpointing.coordinator.pending import PendingCheckpoint, PendingPhase
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.request_decider import CheckpointRequest, DeciderView, Decision, RequestDecider
from checkpointing.coordinator.scheduler import PeriodicScheduler
from checkpointing.coordinator.statistics import CheckpointStatus, StatisticsTracker
from checkpointing.coordinator.task import SnapshotMetrics, Task
from checkpointing.coordinator.triggering import Triggering
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from spec.mutants.judges import COORDINATOR
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ the minimum pause


@mutant("pause", COORDINATOR)
def a_periodic_request_with_a_name_is_taken_for_a_users(patch: Patch) -> None:
    real = Triggering.request

    def request(self: Triggering, fact: CheckpointRequested) -> None:
        real(self, replace(fact, periodic=False))

    patch.put(Triggering, "request", request)


@mutant("pause", COORDINATOR)
def the_pause_is_over_when_a_request_waits_behind_it(patch: Patch) -> None:
    real = RequestDecider.choose

    def choose(self: RequestDecider, view: DeciderView) -> Decision:
        return real(self, replace(view, pause_left_ms=0) if len(self) > 1 else view)

    patch.put(RequestDecider, "choose", choose)


@mutant("pause", COORDINATOR)
def a_savepoint_begins_no_pause(patch: Patch) -> None:
    real = Completion.committed

    def committed(self: Completion, fact: CommitSucceeded) -> None:
        known, before = self._books.pending.get(fact.checkpoint), self._books.last_completion_ms
        real(self, fact)
        if known is not None and known.properties.is_savepoint:
            self._books.last_completion_ms = before

    patch.put(Completion, "committed", committed)


@mutant("pause", COORDINATOR)
def what_the_pause_refused_waits_for_the_next_interval(patch: Patch) -> None:
    patch.put(PeriodicScheduler, "postpone_to", lambda self, at_ms: None)


@mutant("pause", COORDINATOR)
def the_first_delay_ignores_the_pause(patch: Patch) -> None:
    real = scheduler.initial_delay_ms
    patch.function(scheduler, "initial_delay_ms", lambda seed, _, interval_ms: real(seed, 0, interval_ms))


# ------------------------------------------------------------------ the timer


@mutant("wake", COORDINATOR)
def how_long_the_pause_lasts_is_taken_for_its_end(patch: Patch) -> None:
    def apply(self: Triggering, decision: Decision) -> None:
        after_ms = decision.retry_after_ms
        later = None if after_ms is None else after_ms - self._books.now_ms
        real(self, replace(decision, retry_after_ms=later))

    real = Triggering._apply
    patch.put(Triggering, "_apply", apply)


@mutant("wake", COORDINATOR)
def the_coordinator_asks_only_for_its_first_timer(patch: Patch) -> None:
    real = CheckpointCoordinator._tell_wake

    def tell_wake(self: CheckpointCoordinator) -> None:
        if self._wake_at_ms is None:
            real(self)

    patch.put(CheckpointCoordinator, "_tell_wake", tell_wake)


@mutant("wake", COORDINATOR)
def a_late_clock_loses_the_rate(patch: Patch) -> None:
    """The next trigger should be a whole number of intervals later.

    Here it is one interval later, which may be in the past.
    """

    def fire(self: PeriodicScheduler, now_ms: int) -> bool:
        if self.next_ms is None or self.interval_ms is None:
            return False
        self.next_ms = now_ms + self.interval_ms if now_ms < self.next_ms else self.next_ms + 2 * self.interval_ms
        return True

    patch.put(PeriodicScheduler, "fire", fire)


@mutant("fixed-rate", COORDINATOR)
def a_late_clock_makes_up_for_every_firing(patch: Patch) -> None:
    def fire(self: PeriodicScheduler, now_ms: int) -> bool:
        if self.next_ms is None or self.interval_ms is None:
            return False
        self.next_ms = (min(self.next_ms, now_ms)) + self.interval_ms
        return True

    patch.put(PeriodicScheduler, "fire", fire)


@mutant("fixed-rate", COORDINATOR)
def each_completion_begins_a_new_interval(patch: Patch) -> None:
    real = Completion.committed

    def committed(self: Completion, fact: CommitSucceeded) -> None:
        real(self, fact)
        scheduler = self._books.scheduler
        if scheduler.next_ms is not None and scheduler.interval_ms is not None:
            scheduler.next_ms = self._books.now_ms + scheduler.interval_ms
            self._books.timers_touched = True

    patch.put(Completion, "committed", committed)


@mutant("fixed-rate", COORDINATOR)
def a_late_firing_counts_from_now(patch: Patch) -> None:
    """The rate should be fixed. Here the next firing comes in the pause behind the late one."""
    real = PeriodicScheduler.fire

    def fire(self: PeriodicScheduler, now_ms: int) -> bool:
        due_ms = self.next_ms
        fired = real(self, now_ms)
        if due_ms is not None and self.interval_ms is not None and now_ms - due_ms >= self.interval_ms:
            self.next_ms = now_ms + 1
        return fired

    patch.put(PeriodicScheduler, "fire", fire)


# ------------------------------------------------------------------ commits that follow each other


@mutant("no-deadlock", COORDINATOR)
def a_checkpoint_that_is_full_during_a_commit_is_forgotten(patch: Patch) -> None:
    real = Completion.commit_if_full

    def commit_if_full(self: Completion, pending: PendingCheckpoint) -> None:
        if self._books.committing is None:
            real(self, pending)

    patch.put(Completion, "commit_if_full", commit_if_full)


@mutant("no-deadlock", COORDINATOR)
def a_full_checkpoint_waits_for_all_older_ones(patch: Patch) -> None:
    real = Completion._commit_next

    def commit_next(self: Completion) -> None:
        oldest = min(self._books.pending.values(), key=lambda pending: pending.id, default=None)
        if oldest is None or oldest.phase is PendingPhase.ACKNOWLEDGED:
            real(self)

    patch.put(Completion, "_commit_next", commit_next)


@mutant("no-deadlock", COORDINATOR)
def no_commit_begins_while_files_are_deleted(patch: Patch) -> None:
    real = Completion._commit_next

    def commit_next(self: Completion) -> None:
        if not self._books.deleting:
            real(self)

    patch.put(Completion, "_commit_next", commit_next)


# ------------------------------------------------------------------ requests that wait


@mutant("queue", COORDINATOR)
def a_stop_leaves_requests_queued(patch: Patch) -> None:
    patch.put(Triggering, "drop_queued", lambda self, reason: None)


@mutant("queue", COORDINATOR)
def a_full_queue_refuses_the_new_request(patch: Patch) -> None:
    real = RequestDecider.submit

    def submit(self: RequestDecider, request: CheckpointRequest, view: DeciderView) -> tuple[Decision, ...]:
        if self._queue_max is not None and len(self) >= self._queue_max:
            return (Decision(refused=(request, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)),)
        return real(self, request, view)

    patch.put(RequestDecider, "submit", submit)


@mutant("queue", COORDINATOR)
def requests_begin_in_the_order_of_their_arrival(patch: Patch) -> None:
    patch.put(CheckpointRequest, "urgency", property(lambda self: (False, False, False, self.sequence)))


@mutant("queue", COORDINATOR)
def a_full_queue_takes_one_more(patch: Patch) -> None:
    real = RequestDecider.__init__

    def init(self: RequestDecider, *, max_concurrent: int | None, queue_max: int | None) -> None:
        real(self, max_concurrent=max_concurrent, queue_max=None if queue_max is None else queue_max + 1)

    patch.put(RequestDecider, "__init__", init)


# ------------------------------------------------------------------ deletions that hold requests back


def _see_deletions(patch: Patch, seen: Callable[[int], int]) -> None:
    real = Triggering._view

    def view(self: Triggering) -> DeciderView:
        true = real(self)
        return replace(true, deleting=seen(true.deleting))

    patch.put(Triggering, "_view", view)


@mutant("queue-held", COORDINATOR)
def a_request_waits_for_one_deletion_more(patch: Patch) -> None:
    _see_deletions(patch, lambda deleting: deleting + 1)


@mutant("queue-held", COORDINATOR)
def a_request_waits_for_one_deletion_fewer(patch: Patch) -> None:
    _see_deletions(patch, lambda deleting: max(0, deleting - 1))


@mutant("queue-held", COORDINATOR)
def no_request_waits_for_deletions(patch: Patch) -> None:
    _see_deletions(patch, lambda deleting: 0)


@mutant("queue-held", COORDINATOR)
def nobody_looks_at_the_queue_when_a_deletion_is_done(patch: Patch) -> None:
    real = CheckpointCoordinator._take

    def take(self: CheckpointCoordinator, fact: CoordinatorFact) -> None:
        stirred = self._books.queue_stirred
        real(self, fact)
        if isinstance(fact, StateDiscarded):
            self._books.queue_stirred = stirred

    patch.put(CheckpointCoordinator, "_take", take)


@mutant("queue-held", COORDINATOR)
def a_savepoint_does_not_wait_for_deletions(patch: Patch) -> None:
    real = RequestDecider.choose

    def choose(self: RequestDecider, view: DeciderView) -> Decision:
        is_savepoint = bool(self._queue) and self._queue[0].properties.is_savepoint
        return real(self, replace(view, deleting=0) if is_savepoint else view)

    patch.put(RequestDecider, "choose", choose)


@mutant("no-deadlock")
def a_deletion_that_is_done_still_counts(patch: Patch) -> None:
    """In a job, every deletion is done at once. If it counted on, no further checkpoint would begin."""
    real = CheckpointCoordinator._take

    def take(self: CheckpointCoordinator, fact: CoordinatorFact) -> None:
        if not isinstance(fact, StateDiscarded):
            real(self, fact)

    patch.put(CheckpointCoordinator, "_take", take)


# ------------------------------------------------------------------ reports on each checkpoint


@mutant("statistics-add-up", COORDINATOR)
def a_failed_checkpoint_ended_when_it_began(patch: Patch) -> None:
    real = StatisticsTracker._end

    def end(
        self: StatisticsTracker,
        checkpoint: CheckpointId,
        status: CheckpointStatus,
        now_ms: int,
        failure: CheckpointFailureReason | None,
    ) -> None:
        known = self.of(checkpoint)
        real(self, checkpoint, status, now_ms if known is None else known.triggered_ms, failure)

    patch.put(StatisticsTracker, "_end", end)


@mutant("statistics-add-up", COORDINATOR)
def a_savepoint_is_the_newest_checkpoint(patch: Patch) -> None:
    real = StatisticsTracker.completed

    def completed(
        self: StatisticsTracker, checkpoint: CheckpointId, properties: CheckpointProperties, now_ms: int
    ) -> None:
        real(self, checkpoint, properties, now_ms)
        self.latest.completed = checkpoint

    patch.put(StatisticsTracker, "completed", completed)


@mutant("statistics-add-up", COORDINATOR)
def a_measurement_that_comes_late_is_heard_as_an_acknowledgement(patch: Patch) -> None:
    real = StatisticsTracker.measured

    def measured(self: StatisticsTracker, checkpoint: CheckpointId, task: Task, metrics: SnapshotMetrics) -> None:
        known = self.of(checkpoint)
        if known is not None and task not in known.tasks:
            known.acknowledged_subtasks += 1
        real(self, checkpoint, task, metrics)

    patch.put(StatisticsTracker, "measured", measured)
