"""The invariants of names: a declared rename changes names and nothing else (G2)."""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.graph import JobGraph
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.metadata.record import CheckpointRecord, RenameKind, VertexRecord
from spec.entries_say import renames_of
from spec.history import ColumnMissed, DoorStarted, History, RowCommitted
from spec.rollback import at_rest


def wrongly_renamed(history: History) -> Iterator[str]:
    """Yield every door whose cut differs from its entry in more than names, and every entry that breaks a rename rule.

    An entry must tell every rename that was due. The first checkpoint after a rename publishes each table that its
    parent does not have whole, under the new name. Every micro-batch finds the values of a renamed column in the older
    files.
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    graphs: dict[Generation, JobGraph] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph, restored):
                graphs[generation] = graph
                if restored is not None and restored.checkpoint in rows:
                    yield from _changed(rows[restored.checkpoint], restored, graph)
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                if record.generation in graphs and not at_rest(record):
                    yield from _untold(record, rows.get(record.parent), graphs[record.generation])
            case ColumnMissed(path, wanted):
                yield f"{path} has the column {wanted} under another name, and its values were not found"
            case _:
                pass


def _changed(row: CheckpointRecord, began: CheckpointRecord, graph: JobGraph) -> Iterator[str]:
    """Yield each vertex of the entry that the door does not begin with, under its own or its declared name."""
    called = {rename.was: rename.now for rename in renames_of(graph) if rename.kind is RenameKind.VERTEX}
    there = {vertex.vertex: _held(vertex) for vertex in began.vertices}
    for vertex in row.vertices:
        names = (str(vertex.vertex), called.get(vertex.vertex))
        if _held(vertex) not in [there[name] for name in there if name in names]:
            yield f"from row {row.checkpoint} the state or the positions of {vertex.vertex} were not taken along"


def _held(vertex: VertexRecord) -> tuple[object, ...]:
    """Return what a vertex holds, without the names of itself, its tables and their files."""
    return (
        vertex.splits,
        tuple(snapshot.position for snapshot in vertex.subtasks),
        tuple(
            tuple(replace(keyed, file=replace(keyed.file, path="")) for keyed in snapshot.state)
            for snapshot in vertex.subtasks
        ),
        tuple(
            tuple(keyed.version for ranges in snapshot.ranges for keyed in ranges.files) for snapshot in vertex.subtasks
        ),
    )


def _untold(record: CheckpointRecord, parent: CheckpointRecord | None, graph: JobGraph) -> Iterator[str]:
    if frozenset(record.renames) != renames_of(graph):
        yield f"row {record.checkpoint} does not list the renames of its pipeline"
    if parent is None or not parent.columns:
        return
    renamed = {TableName(one.now) for one in record.renames if one.kind is RenameKind.TABLE}
    missing = renamed - {each.table for each in parent.columns} - {each.table for each in record.tables}
    for table in sorted(missing):
        yield f"row {record.checkpoint} has table {table}, which row {parent.checkpoint} lacks, and does not publish it"
