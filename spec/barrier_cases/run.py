"""Feeds a case's events to a gate as facts and keeps the effects as the trace."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpointing.channel_items import (
    AlignmentType,
    Barrier,
    CancelMarker,
    ChannelItem,
    EndOfChannel,
    Segment,
    SourceSlice,
)
from checkpointing.gate import (
    AbortCheckpoint,
    AnnouncementReceived,
    BarrierReceived,
    BlockChannel,
    ClockRead,
    Deliver,
    DeliverEnd,
    GateConfig,
    GateEffect,
    GateFact,
    GatePolicy,
    GateTimeAdvanced,
    InFlightComplete,
    ItemArrived,
    Polled,
    ResumeChannel,
    TriggerCheckpoint,
)
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, SplitId, VertexId
from spec.flink.gate import AnnouncementHanded, FlinkGate, GateClosed, ItemHanded

Case = Mapping[str, Any]
Entry = tuple[Any, ...]
Event = list[Any]

POLICIES = {policy.value: policy for policy in GatePolicy}
_EDGE = EdgeId(VertexId("upstream"), VertexId("task"))


@dataclass(slots=True)
class BarrierRun:
    """One gate and what it did so far: `trace` holds (event index, entry)."""

    case: Case
    gate: FlinkGate = field(init=False)
    channels: list[ChannelId] = field(init=False)
    clock_ms: int = 0
    trace: list[tuple[int, Entry]] = field(default_factory=list)
    in_flight: dict[int, list[int]] = field(default_factory=dict)
    alignment_ms: int = 0
    bytes_processed: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        """Build the gate of the case."""
        case = self.case
        self.channels = [ChannelId(_EDGE, index) for index in range(case["channels"])]
        config = GateConfig(
            policy=POLICIES[case["mode"]],
            max_alignment_bytes=case.get("max_buffered_bytes", -1),
            checkpoint_after_tasks_finished=case.get("checkpoint_after_tasks_finished", True),
        )
        self.gate = FlinkGate(config, tuple(self.channels))

    @property
    def alternating(self) -> bool:
        """Whether items are polled one by one."""
        return bool(self.case["mode"] == "alternating")

    def do(self, index: int, event: Event) -> None:
        """Carry out one event."""
        self.step = index
        kind, *args = event
        if self.alternating:
            _ALTERNATING[kind](self, *args)
        else:
            self._handle_at_once(kind, args)
        self.clock_ms += self.case.get("clock_ms_after_each_event", 0)
        self.gate.step(ClockRead(self.clock_ms))

    def _handle_at_once(self, kind: str, args: list[Any]) -> None:
        channel = self.channels[args[0]]
        item = self.item(kind, args)
        if self.step in self.case.get("fed_directly", ()):
            self.note(ItemHanded(channel, item))
        else:
            self.note(ItemArrived(channel, item))
        while self.gate.has_deliverable():
            self.note(Polled())

    def item(self, kind: str, args: list[Any]) -> ChannelItem:
        """Return what an event puts into a channel."""
        match kind, args:
            case "buffer", [_, number, *size]:
                return _segment(number, *size)
            case "barrier", [_, checkpoint, *opts]:
                return self.barrier(checkpoint, *opts)
            case "cancel", [_, checkpoint]:
                return CancelMarker(CheckpointId(checkpoint))
            case "eop", _:
                return EndOfChannel()
            case _:
                message = f"unknown event {kind} {args}"
                raise ValueError(message)

    def barrier(self, checkpoint: int, opts: Mapping[str, bool] | None = None) -> Barrier:
        """Return the barrier of a checkpoint, created now."""
        opts = opts or {}
        created = CheckpointId(checkpoint), self.clock_ms
        if opts.get("savepoint"):
            return Barrier(*created, AlignmentType.FORCED_ALIGNED)
        if opts.get("unaligned") or self.case["mode"] == "unaligned":
            return Barrier(*created, AlignmentType.UNALIGNED)
        return Barrier(*created, AlignmentType.ALIGNED, self.case.get("aligned_timeout_ms"))

    def note(self, fact: GateFact | ItemHanded | AnnouncementHanded | GateClosed, *, yields: bool = True) -> None:
        """Step the gate; enter what it did into the trace, what a poll hands out last."""
        effects = self.gate.tell(fact)
        entries = [entry for effect in effects if (entry := self._entry(effect)) is not None]
        if self.alternating and yields and isinstance(fact, Polled):
            entries += [("yield", kind) for kind in map(_yielded, effects) if kind]
        self.trace += [(self.step, entry) for entry in entries]

    def _entry(self, effect: GateEffect) -> Entry | None:
        match effect:
            case TriggerCheckpoint():
                return self._trigger_entry(effect)
            case InFlightComplete():
                self._note_in_flight(effect)
                return ("inflight", effect.checkpoint)
            case Deliver() | DeliverEnd() if self.alternating:
                return None
            case _:
                return _plain_entry(effect)

    def _trigger_entry(self, effect: TriggerCheckpoint) -> Entry:
        self.alignment_ms = effect.alignment_ms
        self.bytes_processed = effect.bytes_processed
        checkpoint = effect.barrier.checkpoint
        if self.alternating:
            return ("trigger", checkpoint, "unaligned" if effect.unaligned else "aligned")
        return ("trigger", checkpoint)

    def _note_in_flight(self, effect: InFlightComplete) -> None:
        self.alignment_ms = effect.alignment_ms
        self.bytes_processed = effect.bytes_processed
        numbers = [segment_number(segment) for state in effect.channels for segment in state.segments]
        self.in_flight[effect.checkpoint] = sorted(numbers)

    def ids(self, kind: str) -> list[int]:
        """Return the checkpoint ids of the trace's entries of a kind, in order."""
        return [entry[1] for _, entry in self.trace if entry[0] == kind]


