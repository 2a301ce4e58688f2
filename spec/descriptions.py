"""What must be true of what rows say of their state: each row describes the state that it holds (D6).

A later pipeline is compared with this description before it may read the state. A row without it, or with that of
another state, would let a changed pipeline go on from values that mean something else.
"""

from collections.abc import Iterator

from checkpointing.graph import JobGraph, TableMode
from checkpointing.metadata.record import CheckpointRecord
from spec.history import DoorStarted, History, RowCommitted


def undescribed(history: History) -> Iterator[str]:
    """Yield each vertex of a committed row that lacks the meanings, or the upsert keys, which its graph declared.

    In one history all doors run the same pipeline, so a row that goes back to an older one describes the same state.
    """
    graph: JobGraph | None = None
    for event in history.events:
        match event:
            case DoorStarted():
                graph = event.graph
            case RowCommitted(record, _) if graph is not None:
                yield from _of_row(record, graph)
            case _:
                pass


def _of_row(record: CheckpointRecord, graph: JobGraph) -> Iterator[str]:
    described = {each.vertex: each for each in record.vertices}
    for vertex in graph.vertices:
        found = described.get(vertex.id)
        if found is None or found.meanings != vertex.meanings:
            yield f"row {record.checkpoint} does not say what the state of {vertex.id} means"
        keys = {table.name: table.keys for table in vertex.tables if table.mode is TableMode.UPSERT}
        if found is not None and {each.table: each.columns for each in found.table_keys} != keys:
            yield f"row {record.checkpoint} does not name the keys of the upsert tables of {vertex.id}"
