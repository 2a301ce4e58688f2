"""Plants bugs in the statistics: the figures of subtasks in an entry, and the counts of checkpoints (E6)."""

from collections.abc import Sequence
from copy import deepcopy

from checkpointing import distribution
from checkpointing.channel_items import Segment
from checkpointing.commit.draft import Draft
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import SnapshotMetrics, Task
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate.messages import InFlightComplete, TriggerCheckpoint
from checkpointing.handles import Version
from checkpointing.identifiers import CheckpointId, SubtaskId, VertexId
from checkpointing.job import epochs
from checkpointing.job.epochs import EpochLog
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from checkpointing.metadata.record import CheckpointRecord, Statistics, SubtaskStatistics
from spec.machines.measuring import MEASURED
from spec.mutants.judges import COORDINATOR, MEASURING, SAVEPOINTS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ subtasks


@mutant("statistics-are-true")
def the_numbers_of_the_subtasks_stand_in_the_wrong_order(patch: Patch) -> None:
    real = epochs._columns

    def columns(of_subtasks: Sequence[SnapshotMetrics]) -> SubtaskStatistics:
        return real(tuple(reversed(of_subtasks)))

    patch.put(epochs, "_columns", columns)


@mutant("statistics-are-true")
def the_work_of_an_epoch_counts_in_the_next_one_again(patch: Patch) -> None:
    real = EpochLog.passed

    def passed(self: EpochLog, vertex: VertexId, trigger: TriggerCheckpoint, now_ms: int) -> None:
        kept = deepcopy(self._work.get(vertex))
        real(self, vertex, trigger, now_ms)
        if kept is not None:
            self._work[vertex] = kept

    patch.put(EpochLog, "passed", passed)


@mutant("statistics-are-true")
def only_the_last_micro_batch_of_an_epoch_is_measured(patch: Patch) -> None:
    real = EpochLog.worked

    def worked(self: EpochLog, fact: MicroBatchFinished, rows_in: int) -> None:
        self._work.pop(fact.vertex, None)
        real(self, fact, rows_in)

    patch.put(EpochLog, "worked", worked)


# ------------------------------------------------------------------ counts


@mutant("statistics-are-true")
def a_restore_is_not_counted(patch: Patch) -> None:
    def restored(self: StatisticsTracker, checkpoint: CheckpointId) -> None:
        self.latest.restored = checkpoint

    patch.put(StatisticsTracker, "restored", restored)


@mutant("statistics-are-true", SAVEPOINTS)
def a_savepoint_is_not_counted_as_complete(patch: Patch) -> None:
    real = StatisticsTracker.completed

    def completed(
        self: StatisticsTracker, checkpoint: CheckpointId, properties: CheckpointProperties, now_ms: int
    ) -> None:
        real(self, checkpoint, properties, now_ms)
        self.counters.completed -= properties.is_savepoint

    patch.put(StatisticsTracker, "completed", completed)


@mutant("statistics-add-up", COORDINATOR)
def a_failed_checkpoint_stays_in_progress(patch: Patch) -> None:
    real = StatisticsTracker.failed

    def failed(self: StatisticsTracker, checkpoint: CheckpointId, reason: CheckpointFailureReason, now_ms: int) -> None:
        real(self, checkpoint, reason, now_ms)
        self.counters.in_progress += 1

    patch.put(StatisticsTracker, "failed", failed)


@mutant("statistics-add-up", COORDINATOR)
def a_request_that_began_nothing_is_in_no_total(patch: Patch) -> None:
    def failed_before_pending(self: StatisticsTracker) -> None:
        self.counters.failed += 1

    patch.put(StatisticsTracker, "failed_before_pending", failed_before_pending)


@mutant("statistics-add-up", COORDINATOR)
def a_failed_checkpoint_counts_twice(patch: Patch) -> None:
    real = StatisticsTracker.failed

    def failed(self: StatisticsTracker, checkpoint: CheckpointId, reason: CheckpointFailureReason, now_ms: int) -> None:
        real(self, checkpoint, reason, now_ms)
        self.counters.failed += 1
        self.counters.total += 1

    patch.put(StatisticsTracker, "failed", failed)


@mutant("statistics-add-up", COORDINATOR)
def a_failed_checkpoint_is_taken_off_twice(patch: Patch) -> None:
    """Without the lower bound the count of checkpoints in progress becomes negative."""
    real = StatisticsTracker.failed

    def failed(self: StatisticsTracker, checkpoint: CheckpointId, reason: CheckpointFailureReason, now_ms: int) -> None:
        real(self, checkpoint, reason, now_ms)
        self.counters.in_progress -= 1
        self.counters.failed += 1

    patch.put(StatisticsTracker, "failed", failed)


