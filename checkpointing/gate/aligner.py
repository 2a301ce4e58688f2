"""Exactly once: a channel is blocked from its barrier on, until the barriers of all channels are in (C1, C3).

Two handlers share these rules: this one, which always aligns, and `unaligned.AlternatingAligner`, which changes what a
barrier and an end do while a checkpoint is pending. A table in `alignment` says what an id means.

| pending?  | own barrier               | last own barrier or end      | newer barrier                   |
|-----------|---------------------------|------------------------------|---------------------------------|
| no        | -                         | -                            | begin: block its channel        |
| yes       | block its channel         | block, trigger, release all  | release, abort (SUBSUMED), begin|

| pending?  | cancel, same id           | cancel, newer id             | end of a channel                |
|-----------|---------------------------|------------------------------|---------------------------------|
| no        | obsolete                  | abort it; later ones obsolete| counted out                     |
| yes       | release, abort            | release, abort               | counts as its barrier, or aborts|

(Flink: `SingleCheckpointBarrierHandler`, `AbstractAlignedBarrierHandlerState`. Before 1.11 it was
`CheckpointBarrierAligner`, which also aborts the pending checkpoint on a newer cancel marker.)
"""

from dataclasses import dataclass

from checkpointing.channel_items import AlignmentType, Barrier
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate.alignment import Alignment, AlignmentSnapshot, IdStanding, as_unaligned
from checkpointing.gate.handler import BlockableInput, Effects
from checkpointing.gate.messages import AbortCheckpoint, BlockChannel, Ignored, ResumeChannel, TriggerCheckpoint
from checkpointing.identifiers import ChannelId, CheckpointId


@dataclass(frozen=True, slots=True)
class AlignerRules:
    """What differs between the two policies that block channels.

    `barrier_stops_channel`: a channel waits behind its barrier until it is resumed, even if the barrier is obsolete.
    `end_counts_as_barrier`: the end of a channel aligns it; otherwise it aborts the pending checkpoint.
    `cancel_aborts_older`: a newer cancel marker also aborts the pending checkpoint by name (up to Flink 1.10).
    """

    barrier_stops_channel: bool = True
    end_counts_as_barrier: bool = True
    cancel_aborts_older: bool = False


@dataclass(frozen=True, slots=True)
class AlignerSnapshot:
    """The whole state of an Aligner."""

    alignment: AlignmentSnapshot
    blocked: tuple[ChannelId, ...]


