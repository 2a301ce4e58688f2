"""Holds a trace against what the legend's `matching` demands and what Flink's own test asserts."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from checkpointing.gate.aligner import AlignerSnapshot
from checkpointing.gate.tracker import TrackerSnapshot
from spec.barrier_cases.run import BarrierRun, Case, Entry, segment_number

MANDATORY = {
    "alternating": ("yield", "trigger", "abort"),
    "other": ("buffer", "eop", "trigger", "abort"),
}


def compare_traces(run: BarrierRun, case: Case) -> Iterator[str]:
    """Yield where the traces' mandatory entries differ, order and blocked channels included."""
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
    """Return the entries of those kinds, deliveries with the set of blocked channels, and that set at the end."""
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
    """Yield which facts of one check do not hold now."""
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
    """Yield where the end differs from what Flink's test asserts."""
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
