"""Exactly once: a channel is blocked from its barrier on, until the barriers of all channels are in (C1, C3).

Two handlers share these rules: `Aligner`, which always aligns, and `AlternatingAligner`, which changes what a barrier
and an end do while a checkpoint is pending. The next table below says what an id means.

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

from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, assert_never

from checkpointing.channel_items import AlignmentType, Barrier, ChannelState
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate.messages import (
    AbortCheckpoint,
    BlockChannel,
    GateEffect,
    Ignored,
    InFlightComplete,
    ResumeChannel,
    TriggerCheckpoint,
    WakeGateAt,
)
from checkpointing.identifiers import ChannelId, CheckpointId

# ------------------------------------------------------------------
# Records one alignment: the current checkpoint, the channels that have aligned, and what the alignment cost (C1, C7).
#
# At most one checkpoint is pending at a time. Its target is the number of channels that must align. That is the number
# of open channels at its first barrier or announcement. The target does not change (Flink:
# `SingleCheckpointBarrierHandler`).
#
# The meaning of an id depends on how it compares with the current checkpoint's id, and on whether the current
# checkpoint is still pending:
#
# | id      | current pending       | current settled |
# |---------|-----------------------|-----------------|
# | older   | obsolete              | obsolete        |
# | same    | belongs to it         | obsolete        |
# | newer   | subsumes it           | begins          |


NEVER = CheckpointId(-1)
"""Smaller than every id, because 0 may be an id."""


class IdStanding(Enum):
    """What an id means for the current alignment."""

    OBSOLETE = "obsolete"
    BELONGS = "belongs"
    SUBSUMES = "subsumes"
    BEGINS = "begins"


class _Order(Enum):
    OLDER = "older"
    SAME = "same"
    NEWER = "newer"


_STANDING: dict[tuple[_Order, bool], IdStanding] = {
    # (order of the id, current is pending)
    (_Order.OLDER, True): IdStanding.OBSOLETE,
    (_Order.OLDER, False): IdStanding.OBSOLETE,
    (_Order.SAME, True): IdStanding.BELONGS,
    (_Order.SAME, False): IdStanding.OBSOLETE,
    (_Order.NEWER, True): IdStanding.SUBSUMES,
    (_Order.NEWER, False): IdStanding.BEGINS,
}


@dataclass(frozen=True, slots=True)
class AlignmentSnapshot:
    """The whole state of an Alignment."""

    current: CheckpointId
    settled: CheckpointId
    barrier: Barrier | None
    aligned: frozenset[ChannelId]
    target: int
    open_channels: int
    started_ms: int | None
    processed: int
    duration_ms: int
    bytes_processed: int


class Alignment:
    """Records the alignment. It decides only what an id means."""

    def __init__(self, channel_count: int) -> None:
        """Begin with all channels open and no checkpoint seen."""
        self.current = NEVER
        self.barrier: Barrier | None = None
        self.open_channels = channel_count
        self.target = channel_count
        self.duration_ms = 0
        self.bytes_processed = 0
        self._settled = NEVER
        self._aligned: set[ChannelId] = set()
        self._started_ms: int | None = None
        self._processed = 0

    @property
    def pending(self) -> bool:
        """True if the current checkpoint is neither complete nor aborted."""
        return self.current != self._settled

    @property
    def complete(self) -> bool:
        """True if every channel of the target has aligned."""
        return len(self._aligned) == self.target

    def standing(self, checkpoint: CheckpointId) -> IdStanding:
        """Return what this id means for the current alignment."""
        return _STANDING[_order(checkpoint, self.current), self.pending]

    def begin(self, barrier: Barrier) -> None:
        """Make the barrier's checkpoint the current one. The previous one has ended, so no channel is aligned yet."""
        self.current = barrier.checkpoint
        self.barrier = barrier
        self.target = self.open_channels

    def align(self, channel: ChannelId, now_ms: int) -> None:
        """Record that the channel's barrier, or its end, has come. A second call changes nothing."""
        self._aligned.add(channel)
        if self._started_ms is None:
            self._started_ms = now_ms
            self._processed = 0
        self.duration_ms = now_ms - self._started_ms
        self.bytes_processed = self._processed

    def settle(self, checkpoint: CheckpointId) -> None:
        """Record that the checkpoint, and with it the current one, is complete or aborted."""
        self.current = max(self.current, checkpoint)
        self._settled = self.current
        self.barrier = None
        self._aligned.clear()
        self._started_ms = None

    def close_channel(self) -> None:
        """Record that a channel has ended. The target of the current checkpoint does not change."""
        self.open_channels -= 1

    def delivered(self, size_bytes: int) -> None:
        """Count bytes that were delivered during the alignment."""
        self._processed += size_bytes

    def snapshot(self) -> AlignmentSnapshot:
        """Return the whole state as one hashable value."""
        return AlignmentSnapshot(
            current=self.current,
            settled=self._settled,
            barrier=self.barrier,
            aligned=frozenset(self._aligned),
            target=self.target,
            open_channels=self.open_channels,
            started_ms=self._started_ms,
            processed=0 if self._started_ms is None else self._processed,
            duration_ms=self.duration_ms,
            bytes_processed=self.bytes_processed,
        )


