"""Plants bugs in the figures that an entry has of each vertex."""

from collections.abc import Callable
from dataclasses import replace

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.coordinator.task import SnapshotMetrics
from checkpointing.gate.alignment import Alignment
from checkpointing.gate.messages import InFlightComplete, TriggerCheckpoint
from checkpointing.handles import FileHandle, Version
from checkpointing.identifiers import ChannelId, CheckpointId, Generation, SubtaskId, VertexId
from checkpointing.job import epochs
from checkpointing.job.epochs import EpochLog
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from spec.machines.measuring import MEASURED
from spec.mutants.judges import MEASURING
from spec.mutants.planting import Patch, mutant


@mutant("measured")
def the_start_delay_is_that_of_the_last_barrier(patch: Patch) -> None:
    def start_delay_ms(self: epochs._Epoch, vertex: VertexId) -> int | None:
        barriers = self.barriers.get(vertex)
        return max(barrier.at_ms for barrier in barriers) - self.triggered_ms if barriers else None

    patch.put(epochs._Epoch, "start_delay_ms", start_delay_ms)


@mutant("measured")
def the_alignment_of_an_unaligned_checkpoint_is_forgotten(patch: Patch) -> None:
    def overtaken(self: EpochLog, vertex: VertexId, effect: InFlightComplete) -> None:
        """Keep the figure of the trigger."""

    patch.put(EpochLog, "overtaken", overtaken)


def _overtaken_with(patch: Patch, size: Callable[[InFlightComplete], int]) -> None:
    """Let an entry say another number of bytes that passed the gate of an unaligned checkpoint."""
    real = EpochLog.overtaken

    def overtaken(self: EpochLog, vertex: VertexId, effect: InFlightComplete) -> None:
        real(self, vertex, replace(effect, bytes_processed=size(effect)))

    patch.put(EpochLog, "overtaken", overtaken)


@mutant("measured")
def bytes_that_passed_an_unaligned_gate_are_told_as_milliseconds(patch: Patch) -> None:
    _overtaken_with(patch, lambda effect: effect.alignment_ms)


