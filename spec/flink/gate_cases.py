"""Runs the gate cases: feeds a case's events to a gate as facts, and keeps the effects as the trace."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    InputGate,
    ItemArrived,
    Polled,
    ResumeChannel,
    TriggerCheckpoint,
)
from checkpointing.gate.aligner import AlignerSnapshot
from checkpointing.gate.tracker import TrackerSnapshot
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, SplitId, VertexId
from spec.flink.vectors import named_step


@dataclass(frozen=True, slots=True)
class ItemHanded:
    """A case gave the gate an item, past the channel's queue and past a block. The gate handles it at once."""

    channel: ChannelId
    item: ChannelItem


@dataclass(frozen=True, slots=True)
class AnnouncementHanded:
    """A case announced to the gate that this barrier waits in the channel (Flink: `EventAnnouncement`)."""

    channel: ChannelId
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class GateClosed:
    """The task has ended. From now on timers do nothing, and the gate delivers nothing."""


class FlinkGate(InputGate):
    """A gate that takes every fact of Flink's cases, and follows the product's rules."""

    def __init__(self, config: GateConfig, channels: Sequence[ChannelId]) -> None:
        super().__init__(config, channels)
        self._closed = False

    def tell(self, fact: GateFact | ItemHanded | AnnouncementHanded | GateClosed) -> tuple[GateEffect, ...]:
        """Process one fact and return the effects, as `step` does."""
        match fact:
            case ItemHanded(channel, item):
                admitted = self._admissible(channel, item)
                self._pass_the_queue(channel, admitted)
                return tuple(self._handle(channel, admitted))
            case AnnouncementHanded(channel, barrier):
                return tuple(self._announced(channel, barrier))
            case GateClosed():
                self._closed = True
                return ()
            case Polled() | GateTimeAdvanced() if self._closed:
                return ()
            case _:
                return self.step(fact)

    def has_deliverable(self) -> bool:
        """Return whether a poll would take an item. A closed gate has none."""
        return not self._closed and super().has_deliverable()

    def _pass_the_queue(self, name: ChannelId, item: ChannelItem) -> None:
        """Record an item that was handled without passing the queue.

        Items that wait in the queue now lie behind a barrier.
        """
        channel = self._channels[name]
        if isinstance(item, EndOfChannel):
            channel.ended = True
        elif isinstance(item, Barrier):
            if self._channels.may_block(item):
                waiting = tuple(channel.waiting)
                channel.waiting.clear()
                held = [channel.release_next() for _ in range(len(channel.held))]
                for behind in (*waiting, *held):
                    channel.hold(behind)
                channel.stopped = True
                self._channels._to_the_back(channel)  # noqa: SLF001 - only Flink's cases empty a queue like this
            channel.overtake(item)


Case = Mapping[str, Any]
Entry = tuple[Any, ...]
Event = list[Any]

POLICIES = {policy.value: policy for policy in GatePolicy}
_EDGE = EdgeId(VertexId("upstream"), VertexId("task"))


@dataclass(slots=True)
class BarrierRun:
    """One gate, and its effects so far. `trace` holds pairs (event index, entry)."""

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
        """True if items are polled one by one."""
        return bool(self.case["mode"] == "alternating")

    def do(self, index: int, event: Event) -> None:
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
        """Step the gate. Add its effects to the trace, and last the item that a poll returns."""
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


# ------------------------------------------------------------------
# Compares a trace with the legend's `matching` and with the assertions of Flink's own test.


MANDATORY = {
    "alternating": ("yield", "trigger", "abort"),
    "other": ("buffer", "eop", "trigger", "abort"),
}


def compare_traces(run: BarrierRun, case: Case) -> Iterator[str]:
    """Yield the first difference of the mandatory entries, order and blocked channels included."""
    kinds = MANDATORY.get(case["mode"], MANDATORY["other"])
    expected = _mandatory([(None, tuple(entry)) for entry in case["expect"]], kinds, case)
    got = _mandatory(list(run.trace), kinds, case)
    for (_, want), (step, have) in zip(expected, got, strict=False):
        if want != have:
            yield _problem(step, want, have)
            return
    if len(expected) != len(got):
        longer = expected if len(expected) > len(got) else got
        step, extra = longer[min(len(expected), len(got))]
        step = run.step if step is None else step
        yield _problem(step, *((extra, "nothing") if longer is expected else ("nothing", extra)))
    yield from _compare_in_flight(run, case)


def _mandatory(trace: list[tuple[Any, Entry]], kinds: tuple[str, ...], case: Case) -> list[tuple[Any, Entry]]:
    """Return the entries of these kinds.

    In an aligned mode, each delivery gets the set of channels that are blocked then. A last entry has the set that is
    blocked at the end of the case.
    """
    folds = case["mode"].startswith("aligned")
    blocked: set[int] = set()
    entries: list[tuple[Any, Entry]] = []
    for step, entry in trace:
        _fold(blocked, entry)
        if entry[0] in kinds:
            delivery = folds and entry[0] in {"buffer", "eop"}
            entries.append((step, (*entry, "blocked", sorted(blocked)) if delivery else entry))
    return [*entries, (None, ("end", "blocked", sorted(blocked)))] if folds else entries


def _fold(blocked: set[int], entry: Entry) -> None:
    match entry:
        case "blocked", channel:
            blocked.add(channel)
        case (("unblocked" | "eop"), channel):
            blocked.discard(channel)
        case _:
            pass


def _compare_in_flight(run: BarrierRun, case: Case) -> Iterator[str]:
    for kind, *rest in case["expect"]:
        if kind != "inflight":
            continue
        checkpoint, buffers = rest
        if run.in_flight.get(checkpoint) != sorted(buffers):
            yield _problem(run.step, ("inflight", checkpoint, sorted(buffers)), run.in_flight.get(checkpoint))


