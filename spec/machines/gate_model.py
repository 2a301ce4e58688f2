"""What a gate must do, computed from a list of the items sent on each channel, without the protocol.

A channel's list shows what lies before barrier n on it. So alignment, order, ends and bytes are judged without the
blocks, counters, phases or timers of any policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from checkpointing.channel_items import (
    AlignmentType,
    Barrier,
    CancelMarker,
    ChannelItem,
    EndOfChannel,
    EndOfData,
    SourceSlice,
)
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate import (
    UNLIMITED,
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
    InputGate,
    Polled,
    PutAside,
    ResumeChannel,
    TriggerCheckpoint,
    WakeGateAt,
)
from checkpointing.gate.messages import GateFact
from checkpointing.identifiers import ChannelId, CheckpointId
from spec.machines.judging import BrokenRuleError, expect

# ------------------------------------------------------------------
# Judges the effects of each step of a gate: what it drops, why it aborts, which channels it blocks, and when it wants
# to be woken.
#
# The judge knows the items sent on each channel, and the newest checkpoint whose barrier or marker has reached the
# gate. A step takes one item, and its effects name the item. The item determines what else the step must do.


TELLS: Final = "gate-tells"
"""The effects of every step report what the gate did, with the right channel, checkpoint and time."""
ABORTS: Final = "gate-aborts"
"""A gate aborts exactly the checkpoints that a newer barrier, a marker, an end or the limit ends, and reports the right
reason."""
PENDING: Final = "gate-pending"
"""A gate reports a checkpoint as in progress from its first barrier or announcement until its end."""
BLOCKED: Final = "blocked"
"""While a checkpoint is in progress, an aligned gate blocks each channel whose barrier has come and that has not
ended."""
BOUNDED: Final = "bounded"
"""A gate keeps no more than it needs: some pending checkpoints, the bytes of its limit and of one more item, and
nothing of checkpoints that are complete."""
COSTS: Final = "costs"
"""A gate measures how long an alignment took, how many bytes it let through meanwhile, and how many it held back."""
IGNORED: Final = "ignored"
"""A gate drops exactly the barriers and markers of checkpoints that have ended or were skipped, and reports them."""
LIMIT: Final = "limit"
"""A gate aborts a checkpoint because of the limit only if it holds more bytes than the limit."""
OVERTAKES: Final = "overtakes"
"""Once a barrier has overtaken rows, none of these rows is let through before it."""
POLICY: Final = "policy"
"""Only a gate that may overtake triggers unaligned, only one with a limit aborts because of it, and at least once
blocks no channel. A savepoint is always aligned."""
REPLAY: Final = "replay"
"""Items that were put aside come before new items, in their own order. What was put aside last is replayed first."""
TIMER: Final = "timer"
"""A gate asks to be woken at an alignment's timeout. The checkpoint turns unaligned then, and not before."""
_SUBSUMED: Final = Reason.CHECKPOINT_DECLINED_SUBSUMED
_MARKER: Final = Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
_END: Final = Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM
_LIMIT: Final = Reason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED
NEVER_OF_GATE_TELLING: Final = CheckpointId(-1)
TRACKED_MAX: Final = 50
_STOPPING: Final = (GatePolicy.ALIGNED_BLOCKING, GatePolicy.UNALIGNED, GatePolicy.ALTERNATING)


@dataclass(slots=True)
class Line:
    """The barriers sent on a channel, and the channel's items that wait behind a barrier."""

    barriers: dict[CheckpointId, Barrier] = field(default_factory=dict)
    is_stopped: bool = False
    held: list[ChannelItem] = field(default_factory=list)
    is_blocked: bool = False
    newest: CheckpointId = NEVER_OF_GATE_TELLING
    """The newest barrier that has reached the gate and waits behind no other barrier."""


