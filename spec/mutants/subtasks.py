"""Mutants of one subtask's checkpoints: what it answers, what it refuses, which staged files it keeps."""

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.task.aborted import AbortedCheckpoints
from checkpointing.task.messages import (
    CancelSnapshot,
    CheckpointCompleted,
    FilesStaged,
    SnapshotRequested,
    SubtaskEffect,
    SubtaskFact,
)
from checkpointing.task.subtask_checkpointing import Effects, SubtaskCheckpointing
from spec.mutants.judges import SUBTASK
from spec.mutants.planting import Patch, mutant


@mutant("subtask-answers", SUBTASK)
def a_snapshot_is_taken_before_its_barrier_goes_on(patch: Patch) -> None:
    real = SubtaskCheckpointing._begin

    def begin(self: SubtaskCheckpointing, fact: SnapshotRequested) -> Effects:
        return list(reversed(real(self, fact)))

    patch.put(SubtaskCheckpointing, "_begin", begin)


@mutant("subtask-answers", SUBTASK)
def a_cancelled_snapshot_is_acknowledged_all_the_same(patch: Patch) -> None:
    def cancel(self: SubtaskCheckpointing, checkpoint: CheckpointId) -> Effects:
        return [CancelSnapshot(checkpoint)] if checkpoint in self._in_progress else []

    patch.put(SubtaskCheckpointing, "_cancel", cancel)


@mutant("subtask-answers", SUBTASK)
def a_barrier_that_the_gate_aborted_may_come_again(patch: Patch) -> None:
    real = SubtaskCheckpointing._abort_on_barrier

    def abort_on_barrier(self: SubtaskCheckpointing, checkpoint: CheckpointId, reason: Reason) -> Effects:
        last = self._last
        effects = real(self, checkpoint, reason)
        self._last = last
        return effects

    patch.put(SubtaskCheckpointing, "_abort_on_barrier", abort_on_barrier)


@mutant("subtask-answers", SUBTASK)
def a_checkpoint_that_was_aborted_early_is_taken(patch: Patch) -> None:
    patch.put(AbortedCheckpoints, "clear", lambda self, checkpoint: False)


@mutant("subtask-answers", SUBTASK)
def an_id_that_may_have_been_forgotten_counts_as_good(patch: Patch) -> None:
    def clear(self: AbortedCheckpoints, checkpoint: CheckpointId) -> bool:
        return self._ids.pop(checkpoint, self) is None

    patch.put(AbortedCheckpoints, "clear", clear)


@mutant("subtask-answers", SUBTASK)
def a_subtask_that_finished_says_nothing_of_it(patch: Patch) -> None:
    real = SubtaskCheckpointing._begin

    def begin(self: SubtaskCheckpointing, fact: SnapshotRequested) -> Effects:
        finished, self._finished = self._finished, False
        effects = real(self, fact)
        self._finished = finished
        return effects

    patch.put(SubtaskCheckpointing, "_begin", begin)


@mutant("subtask-refuses", SUBTASK)
def any_savepoint_may_end_its_sources(patch: Patch) -> None:
    real = SubtaskCheckpointing._request

    def request(self: SubtaskCheckpointing, fact: SnapshotRequested) -> Effects:
        asked = SnapshotRequested(fact.barrier, unaligned=fact.unaligned, synchronous=True)
        return real(self, asked)

    patch.put(SubtaskCheckpointing, "_request", request)


@mutant("subtask-refuses", SUBTASK)
def a_completion_of_the_future_is_believed(patch: Patch) -> None:
    real = SubtaskCheckpointing.step

    def step(self: SubtaskCheckpointing, fact: SubtaskFact) -> tuple[SubtaskEffect, ...]:
        if isinstance(fact, CheckpointCompleted):
            self._last = max(self._last, fact.checkpoint)
        return real(self, fact)

    patch.put(SubtaskCheckpointing, "step", step)


@mutant("subtask-refuses", SUBTASK)
def an_abort_tells_of_a_completion_of_the_future(patch: Patch) -> None:
    real = SubtaskCheckpointing._abort

    def abort(self: SubtaskCheckpointing, checkpoint: CheckpointId, latest_completed: CheckpointId) -> Effects:
        return real(self, checkpoint, min(latest_completed, self._last))

    patch.put(SubtaskCheckpointing, "_abort", abort)


@mutant("staged-until-complete", SUBTASK)
def what_was_staged_last_is_all_that_is_kept(patch: Patch) -> None:
    real = SubtaskCheckpointing.step

    def step(self: SubtaskCheckpointing, fact: SubtaskFact) -> tuple[SubtaskEffect, ...]:
        if isinstance(fact, FilesStaged):
            self._staged = ()
        return real(self, fact)

    patch.put(SubtaskCheckpointing, "step", step)


@mutant("staged-until-complete", SUBTASK)
def a_completion_keeps_what_it_holds(patch: Patch) -> None:
    real = SubtaskCheckpointing._complete

    def complete(self: SubtaskCheckpointing, checkpoint: CheckpointId) -> Effects:
        staged = self._staged
        effects = real(self, checkpoint)
        self._staged = staged
        return effects

    patch.put(SubtaskCheckpointing, "_complete", complete)


@mutant("staged-until-complete", SUBTASK)
def an_abort_completes_the_checkpoint_before_it(patch: Patch) -> None:
    real = SubtaskCheckpointing._abort

    def abort(self: SubtaskCheckpointing, checkpoint: CheckpointId, latest_completed: CheckpointId) -> Effects:
        effects = real(self, checkpoint, latest_completed)
        self._staged = tuple(file for file in self._staged if file.after >= min(checkpoint, self._last))
        return effects

    patch.put(SubtaskCheckpointing, "_abort", abort)