@mutant("statistics-add-up", COORDINATOR)
def a_percentile_is_the_number_above(patch: Patch) -> None:
    def percentile(ascending: Sequence[int], per_cent: int) -> int:
        return ascending[min(len(ascending) * per_cent // 100, len(ascending) - 1)]

    patch.put(distribution, "_percentile", percentile)


@mutant("statistics-add-up", COORDINATOR)
def a_percentile_is_taken_of_the_numbers_as_they_came(patch: Patch) -> None:
    """The bug forgets to sort the figures, so it returns any figure as the percentile."""

    def percentile(ascending: Sequence[int], per_cent: int) -> int:
        return sorted(ascending, key=lambda number: number % 7)[len(ascending) * per_cent // 101]

    patch.put(distribution, "_percentile", percentile)


@mutant("statistics-add-up", COORDINATOR)
def what_a_task_says_late_replaces_its_measurements(patch: Patch) -> None:
    def measured(self: StatisticsTracker, checkpoint: CheckpointId, task: Task, metrics: SnapshotMetrics) -> None:
        known = self.of(checkpoint)
        if known is not None:
            known.tasks[task] = metrics

    patch.put(StatisticsTracker, "measured", measured)


# ------------------------------------------------------------------ epochs


@mutant("epochs-are-counted")
def every_entry_counts_the_rows_of_the_whole_tick(patch: Patch) -> None:
    real = TwoPhaseCommit._compose

    def compose(self: TwoPhaseCommit, draft: Draft) -> CheckpointRecord:
        record = real(self, draft)
        rows = record.statistics.model_copy(update={"rows": draft.statistics.rows})
        return record.model_copy(update={"statistics": rows})

    patch.put(TwoPhaseCommit, "_compose", compose)


@mutant("epochs-are-counted")
def estimated_rows_are_taken_for_counted_ones(patch: Patch) -> None:
    real = EpochLog.read

    def read(self: EpochLog, split: SubtaskId, segment: Segment) -> None:
        real(self, split, segment)
        self._rows_estimated = 0

    patch.put(EpochLog, "read", read)


@mutant("epochs-are-counted")
def every_estimated_row_of_the_tick_is_told_again(patch: Patch) -> None:
    def of_the_epoch(self: TwoPhaseCommit, tick: Statistics) -> Statistics:
        rows, _ = self._parent_rows
        return tick.model_copy(update={"committed_ms": self._now_ms, "rows": tick.rows - rows})

    patch.put(TwoPhaseCommit, "_of_the_epoch", of_the_epoch)


@mutant("epochs-are-counted")
def the_rows_of_a_failed_epoch_are_not_counted(patch: Patch) -> None:
    real = EpochLog.triggered
    sent: dict[EpochLog, int] = {}

    def triggered(self: EpochLog, checkpoint: CheckpointId, now_ms: int, rows: int) -> None:
        lost = sent.pop(self, 0) if self._epochs else 0
        sent[self] = rows
        real(self, checkpoint, now_ms, rows - lost)

    patch.put(EpochLog, "triggered", triggered)


@mutant("epochs-are-counted")
def a_checkpoint_that_fails_never_was(patch: Patch) -> None:
    real = StatisticsTracker.failed

    def failed(self: StatisticsTracker, checkpoint: CheckpointId, reason: CheckpointFailureReason, now_ms: int) -> None:
        real(self, checkpoint, reason, now_ms)
        self.counters.failed -= 1
        self.counters.total -= 1

    patch.put(StatisticsTracker, "failed", failed)


@mutant("epochs-are-counted")
def an_entry_is_dated_from_its_trigger(patch: Patch) -> None:
    real = TwoPhaseCommit._compose

    def compose(self: TwoPhaseCommit, draft: Draft) -> CheckpointRecord:
        record = real(self, draft)
        dated = record.statistics.model_copy(update={"committed_ms": draft.statistics.triggered_ms})
        return record.model_copy(update={"statistics": dated})

    patch.put(TwoPhaseCommit, "_compose", compose)


# ------------------------------------------------------------------ the epochs of a vertex


@mutant(MEASURED, MEASURING)
def work_before_the_barrier_of_an_aborted_checkpoint_counts_later(patch: Patch) -> None:
    real = EpochLog.passed

    def passed(self: EpochLog, vertex: VertexId, trigger: TriggerCheckpoint, now_ms: int) -> None:
        if trigger.barrier.checkpoint in self._epochs:
            real(self, vertex, trigger, now_ms)

    patch.put(EpochLog, "passed", passed)


@mutant(MEASURED, MEASURING)
def a_file_that_is_sent_on_and_kept_counts_twice(patch: Patch) -> None:
    def wrote(self: epochs._SubtaskWork, output: SubtaskOutput, version: Version) -> None:
        files = [*output.emitted, *(file for _, file in output.staged)]
        self.rows_out += sum(file.rows for file in files)
        self.bytes_out += sum(file.bytes for file in files)
        self.state_bytes += sum(keyed.file.bytes for keyed in output.state)

    patch.put(epochs._SubtaskWork, "wrote", wrote)


@mutant(MEASURED, MEASURING)
def a_late_barrier_changes_no_measurement(patch: Patch) -> None:
    def overtaken(self: EpochLog, vertex: VertexId, effect: InFlightComplete) -> None:
        """Ignore the last barrier."""

    patch.put(EpochLog, "overtaken", overtaken)
