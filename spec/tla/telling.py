"""Turns the trace of a tick into events of the specification `RecordedTicks.tla`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    """Return the specification's kind of an entry. There the savepoint of a stop is a kind of its own."""
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
    """Add the event of a trace entry. Answers name the nonce of their entry, so `rows` and `cuts` keep the requests."""
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
