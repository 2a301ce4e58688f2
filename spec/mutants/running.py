"""Plants bugs in one vertex at work: rows that run twice or not at all, and files that go too soon or never."""

from dataclasses import replace

from checkpointing.identifiers import CheckpointId
from checkpointing.job.operator_run import LiveFiles, OperatorRun
from checkpointing.messages import MicroBatchFinished, RunMicroBatch
from checkpointing.snapshots import SubtaskSnapshot
from spec.machines.running import FILES, ROWS
from spec.mutants.judges import RUNS
from spec.mutants.planting import Patch, mutant


@mutant(ROWS, RUNS)
def rows_that_could_not_be_staged_run_after_those_that_came_later(patch: Patch) -> None:
    real = OperatorRun.not_staged

    def not_staged(self: OperatorRun) -> CheckpointId | None:
        running, collected = [*self.running], [*self.collected]
        aborted = real(self)
        self.collected = [*collected, *running]
        return aborted

    patch.put(OperatorRun, "not_staged", not_staged)


@mutant(ROWS, RUNS)
def a_micro_batch_always_takes_all_that_waits(patch: Patch) -> None:
    real = OperatorRun.start
    patch.put(OperatorRun, "start", lambda self, rows_max: real(self, 10 * rows_max))


@mutant(ROWS, RUNS)
def the_end_on_one_channel_ends_the_vertex(patch: Patch) -> None:
    real = OperatorRun.data_ended

    def data_ended(self: OperatorRun, channel: object) -> None:
        del channel
        for each in self.gate.open_channels():
            real(self, each)

    patch.put(OperatorRun, "data_ended", data_ended)


@mutant(ROWS, RUNS)
def only_the_first_micro_batch_after_the_end_is_told_so(patch: Patch) -> None:
    real = OperatorRun.start

    def start(self: OperatorRun, rows_max: int) -> RunMicroBatch:
        command = real(self, rows_max)
        object.__setattr__(command, "end_of_input", command.end_of_input and bool(self.running))
        return command

    patch.put(OperatorRun, "start", start)


@mutant(FILES, RUNS)
def files_that_a_range_keeps_count_as_new_again(patch: Patch) -> None:
    _forget_what_is_named(patch)


@mutant("discarded-is-unreferenced")
def a_tick_deletes_files_that_a_range_has_kept_since_the_last_checkpoint(patch: Patch) -> None:
    _forget_what_is_named(patch)


def _forget_what_is_named(patch: Patch) -> None:
    real = OperatorRun.finish

    def finish(self: OperatorRun, fact: MicroBatchFinished) -> tuple[str, ...]:
        dead = real(self, fact)
        ranges = (keyed for output in fact.outputs for entry in output.ranges for keyed in entry.files)
        self.unsnapshotted.update(keyed.file.path for keyed in ranges)
        return dead

    patch.put(OperatorRun, "finish", finish)


@mutant(FILES, RUNS)
def a_snapshot_forgets_the_oldest_state_file(patch: Patch) -> None:
    real = OperatorRun.take_snapshot

    def take_snapshot(self: OperatorRun, checkpoint: CheckpointId) -> tuple[SubtaskSnapshot, ...]:
        return tuple(replace(each, state=each.state[1:]) for each in real(self, checkpoint))

    patch.put(OperatorRun, "take_snapshot", take_snapshot)


@mutant(FILES, RUNS)
def a_base_that_is_replaced_within_its_epoch_stays_for_ever(patch: Patch) -> None:
    real = LiveFiles.take

    def take(self: LiveFiles, output: object) -> object:
        gone, new = real(self, output)  # type: ignore[arg-type]
        return gone[1:], new

    patch.put(LiveFiles, "take", take)