class GateTelling:
    """Judges every fact with its effects. Raises BrokenRuleError."""

    def __init__(self, config: GateConfig, channels: tuple[ChannelId, ...]) -> None:
        self.config = config
        self.lines = {channel: Line() for channel in channels}
        self.newest = NEVER_OF_GATE_TELLING
        """The newest checkpoint that has begun or was aborted."""
        self.pending: tuple[CheckpointId, ...] = ()
        """The gate's pending checkpoints after the last step."""
        self.aborted: set[CheckpointId] = set()
        self._begun: set[CheckpointId] = set()
        """The checkpoints that the judged step has begun."""
        self._tracks = config.policy is GatePolicy.AT_LEAST_ONCE
        self._buffers = config.policy is GatePolicy.ALIGNED_BUFFERING

    # -------------------------------------------------------------- what is sent

    def sent(self, channel: ChannelId, item: ChannelItem) -> None:
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
        """Judge one step. `pending` are the gate's pending checkpoints after the step."""
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

        If the item was an end, the last effect names it.
        """
        match effects[0]:
            case Deliver() | DeliverEndOfData():
                expect(len(effects) == 1, TELLS, f"more than {effects[0]} came of it: {effects[1:]}")
            case PutAside():
                self._aborts(effects, self.pending if len(effects) > 1 else (), _LIMIT)
            case AnnouncementReceived(channel, checkpoint):
                self._heard(channel, checkpoint, effects)
            case BarrierReceived(channel, Barrier(checkpoint), at_ms):
                expect(at_ms == now_ms, TELLS, f"{effects[0]} is told at {now_ms}")
                self._dropped(channel, checkpoint, effects)
                self._heard(channel, checkpoint, effects)
            case Ignored(channel):
                expect(len(effects) == 1, TELLS, f"more than {effects[0]} came of it: {effects[1:]}")
                old = effects[0].item.checkpoint
                obsolete = old in self.aborted if old in self.pending and self._tracks else self._is_obsolete(old)
                expect(obsolete, IGNORED, f"{effects[0]} is news: pending is {self.pending}, newest {self.newest}")
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
        expect(wakes == due, TIMER, f"{effects[0]} must be woken at {due}, not {wakes}")
        self._begun = {checkpoint} if begins else set()
        self.newest = max(self.newest, checkpoint)

    def _wakes(self, barrier: Barrier) -> list[int]:
        times_out = self.config.policy is GatePolicy.ALTERNATING and barrier.alignment is AlignmentType.ALIGNED
        timeout_ms = barrier.alignment_timeout_ms
        return [barrier.created_ms + timeout_ms] if times_out and timeout_ms is not None else []

    def _dropped(self, channel: ChannelId, checkpoint: CheckpointId, effects: tuple[GateEffect, ...]) -> None:
        dropped = [effect for effect in effects if isinstance(effect, Ignored)]
        if not self._is_obsolete(checkpoint):
            expect(not dropped, IGNORED, f"{dropped} is news: pending is {self.pending}, newest {self.newest}")
            return
        due = [(channel, checkpoint)]
        told = [(each.channel, each.item.checkpoint) for each in dropped if isinstance(each.item, Barrier)]
        expect(told == due, IGNORED, f"{due} is obsolete, dropped is {dropped}")

    def _ends(self, effects: tuple[GateEffect, ...]) -> None:
        counts = self.config.checkpoint_after_tasks_finished and not self._buffers
        waiting = tuple(n for n in self.pending if n not in self.aborted)
        self._aborts(effects, () if counts else waiting, _END)

    def _cancels(self, effects: tuple[GateEffect, ...]) -> None:
        """Judge the cancellation marker of a checkpoint that had not ended. The marker must end its checkpoint.

        The marker also ends older pending checkpoints. A gate that tracks must report all of these, and a gate that
        buffers must report the oldest one. Other gates report none.
        """
        ended = [effect.checkpoint for effect in effects if isinstance(effect, AbortCheckpoint)]
        expect(bool(ended), ABORTS, f"nobody hears of a marker: {effects}")
        newest = max(ended, default=NEVER_OF_GATE_TELLING)
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

        It is the barrier that came, marked as unaligned if it overtakes.
        """
        checkpoint = effect.barrier.checkpoint
        sent = [line.barriers[checkpoint] for line in self.lines.values() if checkpoint in line.barriers]
        due = [_turned(each) if effect.unaligned else each for each in sent]
        expect(effect.barrier in due, TELLS, f"{effect} for {sent}")
        if self.config.policy in _STOPPING:
            held = self.held_bytes()
            expect(effect.bytes_held == held, COSTS, f"{held} bytes are held, not {effect.bytes_held}")

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

        A tracker forgets checkpoints that it has triggered or aborted, all older ones, and the oldest ones beyond its
        limit.
        """
        known = (*self.pending, *sorted(self._begun))
        due = known[max(0, len(known) - TRACKED_MAX) :]
        over = [effect.barrier.checkpoint for effect in effects if isinstance(effect, TriggerCheckpoint)]
        newest = max((*over, *(n for n in due if n in self.aborted)), default=NEVER_OF_GATE_TELLING)
        self._begun = set()
        lost = [n for n in due if n not in pending and n > newest]
        expect(not lost, PENDING, f"{effects}: {lost} are forgotten")
        left = [n for n in pending if n <= max(over, default=NEVER_OF_GATE_TELLING)]
        expect(not left, PENDING, f"{effects}: {left} are pending still")

    def judge_blocked(self, blocked: Mapping[ChannelId, None] | frozenset[ChannelId]) -> None:
        """Raise unless the blocked channels are those that the effects have blocked and not yet freed."""
        told = {channel for channel, line in self.lines.items() if line.is_blocked}
        expect(told == set(blocked), TELLS, f"{told} were told as blocked, blocked are {set(blocked)}")


def _turned(barrier: Barrier) -> Barrier:
    return replace(barrier, alignment=AlignmentType.UNALIGNED, alignment_timeout_ms=None)


NEVER = CheckpointId(-1)
_ALIGNED = (GatePolicy.ALIGNED_BLOCKING, GatePolicy.ALIGNED_BUFFERING)
_OVERTAKING = (GatePolicy.UNALIGNED, GatePolicy.ALTERNATING)
Queued = tuple[ChannelId, ChannelItem]


@dataclass(slots=True)
class Sent:
    """The items sent on one channel, and those of them that were delivered to the operator."""

    items: list[ChannelItem] = field(default_factory=list)
    delivered: list[SourceSlice] = field(default_factory=list)
    received: CheckpointId = NEVER
    """The newest barrier that the gate received and did not ignore."""
    ended: bool = False
    """True if the end was delivered to the operator."""
    is_told: bool = False
    """True if the operator was notified that no more rows come."""

    def segments(self) -> list[SourceSlice]:
        return [item for item in self.items if isinstance(item, SourceSlice)]

    def before(self, checkpoint: CheckpointId) -> list[SourceSlice] | None:
        """Return the segments before this barrier, or None if the barrier is still due or was skipped.

        If the channel ended without the barrier, return all its segments.
        """
        found = []
        for item in self.items:
            match item:
                case SourceSlice():
                    found.append(item)
                case Barrier(n) | CancelMarker(n) if n >= checkpoint:
                    return found if isinstance(item, Barrier) and n == checkpoint else None
                case _:
                    pass
        return found if self.is_over else None

    def overtaken(self, segment: SourceSlice, checkpoint: CheckpointId) -> bool:
        """Return whether only segments lie between the segment and this barrier, and the barrier is no savepoint's."""
        behind = self.items[self.items.index(segment) :]
        found = next((item for item in behind if not isinstance(item, SourceSlice)), None)
        may = isinstance(found, Barrier) and found.alignment is not AlignmentType.FORCED_ALIGNED
        return may and isinstance(found, Barrier) and found.checkpoint == checkpoint

    def has(self, checkpoint: CheckpointId) -> bool:
        """Return whether exactly this barrier was sent."""
        return any(isinstance(item, Barrier) and item.checkpoint == checkpoint for item in self.items)

    def has_answered(self, checkpoint: CheckpointId, *, exactly: bool) -> bool:
        """Return whether the channel has ended, or has sent the barrier or marker.

        Without `exactly`, a newer barrier or marker is enough.
        """
        ids = [item.checkpoint for item in self.items if isinstance(item, Barrier | CancelMarker)]
        return self.is_over or checkpoint in ids or (not exactly and any(n > checkpoint for n in ids))

    @property
    def has_no_more(self) -> bool:
        """True if the notice that no more rows come was sent on the channel."""
        return any(isinstance(item, EndOfData) for item in self.items)

    @property
    def is_over(self) -> bool:
        """True if the end was sent."""
        return bool(self.items) and isinstance(self.items[-1], EndOfChannel)

    @property
    def bytes_due(self) -> int:
        """How many bytes were sent and not delivered."""
        return sum(s.bytes for s in self.segments()) - sum(s.bytes for s in self.delivered)


