"""Plants bugs in the effects of gates and coordinators, and in single decisions of a coordinator.

Most of these bugs make no row and no table wrong. The simulator's jobs never reach the others, because all tasks of
such a job finish together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from checkpointing.channel_items import Barrier, ChannelItem, EndOfChannel
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator import completed, completion, plan, restoring, triggering
from checkpointing.coordinator.completed import CompletedCheckpoint, SubsumedCheckpoints
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.messages import (
    AskHook,
    CommitCheckpoint,
    NotifyCheckpointAborted,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.coordinator.plan import PlannedVertex
from checkpointing.coordinator.task import Task
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate import GatePolicy, InputGate, aligner, input_gate
from checkpointing.gate.aligner import Aligner
from checkpointing.gate.alignment import NEVER, Alignment, AlignmentSnapshot, as_unaligned
from checkpointing.gate.channel import Channel
from checkpointing.gate.channels import Channels
from checkpointing.gate.handler import Effects
from checkpointing.gate.messages import AnnouncementReceived, BarrierReceived
from checkpointing.gate.tracker import BarrierTracker, TrackerSnapshot
from checkpointing.gate.unaligned import AlternatingAligner, AlternatingSnapshot, Phase
from checkpointing.identifiers import ChannelId, CheckpointId
from spec.mutants.judges import COORDINATOR, GATES, PLANNING, SETTINGS
from spec.mutants.planting import Patch, mutant

_BLOCKING = GATES[GatePolicy.ALIGNED_BLOCKING]
_TRACKING = GATES[GatePolicy.AT_LEAST_ONCE]
_UNALIGNED = GATES[GatePolicy.UNALIGNED]
_ALTERNATING = GATES[GatePolicy.ALTERNATING]

# ------------------------------------------------------------------ effects of a gate


@mutant("gate-tells", _BLOCKING)
def a_barrier_is_told_as_received_at_the_start(patch: Patch) -> None:
    patch.put(input_gate, "BarrierReceived", lambda channel, n, _: BarrierReceived(channel, n, -1))


@mutant("gate-tells", _BLOCKING)
def nobody_is_told_that_a_channel_is_read_on(patch: Patch) -> None:
    real = Aligner._release

    def release(self: Aligner) -> Effects:
        real(self)
        return []

    patch.put(Aligner, "_release", release)


@mutant("gate-tells", _ALTERNATING)
def an_announcement_is_told_of_the_next_checkpoint(patch: Patch) -> None:
    def told(channel: ChannelId, n: CheckpointId) -> AnnouncementReceived:
        return AnnouncementReceived(channel, CheckpointId(n + 1))

    patch.put(input_gate, "AnnouncementReceived", told)


@mutant("gate-tells", _UNALIGNED)
def a_barrier_forgets_when_it_was_created(patch: Patch) -> None:
    patch.put(aligner, "as_unaligned", lambda barrier: replace(as_unaligned(barrier), created_ms=-1))


# ------------------------------------------------------------------ aborted and pending checkpoints


@mutant("gate-aborts", _BLOCKING)
def every_abort_is_blamed_on_a_marker(patch: Patch) -> None:
    real = Aligner._abort

    def abort(self: Aligner, checkpoint: CheckpointId, _: Reason) -> Effects:
        return real(self, checkpoint, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)

    patch.put(Aligner, "_abort", abort)


@mutant("gate-aborts", _TRACKING)
def a_channel_that_ends_aborts_nothing_by_name(patch: Patch) -> None:
    def pending(self: BarrierTracker, reason: Reason) -> Effects:
        self._counts.clear()
        return []

    patch.put(BarrierTracker, "abort_pending", pending)


@mutant("gate-aborts", _TRACKING)
def a_marker_leaves_older_checkpoints_alone(patch: Patch) -> None:
    patch.put(BarrierTracker, "_abort_older_than", lambda self, checkpoint: [])


@mutant("gate-pending", _BLOCKING)
def a_gate_says_that_nothing_is_pending(patch: Patch) -> None:
    patch.put(Aligner, "pending", lambda self: ())


@mutant("gate-pending", _ALTERNATING)
def an_announced_checkpoint_is_not_pending(patch: Patch) -> None:
    def pending(self: Aligner) -> tuple[CheckpointId, ...]:
        return (self.alignment.current,) if self.alignment.pending and self.alignment._aligned else ()

    patch.put(Aligner, "pending", pending)


@mutant("gate-pending", _TRACKING)
def a_complete_checkpoint_takes_newer_ones_with_it(patch: Patch) -> None:
    real = BarrierTracker._complete

    def complete(self: BarrierTracker, checkpoint: CheckpointId, now_ms: int) -> Effects:
        effects = real(self, checkpoint, now_ms)
        self._counts.clear()
        return effects

    patch.put(BarrierTracker, "_complete", complete)


# ------------------------------------------------------------------ a gate's description of its state


@mutant("gate-state", _TRACKING)
def a_tracker_does_not_say_which_checkpoint_was_the_latest(patch: Patch) -> None:
    real = BarrierTracker.snapshot

    def snapshot(self: BarrierTracker) -> TrackerSnapshot:
        return replace(real(self), latest=NEVER)

    patch.put(BarrierTracker, "snapshot", snapshot)


@mutant("gate-state", _BLOCKING)
def an_alignment_does_not_say_what_it_has_let_through(patch: Patch) -> None:
    real = Alignment.snapshot

    def snapshot(self: Alignment) -> AlignmentSnapshot:
        return replace(real(self), processed=-1)

    patch.put(Alignment, "snapshot", snapshot)


@mutant("gate-state", _ALTERNATING)
def a_gate_says_that_it_waits_for_the_first_barrier(patch: Patch) -> None:
    real = AlternatingAligner.snapshot

    def snapshot(self: AlternatingAligner) -> AlternatingSnapshot:
        return replace(real(self), phase=Phase.WAITING)

    patch.put(AlternatingAligner, "snapshot", snapshot)


# ------------------------------------------------------------------ refusals of a gate


@mutant("gate-refuses", _BLOCKING)
def an_item_is_taken_after_the_end_of_its_channel(patch: Patch) -> None:
    def arrive(self: Channels, name: ChannelId, item: ChannelItem) -> None:
        channel = self[name]
        channel.ended = channel.ended or isinstance(item, EndOfChannel)
        if channel.stopped:
            channel.hold(item)
        else:
            self._admit(channel, item)

    patch.put(Channels, "arrive", arrive)


@mutant("gate-refuses", _BLOCKING)
def an_aligned_gate_takes_unaligned_barriers(patch: Patch) -> None:
    def admissible(self: InputGate, channel: ChannelId, item: ChannelItem) -> ChannelItem:
        return item if not isinstance(item, Barrier) else replace(item)

    patch.put(InputGate, "_admissible", admissible)


@mutant("gate-refuses", _BLOCKING)
def a_channel_that_nobody_knows_is_opened(patch: Patch) -> None:
    patch.put(Channels, "__getitem__", lambda self, name: self._channels.setdefault(name, Channel(name)))


# ------------------------------------------------------------------ effects of a coordinator


@mutant("coordinator-tells", COORDINATOR)
def a_hook_is_told_a_wrong_time(patch: Patch) -> None:
    patch.put(triggering, "AskHook", lambda hook, n, triggered_ms: AskHook(hook, n, triggered_ms + 1))


@mutant("coordinator-tells", COORDINATOR)
def only_the_first_task_hears_of_an_abort(patch: Patch) -> None:
    def aborted(self: Completion, pending: PendingCheckpoint, reason: Reason, message: str) -> None:
        latest = self._books.store.latest_id or None
        for task in pending.plan.to_commit[:1]:
            self._books.emit(NotifyCheckpointAborted(task, pending.id, reason, message, latest))

    patch.put(Completion, "_notify_aborted", aborted)


@mutant("statistics-never-steer", COORDINATOR)
def the_reason_of_an_abort_is_read_from_the_history(patch: Patch) -> None:
    real = Completion._notify_aborted

    def aborted(self: Completion, pending: PendingCheckpoint, _: Reason, message: str) -> None:
        known = self._books.statistics.of(pending.id)
        real(self, pending, (known and known.failure) or Reason.CHECKPOINT_DECLINED, message)

    patch.put(Completion, "_notify_aborted", aborted)


@mutant("coordinator-tells", COORDINATOR)
def an_abort_is_told_without_what_the_task_said(patch: Patch) -> None:
    real = Completion._notify_aborted

    def aborted(self: Completion, pending: PendingCheckpoint, reason: Reason, _: str) -> None:
        real(self, pending, reason, reason.message)

    patch.put(Completion, "_notify_aborted", aborted)


@mutant("coordinator-tells", COORDINATOR)
def every_abort_is_told_as_a_decline(patch: Patch) -> None:
    real = Completion._notify_aborted

    def aborted(self: Completion, pending: PendingCheckpoint, _: Reason, message: str) -> None:
        real(self, pending, Reason.CHECKPOINT_DECLINED, message)

    patch.put(Completion, "_notify_aborted", aborted)


@mutant("coordinator-tells", COORDINATOR)
def the_states_of_operator_coordinators_are_not_committed(patch: Patch) -> None:
    def commit(**given: Any) -> CommitCheckpoint:  # noqa: ANN401 - passed on
        return CommitCheckpoint(**{**given, "coordinator_states": {}})

    patch.put(completion, "CommitCheckpoint", commit)


@mutant("coordinator-tells", COORDINATOR)
def private_files_are_discarded_for_the_next_checkpoint(patch: Patch) -> None:
    real = Completion._discard

    def discard(self: Completion, checkpoint: CheckpointId, handles: tuple[str, ...]) -> None:
        real(self, CheckpointId(checkpoint + 1), handles)

    patch.put(Completion, "_discard", discard)


# ------------------------------------------------------------------ plans


@mutant("plans", PLANNING)
def pointwise_the_first_task_feeds_all(patch: Patch) -> None:
    patch.put(plan, "_feeders", lambda index, parallelism, upstream: range(1))


@mutant("plans", PLANNING)
def a_vertex_with_a_finished_task_feeds_nobody(patch: Patch) -> None:
    def feeds(upstream: PlannedVertex, pattern: plan.EdgePattern, finished: frozenset[Task]) -> bool:
        return pattern is plan.EdgePattern.ALL_TO_ALL and finished.isdisjoint(upstream.tasks)

    patch.put(plan, "_feeds_all", feeds)


@mutant("plans", PLANNING)
def a_task_that_does_not_run_yet_is_planned(patch: Patch) -> None:
    patch.put(plan, "_refuse_unless_running", lambda topology, states, *, after_tasks_finish: None)


# ------------------------------------------------------------------ the store of completed checkpoints


@mutant("store-subsumes", PLANNING)
def savepoints_push_every_checkpoint_out(patch: Patch) -> None:
    def subsume(checkpoints: Sequence[CompletedCheckpoint], retained: int) -> tuple[CompletedCheckpoint, ...]:
        return tuple(checkpoints[: max(0, len(checkpoints) - retained)])

    patch.put(completed, "subsume", subsume)


@mutant("store-subsumes", PLANNING)
def files_go_as_soon_as_their_checkpoint_leaves(patch: Patch) -> None:
    def clean(
        self: SubsumedCheckpoints, up_to: CheckpointId, in_use: frozenset[CheckpointId]
    ) -> tuple[CompletedCheckpoint, ...]:
        going, self._waiting = tuple(self._waiting), []
        return going

    patch.put(SubsumedCheckpoints, "clean", clean)


@mutant("store-subsumes", PLANNING)
def a_checkpoint_that_left_is_forgotten(patch: Patch) -> None:
    patch.put(SubsumedCheckpoints, "add", lambda self, checkpoint: None)


# ------------------------------------------------------------------ restores


@mutant("restores", PLANNING)
def a_running_task_may_come_before_finished_ones(patch: Patch) -> None:
    patch.function(restoring, "check_finished", lambda checkpoint, topology: None)


@mutant("restores", PLANNING)
def the_state_of_a_hook_that_is_gone_is_dropped(patch: Patch) -> None:
    def restore(
        checkpoint: CheckpointId, states: Mapping[str, str], hooks: Sequence[str], *, allow_non_restored: bool
    ) -> Iterator[RestoreHook]:
        return (RestoreHook(hook, checkpoint, states.get(hook)) for hook in hooks)

    patch.function(restoring, "restore_hooks", restore)


@mutant("restores", PLANNING)
def a_new_operator_coordinator_is_given_a_checkpoint(patch: Patch) -> None:
    def restore(
        checkpoint: CheckpointId | None, states: Mapping[str, str | None], coordinators: Sequence[str]
    ) -> Iterator[ResetOperatorCoordinator]:
        return (ResetOperatorCoordinator(name, checkpoint, states.get(name)) for name in coordinators)

    patch.function(restoring, "restore_coordinators", restore)


# ------------------------------------------------------------------ bounds of settings


@mutant("settings-arrive", SETTINGS)
def the_limit_of_state_in_memory_cannot_be_set(patch: Patch) -> None:
    patch.put(CheckpointConfig, "memory_state_limit_bytes", property(lambda self: 1_048_576))


@mutant("settings-arrive", SETTINGS)
def contradictions_between_checkpoint_settings_are_taken(patch: Patch) -> None:
    patch.put(CheckpointConfig, "_checkpoint_contradictions", lambda _: ())
