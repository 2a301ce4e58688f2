"""Checks two rules of broadcast state (D1): every subtask holds all of it, and it counts the rows before the barrier.

The small pipeline has a vertex `totals`. Its broadcast state counts, for each key, the pairs that reach the vertex at
any subtask.
"""

from collections.abc import Iterator

from checkpointing.config import CheckpointingMode
from checkpointing.identifiers import Generation, TableName
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from spec.cut_contents import expected
from spec.history import DoorStarted, History, RowCommitted
from spec.pipeline import TOTALS, first_id
from spec.savepoints import drained_rows


def broadcast_tables(vertex: VertexRecord) -> frozenset[TableName]:
    """Return the tables of the vertex's broadcast state. Unlike keyed state, its files are named in `ranges`."""
    return frozenset(own.table for each in vertex.subtasks for own in each.ranges if own.table.startswith("_tidemark/"))


def broadcast_files(vertex: VertexRecord, table: TableName) -> tuple[frozenset[str], ...]:
    """Return the files of a broadcast state that each subtask holds."""
    return tuple(
        frozenset(keyed.file.path for own in each.ranges if own.table == table for keyed in own.files)
        for each in vertex.subtasks
    )


def not_whole(history: History) -> Iterator[str]:
    """Yield a message for each committed entry in which two subtasks of a vertex hold different broadcast state."""
    for record in _entries(history):
        for vertex in record.vertices:
            for table in broadcast_tables(vertex):
                if len({*broadcast_files(vertex, table)}) > 1:
                    yield f"checkpoint {record.checkpoint}: the subtasks of {vertex.vertex} hold different {table}"


def not_exact(history: History) -> Iterator[str]:
    """Yield a message for each committed entry whose broadcast state does not match the pairs before its barrier.

    At least once, counts may be too high.
    """
    drains, declared = drained_rows(history), set[tuple[Generation, TableName]]()
    for event in history.without_flow:
        if isinstance(event, DoorStarted):
            tables = (table for vertex in event.graph.vertices for table in vertex.tables if table.broadcast)
            declared |= {(event.generation, table.name) for table in tables}
        elif isinstance(event, RowCommitted):
            record = event.record
            totals = next(each for each in record.vertices if first_id(each.vertex) == TOTALS)
            said = {table for generation, table in declared if generation == record.generation}
            for table in said | broadcast_tables(totals):
                due = {key: count for key, (count, _) in expected(history, record, drains).totals.items()}
                yield from _differs(history, record, _counts(history, totals, table), due)


def _counts(history: History, totals: VertexRecord, table: TableName) -> dict[int, int]:
    files = [keyed for each in totals.subtasks for own in each.ranges if own.table == table for keyed in own.files]
    return {key: _number(value) for keyed in files for key, value in history.state(keyed).items()}


def _differs(history: History, record: CheckpointRecord, held: dict[int, int], due: dict[int, int]) -> Iterator[str]:
    fits = held == due
    if history.mode is not CheckpointingMode.EXACTLY_ONCE:
        fits = all(held.get(key, 0) >= count for key, count in due.items())
    if not fits:
        yield f"checkpoint {record.checkpoint}: the broadcast state counts {held}, and {due} came before its barrier"


def _entries(history: History) -> Iterator[CheckpointRecord]:
    return (event.record for event in history.of(RowCommitted))


def _number(value: tuple[object, ...] | None) -> int:
    return value[0] if value and isinstance(value[0], int) else 0
