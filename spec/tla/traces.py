"""Checks the traces of a job's ticks against the TLA+ specification: together they must be one of its behaviours."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from checkpointing.graph import TableMode
from checkpointing.metadata.record import CheckpointRecord, RowKind
from checkpointing.trace import UnreadableTraceError
from spec.tla.telling import Event, Tick, kind_of, tell, touched_by
from spec.tla.tlc import Outcome, check, configuration, literal, modules

PLENTY: Final = 1_000_000
"""A budget that is larger than any trace needs."""

IN_VAIN_MAX: Final = 20
"""A tick begins at most this many failed checkpoints before it ends. A larger gap between ids means a crash."""

_SEEN: Final = re.compile(r'<<"seen", (\d+), (\d+)>>')


@dataclass(frozen=True, slots=True)
class Judgement:
    """Says whether the traces are a behaviour of the specification.

    If not, `problem` names the first line that does not fit.
    """

    events: int
    outcome: Outcome | None
    problem: str

    @property
    def accepted(self) -> bool:
        """Return True if TLC found a behaviour that shows all events."""
        return not self.problem


def judge(traces: Iterable[Iterable[bytes]]) -> Judgement:
    """Check the traces of one job's ticks, from its first generation on. Raise TlcError if TLC cannot.

    A generation may have no trace: it is a command, or a tick whose trace is gone. The specification then lets it do
    whatever the protocol allows.
    """
    try:
        told = [tell(lines) for lines in traces]
    except UnreadableTraceError as error:
        return Judgement(0, None, str(error))
    ticks = sorted((tick for tick in told if tick is not None), key=lambda tick: tick.generation)
    if not ticks:
        return Judgement(0, None, "the traces are empty")
    first = ticks[0].generation
    if first > 1 + told.count(None):
        return Judgement(0, None, f"the first trace is of generation {first}: give the traces from generation 1 on")
    events = sum(len(tick.events) for tick in ticks)
    twice = next((a.generation for a, b in itertools.pairwise(ticks) if a.generation == b.generation), None)
    if twice is not None:
        return Judgement(events, None, f"two traces are of generation {twice}")
    outcome = check("Ticks", _configuration(ticks), {**modules(), "Ticks": _module(ticks)})
    problem = "" if outcome.violated == "NotAccepted" else _problem(ticks, outcome)
    return Judgement(events, outcome, problem)


def _problem(ticks: Sequence[Tick], outcome: Outcome) -> str:
    """Return the first event that no behaviour of the specification reaches."""
    if outcome.violated:
        return f"the ticks together break {outcome.violated}"
    seen = {int(tick.generation): 0 for tick in ticks}
    for generation, count in _SEEN.findall(outcome.said):
        seen[int(generation)] = max(seen[int(generation)], int(count))
    tick = next(tick for tick in ticks if seen[tick.generation] < len(tick.events))
    event: Event = tick.events[seen[tick.generation]]
    about = f" {event.id}" if event.id else ""
    return f"generation {tick.generation}, line {event.line}: no step of the protocol is {event.name!r}{about} here"


def _module(ticks: Sequence[Tick]) -> str:
    """Return the TLA+ module with the observed events."""
    tables = sorted(set().union(*(tick.tables(mode) for tick in ticks for mode in TableMode)))
    generations = range(1, ticks[-1].generation + 1)
    traced = {tick.generation: tick for tick in ticks}
    known = {int(row.checkpoint): row for tick in ticks for row in tick.known}
    definitions = {
        "ObservedEvents": {g: [event.told(tables) for event in tick.events] for g, tick in traced.items()},
        "ToldIds": {g: frozenset(tick.appended) for g, tick in traced.items()},
        "HighestIds": _highest(ticks),
        "CutOffTicks": frozenset(g for g, tick in traced.items() if not tick.ended),
        "KnownEntries": {id_: {"kind": kind_of(row), "touched": touched_by(row)} for id_, row in known.items()},
        "PossibleWorks": {g: _works(row for row in known.values() if row.generation == g) for g in generations},
    }
    told = "\n".join(f"{name} ==\n    {literal(value)}" for name, value in definitions.items())
    return f"---- MODULE Ticks ----\nEXTENDS RecordedTicks\n{told}\n====\n"


def _highest(ticks: Sequence[Tick]) -> dict[int, int]:
    """Return the highest id that each generation is known to have handed out.

    Entries and aborted checkpoints name ids. A generation that releases the job hands its unused ids over, so the first
    id of the next generation tells too. After a crash the next generation begins far above.
    """
    used: dict[int, set[int]] = {int(each): set() for each in range(1, ticks[-1].generation + 1)}
    first = {int(tick.generation): int(tick.claim.first_id) for tick in ticks}
    for tick in ticks:
        for row in tick.known:
            used[row.generation].add(row.checkpoint)
        used[tick.generation] |= tick.appended | tick.aborted
    for generation in sorted(used, reverse=True):
        if generation not in first:
            begins = min(used[generation], default=first.get(generation + 1))
            first |= {generation: begins} if begins is not None else {}
    highest: dict[int, int] = {}
    for generation, ids in used.items():
        top = max(ids, default=first.get(generation, 1) - 1)
        handed_over = first.get(generation + 1, 0) - 1
        highest[generation] = handed_over if top < handed_over <= top + IN_VAIN_MAX else top
    return highest


def _works(rows: Iterable[CheckpointRecord]) -> frozenset[str]:
    """Return what a generation without a trace may have been, judged by the entries that it left."""
    kinds = {row.kind for row in rows}
    if RowKind.ROLLBACK in kinds:
        return frozenset({"rollback"})
    if RowKind.CHECKPOINT in kinds:
        return frozenset({"tick"})
    return frozenset(
        {"tick", "rest"} if RowKind.SAVEPOINT in kinds else {"tick", "rest", "rollback", "clean", "dispose"}
    )


def _configuration(ticks: Sequence[Tick]) -> str:
    """Return the constants of the job. The budgets bound only steps that no trace shows."""
    last = ticks[-1].generation
    touches = {event.touched for tick in ticks for event in tick.events if event.name == "append"}
    claim = ticks[0].claim
    unbounded = ("Ticks", "Epochs", "Aborts", "Crashes", "TakeOvers", "Doubts", "Rollbacks", "Rests", "Disposals")
    constants: dict[str, object] = {
        "Jobs": frozenset({"a"}),
        "Slots": frozenset(range(1, last + 1)),
        "Appends": frozenset().union(*(tick.tables(TableMode.APPEND) for tick in ticks)),
        "Upserts": frozenset().union(*(tick.tables(TableMode.UPSERT) for tick in ticks)),
        "Touches": frozenset(touches),
        "Kinds": frozenset({"checkpoint", "savepoint", "stop"}),
        "Retain": ticks[-1].retained,
        "IdsPerClaim": claim.last_id - claim.first_id + 1,
        **dict.fromkeys(unbounded, PLENTY),
        "Cleanups": last,
    }
    defined = {
        "Observed": "ObservedEvents",
        "Told": "ToldIds",
        "Upto": "HighestIds",
        "Cutoff": "CutOffTicks",
        "Known": "KnownEntries",
        "Does": "PossibleWorks",
    }
    return configuration(constants, defined, SPECIFICATION="TraceSpec", CONSTRAINTS="Fits", INVARIANTS="NotAccepted")
