"""The machine of one gate: any policy, one to four channels, any order of what their senders may send.

A sender obeys the protocol: ids rise on its channel, a cancelled id has no barrier there, nothing follows the end.
Senders skip ids, so that newer barriers subsume older ones. They send in advance, so that many items lie behind
barriers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkpointing.channel_items import (
    AlignmentType,
    Barrier,
    CancelMarker,
    ChannelItem,
    EndOfChannel,
    EndOfData,
    SourceSlice,
)
from checkpointing.gate import (
    UNLIMITED,
    ClockRead,
    GateConfig,
    GateEffect,
    GateFact,
    GatePolicy,
    GateProtocolError,
    GateTimeAdvanced,
    InputGate,
    ItemArrived,
    Polled,
    TriggerCheckpoint,
)
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, SplitId, VertexId
from spec.machines.gate_model import POLICY, GateModel
from spec.machines.judging import expect, is_unwinding

GATE_REFUSES: Final = "gate-refuses"
"""A gate refuses what breaks its protocol. A refusal leaves the gate unchanged."""
IDLE_POLL: Final = "idle-poll"
"""A poll that takes nothing leaves the gate unchanged."""
EDGE = EdgeId(VertexId("upstream"), VertexId("vertex"))
CHANNELS_MAX = 4
TIMEOUT_MS = 50
_channels = st.integers(0, CHANNELS_MAX - 1)
_SELDOM = (False, False, False, True)
_sizes = st.lists(st.integers(1, 30), max_size=3)


class GateMachine(RuleBasedStateMachine):
    """One gate of one policy, its senders, and the model that judges it."""

    policy: ClassVar[GatePolicy] = GatePolicy.ALIGNED_BLOCKING
    runs_long: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.config = GateConfig()
        self.channels: tuple[ChannelId, ...] = ()
        self.gate = InputGate(self.config, ())
        self.model = GateModel(self.config, ())
        self.barriers: dict[CheckpointId, Barrier] = {}
        self.newest: dict[ChannelId, CheckpointId] = {}
        self.segments = 0

    @initialize(
        channels=st.sampled_from([2, 3, 2, 1, 4]),
        limit=st.sampled_from([UNLIMITED, 20, 60]),
        ends_count=st.booleans(),
    )
    def open(self, channels: int, limit: int, ends_count: bool) -> None:  # noqa: FBT001
        """Open a gate."""
        buffers = self.policy is GatePolicy.ALIGNED_BUFFERING
        limited = limit if buffers else UNLIMITED
        channels = CHANNELS_MAX if buffers and channels == 2 else channels  # noqa: PLR2004 - two interrupt no replay
        turns = self.policy is GatePolicy.ALTERNATING
        channels = CHANNELS_MAX if turns and channels == 1 else channels  # two barriers must be able to be late
        self.config = GateConfig(self.policy, limited, ends_count)
        self.channels = tuple(ChannelId(EDGE, index) for index in range(channels))
        self.gate = InputGate(self.config, self.channels)
        self.model = GateModel(self.config, self.channels)
        self.newest = dict.fromkeys(self.channels, CheckpointId(0))

    # -------------------------------------------------------------- the senders

    @rule(number=_channels, sizes=_sizes)
    def send_segments(self, number: int, sizes: list[int]) -> None:
        """Send segments on a channel."""
        self._send_segments(number, sizes)

    @rule(number=_channels, before=_sizes, skip=st.sampled_from([0, 0, 0, 1]), after=_sizes, drawn=st.data())
    def send_barrier(self, number: int, before: list[int], skip: int, after: list[int], drawn: st.DataObject) -> None:
        """Send the channel's next barrier, or a later one, between segments."""
        self._send_segments(number, before)
        self._send_barrier(number, skip, drawn)
        self._send_segments(number, after)

    @rule(before=_sizes, skip=st.sampled_from([0, 0, 1]), after=_sizes, polls=st.integers(0, 2), drawn=st.data())
    def send_barriers(self, before: list[int], skip: int, after: list[int], polls: int, drawn: st.DataObject) -> None:
        """Send the next barrier on every channel, while the vertex takes an item now and then."""
        for number in range(len(self.channels)):
            self.send_barrier(number, before, skip, after, drawn)
            self.poll(polls)

    @precondition(lambda self: self.config.policy is GatePolicy.ALTERNATING)
    @rule(number=_channels)
    def follow_with_a_savepoint(self, number: int) -> None:
        """Align a checkpoint in time.

        A savepoint's first barrier comes before the checkpoint's timer would have fired.
        """
        checkpoint = CheckpointId(max(self.newest.values()) + 1)
        aligned = Barrier(checkpoint, self.model.now_ms, AlignmentType.ALIGNED, TIMEOUT_MS)
        forced = Barrier(CheckpointId(checkpoint + 1), self.model.now_ms, AlignmentType.FORCED_ALIGNED, None)
        self.barriers |= {each.checkpoint: each for each in (aligned, forced)}
        for place, channel in enumerate(self.channels):
            self.newest[channel] = checkpoint
            self._send(place, aligned)
        self.poll_dry()
        self.newest[self.channels[number % len(self.channels)]] = forced.checkpoint
        self._send(number, forced)
        self.poll_dry()
        self.advance(TIMEOUT_MS, runs_timer=True)

    @precondition(lambda self: self.config.policy is GatePolicy.ALTERNATING and len(self._open()) > 2)  # noqa: PLR2004
    @rule(late_ms=st.sampled_from([0, 1]), ends=st.sampled_from(_SELDOM), runs_timer=st.sampled_from(_SELDOM))
    def let_the_time_run_out(self, late_ms: int, ends: bool, runs_timer: bool) -> None:  # noqa: FBT001
        """All channels but two send a barrier in time. One of the two sends it, or ends, when the timer is due.

        In most cases the timer has not fired yet. The last channel sends nothing.
        """
        checkpoint = CheckpointId(max(self.newest.values()) + 1)
        *early, late, _ = self._open()
        for number in early:
            self._send_own(number, checkpoint, ())
        self.advance(TIMEOUT_MS + late_ms, runs_timer=runs_timer)
        if ends:
            self._send(late, EndOfChannel())
            self.poll_dry()
        else:
            self._send_own(late, checkpoint, ())

    @precondition(lambda self: self.config.policy is GatePolicy.ALTERNATING and len(self._open()) > 2)  # noqa: PLR2004
    @rule(ends=st.booleans())
    def let_a_barrier_wait(self, ends: bool) -> None:  # noqa: FBT001
        """Let the time run out while a barrier is announced and not yet taken. Perhaps another channel ends before."""
        waits, ending, *_ = self._open()
        self.poll_dry()
        self._send_segments(waits, [1, 2, 3])
        self._send_barrier(waits, max(self.newest.values()) - self.newest[self.channels[waits]], None)
        if ends:
            self._send(ending, EndOfChannel())
        self.poll(1 + ends)
        self.advance(TIMEOUT_MS, runs_timer=True)
        self.poll_dry()

    @precondition(lambda self: self.config.policy is GatePolicy.ALIGNED_BUFFERING)
    @rule(sizes=st.sampled_from([[1], [1], [2, 3], [20, 30]]))
    def interrupt_replays(self, sizes: list[int]) -> None:
        """Let each channel end the alignment of the channels before it, so that replays interrupt each other."""
        self._send_nested(range(len(self.channels)), CheckpointId(max(self.newest.values()) + 1), sizes)

    def _send_nested(self, numbers: Sequence[int], checkpoint: CheckpointId, sizes: list[int]) -> None:
        """Send, and let the vertex read at once, so that everything is put aside in the order of sending."""
        *before, last = numbers
        for number in before:
            self._send_own(number, checkpoint, ())
        if len(before) > 1:
            self._send_nested(before, CheckpointId(checkpoint + 2), sizes)
        for number in before:
            self._send_own(number, None, sizes)
        self._send_own(last, CheckpointId(checkpoint + 1), sizes)
        for number in before:
            self._send_own(number, None, sizes)

    def _send_own(self, number: int, checkpoint: CheckpointId | None, sizes: Iterable[int]) -> None:
        if checkpoint is not None:
            self._send_barrier(number, checkpoint - self.newest[self.channels[number]] - 1, None)
        self._send_segments(number, sizes)
        self.poll_dry()

    @precondition(lambda self: self.config.policy is GatePolicy.AT_LEAST_ONCE)
    @rule(number=_channels, many=st.sampled_from([10, 30, 60]))
    def send_many_barriers(self, number: int, many: int) -> None:
        """Send more barriers on one channel than a tracker may remember."""
        for _ in range(many):
            self._send_barrier(number, 0, None)

    @rule(number=_channels, skip=st.sampled_from([0, 0, 1]))
    def send_cancel_marker(self, number: int, skip: int) -> None:
        """Cancel the channel's next checkpoint, or a later one."""
        channel = self.channels[number % len(self.channels)]
        self.newest[channel] = CheckpointId(self.newest[channel] + 1 + skip)
        self._send(number, CancelMarker(self.newest[channel]))

    @rule(number=_channels, really=st.sampled_from([False, False, True]))
    def end_channel(self, number: int, really: bool) -> None:  # noqa: FBT001
        """End a channel."""
        if really:
            self._send(number, EndOfChannel())

    @rule(number=_channels)
    def end_data(self, number: int) -> None:
        """Send no more rows on a channel. Barriers may still come."""
        if not self.model.channels[self.channels[number % len(self.channels)]].has_no_more:
            self._send(number, EndOfData())

    @rule(number=_channels)
    def send_wrongly(self, number: int) -> None:
        """Send what breaks the gate's protocol. It is refused, and the gate is unchanged."""
        channel = self.channels[number % len(self.channels)]
        unaligned = Barrier(CheckpointId(self.newest[channel] + 1), self.model.now_ms, AlignmentType.UNALIGNED)
        wrong = [ItemArrived(ChannelId(EDGE, CHANNELS_MAX), EndOfData())]
        if self.model.channels[channel].is_over:
            wrong.append(ItemArrived(channel, EndOfData()))
        if self.policy in (GatePolicy.ALIGNED_BLOCKING, GatePolicy.ALIGNED_BUFFERING):
            wrong.append(ItemArrived(channel, unaligned))
        before = self.gate.snapshot()
        for fact in wrong:
            try:
                self.gate.step(fact)
            except GateProtocolError:
                expect(self.gate.snapshot() == before, GATE_REFUSES, f"{fact} is refused, and changed the gate")
            else:
                expect(holds=False, invariant=GATE_REFUSES, what=f"{fact} is taken")

    @precondition(lambda self: len(self._open()) > 2)  # noqa: PLR2004
    @rule(really=st.sampled_from(_SELDOM))
    def end_while_others_wait(self, really: bool) -> None:  # noqa: FBT001
        """In a few cases, end a channel between the barriers of the others."""
        if not really:
            return
        checkpoint = CheckpointId(max(self.newest.values()) + 1)
        first, ends, *others = self._open()
        self._send_own(first, checkpoint, ())
        self._send(ends, EndOfChannel())
        self.poll_dry()
        for other in others:
            self._send_own(other, checkpoint, ())

    def _open(self) -> list[int]:
        return [place for place, channel in enumerate(self.channels) if not self.model.channels[channel].is_over]

    def _send_segments(self, number: int, sizes: Iterable[int]) -> None:
        for size in sizes:
            self.segments += 1
            start, end = str(self.segments), str(self.segments + 1)
            self._send(number, SourceSlice(VertexId("upstream"), SplitId("0"), start, end, "{}", 1, size))

    def _send_barrier(self, number: int, skip: int, drawn: st.DataObject | None) -> None:
        channel = self.channels[number % len(self.channels)]
        checkpoint = CheckpointId(self.newest[channel] + 1 + skip)
        self.newest[channel] = checkpoint
        if checkpoint not in self.barriers:
            kinds = st.sampled_from(self._kinds())
            kind, timeout_ms = drawn.draw(kinds, "kind") if drawn is not None else self._kinds()[0]
            self.barriers[checkpoint] = Barrier(checkpoint, self.model.now_ms, kind, timeout_ms)
        barrier = self.barriers[checkpoint]
        turns = barrier.alignment is AlignmentType.ALIGNED and barrier.alignment_timeout_ms is not None
        if turns and drawn is not None and drawn.draw(st.booleans(), "turned"):
            barrier = replace(barrier, alignment=AlignmentType.UNALIGNED, alignment_timeout_ms=None)
        self._send(number, barrier)

    def _kinds(self) -> list[tuple[AlignmentType, int | None]]:
        forced = (AlignmentType.FORCED_ALIGNED, None)
        match self.config.policy:
            case GatePolicy.AT_LEAST_ONCE:
                return [(AlignmentType.AT_LEAST_ONCE, None)]
            case GatePolicy.ALTERNATING:
                return [
                    (AlignmentType.ALIGNED, TIMEOUT_MS),
                    (AlignmentType.ALIGNED, 0),
                    (AlignmentType.UNALIGNED, None),
                    forced,
                    (AlignmentType.ALIGNED, None),
                    (AlignmentType.FORCED_ALIGNED, TIMEOUT_MS),
                ]
            case _:
                return [(AlignmentType.ALIGNED, None), forced]

    def _send(self, number: int, item: ChannelItem) -> None:
        channel = self.channels[number % len(self.channels)]
        sent = self.model.channels[channel]
        if not sent.is_over and not (isinstance(item, SourceSlice) and sent.has_no_more):
            self._step(ItemArrived(channel, item))
            sent.items.append(item)
            self.model.telling.sent(channel, item)

    # -------------------------------------------------------------- the task and the clock

    @rule(times=st.integers(1, 4))
    def poll(self, times: int) -> None:
        """Take one item, or a few."""
        for _ in range(times):
            self._poll()

    @rule()
    def poll_dry(self) -> None:
        """Take all that can be taken."""
        while self.gate.has_deliverable():
            self._poll()
        self.model.judge_dry(self.gate)

    @rule(ms=st.sampled_from([1, 30, TIMEOUT_MS, 200]), runs_timer=st.booleans())
    def advance(self, ms: int, runs_timer: bool) -> None:  # noqa: FBT001
        """Let time pass. The timer may fire only later."""
        self.model.now_ms += ms
        self._step(GateTimeAdvanced(self.model.now_ms) if runs_timer else ClockRead(self.model.now_ms))
        if runs_timer:
            self.model.judge_clock(self.gate, self.barriers)

    def _poll(self) -> None:
        before, had = self.gate.snapshot(), self.gate.has_deliverable()
        told = self._step(Polled())
        expect(had or self.gate.snapshot() == before, IDLE_POLL, "a poll that took nothing changed the gate")
        expect(bool(told) == had, "gate-tells", f"something can be taken: {had}, the poll tells {told}")

    def _step(self, fact: GateFact) -> tuple[GateEffect, ...]:
        effects = self.gate.step(fact)
        if isinstance(fact, Polled):
            self.model.polled(effects)
        self.model.take(effects)
        self.model.telling.take(fact, effects, self.gate.pending(), self.model.now_ms)
        for effect in effects:
            if isinstance(effect, TriggerCheckpoint):
                sent = self.barriers[effect.barrier.checkpoint]
                forced = sent.alignment is AlignmentType.FORCED_ALIGNED
                expect(not (forced and effect.unaligned), POLICY, f"savepoint {sent.checkpoint} is unaligned")
                self.model.judge_turn(effect, sent, by_timer=isinstance(fact, GateTimeAdvanced))
        if isinstance(fact, Polled):
            self.model.judge_late(effects, self.barriers)
        return effects

    # -------------------------------------------------------------- judging

    @invariant()
    def holds(self) -> None:
        """Every rule of the model holds."""
        self.model.judge(self.gate)

    def teardown(self) -> None:
        """End all channels. Then everything is let through, and every alignment ends."""
        if is_unwinding():
            return
        for number in range(len(self.channels)):
            self._send(number, EndOfChannel())
        while self.gate.has_deliverable():
            self._poll()
        self.model.judge_end(self.gate)


class BufferingGateMachine(GateMachine):
    """Aligned. What lies behind a barrier is put aside."""

    policy = GatePolicy.ALIGNED_BUFFERING


class TrackingGateMachine(GateMachine):
    """At least once."""

    policy = GatePolicy.AT_LEAST_ONCE


class UnalignedGateMachine(GateMachine):
    """Unaligned from the first barrier on."""

    policy = GatePolicy.UNALIGNED


class AlternatingGateMachine(GateMachine):
    """Aligned, until the alignment takes too long."""

    policy = GatePolicy.ALTERNATING


GATE_MACHINES: dict[GatePolicy, type[GateMachine]] = {
    machine.policy: machine
    for machine in (
        GateMachine,
        BufferingGateMachine,
        TrackingGateMachine,
        UnalignedGateMachine,
        AlternatingGateMachine,
    )
}
