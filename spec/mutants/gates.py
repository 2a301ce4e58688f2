"""Plants bugs inside a gate: replays, the limit of the buffer, recordings, timers of alignments."""

from collections import OrderedDict
from collections.abc import Callable

from checkpointing.channel_items import Barrier, Segment, SourceSlice
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import GatePolicy, InputGate, buffers, unaligned
from checkpointing.gate.aligner import Aligner
from checkpointing.gate.buffers import AlignmentBuffer
from checkpointing.gate.channel import Channel
from checkpointing.gate.channels import Channels
from checkpointing.gate.handler import Effects
from checkpointing.gate.messages import Announcement, GateItem, InFlightComplete
from checkpointing.gate.unaligned import AlternatingAligner, Phase
from checkpointing.identifiers import ChannelId, CheckpointId
from spec.mutants.judges import GATES
from spec.mutants.planting import Patch, mutant

_BUFFERING = GATES[GatePolicy.ALIGNED_BUFFERING]
_UNALIGNED = GATES[GatePolicy.UNALIGNED]
_ALTERNATING = GATES[GatePolicy.ALTERNATING]

# ------------------------------------------------------------------ replays


@mutant("replay", _BUFFERING)
def a_replay_hands_out_its_newest_item(patch: Patch) -> None:
    def popleft(self: buffers._Sequence) -> buffers.Queued:
        queued = self.items.pop()
        self.bytes -= buffers._bytes(queued[1])
        return queued

    patch.put(buffers._Sequence, "popleft", popleft)


@mutant("replay", _BUFFERING)
def a_new_replay_waits_for_the_one_under_way(patch: Patch) -> None:
    def resume(self: AlignmentBuffer, name: ChannelId) -> None:
        if self._aside.items:
            if self._replay.items:
                self._pushed_back.appendleft(self._aside)
                self._pushed_back_bytes += self._aside.bytes
            else:
                self._replay = self._aside
            self._aside = buffers._Sequence()

    patch.put(AlignmentBuffer, "resume", resume)


@mutant("replay", _BUFFERING)
def new_items_come_before_a_replay(patch: Patch) -> None:
    real = InputGate._poll

    def poll(self: InputGate) -> Effects:
        taken = self._channels.take() if self._buffer.has_next else None
        if taken is None:
            return real(self)
        channel, item = taken
        if isinstance(item, Announcement):
            return self._announced(channel, item.barrier)
        if channel in self._handler.blocked():
            return self._put_aside(channel, item)
        return self._handle(channel, item)

    patch.put(InputGate, "_poll", poll)


def _interrupting(
    pushes_back: Callable[[AlignmentBuffer, buffers._Sequence], None],
) -> Callable[[AlignmentBuffer, ChannelId], None]:
    """Return a `resume` that keeps the rest of an interrupted replay in another way."""

    def resume(self: AlignmentBuffer, name: ChannelId) -> None:
        if not self._aside.items:
            return
        if self._replay.items:
            pushes_back(self, self._replay)
        self._replay, self._aside = self._aside, buffers._Sequence()

    return resume


@mutant("replay", _BUFFERING)
def an_interrupted_replay_waits_behind_older_ones(patch: Patch) -> None:
    def pushes_back(self: AlignmentBuffer, replay: buffers._Sequence) -> None:
        self._pushed_back.append(replay)
        self._pushed_back_bytes += replay.bytes

    patch.put(AlignmentBuffer, "resume", _interrupting(pushes_back))


@mutant("replay", _BUFFERING)
def the_oldest_interrupted_replay_goes_on_first(patch: Patch) -> None:
    def take(self: AlignmentBuffer) -> buffers.Queued | None:
        if not self._replay.items:
            return None
        queued = self._replay.popleft()
        if not self._replay.items and self._pushed_back:
            self._replay = self._pushed_back.pop()
            self._pushed_back_bytes -= self._replay.bytes
        return queued

    patch.put(AlignmentBuffer, "take", take)


@mutant("replay", _BUFFERING)
def interrupted_replays_are_joined_in_the_wrong_order(patch: Patch) -> None:
    def pushes_back(self: AlignmentBuffer, replay: buffers._Sequence) -> None:
        older = self._pushed_back.popleft() if self._pushed_back else buffers._Sequence()
        self._pushed_back.appendleft(buffers._Sequence((*older.items, *replay.items)))
        self._pushed_back_bytes += replay.bytes

    patch.put(AlignmentBuffer, "resume", _interrupting(pushes_back))


@mutant("costs", _BUFFERING)
def only_the_newest_interrupted_replay_is_counted(patch: Patch) -> None:
    def pushes_back(self: AlignmentBuffer, replay: buffers._Sequence) -> None:
        self._pushed_back.appendleft(replay)
        self._pushed_back_bytes = replay.bytes

    patch.put(AlignmentBuffer, "resume", _interrupting(pushes_back))


# ------------------------------------------------------------------ the limit


@mutant("costs", _BUFFERING)
def an_item_that_was_pushed_back_counts_for_ever(patch: Patch) -> None:
    real = AlignmentBuffer.take

    def take(self: AlignmentBuffer) -> buffers.Queued | None:
        before = self._pushed_back_bytes
        taken = real(self)
        self._pushed_back_bytes = before
        return taken

    patch.put(AlignmentBuffer, "take", take)


@mutant("limit", _BUFFERING)
def a_replayed_item_counts_as_held(patch: Patch) -> None:
    real = AlignmentBuffer.held_bytes

    def held_bytes(self: AlignmentBuffer) -> int:
        return real(self) + self._replay.bytes

    patch.put(AlignmentBuffer, "held_bytes", held_bytes)


