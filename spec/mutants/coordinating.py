"""Mutants of the coordinator's minimum pause, and of what it says of each checkpoint."""

from dataclasses import replace

from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.messages import CheckpointRequested, CommitSucceeded
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.request_decider import DeciderView, Decision, RequestDecider
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


# ------------------------------------------------------------------ what is said of each checkpoint


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
