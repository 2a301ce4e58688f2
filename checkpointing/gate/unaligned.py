"""Unaligned checkpoints, and aligned ones with a timeout: one machine with four phases (C5, C6).

| phase                | aligned barrier                 | turns unaligned by barrier or end, or by the timer      |
|----------------------|---------------------------------|---------------------------------------------------------|
| WAITING              | block it -> COLLECTING          | prioritise -> WAITING_UNALIGNED                         |
| COLLECTING           | block it                        | prioritise, trigger -> COLLECTING_UNALIGNED             |
| WAITING_UNALIGNED    | trigger -> COLLECTING_UNALIGNED | -                                                       |
| COLLECTING_UNALIGNED | block it                        | -                                                       |

Three things turn a checkpoint unaligned: an unaligned barrier, the timer, and a barrier or end that is not the last one
and comes when the checkpoint is older than its timeout. The timer fires at that age. Such a barrier is then handled in
the phase to which it led, so in WAITING it triggers at once. In WAITING an end turns nothing.

In every phase, the last barrier (or end) and an abort release all channels and lead to WAITING. So the next checkpoint
starts aligned again. The last barrier triggers if nothing has triggered before. *Prioritise* means that all announced
barriers, also those announced later, overtake the segments before them. These segments become channel state. A barrier
without a timeout, such as a savepoint's, never becomes too old. (Flink: `Alternating*` handler states. The policy
UNALIGNED is this machine with unaligned barriers.)
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from checkpointing.channel_items import AlignmentType, Barrier
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate.aligner import Aligner, AlignerRules, AlignerSnapshot
from checkpointing.gate.alignment import IdStanding, may_time_out
from checkpointing.gate.handler import CheckpointableInput, Effects
from checkpointing.gate.messages import InFlightComplete, WakeGateAt
from checkpointing.identifiers import ChannelId, CheckpointId


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
        """Note that the barrier waits in the channel. The first announcement of a newer checkpoint begins it."""
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
                return self._release() if self.alignment.complete else []
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