@mutant("limit", _BUFFERING)
def a_full_limit_is_exceeded(patch: Patch) -> None:
    def over_limit(self: AlignmentBuffer) -> bool:
        return self._max_bytes > 0 and self.held_bytes() >= self._max_bytes

    patch.put(AlignmentBuffer, "over_limit", property(over_limit))


@mutant("costs", _BUFFERING)
def an_item_that_was_pushed_back_is_not_counted(patch: Patch) -> None:
    real = AlignmentBuffer.resume

    def resume(self: AlignmentBuffer, name: ChannelId) -> None:
        before = self._pushed_back_bytes
        real(self, name)
        self._pushed_back_bytes = before

    patch.put(AlignmentBuffer, "resume", resume)


# ------------------------------------------------------------------ recordings


@mutant("bounded", _UNALIGNED)
def a_recording_goes_on_after_its_checkpoint(patch: Patch) -> None:
    real = Channel.stop_recording

    def stop_recording(self: Channel, checkpoint: CheckpointId) -> tuple[Segment, ...]:
        records = self.recording_for
        recorded = real(self, checkpoint)
        self.recording_for = records
        return recorded

    patch.put(Channel, "stop_recording", stop_recording)


@mutant("bounded", _UNALIGNED)
def the_rows_that_a_barrier_overtook_are_remembered_for_ever(patch: Patch) -> None:
    real = Channel.stop_recording

    def stop_recording(self: Channel, checkpoint: CheckpointId) -> tuple[Segment, ...]:
        overtakers = self._overtakers
        recorded = real(self, checkpoint)
        self._overtakers = overtakers
        return recorded

    patch.put(Channel, "stop_recording", stop_recording)


@mutant("bounded", _UNALIGNED)
def an_abort_does_not_end_its_recording(patch: Patch) -> None:
    def abort(self: AlternatingAligner, checkpoint: CheckpointId, reason: CheckpointFailureReason) -> Effects:
        return Aligner._abort(self, checkpoint, reason)

    patch.put(AlternatingAligner, "_abort", abort)


@mutant("costs", _UNALIGNED)
def the_costs_of_an_unaligned_checkpoint_are_reported_in_the_wrong_order(patch: Patch) -> None:
    real = AlternatingAligner._finish_if_complete

    def finish_if_complete(self: AlternatingAligner) -> Effects:
        effects = real(self)
        if effects and isinstance(effects[0], InFlightComplete):
            told = effects[0]
            effects[0] = InFlightComplete(told.checkpoint, told.channels, told.bytes_processed, told.alignment_ms)
        return effects

    patch.put(AlternatingAligner, "_finish_if_complete", finish_if_complete)


# ------------------------------------------------------------------ timers


@mutant("policy", _ALTERNATING)
def the_timer_of_an_alignment_outlives_it(patch: Patch) -> None:
    """The old timer turns the next barrier unaligned, although that barrier (a savepoint's) has no timer of its own."""

    def release(self: AlternatingAligner) -> Effects:
        self._phase = Phase.WAITING
        self._announced.clear()
        return Aligner._release(self)

    patch.put(AlternatingAligner, "_release", release)


@mutant("timer", _ALTERNATING)
def the_age_of_a_barrier_is_the_time_of_day(patch: Patch) -> None:
    def too_old(barrier: Barrier, now_ms: int) -> bool:
        return barrier.alignment_timeout_ms is not None and now_ms > barrier.alignment_timeout_ms

    patch.put(unaligned, "_too_old", too_old)


@mutant("timer", _ALTERNATING)
def any_announcement_runs_the_timer(patch: Patch) -> None:
    real = AlternatingAligner.announcement

    def announcement(self: AlternatingAligner, channel: ChannelId, barrier: Barrier) -> Effects:
        pending = self.alignment.pending
        effects = real(self, channel, barrier)
        return effects + (self._time_out(barrier) if pending and self.alignment.barrier == barrier else [])

    patch.put(AlternatingAligner, "announcement", announcement)


# ------------------------------------------------------------------ barriers that overtake


@mutant("overtakes", _ALTERNATING)
def a_barrier_overtakes_one_row_at_most(patch: Patch) -> None:
    real = Channels.prioritise

    def prioritise(self: Channels, name: ChannelId, checkpoint: CheckpointId) -> None:
        rows = [item for item in self[name].waiting if isinstance(item, SourceSlice)]
        if not rows[1:]:
            real(self, name, checkpoint)

    patch.put(Channels, "prioritise", prioritise)


@mutant("overtakes", _ALTERNATING)
def the_timer_lets_only_the_first_barrier_overtake(patch: Patch) -> None:
    real = AlternatingAligner._time_out

    def time_out(self: AlternatingAligner, barrier: Barrier) -> Effects:
        self._announced = dict([*self._announced.items()][:1])
        return real(self, barrier)

    patch.put(AlternatingAligner, "_time_out", time_out)


@mutant("overtakes", _UNALIGNED)
def a_barrier_that_overtakes_comes_when_the_rows_are_through(patch: Patch) -> None:
    real = Channels.take

    def take(self: Channels) -> tuple[ChannelId, GateItem] | None:
        if not self._turns:
            return real(self)
        later, self._priority = self._priority, OrderedDict()
        taken = real(self)
        self._priority = later
        return taken

    patch.put(Channels, "take", take)
