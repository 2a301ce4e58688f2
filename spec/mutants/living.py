"""Plants bugs in the life of the coordinator and the tick: triggers, failures, notifications, the end of a tick."""

from collections.abc import Callable
from dataclasses import replace

from checkpointing.commit import fencing
from checkpointing.commit.fencing import HolderObserved, MayClaim, Refused
from checkpointing.commit.two_phase import CommitEffect
from checkpointing.coordinator import failure_policy
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import (
    FailJob,
    NotifyCheckpointAborted,
    RequestFailed,
    RequestSucceeded,
    TaskAcknowledged,
    TriggerTask,
)
from checkpointing.coordinator.pending import PendingCheckpoint, PendingPhase
from checkpointing.coordinator.request_decider import DeciderView
from checkpointing.coordinator.triggering import Triggering
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, CheckpointId, Generation
from checkpointing.job import restoring
from checkpointing.job.drafts import Drafts
from checkpointing.job.ending import Ending, Next
from checkpointing.job.readers import SourceReaders
from checkpointing.job.wiring import Wiring
from checkpointing.messages import EndTick, NotifyAborted, SavepointKind
from checkpointing.messages import NotifyComplete as TellComplete
from checkpointing.metadata.record import CheckpointRecord, Holder, Row
from spec.mutants import scenes
from spec.mutants.judges import COORDINATOR, SIMULATOR, directed, with_long_runs
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ every trigger ends, once


@mutant("triggers-end")
def pending_checkpoints_are_forgotten_at_the_end(patch: Patch) -> None:
    def abort_all(self: CheckpointCoordinator, reason: CheckpointFailureReason) -> None:
        """Leave everything pending."""

    patch.put(CheckpointCoordinator, "_abort_all", abort_all)


@mutant("triggers-end")
def every_subtask_reports_an_abort(patch: Patch) -> None:
    real = Drafts.aborted

    def aborted(self: Drafts, effect: NotifyCheckpointAborted) -> tuple[NotifyAborted, ...]:
        self._last_aborted = NO_CHECKPOINT
        return real(self, effect)

    patch.put(Drafts, "aborted", aborted)


@mutant("triggers-end")
def only_the_newest_of_two_aborts_is_reported(patch: Patch) -> None:
    real = Drafts.aborted

    def aborted(self: Drafts, effect: NotifyCheckpointAborted) -> tuple[NotifyAborted, ...]:
        newest = max(self._last_aborted, effect.checkpoint)
        self._last_aborted = min(self._last_aborted, effect.checkpoint)
        told = real(self, effect)
        self._last_aborted = newest
        return told

    patch.put(Drafts, "aborted", aborted)


@mutant("triggers-end")
def no_completion_is_reported(patch: Patch) -> None:
    real = Wiring.from_commit

    def from_commit(self: Wiring, effects: tuple[CommitEffect, ...]) -> None:
        real(self, effects)
        self.effects[:] = [effect for effect in self.effects if not isinstance(effect, TellComplete)]

    patch.put(Wiring, "from_commit", from_commit)


@mutant("told-truly")
def a_checkpoint_may_expire_while_its_entry_is_on_its_way(patch: Patch) -> None:
    patch.put(PendingCheckpoint, "is_finalising", property(lambda _: False))


@mutant("ends-once", COORDINATOR)
def a_checkpoint_may_be_declined_while_it_is_committed(patch: Patch) -> None:
    patch.put(PendingCheckpoint, "is_finalising", property(lambda _: False))


@mutant("ends-once", COORDINATOR)
def a_completion_leaves_older_checkpoints_pending(patch: Patch) -> None:
    def subsume_older(self: Completion, checkpoint: CheckpointId) -> None:
        """End no older checkpoint."""

    patch.put(Completion, "_subsume_older", subsume_older)


@mutant("ends-once", COORDINATOR)
def a_completion_ends_younger_checkpoints_too(patch: Patch) -> None:
    def subsume_older(self: Completion, checkpoint: CheckpointId) -> None:
        self.abort_where(
            lambda pending: pending.properties.can_be_subsumed, CheckpointFailureReason.CHECKPOINT_SUBSUMED
        )

    patch.put(Completion, "_subsume_older", subsume_older)


# ------------------------------------------------------------------ triggering


@mutant("queue-held", COORDINATOR, ("FLINK-26394",))
def an_abort_leaves_its_trigger_procedure_under_way(patch: Patch) -> None:
    def settle(self: Triggering) -> None:
        while self._books.queue_stirred:
            self._books.queue_stirred = False
            self._apply(self._decider.choose(self._view()))

    patch.put(Triggering, "settle", settle)


