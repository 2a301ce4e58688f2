"""The invariants of an entry that is in: its tables were checked, its files judged, its barrier aligned (J3)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, RenameKind, RowKind
from spec.history import (
    CheckBegun,
    DoorStarted,
    History,
    RowCommitted,
    SegmentSent,
    SegmentsRun,
    TablesLookedAt,
)
from spec.judgement_events import JudgementBegun, JudgementTold
from spec.rollback import at_rest

_Of = tuple[Generation, CheckpointId]
_Files = Mapping[TableName, frozenset[str]]
"""The paths of files by their table."""


def _watched(history: History) -> frozenset[Generation]:
    """Return the generations whose facts and effects are in the history. Of the others, only the stores are known."""
    return frozenset(event.generation for event in history.events if isinstance(event, SegmentSent))


def unchecked(history: History) -> Iterator[str]:
    """Yield every checkpoint that is in although its tables were not all checked, or had problems.

    The check also looks at every file that the checkpoint takes out of a table.

    Plain savepoints publish nothing, so they are not judged. Neither are fenced generations, and those whose checks
    nobody saw.
    """
    newest: Generation | None = None
    graphs: dict[Generation, JobGraph] = {}
    asked: dict[_Of, CheckBegun] = {}
    allowed: dict[_Of, bool | None] = {}
    watched = _watched(history)
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph):
                graphs[generation], newest = graph, generation
            case CheckBegun():
                asked[event.generation, event.checkpoint] = event
            case TablesLookedAt(generation, checkpoint, allow):
                allowed[generation, checkpoint] = allow
            case RowCommitted(record) if record.kind is RowKind.CHECKPOINT and record.generation in watched & {newest}:
                of = (record.generation, record.checkpoint)
                check = asked.get(of) or CheckBegun(*of, (), ())
                removed = {file.path for table in record.tables for file in table.removes}
                tables = {table.name for table in graphs[of[0]].tables()}
                missing = {*tables, *removed} - {*check.tables, *check.leaving}
                if missing:
                    yield f"entry {record.checkpoint} is in, and nobody had checked {sorted(missing)}"
                if not allowed.get(of):
                    yield f"entry {record.checkpoint} is in, and nobody had said that its tables allow it"
            case _:
                pass


@dataclass(slots=True)
class _Suites:
    """What suites were asked about, and what they accepted."""

    asked: dict[tuple[_Of, str], frozenset[str]] = field(default_factory=dict)
    passed: dict[_Of, frozenset[str]] = field(default_factory=dict)

    def told(self, verdict: JudgementTold) -> None:
        """Note a verdict."""
        of = (verdict.generation, verdict.checkpoint)
        if verdict.passed:
            files = self.asked.get((of, verdict.vertex), frozenset())
            self.passed[of] = self.passed.get(of, frozenset()) | files


def unjudged(history: History) -> Iterator[str]:
    """Yield every file that a tick publishes in a judged table, and that no suite accepted for its entry.

    A renamed table is published whole. Its files have been accepted under its old name. Of an overwrite table, only
    files that its parent did not show must have been accepted.
    """
    judged: dict[Generation, frozenset[TableName]] = {}
    shown: dict[CheckpointId, _Files] = {}
    began: dict[Generation, CheckpointRecord] = {}
    suites, watched = _Suites(), _watched(history)
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph, restored):
                judged[generation] = frozenset(table.name for table in graph.tables() if table.judged)
                if restored is not None:
                    began[generation] = restored  # under the names of the pipeline
            case JudgementBegun(generation, vertex, checkpoint, files):
                suites.asked[(generation, checkpoint), vertex] = files
            case JudgementTold():
                suites.told(event)
            case RowCommitted(record):
                shown[record.checkpoint] = _set_whole(record)
                if record.generation in watched and not at_rest(record):
                    passed = suites.passed.get((record.generation, record.checkpoint), frozenset())
                    first = began.get(record.generation)
                    is_first = first is not None and first.checkpoint == record.parent
                    before = _set_whole(first) if first and is_first else shown.get(record.parent, {})
                    yield from _not_let_through(record, judged, passed, before)
            case _:
                pass


def _set_whole(record: CheckpointRecord) -> _Files:
    """Return the files of the tables of which an entry names all files, without those of states."""
    return {
        own.table: frozenset(keyed.file.path for keyed in own.files)
        for was in record.vertices
        for subtask in was.subtasks
        for own in subtask.ranges
    }


def _not_let_through(
    record: CheckpointRecord,
    judged: Mapping[Generation, frozenset[TableName]],
    passed: frozenset[str],
    shown: _Files,
) -> Iterator[str]:
    renamed = {one.now for one in record.renames if one.kind is RenameKind.TABLE}
    for table in record.tables:
        moved = table.mode is TableMode.APPEND and table.table in renamed
        if table.table in judged.get(record.generation, ()) and not moved:
            new = {file.path for file in table.adds + table.files} - shown.get(table.table, frozenset())
            for path in sorted(new - passed):
                yield f"entry {record.checkpoint} adds {path} to {table.table}, and no suite let it through"


def uncounted(history: History) -> Iterator[str]:
    """Yield every entry whose vertex worked on rows and left none for a table, without a verdict on that.

    Only tables are meant whose suite says something of no rows.
    """
    graphs: dict[Generation, JobGraph] = {}
    worked: dict[tuple[Generation, VertexId], set[int]] = {}
    asked: set[tuple[_Of, VertexId]] = set()
    entries: dict[CheckpointId, CheckpointRecord] = {}
    watched = _watched(history)
    for event in history.events:
        match event:
            case DoorStarted(generation, graph):
                graphs[generation] = graph
            case SegmentsRun(generation, vertex, micro_batch, inputs) if any(each.segments for each in inputs):
                worked.setdefault((generation, vertex), set()).add(micro_batch)
            case JudgementBegun(generation, vertex, checkpoint):
                asked.add(((generation, checkpoint), vertex))
            case RowCommitted(record):
                parent = entries.get(record.parent)
                entries[record.checkpoint] = record
                if record.generation in watched and not at_rest(record):
                    ran = {name: numbers for (by, name), numbers in worked.items() if by == record.generation}
                    yield from _not_counted(record, parent, graphs[record.generation], ran, asked)
            case _:
                pass


def _not_counted(
    record: CheckpointRecord,
    parent: CheckpointRecord | None,
    graph: JobGraph,
    ran: Mapping[VertexId, set[int]],
    asked: set[tuple[_Of, VertexId]],
) -> Iterator[str]:
    same = parent is not None and parent.generation == record.generation
    before = {was.vertex: was.micro_batch for was in parent.vertices} if same and parent is not None else {}
    added = {table.table for table in record.tables if table.adds}
    for was in record.vertices:
        numbers = {each for each in ran.get(was.vertex, ()) if before.get(was.vertex, 0) < each <= was.micro_batch}
        tables = (table for vertex in graph.vertices if vertex.id == was.vertex for table in vertex.tables)
        counted = [each.name for each in tables if each.judged_empty and each.mode is TableMode.APPEND]
        for table in (each for each in counted if each not in added):
            if numbers and ((record.generation, record.checkpoint), was.vertex) not in asked:
                yield f"entry {record.checkpoint} adds nothing to {table}, and no suite was asked about that"


def overtaken(history: History) -> Iterator[str]:
    """Yield every savepoint that holds rows in flight. Its barrier is always aligned (C5)."""
    for event in history.without_flow:
        if isinstance(event, RowCommitted) and event.record.is_savepoint and _flying(event.record):
            yield f"savepoint {event.record.checkpoint} holds rows in flight on {_flying(event.record)}"


def _flying(record: CheckpointRecord) -> list[str]:
    held = (each for vertex in record.vertices for subtask in vertex.subtasks for each in subtask.in_flight)
    return [str(each.channel) for each in held]
