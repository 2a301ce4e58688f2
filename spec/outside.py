"""The invariants of outside sinks."""

from collections.abc import Iterator

from checkpointing.graph import TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.history import CutWritten, History, RowCommitted, TableChanged
from spec.outside_events import LEAVES_OUTSIDE_EVERY, OutsidePassedOver, OutsidePublished


def wrongly_outside(history: History) -> Iterator[str]:
    """Yield every publication of an outside sink before its commit point, of other files, twice, or out of order.

    A publication that a target passes over must be one that it has taken before: else its rows are lost. A rollback
    abandons the entries after its target. A process that was taken over may still publish the rows of such an entry.
    The entry of a rollback names the same outside sinks as the newest entry before it. If the user leaves outside sinks
    as they are, it does not name the sinks of upsert tables.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    taken: dict[TableName, list[CheckpointId]] = {}
    newest: CheckpointRecord | None = None
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                if record.kind is RowKind.ROLLBACK and newest is not None:
                    yield from _sinks_lost(record, newest, entries.get(record.parent))
                entries[record.checkpoint] = record
                newest = record if record.commits else newest
            case OutsidePublished(checkpoint, table, paths):
                before = taken.setdefault(table, [])
                if before and before[-1] >= checkpoint:
                    yield f"{table} gets checkpoint {checkpoint} outside after {before[-1]}"
                before.append(checkpoint)
                due = due_outside(entries[checkpoint]).get(table) if checkpoint in entries else None
                if due != paths:
                    yield f"{table} gets {paths} outside for checkpoint {checkpoint}, due is {due}"
            case OutsidePassedOver(checkpoint, table) if checkpoint not in taken.get(table, []):
                yield f"{table} never got checkpoint {checkpoint} outside, and is past it"
            case _:
                pass


def _sinks_lost(rollback: CheckpointRecord, newest: CheckpointRecord, target: CheckpointRecord | None) -> Iterator[str]:
    if target is None:
        yield f"rollback {rollback.checkpoint} goes back to {rollback.parent}, but no entry has that id"
        return
    written = {
        keys.table
        for record in (newest, target)
        for vertex in record.vertices
        for keys in vertex.table_keys
        if keys.mode is TableMode.UPSERT
    }
    emptied = {each.table for record in (newest, target) for each in record.tables if each.mode is TableMode.UPSERT}
    left = written | emptied if rollback.parent % LEAVES_OUTSIDE_EVERY == 0 else set()
    due = {table for table in newest.outside if table not in left}
    if due != set(rollback.outside):
        yield f"rollback {rollback.checkpoint} has the sinks of {sorted(rollback.outside)}, due are {sorted(due)}"


def left_inside(history: History) -> Iterator[str]:
    """Yield every checkpoint whose cut is recorded before its outside sinks have its rows.

    The next checkpoint waits for the cut, so nothing stays unpublished for good.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    taken: set[tuple[CheckpointId, TableName]] = set()
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                entries[record.checkpoint] = record
            case OutsidePublished(checkpoint, table):
                taken.add((checkpoint, table))
            case CutWritten(checkpoint) if checkpoint in entries:
                missing = [table for table in due_outside(entries[checkpoint]) if (checkpoint, table) not in taken]
                if missing:
                    yield f"cut {checkpoint} is recorded, and {missing[0]} has not got its rows outside"
            case _:
                pass


def before_its_tables(history: History) -> Iterator[str]:
    """Yield every outside sink that gets an entry before all tables of the entry show it.

    A table may refuse the entry. Then nothing of it may be outside: a sink of an append table takes nothing back.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    shown: dict[TableName, CheckpointId] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                entries[record.checkpoint] = record
            case TableChanged(checkpoint, publication):
                shown[publication.table] = max(checkpoint, shown.get(publication.table, NO_CHECKPOINT))
            case OutsidePublished(checkpoint, table) if checkpoint in entries:
                late = (each.table for each in entries[checkpoint].tables)
                for each in (name for name in late if shown.get(name, NO_CHECKPOINT) < checkpoint):
                    yield f"{table} gets checkpoint {checkpoint} outside, and {each} does not show it yet"
            case _:
                pass


def due_outside(record: CheckpointRecord) -> dict[TableName, tuple[str, ...]]:
    """Return the files that each outside sink gets of an entry. That of an upsert table has these alone then.

    A rollback empties an upsert table that its target does not have, or has under another name.
    """
    due: dict[TableName, tuple[str, ...]] = {}
    if record.kind is RowKind.CHECKPOINT:
        tables = (table for table in record.tables if table.table in record.outside and table.adds)
        due = {table.table: tuple(file.path for file in table.adds) for table in tables}
    if record.kind in (RowKind.CHECKPOINT, RowKind.ROLLBACK):
        emptied = (each.table for each in record.tables if each.mode is TableMode.UPSERT and not each.files)
        due |= {name: () for name in emptied if name in record.outside}
        for vertex in record.vertices:
            for name in (each.table for each in vertex.table_keys if each.table in record.outside):
                ranges = (own for each in vertex.subtasks for own in each.ranges if own.table == name)
                due[name] = tuple(sorted({keyed.file.path for own in ranges for keyed in own.files}))
    return due