@mutant("ends-once", COORDINATOR, ("FLINK-27148",))
def tasks_hear_of_a_checkpoint_that_was_aborted(patch: Patch) -> None:
    real = Completion._notify_aborted

    def notify_aborted(
        self: Completion, pending: PendingCheckpoint, reason: CheckpointFailureReason, message: str
    ) -> None:
        real(self, pending, reason, message)
        if pending.phase is PendingPhase.TRIGGERING:
            for task in pending.plan.to_trigger:
                type_ = pending.properties.checkpoint_type(force_full=False)
                self._books.emit(TriggerTask(task, pending.id, pending.properties, type_))

    patch.put(Completion, "_notify_aborted", notify_aborted)


@mutant("queue", COORDINATOR, ("FLINK-6404",))
def hooks_are_asked_before_the_checkpoint_is_registered(patch: Patch) -> None:
    real_fetched, real_created = Triggering.id_fetched, Triggering.location_created
    hidden: dict[tuple[Triggering, CheckpointId], PendingCheckpoint] = {}

    def id_fetched(self: Triggering, checkpoint: CheckpointId) -> None:
        real_fetched(self, checkpoint)
        if checkpoint in self._books.pending:
            hidden[self, checkpoint] = self._books.pending.pop(checkpoint)

    def location_created(self: Triggering, checkpoint: CheckpointId) -> None:
        if (self, checkpoint) in hidden:
            self._books.pending[checkpoint] = hidden.pop((self, checkpoint))
        real_created(self, checkpoint)

    patch.put(Triggering, "id_fetched", id_fetched)
    patch.put(Triggering, "location_created", location_created)


@mutant("concurrent", COORDINATOR)
def one_checkpoint_too_many_is_pending(patch: Patch) -> None:
    real = Triggering._view

    def view(self: Triggering) -> DeciderView:
        seen = real(self)
        return replace(seen, pending=max(0, seen.pending - 1))

    patch.put(Triggering, "_view", view)


@mutant("acknowledged", COORDINATOR)
def the_acknowledgement_of_another_job_counts(patch: Patch) -> None:
    real = Completion.acknowledge

    def acknowledge(self: Completion, fact: TaskAcknowledged) -> None:
        real(self, replace(fact, job=self._books.settings.job))

    patch.put(Completion, "acknowledge", acknowledge)


@mutant("statistics-never-steer", COORDINATOR)
def a_snapshot_that_took_long_is_not_taken_in(patch: Patch) -> None:
    real = Completion.acknowledge

    def acknowledge(self: Completion, fact: TaskAcknowledged) -> None:
        if (fact.metrics.checkpointed_bytes or 0) <= 10:  # noqa: PLR2004 - what is long here
            real(self, fact)

    patch.put(Completion, "acknowledge", acknowledge)


# ------------------------------------------------------------------ failures


@mutant("failures", COORDINATOR, ("FLINK-32347",))
def a_failure_of_the_store_is_not_counted(patch: Patch) -> None:
    counted = failure_policy.COUNTED - {CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE}
    patch.put(failure_policy, "COUNTED", counted)


@mutant("failures", COORDINATOR)
def one_failure_too_many_is_tolerated(patch: Patch) -> None:
    real = FailurePolicy._count

    def count(
        self: FailurePolicy, reason: CheckpointFailureReason, checkpoint: CheckpointId | None, message: str
    ) -> FailJob | None:
        if self.tolerable is None:
            return None
        self.tolerable += 1
        try:
            return real(self, reason, checkpoint, message)
        finally:
            self.tolerable -= 1

    patch.put(FailurePolicy, "_count", count)


@mutant("failures", COORDINATOR)
def a_failure_is_counted_twice(patch: Patch) -> None:
    real = FailurePolicy._count

    def count(
        self: FailurePolicy, reason: CheckpointFailureReason, checkpoint: CheckpointId | None, message: str
    ) -> FailJob | None:
        return real(self, reason, None, message) or real(self, reason, None, message)

    patch.put(FailurePolicy, "_count", count)


@mutant("failures", COORDINATOR)
def a_success_does_not_reset_the_count(patch: Patch) -> None:
    def reset(self: FailurePolicy) -> None:
        """Go on counting."""

    patch.put(FailurePolicy, "_reset", reset)


# ------------------------------------------------------------------ notifications


@mutant("told-truly", directed(scenes.every_task_is_told_of_a_completion, "told-truly"), ("FLINK-23471",))
def only_the_first_task_hears_of_a_completion(patch: Patch) -> None:
    real = Completion._notify_complete

    def notify_complete(self: Completion, pending: PendingCheckpoint, subsumed: CheckpointId | None) -> None:
        before = len(self._books.effects)
        real(self, pending, subsumed)
        del self._books.effects[before + 1 :]

    patch.put(Completion, "_notify_complete", notify_complete)


