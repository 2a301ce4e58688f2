"""The invariants of what an entry publishes: the versions that it names, and the tables that it changes (F4)."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from spec.history import CutsCorrected, CutWritten, DoorStarted, History, RowCommitted
from spec.rollback import at_rest

if TYPE_CHECKING:
    from checkpointing.identifiers import VertexId

_Versions = Mapping[TableName, int]


def wrongly_netted(history: History) -> Iterator[str]:
    """Yield every table of a tick's entry that names another version than its parent's cut, or other files than due.

    If an upsert or state table consists of other files than at the parent, it is published as exactly its files; if it
    has none any more, as empty. An append table gets no file that its parent's cut shows already. Entries that no tick
    wrote say in another way what they do to a table. But any entry that takes files out of an append table says what
    the table showed then. Without that, nobody notices if the table's log goes back before the entry is published.
    """
    began: dict[Generation, DoorStarted] = {}
    entries: dict[CheckpointId, CheckpointRecord] = {}
    cuts: dict[CheckpointId, _Versions] = {NO_CHECKPOINT: {}}
    shown: dict[CheckpointId, Mapping[TableName, frozenset[str]]] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted(generation):
                began[generation] = event
            case CutWritten(checkpoint, versions):
                cuts.setdefault(checkpoint, dict(versions))
                shown.setdefault(checkpoint, dict(event.active))
            case CutsCorrected(corrected):
                cuts |= {checkpoint: dict(versions) for checkpoint, versions in corrected}
            case RowCommitted(record):
                entries[record.checkpoint] = record
                yield from _planned_on_nothing(record)
                if record.generation in began and not at_rest(record):
                    door = began[record.generation]
                    restored = door.restored
                    is_first = restored is not None and restored.checkpoint == record.parent
                    parent = restored if is_first else entries.get(record.parent)
                    yield from _versions_other(record, cuts.get(record.parent))
                    yield from _added_again(record, shown.get(record.parent, {}))
                    if parent is not None or record.parent == NO_CHECKPOINT:
                        yield from _files_other(record, parent, door.graph)
            case _:
                pass


def _versions_other(record: CheckpointRecord, cut: _Versions | None) -> Iterator[str]:
    for table in record.tables if cut is not None else ():
        due = (cut or {}).get(table.table, 0)
        if table.parent_version != due:
            yield f"entry {record.checkpoint} builds on version {table.parent_version} of {table.table}, not on {due}"


def _added_again(record: CheckpointRecord, shown: Mapping[TableName, frozenset[str]]) -> Iterator[str]:
    for table in record.tables:
        again = shown.get(table.table, frozenset()).intersection(file.path for file in table.adds)
        if again:
            yield f"entry {record.checkpoint} adds {min(again)} to {table.table}, which its parent's cut shows already"


def _planned_on_nothing(record: CheckpointRecord) -> Iterator[str]:
    for table in record.tables:
        on = table.planned_on or NO_CHECKPOINT
        if table.removes and not NO_CHECKPOINT < on < record.checkpoint:
            yield f"entry {record.checkpoint} takes files out of {table.table}, and says that it showed {on}"


def _files_other(record: CheckpointRecord, parent: CheckpointRecord | None, graph: JobGraph) -> Iterator[str]:
    published = {table.table: {file.path for file in table.files} for table in record.tables}
    now, before = _by_name(record), _by_name(parent)
    for vertex in graph.operators():
        for table in (each for each in vertex.tables if each.mode is not TableMode.APPEND):
            due, was = _files(table, now.get(vertex.id)), _files(table, before.get(vertex.id))
            said = published.get(table.name, was)
            if said != due:
                strange = sorted(said ^ due)
                yield f"entry {record.checkpoint} publishes {table.name} otherwise than its state says: {strange}"


def _by_name(record: CheckpointRecord | None) -> "dict[VertexId, VertexRecord]":
    return {vertex.vertex: vertex for vertex in record.vertices} if record is not None else {}


def _files(table: Table, vertex: VertexRecord | None) -> set[str]:
    """Return the files of a table, as the snapshots of its vertex name them."""
    found = set[str]()
    for subtask in vertex.subtasks if vertex is not None else ():
        if table.mode is TableMode.STATE and not table.broadcast:
            found |= {keyed.file.path for keyed in subtask.state}
        else:
            found |= {keyed.file.path for own in subtask.ranges if own.table == table.name for keyed in own.files}
    return found