def _order(checkpoint: CheckpointId, current: CheckpointId) -> _Order:
    if checkpoint < current:
        return _Order.OLDER
    return _Order.SAME if checkpoint == current else _Order.NEWER


def may_time_out(barrier: Barrier) -> bool:
    """Return whether the barrier's checkpoint can turn unaligned when it is too old (Flink: `isTimeoutable`)."""
    return barrier.alignment is AlignmentType.ALIGNED and barrier.alignment_timeout_ms is not None


def as_unaligned(barrier: Barrier) -> Barrier:
    """Return the barrier to send on once its checkpoint is unaligned (Flink: `asUnaligned`)."""
    return replace(barrier, alignment=AlignmentType.UNALIGNED, alignment_timeout_ms=None)


# ------------------------------------------------------------------
# The interfaces between a barrier handler and the channels from which it gets barriers.


Effects = list[GateEffect]


class BlockableInput(Protocol):
    """The channels as an aligner sees them."""

    def resume(self, name: ChannelId, /) -> None:
        """Go on reading the channel."""

    def held_bytes(self) -> int:
        """Return how many bytes wait behind blocks."""


class CheckpointableInput(BlockableInput, Protocol):
    """The channels as a handler of unaligned checkpoints sees them (Flink: `CheckpointableInput`)."""

    def prioritise(self, name: ChannelId, checkpoint: CheckpointId, /) -> None:
        """Let the announced barrier overtake the items that wait before it."""

    def start_recording(self, checkpoint: CheckpointId, /) -> None:
        """Record the segments in flight before that checkpoint's barriers."""

    def stop_recording(self, checkpoint: CheckpointId, /) -> tuple[ChannelState, ...]:
        """Return the recorded segments."""