@mutant("no-deadlock", directed(scenes.triggering_outlives_an_abort, "no-deadlock"), ("FLINK-13256",))
def an_abort_ends_periodic_triggering(patch: Patch) -> None:
    real = Completion.abort_where

    def abort_where(
        self: Completion,
        applies: Callable[[PendingCheckpoint], bool],
        reason: CheckpointFailureReason,
        message: str = "",
    ) -> None:
        self._books.scheduler.stop()
        real(self, applies, reason, message)

    patch.put(Completion, "abort_where", abort_where)


# ------------------------------------------------------------------ the end of a tick


@mutant("caught-up-is-committed")
def a_tick_ends_before_everything_is_read(patch: Patch) -> None:
    patch.put(SourceReaders, "all_idle", property(lambda _: True))
    patch.put(SourceReaders, "polling", property(lambda _: False))


@mutant("caught-up-is-committed")
def a_tick_ends_without_its_last_checkpoint(patch: Patch) -> None:
    real = Ending.next

    def without(self: Ending, now_ms: int, **seen: bool) -> Next | EndTick:
        known, self.uncommitted = self.uncommitted, False
        decision = real(self, now_ms, **seen)
        self.uncommitted = known
        return decision

    patch.put(Ending, "next", without)


@mutant("caught-up-is-committed")
def a_completion_forgets_rows_that_came_after_its_barrier(patch: Patch) -> None:
    patch.put(Drafts, "leaves_rows", lambda self, record, rows_sent: False)


@mutant("no-deadlock")
def the_tick_waits_for_its_failed_request(patch: Patch) -> None:
    real = Ending.answered

    def answered(
        self: Ending, effect: RequestSucceeded | RequestFailed, kind: SavepointKind | None, *, behind_barrier: bool
    ) -> bool:
        self.requested += kind is None and isinstance(effect, RequestFailed)
        return real(self, effect, kind, behind_barrier=behind_barrier)

    patch.put(Ending, "answered", answered)


@mutant("doors-hold", with_long_runs(SIMULATOR))
def a_restore_keeps_channels_that_are_no_more(patch: Patch) -> None:
    def channel_now(graph: JobGraph, channel: ChannelId) -> ChannelId:
        return channel

    patch.function(restoring, "channel_now", channel_now)


@mutant("doors-hold")
def a_door_does_not_know_that_state_may_be_left_behind(patch: Patch) -> None:
    real = restoring.check_fits

    def check_fits(
        graph: JobGraph, record: CheckpointRecord, max_parallelism: int, *, allow_non_restored_state: bool = False
    ) -> None:
        real(graph, record, max_parallelism)

    patch.function(restoring, "check_fits", check_fits)


# ------------------------------------------------------------------ holders that a claim leaves alone

_POLITE = directed(scenes.a_holder_that_nobody_can_see_is_given_time, "polite")


def _deciding(patch: Patch, change: Callable[[HolderObserved, MayClaim | Refused], MayClaim | Refused]) -> None:
    real = fencing.decide_claim

    def decide_claim(
        rows: tuple[Row, ...], seen: HolderObserved, now_ms: int, *, take_over: bool
    ) -> MayClaim | Refused:
        return change(seen, real(rows, seen, now_ms, take_over=take_over))

    patch.put(fencing, "decide_claim", decide_claim)


@mutant("polite", _POLITE)
def a_holder_that_nobody_can_see_counts_as_dead(patch: Patch) -> None:
    def at_once(seen: HolderObserved, decision: MayClaim | Refused) -> MayClaim | Refused:
        unseen = isinstance(decision, Refused) and decision.give_lease_ms is not None
        return MayClaim(Generation(3), CheckpointId(2), "dead") if unseen else decision

    _deciding(patch, at_once)


@mutant("polite", _POLITE)
def a_holder_that_nobody_can_see_is_never_given_a_lease(patch: Patch) -> None:
    def without(seen: HolderObserved, decision: MayClaim | Refused) -> MayClaim | Refused:
        return replace(decision, give_lease_ms=None) if isinstance(decision, Refused) else decision

    _deciding(patch, without)


@mutant("polite", _POLITE)
def a_lease_that_has_run_out_is_given_again(patch: Patch) -> None:
    def again(seen: HolderObserved, decision: MayClaim | Refused) -> MayClaim | Refused:
        holder = Holder(host="elsewhere", pid=1, started="then")
        unseen = seen.alive is None and isinstance(decision, MayClaim)
        return Refused(holder, Generation(2), "unseen", give_lease_ms=30_000) if unseen else decision

    _deciding(patch, again)