def _plain_entry(effect: GateEffect) -> Entry | None:
    match effect:
        case Deliver(channel, segment):
            return ("buffer", channel.subtask, segment_number(segment))
        case DeliverEnd(channel):
            return ("eop", channel.subtask)
        case AbortCheckpoint(checkpoint, reason):
            return ("abort", checkpoint, reason.name)
        case BlockChannel(channel):
            return ("blocked", channel.subtask)
        case ResumeChannel(channel):
            return ("unblocked", channel.subtask)
        case _:
            return None


def _arrive(kind: str) -> Callable[..., None]:
    def do(run: BarrierRun, channel: int, *args: Any) -> None:  # noqa: ANN401 - JSON
        run.note(ItemArrived(run.channels[channel], run.item(kind, [channel, *args])))

    return do


def _hand(kind: str) -> Callable[..., None]:
    def do(run: BarrierRun, channel: int, *args: Any) -> None:  # noqa: ANN401 - JSON
        run.note(ItemHanded(run.channels[channel], run.item(kind, [channel, *args])))

    return do


def _announce(run: BarrierRun, channel: int, checkpoint: int) -> None:
    run.note(AnnouncementHanded(run.channels[channel], run.barrier(checkpoint)))


def _poll(run: BarrierRun) -> None:
    run.note(Polled())


def _poll_all(run: BarrierRun) -> None:
    while run.gate.has_deliverable():
        run.note(Polled(), yields=False)


def _advance(run: BarrierRun, duration_ms: int, timers: str) -> None:
    run.clock_ms += duration_ms
    run.note(GateTimeAdvanced(run.clock_ms) if timers == "fire_timers" else ClockRead(run.clock_ms))


def _close(run: BarrierRun) -> None:
    run.note(GateClosed())


_ALTERNATING: dict[str, Callable[..., None]] = {
    "arrive_buffer": _arrive("buffer"),
    "arrive_barrier": _arrive("barrier"),
    "arrive_cancel": _arrive("cancel"),
    "arrive_eop": _arrive("eop"),
    "deliver_announcement": _announce,
    "deliver_barrier": _hand("barrier"),
    "deliver_cancel": _hand("cancel"),
    "poll": _poll,
    "poll_all": _poll_all,
    "advance_ms": _advance,
    "close": _close,
}


def _segment(number: int, size: int = 1) -> SourceSlice:
    return SourceSlice(VertexId("upstream"), SplitId("0"), str(number), str(number + 1), "{}", rows=1, bytes=size)


def segment_number(segment: Segment) -> int:
    """Return the number of a buffer of the case."""
    if not isinstance(segment, SourceSlice):
        message = f"{segment} is no segment of this runner"
        raise TypeError(message)
    return int(segment.start)


def _yielded(effect: GateEffect) -> str | None:
    match effect:
        case AnnouncementReceived():
            return "announcement"
        case BarrierReceived():
            return "barrier"
        case Deliver():
            return "buffer"
        case DeliverEnd():
            return "eop"
        case _:
            return None
