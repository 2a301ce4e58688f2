"""Checks the traces of a job's ticks against the TLA+ specification: together they must be one of its behaviours."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.messages import (
    AppendRow,
    CutRecorded,
    EndTick,
    NotifyAborted,
    NotifyComplete,
    PublishFailed,
    RecordCut,
    RowAppended,
    RowRefused,
    RowUnknown,
    SavepointTaken,
    TablePublished,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, RowKind
from checkpointing.trace import TickStarted, TraceEntry, UnreadableTraceError, read
from spec.tla.tlc import Outcome, check, configuration, literal, modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a trace. The fields are those of an event in the specification."""

    line: int
    name: str
    id: int = 0
    kind: str = ""
    version: int = 0
    parent: int = 0
    first: int = 0
    last: int = 0
    table: str = ""
    touched: frozenset[str] = frozenset()
    ids: frozenset[int] = frozenset()
    versions: Mapping[str, int] = field(default_factory=dict)

    def told(self, tables: Iterable[str]) -> dict[str, object]:
        return {
            "is": self.name,
            "id": self.id,
            "kind": self.kind,
            "version": self.version,
            "parent": self.parent,
            "first": self.first,
            "last": self.last,
            "table": self.table,
            "touched": self.touched,
            "ids": self.ids,
            "versions": {table: self.versions.get(table, 0) for table in tables},
        }


@dataclass(slots=True)
class Tick:
    """The events of a trace, and the facts about the job from its first line."""

    generation: Generation
    graph: JobGraph
    retained: int
    claim: Claim
    known: tuple[CheckpointRecord, ...]
    """The entries that the tick found."""
    events: list[Event] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)
    ended: bool = False

    @property
    def appended(self) -> set[int]:
        """Return the ids of the entries that the tick sent."""
        return {event.id for event in self.events if event.name == "append"}

    def tables(self, mode: TableMode) -> frozenset[str]:
        """Return the tables of a mode. A state table counts as an upsert table."""
        append = mode is TableMode.APPEND
        return frozenset(str(table.name) for table in self.graph.tables() if (table.mode is TableMode.APPEND) == append)


def tell(lines: Iterable[bytes]) -> Tick | None:
    """Return a trace as events, or None for an empty trace. A tick that is killed early leaves an empty one.

    Raises UnreadableTraceError if the lines are no trace of a tick.
    """
    entries = read(lines)
    first = next(entries, None)
    if first is None:
        return None
    if not isinstance(first.body, TickStarted):
        raise UnreadableTraceError("line 1: a trace begins with TickStarted")
    tick = _begun(first.number, first.body)
    rows: dict[str, CheckpointRecord | None] = {}
    cuts: dict[CheckpointId, Mapping[str, int]] = {}
    for entry in entries:
        _follow(tick, entry, rows, cuts)
    return tick


def _begun(line: int, started: TickStarted) -> Tick:
    setup = started.setup
    event = Event(
        line=line,
        name="started",
        version=setup.at_version,
        first=setup.claim.first_id,
        last=setup.claim.last_id,
        parent=setup.restored.checkpoint if setup.restored is not None else 0,
        ids=frozenset(int(record.checkpoint) for record in setup.retained),
        versions=_named(setup.versions.items()),
    )
    return Tick(setup.claim.generation, setup.graph, setup.config.kept, setup.claim, setup.retained, [event])


def kind_of(row: CheckpointRecord) -> str:
    """Return the specification's kind of an entry.

    In the specification, the savepoint of a stop is a kind of its own.
    """
    return "stop" if row.kind is RowKind.CHECKPOINT and row.pinned else row.kind.value


def touched_by(row: CheckpointRecord) -> frozenset[str]:
    """Return the tables that publishing an entry changes."""
    return frozenset(str(table.table) for table in row.tables)


def _follow(
    tick: Tick,
    entry: TraceEntry,
    rows: dict[str, CheckpointRecord | None],
    cuts: dict[CheckpointId, Mapping[str, int]],
) -> None:
    """Add the event of a trace entry.

    An answer has only the nonce of its entry or the id of its cut, so `rows` and `cuts` keep what was requested.
    """
    line, body = entry.number, entry.body
    match body:
        case AppendRow():
            row = body.row if isinstance(body.row, CheckpointRecord) else None
            rows[body.row.nonce] = row
            tick.events.append(_sent(line, body, row))
        case RowAppended() | RowRefused() | RowUnknown():
            tick.events.append(_answered(line, body, rows))
        case TablePublished() if not body.outside:
            name, table = "published", str(body.table)
            tick.events.append(Event(line=line, name=name, id=body.checkpoint, table=table, version=body.version))
        case PublishFailed():
            tick.events.append(Event(line=line, name="unpublished", id=body.checkpoint))
        case RecordCut():
            cuts[body.checkpoint] = _named(body.versions)
        case CutRecorded():
            versions = cuts.get(body.checkpoint, {})
            tick.events.append(Event(line=line, name="cut", id=body.checkpoint, versions=versions))
        case NotifyComplete():
            tick.events.append(Event(line=line, name="complete", id=body.checkpoint))
        case SavepointTaken():
            tick.events.append(Event(line=line, name="saved", id=body.checkpoint))
        case NotifyAborted():
            tick.aborted.add(body.checkpoint)
        case EndTick():
            tick.events.append(Event(line=line, name="ended"))
            tick.ended = True
        case _:
            pass


def _sent(line: int, sent: AppendRow, row: CheckpointRecord | None) -> Event:
    if row is None:
        first = sent.row.first_id if isinstance(sent.row, Claim) else 0
        return Event(line=line, name="reserve", version=sent.at_version, first=first)
    return Event(
        line=line,
        name="append",
        id=row.checkpoint,
        kind=kind_of(row),
        version=sent.at_version,
        parent=row.parent,
        touched=touched_by(row),
        ids=frozenset(int(checkpoint) for checkpoint in sent.subsumed),
    )


def _answered(
    line: int, fact: RowAppended | RowRefused | RowUnknown, rows: Mapping[str, CheckpointRecord | None]
) -> Event:
    row = rows.get(fact.nonce)
    number = row.checkpoint if row is not None else 0
    match fact:
        case RowAppended():
            return Event(line=line, name="appended", id=number, version=fact.version)
        case RowRefused():
            return Event(line=line, name="refused", id=number)
        case RowUnknown():
            return Event(line=line, name="unknown", id=number)


def _named(versions: Iterable[tuple[TableName, int]]) -> dict[str, int]:
    return {str(table): version for table, version in versions}


PLENTY: Final = 1_000_000
"""A budget that is larger than any trace needs."""

IN_VAIN_MAX: Final = 20
"""At most this many checkpoints fail in a tick before it ends. A larger gap between ids means a crash."""

_SEEN: Final = re.compile(r'<<"seen", (\d+), (\d+)>>')


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of checking whether the traces are a behaviour of the specification.

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
    id of the next generation also shows the highest id of the generation before. After a crash, the next generation
    begins far above.
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
    """Return the errands that a generation without a trace may have had, judged by the entries that it left."""
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
