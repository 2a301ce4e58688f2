"""Judges the effects of each step of a gate: what it drops, why it aborts, whom it blocks, when it wants to be woken.

The judge knows what each channel was sent, and the newest checkpoint that the gate has heard of. A step takes one item,
and its effects name the item. From the item follows what else the step must do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from checkpointing.channel_items import AlignmentType, Barrier, ChannelItem, SourceSlice
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate import (
    AbortCheckpoint,
    AnnouncementReceived,
    BarrierReceived,
    BlockChannel,
    Deliver,
    DeliverEnd,
    DeliverEndOfData,
    GateConfig,
    GateEffect,
    GatePolicy,
    Ignored,
    InFlightComplete,
    Polled,
    PutAside,
    ResumeChannel,
    TriggerCheckpoint,
    WakeGateAt,
)
from checkpointing.gate.messages import GateFact
from checkpointing.identifiers import ChannelId, CheckpointId
from spec.machines.judging import expect

TELLS: Final = "gate-tells"
"""The effects of every step name what the gate did, with the right channel, checkpoint and time."""
ABORTS: Final = "gate-aborts"
"""A gate aborts exactly the checkpoints that a newer barrier, a marker, an end or the limit ends, and says why."""
PENDING: Final = "gate-pending"
"""A gate says that a checkpoint is in progress from its first barrier or announcement until its end."""
_SUBSUMED: Final = Reason.CHECKPOINT_DECLINED_SUBSUMED
_MARKER: Final = Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
_END: Final = Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM
_LIMIT: Final = Reason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED
NEVER: Final = CheckpointId(-1)
TRACKED_MAX: Final = 50
_STOPPING: Final = (GatePolicy.ALIGNED_BLOCKING, GatePolicy.UNALIGNED, GatePolicy.ALTERNATING)


@dataclass(slots=True)
class Line:
    """The barriers that a channel was sent, and its items that wait behind a barrier."""

    barriers: dict[CheckpointId, Barrier] = field(default_factory=dict)
    is_stopped: bool = False
    held: list[ChannelItem] = field(default_factory=list)
    is_blocked: bool = False
    newest: CheckpointId = NEVER
    """The newest barrier that came to the gate and waits behind no other one."""


class GateTelling:
    """Judges every fact with its effects. Raises BrokenRuleError."""

    def __init__(self, config: GateConfig, channels: tuple[ChannelId, ...]) -> None:
        """Begin with nothing sent."""
        self.config = config
        self.lines = {channel: Line() for channel in channels}
        self.newest = NEVER
        """The newest checkpoint that has begun or was aborted."""
        self.pending: tuple[CheckpointId, ...] = ()
        """The checkpoints that the gate called pending after the last step."""
        self.aborted: set[CheckpointId] = set()
        self._begun: set[CheckpointId] = set()
        """The checkpoints that the judged step has begun."""
        self._tracks = config.policy is GatePolicy.AT_LEAST_ONCE
        self._buffers = config.policy is GatePolicy.ALIGNED_BUFFERING

    # -------------------------------------------------------------- what is sent

    def sent(self, channel: ChannelId, item: ChannelItem) -> None:
        """Note an item that was sent."""
        line = self.lines[channel]
        if isinstance(item, Barrier):
            item = line.barriers[item.checkpoint] = self._as_taken(item)
        if line.is_stopped:
            line.held.append(item)
        else:
            self._let_in(line, item)

    def _as_taken(self, barrier: Barrier) -> Barrier:
        """Under the policy UNALIGNED, every barrier overtakes, except a savepoint's."""
        stays = self.config.policy is not GatePolicy.UNALIGNED or barrier.alignment is AlignmentType.FORCED_ALIGNED
        return barrier if stays else _turned(barrier)

    def _let_in(self, line: Line, item: ChannelItem) -> None:
        if isinstance(item, Barrier):
            line.newest = max(line.newest, item.checkpoint)
        if isinstance(item, Barrier) and self.config.policy in _STOPPING:
            line.is_stopped = item.alignment is not AlignmentType.UNALIGNED

    def held_bytes(self) -> int:
        """Return how many bytes wait behind barriers."""
        held = (item for line in self.lines.values() for item in line.held)
        return sum(item.bytes for item in held if isinstance(item, SourceSlice))

    # -------------------------------------------------------------- one step

    def take(
        self, fact: GateFact, effects: tuple[GateEffect, ...], pending: tuple[CheckpointId, ...], now_ms: int
    ) -> None:
        """Judge one step. `pending` is what the gate calls pending after it."""
        if isinstance(fact, Polled) and effects:
            self._item(effects, now_ms)
        else:
            ended = [effect for effect in effects if isinstance(effect, AbortCheckpoint)]
            expect(not ended, ABORTS, f"{ended} although no item was taken")
        for effect in effects:
            self._carried_out(effect)
        if self._tracks:
            self._keeps(effects, pending)
        else:
            self._is_pending(effects, pending)
        self.pending = pending

    def _item(self, effects: tuple[GateEffect, ...], now_ms: int) -> None:
        """Judge the effects of an item. The first effect names the item.

        If the item was an end, the last effect does.
        """
        match effects[0]:
            case Deliver() | DeliverEndOfData():
                expect(len(effects) == 1, TELLS, f"more than {effects[0]} came of it: {effects[1:]}")
            case PutAside():
                self._aborts(effects, self.pending if len(effects) > 1 else (), _LIMIT)
            case AnnouncementReceived(channel, checkpoint):
                self._heard(channel, checkpoint, effects)
            case BarrierReceived(channel, checkpoint, at_ms):
                expect(at_ms == now_ms, TELLS, f"{effects[0]} is told at {now_ms}")
                self._dropped(channel, checkpoint, effects)
                self._heard(channel, checkpoint, effects)
            case Ignored(channel):
                expect(len(effects) == 1, TELLS, f"more than {effects[0]} came of it: {effects[1:]}")
                old = effects[0].item.checkpoint
                obsolete = old in self.aborted if old in self.pending and self._tracks else self._is_obsolete(old)
                expect(obsolete, "ignored", f"{effects[0]} is news: pending is {self.pending}, newest {self.newest}")
            case _ if isinstance(effects[-1], DeliverEnd):
                self._ends(effects)
            case _:
                self._cancels(effects)

    def _is_obsolete(self, checkpoint: CheckpointId) -> bool:
        return checkpoint <= self.newest and checkpoint not in self.pending

    def _heard(self, channel: ChannelId, checkpoint: CheckpointId, effects: tuple[GateEffect, ...]) -> None:
        """Judge a barrier or its announcement: which checkpoint it begins, and which older ones it ends."""
        barrier = self.lines[channel].barriers.get(checkpoint)
        expect(barrier is not None, TELLS, f"{effects[0]}, which was never sent")
        begins = checkpoint > self.newest
        self._aborts(effects, self.pending if begins and not self._tracks else (), _SUBSUMED)
        wakes = [effect.at_ms for effect in effects if isinstance(effect, WakeGateAt)]
        due = self._wakes(barrier) if begins and barrier is not None else []
        expect(wakes == due, "timer", f"{effects[0]} must be woken at {due}, not {wakes}")
        self._begun = {checkpoint} if begins else set()
        self.newest = max(self.newest, checkpoint)

    def _wakes(self, barrier: Barrier) -> list[int]:
        times_out = self.config.policy is GatePolicy.ALTERNATING and barrier.alignment is AlignmentType.ALIGNED
        timeout_ms = barrier.alignment_timeout_ms
        return [barrier.created_ms + timeout_ms] if times_out and timeout_ms is not None else []

    def _dropped(self, channel: ChannelId, checkpoint: CheckpointId, effects: tuple[GateEffect, ...]) -> None:
        dropped = [effect for effect in effects if isinstance(effect, Ignored)]
        if not self._is_obsolete(checkpoint):
            expect(not dropped, "ignored", f"{dropped} is news: pending is {self.pending}, newest {self.newest}")
            return
        due = [(channel, checkpoint)]
        told = [(each.channel, each.item.checkpoint) for each in dropped if isinstance(each.item, Barrier)]
        expect(told == due, "ignored", f"{due} is obsolete, dropped is {dropped}")

    def _ends(self, effects: tuple[GateEffect, ...]) -> None:
        counts = self.config.checkpoint_after_tasks_finished and not self._buffers
        waiting = tuple(n for n in self.pending if n not in self.aborted)
        self._aborts(effects, () if counts else waiting, _END)

    def _cancels(self, effects: tuple[GateEffect, ...]) -> None:
        """Judge a cancellation marker of a checkpoint that had not ended. It must end its checkpoint.

        It also ends older pending checkpoints. A gate that tracks or buffers must report them. Other gates do not.
        """
        ended = [effect.checkpoint for effect in effects if isinstance(effect, AbortCheckpoint)]
        expect(bool(ended), ABORTS, f"nobody hears of a marker: {effects}")
        newest = max(ended, default=NEVER)
        older = [n for n in self.pending if n < newest and n not in self.aborted]
        if self._tracks:
            self._aborts(effects, (*older, newest), _MARKER)
        elif self._buffers and older:
            pairs = [(effect.checkpoint, effect.reason) for effect in effects if isinstance(effect, AbortCheckpoint)]
            expect(pairs == [(older[0], _SUBSUMED), (newest, _MARKER)], ABORTS, f"a marker of {newest}: {pairs}")
        else:
            self._aborts(effects, (newest,), _MARKER)
        expect(newest >= self.newest or self._tracks, ABORTS, f"{newest} is aborted, {self.newest} has begun")
        self.newest = max(self.newest, newest)

    def _aborts(self, effects: tuple[GateEffect, ...], due: tuple[CheckpointId, ...], reason: Reason) -> None:
        ended = [(effect.checkpoint, effect.reason) for effect in effects if isinstance(effect, AbortCheckpoint)]
        expect(ended == [(n, reason) for n in due], ABORTS, f"{due} end by {reason}, the gate says {ended}")

    # -------------------------------------------------------------- what the effects change

    def _carried_out(self, effect: GateEffect) -> None:
        match effect:
            case BlockChannel(channel):
                expect(not self.lines[channel].is_blocked, TELLS, f"{channel} is blocked again")
                self.lines[channel].is_blocked = True
            case ResumeChannel(channel):
                self._resumed(self.lines[channel])
            case AbortCheckpoint(checkpoint):
                self.aborted.add(checkpoint)
            case TriggerCheckpoint():
                self._triggered(effect)
            case _:
                pass

    def _resumed(self, line: Line) -> None:
        line.is_blocked = line.is_stopped = False
        while line.held and not line.is_stopped:
            self._let_in(line, line.held.pop(0))

    def _triggered(self, effect: TriggerCheckpoint) -> None:
        """Judge the barrier that the snapshot sends on.

        It is the one that came, marked as unaligned if it overtakes.
        """
        checkpoint = effect.barrier.checkpoint
        sent = [line.barriers[checkpoint] for line in self.lines.values() if checkpoint in line.barriers]
        due = [_turned(each) if effect.unaligned else each for each in sent]
        expect(effect.barrier in due, TELLS, f"{effect} for {sent}")
        if self.config.policy in _STOPPING:
            held = self.held_bytes()
            expect(effect.bytes_held == held, "costs", f"{held} bytes are held, not {effect.bytes_held}")

    # -------------------------------------------------------------- what is pending

    def _is_pending(self, effects: tuple[GateEffect, ...], pending: tuple[CheckpointId, ...]) -> None:
        due = {*self.pending, *self._begun}
        self._begun = set()
        for effect in effects:
            match effect:
                case AbortCheckpoint(n):  # an aborted checkpoint ends older ones
                    due = {each for each in due if each > n}
                case InFlightComplete(n) | TriggerCheckpoint(Barrier(n), unaligned=False):
                    due.discard(n)
                case _:
                    pass
        expect(pending == tuple(sorted(due)), PENDING, f"{effects}: {pending} is pending, due is {due}")

    def _keeps(self, effects: tuple[GateEffect, ...], pending: tuple[CheckpointId, ...]) -> None:
        """Judge a tracker.

        It forgets checkpoints that it has triggered or aborted, older ones, and the oldest of too many.
        """
        known = (*self.pending, *sorted(self._begun))
        due = known[max(0, len(known) - TRACKED_MAX) :]
        over = [effect.barrier.checkpoint for effect in effects if isinstance(effect, TriggerCheckpoint)]
        newest = max((*over, *(n for n in due if n in self.aborted)), default=NEVER)
        self._begun = set()
        lost = [n for n in due if n not in pending and n > newest]
        expect(not lost, PENDING, f"{effects}: {lost} are forgotten")
        left = [n for n in pending if n <= max(over, default=NEVER)]
        expect(not left, PENDING, f"{effects}: {left} are pending still")

    def judge_blocked(self, blocked: Mapping[ChannelId, None] | frozenset[ChannelId]) -> None:
        """Raise unless the blocked channels are those that the effects have blocked and not yet freed."""
        told = {channel for channel, line in self.lines.items() if line.is_blocked}
        expect(told == set(blocked), TELLS, f"{told} were told as blocked, blocked are {set(blocked)}")


def _turned(barrier: Barrier) -> Barrier:
    return replace(barrier, alignment=AlignmentType.UNALIGNED, alignment_timeout_ms=None)