def _problem(step: object, expected: object, got: object) -> str:
    return f"step {step}: expected {expected}, got {got}"


# ---------------------------------------------------------------------- what Flink's tests assert


def _in_flight_so_far(run: BarrierRun) -> list[int]:
    channels = run.gate.snapshot().channels.channels
    return sorted(segment_number(segment) for channel in channels for segment in channel.recorded)


def _latest(run: BarrierRun) -> int:
    match run.gate.snapshot().handler:
        case AlignerSnapshot(alignment=book):
            return book.current
        case TrackerSnapshot(latest=latest):
            return latest


def _during_alignment(run: BarrierRun) -> bool:
    handler = run.gate.snapshot().handler
    return isinstance(handler, AlignerSnapshot) and handler.alignment.started_ms is not None


def _blocked(run: BarrierRun) -> list[int]:
    return sorted(channel.subtask for channel in run.gate.blocked())


_CHECKS: dict[str, Callable[[BarrierRun], Any]] = {
    "blocked": _blocked,
    "latest": _latest,
    "pending": lambda run: bool(run.gate.pending()),
    "triggered_so_far": lambda run: run.ids("trigger"),
    "aborted_so_far": lambda run: run.ids("abort"),
    "during_alignment": _during_alignment,
    "inflight_so_far": _in_flight_so_far,
}
_SETS = frozenset({"blocked", "inflight_so_far"})


def check_facts(run: BarrierRun, check: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts of one check that do not hold now."""
    for fact, expected in check.items():
        if fact == "after_event":
            continue
        if fact == "not_blocked":
            blocked = set(_blocked(run)) & set(expected)
            if blocked:
                yield f"expected {fact} {expected}, got blocked {sorted(blocked)}"
            continue
        got = _CHECKS[fact](run)
        if got != (sorted(expected) if fact in _SETS else expected):
            yield f"expected {fact} {expected}, got {got}"


def _yield_order(run: BarrierRun) -> list[int]:
    ends = {event[1]: index for index, event in enumerate(run.case["events"]) if event[0] == "eop"}
    order = []
    for _, entry in run.trace:
        match entry:
            case "buffer", _, number:
                order.append(number)
            case "eop", channel:
                order.append(ends[channel])
            case _:
                pass
    return order


_ASSERTED: dict[str, Callable[[BarrierRun], Any]] = {
    "triggered": lambda run: run.ids("trigger"),
    "aborted": lambda run: run.ids("abort"),
    "triggered_count": lambda run: len(run.ids("trigger")),
    "aborted_count": lambda run: len(run.ids("abort")),
    "aborted_with_reason": lambda run: [list(entry[1:]) for _, entry in run.trace if entry[0] == "abort"],
    "notifications": lambda run: [list(entry[:2]) for _, entry in run.trace if entry[0] in {"trigger", "abort"}],
    "any_trigger": lambda run: bool(run.ids("trigger")),
    "any_abort": lambda run: bool(run.ids("abort")),
    "yield_order_by_event_index": _yield_order,
    "yields": lambda run: run.ids("yield"),
    "trigger_alignments": lambda run: [entry[2] for _, entry in run.trace if entry[0] == "trigger"],
    "no_unaligned_trigger": lambda run: all(entry[2] == "aligned" for _, entry in run.trace if entry[0] == "trigger"),
    "last_started": lambda run: max(run.ids("trigger")),
    "last_cancelled": lambda run: run.ids("abort")[-1],
    "pending_ids_at_end": lambda run: list(run.gate.pending()),
    "open_channels_at_end": lambda run: len(run.gate.open_channels()),
    "bytes_processed_during_alignment": lambda run: run.bytes_processed,
    "alignment_duration_ms_of_last_checkpoint": lambda run: run.alignment_ms,
}


def compare_asserted(run: BarrierRun, case: Case) -> Iterator[str]:
    """Yield each assertion of Flink's test that does not hold at the end."""
    for fact, expected in case["asserted"].items():
        if fact == "checks":
            continue
        if fact == "inflight_buffer_ids_by_checkpoint":
            yield from _compare_in_flight_asserted(run, expected)
        elif (got := _ASSERTED[fact](run)) != expected:
            yield _problem(run.step, f"{fact} {expected}", got)


def _compare_in_flight_asserted(run: BarrierRun, expected: Mapping[str, list[int]]) -> Iterator[str]:
    for checkpoint, buffers in expected.items():
        got = run.in_flight.get(int(checkpoint), [])
        if got != sorted(buffers):
            yield _problem(run.step, f"in flight of {checkpoint}: {sorted(buffers)}", got)


# ------------------------------------------------------------------
# Runs the barrier cases (aligned, tracker, unaligned) on the real `InputGate`.
#
# A case's events become facts, and the effects become the trace. Then everything that the legend's `matching` demands
# is compared: the mandatory items in order, the set of blocked channels at every delivery, the sets in flight, and all
# assertions of Flink's own test.


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend's modes are gate policies."""
    return bool(legend.get("modes")) and set(legend["modes"]) <= set(POLICIES)


def run_case(_legend: Mapping[str, Any], case: Case) -> list[str]:
    """Run one case. Return the differences."""
    run = BarrierRun(case)
    checks = case["asserted"].get("checks", ())
    problems: list[str] = []
    for index, event in enumerate(case["events"]):
        with named_step(index, event[0]):
            run.do(index, event)
        for check in (check for check in checks if check["after_event"] == index):
            problems += [f"step {index}: {problem}" for problem in check_facts(run, check)]
    return [*compare_traces(run, case), *problems, *compare_asserted(run, case)]
