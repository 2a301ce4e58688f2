"""Says until when a table is complete at a cut (N8).

A table is complete until the watermark of the vertex that writes it. The table has every row whose event time is not
after the watermark, and every window that ends by then. If rows may wait in a join in time, the table is behind the
watermark by the longest wait. Late rows are left aside, because they come after their watermark. A table is complete
for ever once its vertex has read the last row of all its inputs. A drain does not make it complete for ever, since the
job can go on: the table is then complete only until the watermark of its rows. So from one cut of a job to the next, a
table's "complete until" never falls.
"""

from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from checkpointing.identifiers import TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, InputTimeRecord, VertexRecord, VertexTimeRecord


def writer_in_time(record: CheckpointRecord, table: TableName) -> VertexRecord | None:
    """Return the vertex that writes the table, or None if the cut does not record until when the table is complete."""
    written = (vertex for vertex in record.vertices if vertex.time is not None and table in vertex.time.tables)
    return next(written, None)


def complete_until_ms(record: CheckpointRecord, table: TableName) -> int | None:
    """Return the event time, in ms, until which the table is complete. END_OF_TIME means for ever.

    None: the table has no event time, no row with an event time has come yet, or rows may wait in a state until a
    drain.
    """
    vertex = writer_in_time(record, table)
    time = None if vertex is None else vertex.time
    if time is None:
        return None
    if time.watermark_ms == END_OF_TIME and not time.drained:
        return END_OF_TIME
    ms = time.rows_ms if time.rows_ms is not None else time.watermark_ms
    return None if ms == BEFORE_TIME else max(BEFORE_TIME, ms - time.behind_ms)


def complete_tables(record: CheckpointRecord) -> dict[TableName, int]:
    """Return the event time, in ms, until which each table is complete. A table without such a time is left out."""
    named = (table for vertex in record.vertices if vertex.time is not None for table in vertex.time.tables)
    found = ((table, complete_until_ms(record, table)) for table in named)
    return {table: ms for table, ms in found if ms is not None}


def is_complete_before(until_ms: int | None, end_ms: int) -> bool:
    """Return whether a table that is complete until `until_ms` has all rows before `end_ms`, such as a day's end."""
    return until_ms is not None and until_ms >= end_ms - 1


def held_back_by(time: VertexTimeRecord) -> InputTimeRecord | None:
    """Return the active input with the least watermark, which holds the vertex back. None: no input is active."""
    active = [each for each in time.inputs if not each.idle]
    return min(active, key=lambda each: each.watermark_ms, default=None) if time.watermark_ms != END_OF_TIME else None


def split_held_back_by(record: CheckpointRecord, vertex: VertexRecord) -> InputTimeRecord | None:
    """Return the input from a split that holds a vertex's watermark back, here or upstream. None: there is none."""
    waits = None if vertex.time is None else held_back_by(vertex.time)
    if waits is None or waits.split:
        return waits
    above = next((each for each in record.vertices if each.vertex == waits.upstream), None)
    return None if above is None else split_held_back_by(record, above)


def is_at_rest(record: CheckpointRecord, time: VertexTimeRecord, each: InputTimeRecord) -> bool:
    """Return whether the input is a split of a stream at rest, whose time went on by the clock, at the cut."""
    since_ms, after_ms = _rests_since_ms(time, each), each.close_after_ms
    return after_ms is not None and since_ms is not None and record.statistics.triggered_ms - since_ms > after_ms


def closes_at_ms(record: CheckpointRecord, vertex: VertexRecord, due_ms: int) -> int | None:
    """Return the clock time at which a vertex's watermark reaches `due_ms` if no more rows come. None: nobody knows."""
    if vertex.time is None:
        return None
    time = vertex.time
    active = [each for each in time.inputs if not each.idle] or time.inputs
    at = [_reaches_at_ms(record, time, each, due_ms) for each in active]
    known = [each for each in at if each is not None]
    return max(known) if known and len(known) == len(at) else None


def _reaches_at_ms(record: CheckpointRecord, time: VertexTimeRecord, each: InputTimeRecord, due_ms: int) -> int | None:
    if each.watermark_ms >= due_ms:
        return 0
    if not each.split:
        above = next((was for was in record.vertices if was.vertex == each.upstream), None)
        if above is None or above.time is None:
            return None
        return closes_at_ms(record, above, due_ms + above.time.behind_ms)
    since_ms, greatest_ms = _rests_since_ms(time, each), max(own.watermark_ms for own in _stream(time, each))
    if each.close_after_ms is None or since_ms is None or greatest_ms == BEFORE_TIME:
        return None
    return since_ms + max(each.close_after_ms + 1, due_ms - greatest_ms)


def _rests_since_ms(time: VertexTimeRecord, each: InputTimeRecord) -> int | None:
    """Return the clock of the last barrier before which a split of the same stream had rows, or had some to read."""
    return max((own.active_ms for own in _stream(time, each) if own.active_ms is not None), default=None)


def _stream(time: VertexTimeRecord, each: InputTimeRecord) -> list[InputTimeRecord]:
    return [own for own in time.inputs if (own.input, own.upstream) == (each.input, each.upstream)]


def first_due_ms(vertex: VertexRecord) -> int | None:
    """Return the earliest event time at which something in a vertex's state is due, or None if nothing is ever due."""
    known = [each.due_ms for each in vertex.subtasks if each.due_ms is not None]
    return min(known, default=None)


def late_rows(record: CheckpointRecord, output: str) -> dict[VertexId, int]:
    """Return how many late rows of each vertex the cut has added to tables. `output` is their named output."""
    added = {table.table: sum(file.rows for file in table.adds) for table in record.tables}
    found: dict[VertexId, int] = {}
    for vertex in record.vertices:
        for each, named in zip(vertex.time.inputs if vertex.time else (), vertex.outputs_read or (), strict=False):
            if named == output and vertex.time is not None:
                rows = sum(added.get(table, 0) for table in vertex.time.tables)
                found[each.upstream] = found.get(each.upstream, 0) + rows
    return found
