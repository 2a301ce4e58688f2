"""The invariant of what entries say of their state: each entry describes the state that it holds (D6).

A later pipeline is compared with this description before it may read the state. With a missing or wrong description, a
changed pipeline would go on from values that mean something else.
"""

from collections.abc import Iterator

from checkpointing.graph import JobGraph, TableMode
from checkpointing.metadata.record import CheckpointRecord
from spec.history import DoorStarted, History, RowCommitted
from spec.rollback import at_rest


def undescribed(history: History) -> Iterator[str]:
    """Yield each vertex of a committed entry that lacks the meanings or upsert keys which its graph declared.

    An entry that no tick wrote describes the same as the entry from which it was made.
    """
    graphs: dict[int, JobGraph] = {}
    rows: dict[int, CheckpointRecord] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted():
                graphs[event.generation] = event.graph
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                parent = rows.get(record.parent)
                if not at_rest(record) and record.generation in graphs:
                    yield from _of_row(record, graphs[record.generation])
                elif at_rest(record) and parent is not None and _described(record) != _described(parent):
                    yield f"row {record.checkpoint} does not say what row {parent.checkpoint} says of its state"
            case _:
                pass


def _described(record: CheckpointRecord) -> list[tuple[object, ...]]:
    return [(each.vertex, each.meanings, each.table_keys) for each in record.vertices]


def _of_row(record: CheckpointRecord, graph: JobGraph) -> Iterator[str]:
    described = {each.vertex: each for each in record.vertices}
    for vertex in graph.vertices:
        found = described.get(vertex.id)
        if found is None or found.meanings != vertex.meanings:
            yield f"row {record.checkpoint} does not say what the state of {vertex.id} means"
        named = (TableMode.UPSERT, TableMode.OVERWRITE)
        keys = {table.name: (table.mode, table.keys) for table in vertex.tables if table.mode in named}
        if found is not None and {each.table: (each.mode, each.columns) for each in found.table_keys} != keys:
            yield f"row {record.checkpoint} does not name the keys or the version of the tables of {vertex.id}"