@dataclass(frozen=True, slots=True)
class AlignerRules:
    """What differs between the two policies that block channels.

    `barrier_stops_channel`: a channel waits behind its barrier until it is resumed, even if the barrier is obsolete.
    `end_counts_as_barrier`: the end of a channel aligns the channel. Otherwise the end aborts the pending checkpoint.
    `cancel_aborts_older`: a newer cancel marker also aborts the pending checkpoint, under that checkpoint's own id (up
    to Flink 1.10).
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
        """Handle a barrier.

        Its effect depends on whether its id is older than, the same as, or newer than the current id.
        """
        standing = self.alignment.standing(barrier.checkpoint)
        if standing is IdStanding.OBSOLETE:
            return self._ignore(channel, barrier)
        effects = self._start(standing, barrier)
        self.alignment.align(channel, now_ms)
        effects += self._collect(channel, barrier, now_ms)
        self._settle_if_complete()
        return effects

    def cancel(self, channel: ChannelId, checkpoint: CheckpointId) -> Effects | None:  # noqa: ARG002 - handler's form
        """Abort this checkpoint, and with it the pending one. Return None if the cancel marker is obsolete."""
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
        """Do nothing: an aligned checkpoint reacts to barriers, and not to their announcements."""
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
        self.alignment.settle(checkpoint)
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


# ------------------------------------------------------------------
# Unaligned checkpoints, and aligned ones with a timeout: one machine with four phases (C5, C6).
#
# | phase                | aligned barrier                 | turns unaligned by barrier or end, or by the timer      |
# |----------------------|---------------------------------|---------------------------------------------------------|
# | WAITING              | block it -> COLLECTING          | prioritise -> WAITING_UNALIGNED                         |
# | COLLECTING           | block it                        | prioritise, trigger -> COLLECTING_UNALIGNED             |
# | WAITING_UNALIGNED    | trigger -> COLLECTING_UNALIGNED | -                                                       |
# | COLLECTING_UNALIGNED | block it                        | -                                                       |
#
# Three things turn a checkpoint unaligned: an unaligned barrier, the timer, and a barrier or end that is not the last
# one and comes when the checkpoint is older than its timeout. The timer fires when the checkpoint reaches that age. A
# barrier that turns the checkpoint unaligned is then handled in the next phase, so in WAITING it triggers at once. In
# WAITING an end does not turn the checkpoint unaligned.
#
# In every phase, the last barrier (or end) and an abort release all channels and lead to WAITING. So the next
# checkpoint starts aligned again. The last barrier triggers the snapshot if it was not triggered before. *Prioritise*
# means that all announced barriers, also those announced later, overtake the segments before them. These segments
# become channel state. A barrier without a timeout, such as a savepoint's, never becomes too old. (Flink:
# `Alternating*` handler states. The policy UNALIGNED is this machine with unaligned barriers.)


class Phase(Enum):
    """The phase of the current checkpoint."""

    WAITING = "waiting"
    COLLECTING = "collecting"
    WAITING_UNALIGNED = "waiting_unaligned"
    COLLECTING_UNALIGNED = "collecting_unaligned"


_AFTER_TIMEOUT: dict[Phase, Phase] = {
    Phase.WAITING: Phase.WAITING_UNALIGNED,
    Phase.COLLECTING: Phase.COLLECTING_UNALIGNED,
    Phase.WAITING_UNALIGNED: Phase.WAITING_UNALIGNED,
    Phase.COLLECTING_UNALIGNED: Phase.COLLECTING_UNALIGNED,
}
_UNALIGNED = frozenset({Phase.WAITING_UNALIGNED, Phase.COLLECTING_UNALIGNED})


@dataclass(frozen=True, slots=True)
class AlternatingSnapshot(AlignerSnapshot):
    """The whole state of an AlternatingAligner."""

    phase: Phase
    announced: tuple[tuple[ChannelId, CheckpointId], ...]
    timer_ms: int | None


class AlternatingAligner(Aligner):
    """The barrier handler of the policies UNALIGNED and ALTERNATING."""

    def __init__(self, inputs: CheckpointableInput, channel_count: int, rules: AlignerRules) -> None:
        """Begin with nothing pending."""
        super().__init__(inputs, channel_count, rules)
        self._input = inputs
        self._phase = Phase.WAITING
        self._announced: dict[ChannelId, CheckpointId] = {}
        self._timer_ms: int | None = None

    # -------------------------------------------------------------- what comes

    def announcement(self, channel: ChannelId, barrier: Barrier) -> Effects:
        """Record that the barrier waits in the channel.

        The first announcement of a newer checkpoint begins that checkpoint.
        """
        standing = self.alignment.standing(barrier.checkpoint)
        if standing is IdStanding.OBSOLETE:
            return []
        effects = self._start(standing, barrier)
        if self._phase in _UNALIGNED:
            self._input.prioritise(channel, barrier.checkpoint)
        else:
            self._announced[channel] = barrier.checkpoint
        return effects

    def time_advanced(self, now_ms: int) -> Effects:
        """Fire the alignment's timer if it is due."""
        if self._timer_ms is None or now_ms < self._timer_ms:
            return []
        self._timer_ms = None
        barrier = self.alignment.barrier
        return self._time_out(barrier) if barrier is not None else []

    # -------------------------------------------------------------- what this policy refines

    def _begin(self, barrier: Barrier) -> Effects:
        effects = super()._begin(barrier)
        if not may_time_out(barrier):
            return effects
        self._timer_ms = barrier.created_ms + (barrier.alignment_timeout_ms or 0)
        return [*effects, WakeGateAt(self._timer_ms)]

    def _collect(self, channel: ChannelId, barrier: Barrier, now_ms: int) -> Effects:
        self._announced.pop(channel, None)
        if barrier.alignment is AlignmentType.UNALIGNED:
            return self._time_out(barrier) + self._collect_unaligned(barrier)
        effects = self._block(channel)
        if self._phase in _UNALIGNED:
            return effects + self._collect_unaligned(barrier)
        if self.alignment.complete:
            return effects + self._trigger_and_release(barrier)
        if _too_old(barrier, now_ms):
            return effects + self._time_out(barrier) + self._collect_unaligned(barrier)
        self._phase = Phase.COLLECTING
        return effects

    def _collect_end(self, channel: ChannelId, now_ms: int) -> Effects:
        self._announced.pop(channel, None)
        barrier = self.alignment.barrier
        if barrier is None:
            return []
        match self._phase:
            case Phase.COLLECTING:
                return self._collect_end_aligned(barrier, now_ms)
            case Phase.COLLECTING_UNALIGNED:
                return self._finish_if_complete()
            case Phase.WAITING | Phase.WAITING_UNALIGNED:
                return []
            case _:
                assert_never(self._phase)

    def _collect_end_aligned(self, barrier: Barrier, now_ms: int) -> Effects:
        if self.alignment.complete:
            return self._trigger_and_release(barrier)
        return self._time_out(barrier) if _too_old(barrier, now_ms) else []

    def _release(self) -> Effects:
        self._phase = Phase.WAITING
        self._announced.clear()
        self._timer_ms = None
        return super()._release()

    def _abort(self, checkpoint: CheckpointId, reason: Reason) -> Effects:
        self._input.stop_recording(checkpoint)
        return super()._abort(checkpoint, reason)

    # -------------------------------------------------------------- turning unaligned

    def _time_out(self, barrier: Barrier) -> Effects:
        for channel, checkpoint in self._announced.items():
            self._input.prioritise(channel, checkpoint)
        self._announced.clear()
        before, self._phase = self._phase, _AFTER_TIMEOUT[self._phase]
        return self._begin_unaligned(barrier) if before is Phase.COLLECTING else []

    def _collect_unaligned(self, barrier: Barrier) -> Effects:
        effects: Effects = []
        if self._phase is Phase.WAITING_UNALIGNED:
            self._phase = Phase.COLLECTING_UNALIGNED
            effects = self._begin_unaligned(barrier)
        return effects + self._finish_if_complete()

    def _begin_unaligned(self, barrier: Barrier) -> Effects:
        self._input.start_recording(barrier.checkpoint)
        return self._trigger_unaligned(barrier)

    def _finish_if_complete(self) -> Effects:
        if not self.alignment.complete:
            return []
        checkpoint = self.alignment.current
        in_flight = InFlightComplete(
            checkpoint,
            self._input.stop_recording(checkpoint),
            alignment_ms=self.alignment.duration_ms,
            bytes_processed=self.alignment.bytes_processed,
        )
        return [in_flight, *self._release()]

    # -------------------------------------------------------------- state

    def snapshot(self) -> AlternatingSnapshot:
        """Return the handler's state as one hashable value."""
        base = super().snapshot()
        return AlternatingSnapshot(
            alignment=base.alignment,
            blocked=base.blocked,
            phase=self._phase,
            announced=tuple(self._announced.items()),
            timer_ms=self._timer_ms,
        )


def _too_old(barrier: Barrier, now_ms: int) -> bool:
    if barrier.alignment_timeout_ms is None or not may_time_out(barrier):
        return False
    return now_ms - barrier.created_ms > barrier.alignment_timeout_ms
