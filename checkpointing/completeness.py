"""Says until when a table is complete at a cut (N8).

A table is complete until the watermark of the vertex that writes it. Every row with an event time that is not after it
is in the table, and every window that ends by then. If rows may wait for a partner in time, the table is as much behind
as they may wait. Late rows are left aside, because they come after their watermark. A table is complete for ever once
its vertex has read the last row of all its inputs.
"""

from checkpointing.event_time import BEFORE_TIME
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord, VertexRecord


def writer_in_time(record: CheckpointRecord, table: TableName) -> VertexRecord | None:
    """Return the vertex that writes the table. None: the cut does not say until when the table is complete."""
    written = (vertex for vertex in record.vertices if vertex.time is not None and table in vertex.time.tables)
    return next(written, None)


def complete_until_ms(record: CheckpointRecord, table: TableName) -> int | None:
    """Return the last millisecond of event time until which the table is complete; END_OF_TIME: for ever.

    None: the table keeps no time, none of its rows had one yet, or rows may wait in a state until a drain.
    """
    vertex = writer_in_time(record, table)
    if vertex is None or vertex.time is None or vertex.time.watermark_ms == BEFORE_TIME:
        return None
    return max(BEFORE_TIME, vertex.time.watermark_ms - vertex.time.behind_ms)


def complete_tables(record: CheckpointRecord) -> dict[TableName, int]:
    """Return until when each table is complete, in ms. A table without such a time is left out."""
    named = (table for vertex in record.vertices if vertex.time is not None for table in vertex.time.tables)
    found = ((table, complete_until_ms(record, table)) for table in named)
    return {table: ms for table, ms in found if ms is not None}


def is_complete_before(until_ms: int | None, end_ms: int) -> bool:
    """Return whether a table that is complete until then has all rows before `end_ms`, as a day [start, end) needs."""
    return until_ms is not None and until_ms >= end_ms - 1
