"""Plants bugs in alignment and order: what passes a barrier, what is in flight, which channels block and resume."""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.channel_items import Barrier, ChannelItem, Segment
from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import GatePolicy, InputGate
from checkpointing.gate import messages as gate
from checkpointing.gate.aligner import Aligner
from checkpointing.gate.alignment import Alignment, as_unaligned
from checkpointing.gate.buffers import AlignmentBuffer
from checkpointing.gate.channels import Channels
from checkpointing.gate.config import GateConfig
from checkpointing.gate.handler import Effects
from checkpointing.gate.unaligned import AlternatingAligner
from checkpointing.identifiers import ChannelId, CheckpointId
from checkpointing.job import barriers, restoring
from checkpointing.job.credit import Credit
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.waking import Waking
from checkpointing.messages import RunMicroBatch
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.snapshots import ChannelState, SubtaskSnapshot
from spec.mutants.judges import GATES
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ alignment


@mutant("alignment")
def rows_pass_behind_a_barrier(patch: Patch) -> None:
    real = barriers.gate_config

    def gate_config(config: CheckpointConfig) -> GateConfig:
        return replace(real(config), policy=GatePolicy.AT_LEAST_ONCE)

    patch.function(barriers, "gate_config", gate_config)


@mutant("alignment")
def the_gate_does_not_wait_for_the_last_barrier(patch: Patch) -> None:
    def complete(self: Alignment) -> bool:
        return len(self._aligned) >= max(1, self.target - 1)

    patch.put(Alignment, "complete", property(complete))


@mutant("alignment", flink=("FLINK-18252",))
def a_barrier_overtakes_the_output_before_it(patch: Patch) -> None:
    patch.put(OperatorRun, "snapshot_due", property(lambda self: self.trigger))


@mutant("alignment")
def the_rows_that_a_barrier_overtook_are_forgotten(patch: Patch) -> None:
    real = Channels.stop_recording

    def stop_recording(self: Channels, checkpoint: CheckpointId) -> tuple[ChannelState, ...]:
        return real(self, checkpoint)[1:]

    patch.put(Channels, "stop_recording", stop_recording)


@mutant("alignment")
def the_number_of_a_micro_batch_is_used_again(patch: Patch) -> None:
    real = OperatorRun.take_snapshot

    def take_snapshot(self: OperatorRun, checkpoint: CheckpointId) -> tuple[SubtaskSnapshot, ...]:
        snapshots = real(self, checkpoint)
        self.micro_batch = max(0, self.micro_batch - 1)
        return snapshots

    patch.put(OperatorRun, "take_snapshot", take_snapshot)


@mutant("policy", GATES[GatePolicy.UNALIGNED], ("FLINK-18252",))
def the_barrier_of_a_savepoint_turns_unaligned(patch: Patch) -> None:
    real = InputGate._admissible

    def admissible(self: InputGate, channel: ChannelId, item: ChannelItem) -> ChannelItem:
        turns = isinstance(item, Barrier) and self.config.policy is GatePolicy.UNALIGNED
        return as_unaligned(item) if turns and isinstance(item, Barrier) else real(self, channel, item)

    patch.put(InputGate, "_admissible", admissible)


@mutant("timer", GATES[GatePolicy.ALTERNATING], ("FLINK-22596",))
def a_timeout_counts_only_for_the_first_checkpoint(patch: Patch) -> None:
    real = AlternatingAligner.time_advanced

    def time_advanced(self: AlternatingAligner, now_ms: int) -> Effects:
        barrier = self.alignment.barrier
        return real(self, now_ms) if barrier is not None and barrier.checkpoint == 1 else []

    patch.put(AlternatingAligner, "time_advanced", time_advanced)


@mutant("ends-once", GATES[GatePolicy.ALIGNED_BLOCKING])
def an_alignment_is_aborted_twice(patch: Patch) -> None:
    real = Aligner._abort

    def abort(self: Aligner, checkpoint: CheckpointId, reason: CheckpointFailureReason) -> Effects:
        return [*real(self, checkpoint, reason), gate.AbortCheckpoint(checkpoint, reason)]

    patch.put(Aligner, "_abort", abort)


# ------------------------------------------------------------------ order


@mutant("fifo")
def a_micro_batch_meets_its_segments_newest_first(patch: Patch) -> None:
    real = OperatorRun.start

    def start(self: OperatorRun, rows_max: int) -> RunMicroBatch:
        self.collected.reverse()
        return real(self, rows_max)

    patch.put(OperatorRun, "start", start)


@mutant("fifo")
def the_rows_in_flight_are_restored_newest_first(patch: Patch) -> None:
    real = restoring.in_flight

    def in_flight(record: CheckpointRecord | None) -> Iterator[tuple[ChannelId, Segment]]:
        return reversed(list(real(record)))

    patch.function(restoring, "in_flight", in_flight)


@mutant("replay", GATES[GatePolicy.ALIGNED_BUFFERING])
def items_that_were_put_aside_come_back_in_another_order(patch: Patch) -> None:
    real = AlignmentBuffer.put_aside

    def put_aside(self: AlignmentBuffer, channel: ChannelId, item: ChannelItem) -> None:
        real(self, channel, item)
        self._aside.items.rotate(1)

    patch.put(AlignmentBuffer, "put_aside", put_aside)


@mutant("fifo")
def a_channel_skips_the_items_that_it_held_behind_a_barrier(patch: Patch) -> None:
    real = Channels.resume

    def resume(self: Channels, name: ChannelId) -> None:
        held = self._channels[name].held
        if len(held) > 1:
            held.rotate(1)
        real(self, name)

    patch.put(Channels, "resume", resume)


# ------------------------------------------------------------------ endless waiting


@mutant("no-deadlock", GATES[GatePolicy.ALIGNED_BLOCKING])
def a_cancelled_alignment_never_reads_its_channels_on(patch: Patch) -> None:
    def abort(self: Aligner, checkpoint: CheckpointId, reason: CheckpointFailureReason) -> Effects:
        self.alignment.abandon(checkpoint)
        self._blocked.clear()
        return [gate.AbortCheckpoint(checkpoint, reason)]

    patch.put(Aligner, "_abort", abort)


@mutant("no-deadlock")
def a_channel_is_never_read_on_behind_its_barrier(patch: Patch) -> None:
    def resume(self: Channels, name: ChannelId) -> None:
        """Leave the channel as it is."""

    patch.put(Channels, "resume", resume)


@mutant("no-deadlock")
def credit_is_never_given_back(patch: Patch) -> None:
    def processed(self: Credit, channel: ChannelId, size_bytes: int) -> None:
        """Keep what was counted."""

    patch.put(Credit, "processed", processed)


@mutant("no-deadlock")
def no_wake_up_is_scheduled(patch: Patch) -> None:
    patch.put(Waking, "asked", lambda self, job: ())