class Aligner:
    """The handler of aligned barriers."""

    def __init__(self, inputs: BlockableInput, channel_count: int, rules: AlignerRules) -> None:
        """Begin with nothing pending and nothing blocked."""
        self.alignment = Alignment(channel_count)
        self._inputs = inputs
        self._rules = rules
        self._blocked: dict[ChannelId, None] = {}

    # -------------------------------------------------------------- what comes

    def barrier(self, channel: ChannelId, barrier: Barrier, now_ms: int) -> Effects:
        """Handle a barrier. What it does depends on whether its id is older, the same or newer than the current one."""
        standing = self.alignment.standing(barrier.checkpoint)
        if standing is IdStanding.OBSOLETE:
            return self._ignore(channel, barrier)
        effects = self._start(standing, barrier)
        self.alignment.align(channel, now_ms)
        effects += self._collect(channel, barrier, now_ms)
        self._settle_if_complete()
        return effects

    def cancel(self, channel: ChannelId, checkpoint: CheckpointId) -> Effects | None:  # noqa: ARG002 - handler's form
        """Abort this checkpoint, and with it the pending one. None if the marker is obsolete."""
        standing = self.alignment.standing(checkpoint)
        if standing is IdStanding.OBSOLETE:
            return None
        effects: Effects = []
        if standing is IdStanding.SUBSUMES and self._rules.cancel_aborts_older:
            effects += self._abort(self.alignment.current, Reason.CHECKPOINT_DECLINED_SUBSUMED)
        return effects + self._abort(checkpoint, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)

    def end(self, channel: ChannelId, now_ms: int) -> Effects:
        """Count the channel out. If a checkpoint is pending, align the channel or abort the checkpoint.

        The channel is not blocked: a blocked channel is not read before it is resumed (see `channel`).
        """
        self.alignment.close_channel()
        if not self.alignment.pending:
            return []
        if not self._rules.end_counts_as_barrier:
            return self._abort(self.alignment.current, Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM)
        self.alignment.align(channel, now_ms)
        effects = self._collect_end(channel, now_ms)
        self._settle_if_complete()
        return effects

    def announcement(self, channel: ChannelId, barrier: Barrier) -> Effects:  # noqa: ARG002 - refined in `unaligned`
        """Do nothing: only the barrier itself counts."""
        return []

    def time_advanced(self, now_ms: int) -> Effects:  # noqa: ARG002 - refined in `unaligned`
        """Do nothing: there is no timer."""
        return []

    def abort_pending(self, reason: Reason) -> Effects:
        """Abort the pending checkpoint, if there is one."""
        return self._abort(self.alignment.current, reason) if self.alignment.pending else []

    # -------------------------------------------------------------- what a policy refines

    def _begin(self, barrier: Barrier) -> Effects:
        self.alignment.begin(barrier)
        return []

    def _collect(self, channel: ChannelId, barrier: Barrier, now_ms: int) -> Effects:  # noqa: ARG002 - refined in `unaligned`
        effects = self._block(channel)
        return effects + self._trigger_and_release(barrier) if self.alignment.complete else effects

    def _collect_end(self, channel: ChannelId, now_ms: int) -> Effects:  # noqa: ARG002 - refined in `unaligned`
        barrier = self.alignment.barrier
        return self._trigger_and_release(barrier) if barrier is not None and self.alignment.complete else []

    def _release(self) -> Effects:
        effects: Effects = [ResumeChannel(channel) for channel in self._blocked]
        for channel in self._blocked:
            self._inputs.resume(channel)
        self._blocked.clear()
        return effects

    # -------------------------------------------------------------- steps

    def _start(self, standing: IdStanding, barrier: Barrier) -> Effects:
        if standing is IdStanding.BELONGS:
            return []
        subsumed: Effects = []
        if standing is IdStanding.SUBSUMES:
            subsumed = self._abort(self.alignment.current, Reason.CHECKPOINT_DECLINED_SUBSUMED)
        return subsumed + self._begin(barrier)

    def _ignore(self, channel: ChannelId, barrier: Barrier) -> Effects:
        effects: Effects = [Ignored(channel, barrier)]
        stopped = self._rules.barrier_stops_channel and barrier.alignment is not AlignmentType.UNALIGNED
        if stopped and channel not in self._blocked:
            self._inputs.resume(channel)
            effects.append(ResumeChannel(channel))
        return effects

    def _block(self, channel: ChannelId) -> Effects:
        if channel in self._blocked:
            return []
        self._blocked[channel] = None
        return [BlockChannel(channel)]

    def _trigger_and_release(self, barrier: Barrier) -> Effects:
        trigger = TriggerCheckpoint(
            barrier,
            alignment_ms=self.alignment.duration_ms,
            bytes_processed=self.alignment.bytes_processed,
            bytes_held=self._inputs.held_bytes(),
        )
        return [trigger, *self._release()]

    def _trigger_unaligned(self, barrier: Barrier) -> Effects:
        return [TriggerCheckpoint(as_unaligned(barrier), unaligned=True, bytes_held=self._inputs.held_bytes())]

    def _abort(self, checkpoint: CheckpointId, reason: Reason) -> Effects:
        self.alignment.abandon(checkpoint)
        return [*self._release(), AbortCheckpoint(checkpoint, reason)]

    def _settle_if_complete(self) -> None:
        if self.alignment.pending and self.alignment.complete:
            self.alignment.settle(self.alignment.current)

    # -------------------------------------------------------------- state

    def blocked(self) -> frozenset[ChannelId]:
        """Return the blocked channels."""
        return frozenset(self._blocked)

    def pending(self) -> tuple[CheckpointId, ...]:
        """Return the pending id, if any."""
        return (self.alignment.current,) if self.alignment.pending else ()

    def delivered(self, size_bytes: int) -> None:
        """Count bytes that were given to the operator."""
        self.alignment.delivered(size_bytes)

    def snapshot(self) -> AlignerSnapshot:
        """Return the handler's state as one hashable value."""
        return AlignerSnapshot(self.alignment.snapshot(), tuple(self._blocked))