class GateModel:
    """Processes the items sent and the gate's answers. Raises BrokenRuleError."""

    def __init__(self, config: GateConfig, channels: tuple[ChannelId, ...]) -> None:
        self.config = config
        self.channels = {channel: Sent() for channel in channels}
        self.telling = GateTelling(config, channels)
        self.now_ms = 0
        self.started: dict[CheckpointId, tuple[int, int]] = {}
        self._over = CheckpointId(-1)
        """The newest checkpoint that was triggered or aborted. Checkpoints end in rising order, so older ones are over.
        """
        self._at_trigger: dict[ChannelId, int] = {}
        self._ending: frozenset[ChannelId] = frozenset()
        """Channels that end in the judged step. A tracker counts an end before it reports it."""
        self.in_flight: CheckpointId | None = None
        """The checkpoint that was triggered unaligned, as long as its channel state is incomplete."""
        self.aside: list[Queued] = []
        self.replays: list[list[Queued]] = []
        """The items put aside in alignments that are over, one list for each. The last list is replayed first."""
        self._complete = NEVER
        """The newest checkpoint whose channel state was reported as complete."""
        self._overdue = NEVER
        """The newest checkpoint that the timer has turned unaligned."""

    def polled(self, effects: tuple[GateEffect, ...]) -> None:
        """Judge one poll: a replay comes before new items, in order, and the newest replay before older ones."""
        if not self.replays:
            return
        channel, item = self.replays[-1].pop(0)
        self.replays = [replay for replay in self.replays if replay]
        first = effects[0] if effects else None
        match item:
            case SourceSlice():
                due = first in (Deliver(channel, item), PutAside(channel, item))
            case Barrier(n):
                due = first == PutAside(channel, item) or (
                    isinstance(first, BarrierReceived) and (first.channel, first.checkpoint) == (channel, n)
                )
            case _:
                due = not isinstance(first, Deliver | BarrierReceived)
        expect(due, REPLAY, f"{item} of {channel} is to be replayed, not {first}")

    def take(self, effects: tuple[GateEffect, ...]) -> None:  # noqa: PLR0912 - one line an effect
        """Judge one step."""
        ignored = any(isinstance(effect, Ignored) for effect in effects)
        self._ending = frozenset(effect.channel for effect in effects if isinstance(effect, DeliverEnd))
        for effect in effects:
            match effect:
                case Ignored(channel, item):
                    obsolete = isinstance(item, Barrier | CancelMarker)
                    expect(obsolete and channel in self.channels, IGNORED, f"{item} of {channel} is dropped")
                case Deliver(channel, segment):
                    self._delivered(channel, segment)
                case DeliverEndOfData(channel):
                    self._has_no_more(channel)
                case DeliverEnd(channel):
                    self._ended(channel)
                case BarrierReceived(channel, Barrier(checkpoint)):
                    if not ignored:
                        self._counts(channel, checkpoint)
                case TriggerCheckpoint():
                    self._triggered(effect)
                case AbortCheckpoint():
                    self._aborted(effect)
                case InFlightComplete():
                    self._completed(effect)
                case PutAside(channel, item):
                    self.aside.append((channel, item))
                case _:
                    pass
            if isinstance(effect, TriggerCheckpoint | AbortCheckpoint) and self.aside:
                self.replays.append(self.aside)
                self.aside = []
        if effects and isinstance(effects[-1], PutAside):
            expect(not self._is_over_limit(), BOUNDED, f"{self.held_bytes()} bytes are held, and nothing is aborted")

    def _is_over_limit(self) -> bool:
        limit = self.config.max_alignment_bytes
        return limit != UNLIMITED and self.held_bytes() > limit

    def held_bytes(self) -> int:
        """Return how many bytes were put aside and are not being replayed now."""
        return sum(_bytes(item) for queue in (self.aside, *self.replays[:-1]) for _, item in queue)

    # -------------------------------------------------------------- what a step says

    def _delivered(self, channel: ChannelId, segment: object) -> None:
        sent = self.channels[channel]
        due = sent.segments()[len(sent.delivered) :]
        expect(bool(due) and due[0] == segment, "fifo", f"{segment} is not the next of {channel}")
        turned = self._overdue if self.in_flight is None else self.in_flight
        if sent.received < turned and (turned == self.in_flight or turned > self._over):
            expect(not sent.overtaken(due[0], turned), OVERTAKES, f"{segment} of {channel} comes before {turned}")
        sent.delivered.append(due[0])

    def _has_no_more(self, channel: ChannelId) -> None:
        sent, line = self.channels[channel], self.telling.lines[channel]
        waits = line.is_blocked if self.config.policy in _ALIGNED else EndOfData() in line.held
        told = sent.has_no_more and not sent.bytes_due and not sent.is_told and not waits
        expect(told, "fifo", f"{channel} is told to have no more rows, {sent.bytes_due} bytes are due")
        sent.is_told = True

    def _ended(self, channel: ChannelId) -> None:
        sent = self.channels[channel]
        all_given = not sent.bytes_due and sent.is_told == sent.has_no_more
        expect(sent.is_over and all_given and not sent.ended, "fifo", f"{channel} ended too early")
        sent.ended = True

    def _counts(self, channel: ChannelId, checkpoint: CheckpointId) -> None:
        expect(self.channels[channel].has(checkpoint), "fifo", f"barrier {checkpoint} was never sent on {channel}")
        self.channels[channel].received = checkpoint
        self.started.setdefault(checkpoint, (self.now_ms, self.bytes_delivered()))

    def _triggered(self, effect: TriggerCheckpoint) -> None:
        checkpoint = effect.barrier.checkpoint
        expect(checkpoint in self.started, "ends-once", f"{checkpoint} was triggered without a barrier")
        expect(checkpoint > self._over, "ends-once", f"{checkpoint} was triggered after {self._over} had ended")
        expect(self.in_flight is None, "ends-once", f"{self.in_flight} is not complete yet")
        self._over = checkpoint
        self._at_trigger = {channel: len(sent.delivered) for channel, sent in self.channels.items()}
        overtakes = self.config.policy in _OVERTAKING
        expect(overtakes or not effect.unaligned, POLICY, f"{checkpoint} is unaligned")
        if effect.unaligned:
            self.in_flight = checkpoint
            return
        for channel, sent in self.channels.items():
            self._is_aligned(checkpoint, channel, sent)
        self._costs(effect)

    def _is_aligned(self, checkpoint: CheckpointId, channel: ChannelId, sent: Sent) -> None:
        at_least = self.config.policy is GatePolicy.AT_LEAST_ONCE
        before = sent.before(checkpoint)
        if at_least and before is None and (sent.ended or channel in self._ending):
            return
        if before is None:
            raise BrokenRuleError("alignment", f"{checkpoint} was triggered, {channel} has not sent its barrier")
        aligned = sent.delivered[: len(before)] == before if at_least else sent.delivered == before
        expect(aligned, "alignment", f"before {checkpoint} lay {before} on {channel}, given was {sent.delivered}")

    def _costs(self, effect: TriggerCheckpoint) -> None:
        if self.config.policy is GatePolicy.ALTERNATING:
            return
        at_ms, delivered = self.started[effect.barrier.checkpoint]
        due = (self.now_ms - at_ms, self.bytes_delivered() - delivered)
        expect(due == (effect.alignment_ms, effect.bytes_processed), COSTS, f"{due} are due, not {effect}")
        undelivered = sum(sent.bytes_due for sent in self.channels.values())
        if self.config.policy is GatePolicy.ALIGNED_BLOCKING:
            expect(effect.bytes_held == undelivered, COSTS, f"{undelivered} bytes wait, not {effect.bytes_held}")
        if self.config.policy is GatePolicy.ALIGNED_BUFFERING:
            expect(effect.bytes_held == self.held_bytes(), COSTS, f"{self.held_bytes()} bytes are held, not {effect}")
        expect(effect.bytes_held <= undelivered, COSTS, f"{undelivered} bytes wait, not {effect.bytes_held}")

    def judge_turn(self, effect: TriggerCheckpoint, sent: Barrier, *, by_timer: bool) -> None:
        """Judge a checkpoint that turned unaligned. It must have turned upstream or reached its alignment timeout.

        The timer turns it exactly at the timeout. A barrier or an end turns it only a millisecond later.
        """
        checkpoint = sent.checkpoint
        if not effect.unaligned or self.config.policy is not GatePolicy.ALTERNATING:
            return
        if any(_is_unaligned(item, checkpoint) for channel in self.channels.values() for item in channel.items):
            return
        timeout_ms = sent.alignment_timeout_ms
        late_ms = 0 if by_timer or self._overdue == checkpoint else 1
        due = timeout_ms is not None and self.now_ms >= sent.created_ms + timeout_ms + late_ms
        expect(due, TIMER, f"{checkpoint} of {sent.created_ms} turned unaligned at {self.now_ms}")

    def _aborted(self, effect: AbortCheckpoint) -> None:
        checkpoint = effect.checkpoint
        again = checkpoint == self.in_flight
        expect(checkpoint > self._over or again, "ends-once", f"{checkpoint} was aborted after {self._over} had ended")
        self._over, self.in_flight = checkpoint, None
        limited = self.config.max_alignment_bytes != UNLIMITED
        by_limit = effect.reason is Reason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED
        expect(limited or not by_limit, POLICY, f"{checkpoint} was aborted for a limit that is none")
        expect(
            self._is_over_limit() or not by_limit,
            LIMIT,
            f"{checkpoint} was aborted, {self.held_bytes()} bytes are held",
        )

    def _completed(self, effect: InFlightComplete) -> None:
        checkpoint = effect.checkpoint
        expect(checkpoint == self.in_flight, "ends-once", f"{checkpoint} is not in flight, {self.in_flight} is")
        self.in_flight, self._complete = None, checkpoint
        if not any(sent.is_over for sent in self.channels.values()):
            at_ms, delivered = self.started[checkpoint]
            due = (self.now_ms - at_ms, self.bytes_delivered() - delivered)
            expect(due == (effect.alignment_ms, effect.bytes_processed), COSTS, f"{due} are due, not {effect}")
        recorded = {state.channel: list(state.segments) for state in effect.channels}
        expect(all(recorded.values()), "alignment", f"{effect} names channels without rows in flight")
        for channel, sent in self.channels.items():
            before = sent.before(checkpoint)
            held = [*sent.delivered[: self._at_trigger[channel]], *recorded.get(channel, ())]
            expect(held == before, "alignment", f"before {checkpoint} lay {before} on {channel}, held is {held}")

    def bytes_delivered(self) -> int:
        """Return how many bytes were delivered to the operator."""
        return sum(segment.bytes for sent in self.channels.values() for segment in sent.delivered)

    # -------------------------------------------------------------- what a gate looks like between two steps

    def judge(self, gate: InputGate) -> None:
        """Judge the gate at rest."""
        pending = gate.pending()
        expect(len(pending) <= TRACKED_MAX, BOUNDED, f"{len(pending)} checkpoints are pending")
        largest = max((_bytes(item) for sent in self.channels.values() for item in sent.items), default=0)
        most = self.config.max_alignment_bytes + largest
        limited = self.config.max_alignment_bytes != UNLIMITED
        expect(not limited or self.held_bytes() <= most, BOUNDED, f"{self.held_bytes()} bytes are held")
        self._blocks(gate.blocked(), pending)
        self.telling.judge_blocked(gate.blocked())
        due = {channel for channel, sent in self.channels.items() if not sent.ended}
        expect(gate.open_channels() == due, "gate-tells", f"{due} have not ended, open are {gate.open_channels()}")
        if self.config.policy in _OVERTAKING:
            self._recordings(gate)

    def _recordings(self, gate: InputGate) -> None:
        """Judge that only an unaligned checkpoint is recorded, and that no barrier is kept longer than needed."""
        for channel in gate.snapshot().channels.channels:
            records = bool(channel.recorded) or channel.recording_for != NEVER
            expect(not records or self.in_flight is not None, BOUNDED, f"{channel} records for nobody")
            kept = [n for n, _ in channel.overtakers if n <= self._complete]
            expect(not kept, BOUNDED, f"the barriers {kept} are remembered, {self._complete} is complete")

    def _blocks(self, blocked: frozenset[ChannelId], pending: tuple[CheckpointId, ...]) -> None:
        waiting = {c for c, sent in self.channels.items() if pending and sent.received in pending and not sent.ended}
        expect(blocked <= waiting, "released", f"{blocked - waiting} are blocked, pending is {pending}")
        if self.config.policy in _ALIGNED:
            expect(blocked == waiting, BLOCKED, f"{waiting - blocked} are not blocked, pending is {pending}")
        if self.config.policy is GatePolicy.AT_LEAST_ONCE:
            expect(not blocked, POLICY, f"{blocked} are blocked")

    def judge_dry(self, gate: InputGate) -> None:
        """Judge a gate that can deliver nothing. Whatever waits must wait for something that was not sent yet."""
        exactly = self.config.policy is GatePolicy.AT_LEAST_ONCE
        for checkpoint in gate.pending():
            silent = [c for c, sent in self.channels.items() if not sent.has_answered(checkpoint, exactly=exactly)]
            expect(bool(silent), "no-deadlock", f"{checkpoint} is pending, every channel has answered")
        held = [c for c, sent in self.channels.items() if sent.bytes_due]
        expect(not held or bool(gate.pending()), "no-deadlock", f"{held} hold segments, nothing is pending")

    def judge_clock(self, gate: InputGate, barriers: dict[CheckpointId, Barrier]) -> None:
        """Judge a gate that got the time. A checkpoint whose alignment timeout is over must have been triggered."""
        for checkpoint in gate.pending():
            barrier = barriers.get(checkpoint)
            if (
                barrier is None
                or barrier.alignment is not AlignmentType.ALIGNED
                or barrier.alignment_timeout_ms is None
            ):
                continue
            if barrier.created_ms + barrier.alignment_timeout_ms <= self.now_ms:
                collected = checkpoint in self.started
                expect(not collected or self._over >= checkpoint, TIMER, f"{checkpoint} is overdue")
                self._overdue = checkpoint

        timer_ms = getattr(gate.snapshot().handler, "timer_ms", None)
        expect(timer_ms is None or timer_ms > self.now_ms, TIMER, f"at {self.now_ms} the timer of {timer_ms} is left")

    def judge_late(self, effects: tuple[GateEffect, ...], barriers: dict[CheckpointId, Barrier]) -> None:
        """Judge a barrier or an end.

        If the checkpoint's alignment timeout was over by then, it must have turned unaligned.
        """
        ends = self.config.checkpoint_after_tasks_finished and any(isinstance(each, DeliverEnd) for each in effects)
        barrier = effects[0].checkpoint if effects and isinstance(effects[0], BarrierReceived) else NEVER
        for checkpoint in self.telling.pending if self.config.policy is GatePolicy.ALTERNATING else ():
            turns = barriers[checkpoint].alignment is AlignmentType.ALIGNED
            timeout_ms = barriers[checkpoint].alignment_timeout_ms if turns else None
            if checkpoint in self.started and timeout_ms is not None and (ends or barrier == checkpoint):
                late = self.now_ms > barriers[checkpoint].created_ms + timeout_ms
                expect(not late or self._over >= checkpoint, TIMER, f"{checkpoint} is too old at {self.now_ms}")

    def judge_end(self, gate: InputGate) -> None:
        """Judge a gate whose channels have all ended, after all items were taken."""
        self.judge_dry(gate)
        expect(not gate.pending() and not gate.blocked(), "ends-once", f"{gate.pending()} never ended")
        expect(self.in_flight is None, "ends-once", f"{self.in_flight} never was complete")
        left = [channel for channel, sent in self.channels.items() if not sent.ended]
        expect(not left, "no-deadlock", f"{left} never ended")


def _bytes(item: ChannelItem) -> int:
    return item.bytes if isinstance(item, SourceSlice) else 0


def _is_unaligned(item: ChannelItem, checkpoint: CheckpointId) -> bool:
    return isinstance(item, Barrier) and item.checkpoint == checkpoint and item.alignment is AlignmentType.UNALIGNED