@mutant("measured")
def bytes_that_passed_an_unaligned_gate_are_told_as_rows(patch: Patch) -> None:
    _overtaken_with(patch, lambda effect: effect.bytes_processed // 10)


@mutant("measured")
def bytes_that_passed_before_the_first_barrier_count_too(patch: Patch) -> None:
    real = Alignment.align

    def align(self: Alignment, channel: ChannelId, now_ms: int) -> None:
        processed = self._processed
        real(self, channel, now_ms)
        self._processed = self.bytes_processed = processed

    patch.put(Alignment, "align", align)


@mutant("measured")
def a_vertex_was_busy_for_as_long_as_its_number_says(patch: Patch) -> None:
    """The bug adds up the micro-batches' numbers instead of their durations."""
    real = epochs._Work.add

    def add(self: epochs._Work, fact: MicroBatchFinished, rows_in: int, generation: Generation) -> None:
        before = self.busy_ms
        real(self, fact, rows_in, generation)
        self.busy_ms = before + fact.micro_batch

    patch.put(epochs._Work, "add", add)


@mutant("measured")
def a_vertex_read_as_many_rows_as_it_ran_micro_batches(patch: Patch) -> None:
    real = EpochLog.passed

    def passed(self: EpochLog, vertex: VertexId, trigger: TriggerCheckpoint, now_ms: int) -> None:
        work = self._work.get(vertex)
        if work is not None:
            work.rows_in = work.micro_batches
        real(self, vertex, trigger, now_ms)

    patch.put(EpochLog, "passed", passed)


@mutant("measured")
def an_epoch_was_triggered_a_millisecond_later(patch: Patch) -> None:
    real = EpochLog.triggered

    def triggered(self: EpochLog, checkpoint: CheckpointId, now_ms: int, rows: int) -> None:
        real(self, checkpoint, now_ms + 1, rows)

    patch.put(EpochLog, "triggered", triggered)


@mutant("measured")
def a_file_that_is_emitted_and_staged_counts_twice(patch: Patch) -> None:
    def wrote(self: epochs._SubtaskWork, output: SubtaskOutput, version: Version) -> None:
        for file in (*output.emitted, *(file for _, file in output.staged)):
            self.rows_out += file.rows
            self.bytes_out += file.bytes

    patch.put(epochs._SubtaskWork, "wrote", wrote)


@mutant("measured")
def bytes_are_told_as_rows(patch: Patch) -> None:
    real = epochs._SubtaskWork.wrote

    def wrote(self: epochs._SubtaskWork, output: SubtaskOutput, version: Version) -> None:
        real(self, output, version)
        self.rows_out = self.bytes_out

    patch.put(epochs._SubtaskWork, "wrote", wrote)


@mutant("measured")
def rows_of_upsert_ranges_are_not_counted(patch: Patch) -> None:
    real = epochs._SubtaskWork.wrote

    def wrote(self: epochs._SubtaskWork, output: SubtaskOutput, version: Version) -> None:
        real(self, replace(output, ranges=()), version)

    patch.put(epochs._SubtaskWork, "wrote", wrote)


def _kept_files_count_again(patch: Patch) -> None:
    def written(output: SubtaskOutput, version: Version) -> dict[str, FileHandle]:
        files = (*output.emitted, *(file for _, file in output.staged))
        ranges = (keyed.file for entry in output.ranges for keyed in entry.files)
        return {file.path: file for file in (*files, *ranges)}

    patch.function(epochs, "_written", written)


@mutant("measured")
def the_files_that_a_range_keeps_count_again(patch: Patch) -> None:
    _kept_files_count_again(patch)


@mutant(MEASURED, MEASURING)
def a_range_counts_as_written_again(patch: Patch) -> None:
    _kept_files_count_again(patch)


@mutant("measured")
def bytes_held_fall_below_zero(patch: Patch) -> None:
    real = EpochLog.passed

    def passed(self: EpochLog, vertex: VertexId, trigger: TriggerCheckpoint, now_ms: int) -> None:
        real(self, vertex, replace(trigger, bytes_held=trigger.bytes_held - 1), now_ms)

    patch.put(EpochLog, "passed", passed)


@mutant("measured")
def a_source_sent_what_its_first_split_sent(patch: Patch) -> None:
    patch.put(epochs, "_sent", lambda known, work: None if known["rows_out"] else _real_sent(known, work))


@mutant("measured")
def a_source_sends_each_row_of_the_tick_again(patch: Patch) -> None:
    def work_of(self: EpochLog, epoch: epochs._Epoch, subtask: SubtaskId) -> epochs._SubtaskWork:
        found = _real_work_of(self, epoch, subtask)
        if subtask.vertex not in epoch.work:
            self._read[subtask] = replace(found, tasks=found.tasks)
        return found

    patch.put(EpochLog, "_work_of", work_of)


@mutant("measured")
def rows_of_a_source_are_told_as_its_bytes(patch: Patch) -> None:
    real = EpochLog.read

    def read(self: EpochLog, split: SubtaskId, segment: Segment) -> None:
        real(self, split, replace(segment, bytes=segment.rows) if isinstance(segment, SourceSlice) else segment)

    patch.put(EpochLog, "read", read)


def _acknowledged_with(**wrong: str) -> Callable[[Patch], None]:
    """Return a patch with which subtasks tell one measurement as another one."""

    def plant(patch: Patch) -> None:
        real = EpochLog.acknowledged

        def acknowledged(self: EpochLog, subtask: SubtaskId, checkpoint: CheckpointId, now_ms: int) -> SnapshotMetrics:
            found = real(self, subtask, checkpoint, now_ms)
            return replace(found, **{name: getattr(found, other) for name, other in wrong.items()})

        patch.put(EpochLog, "acknowledged", acknowledged)

    return plant


@mutant("measured")
def a_subtask_tells_its_bytes_as_rows(patch: Patch) -> None:
    _acknowledged_with(rows_out="bytes_out")(patch)


@mutant("measured")
def a_subtask_tells_its_rows_as_state(patch: Patch) -> None:
    _acknowledged_with(checkpointed_bytes="rows_out")(patch)


@mutant("measured")
def a_subtask_tells_what_it_sent_as_state(patch: Patch) -> None:
    _acknowledged_with(checkpointed_bytes="bytes_out")(patch)


@mutant("measured")
def a_vertex_acknowledges_a_millisecond_late(patch: Patch) -> None:
    real = EpochLog.acknowledged

    def acknowledged(self: EpochLog, subtask: SubtaskId, checkpoint: CheckpointId, now_ms: int) -> SnapshotMetrics:
        return real(self, subtask, checkpoint, now_ms + 1)

    patch.put(EpochLog, "acknowledged", acknowledged)


@mutant("measured")
def a_snapshot_was_taken_before_the_last_barrier(patch: Patch) -> None:
    real = EpochLog.passed

    def passed(self: EpochLog, vertex: VertexId, trigger: TriggerCheckpoint, now_ms: int) -> None:
        real(self, vertex, trigger, now_ms - 1)

    patch.put(EpochLog, "passed", passed)


_real_sent = epochs._sent
_real_work_of = EpochLog._work_of
