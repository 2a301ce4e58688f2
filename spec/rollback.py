"""What must be true of rollbacks and resets in every run: the line of the rows, and what going back brings back (K2).

A rollback is a row like any other for whoever watches: it is appended, tables change, a cut is written. So the
predicates read the same history as all others, and a history without rollbacks is judged too: its rows are one line.
"""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.commit.line import turn_back
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId
from checkpointing.metadata.record import CheckpointRecord, RowKind
from checkpointing.snapshots import SubtaskSnapshot
from spec.history import CutWritten, DoorStarted, History, RowCommitted


def goes_back(record: CheckpointRecord) -> bool:
    """Return whether a row builds on one that is not the end of the line; it may be a savepoint's."""
    return record.kind is RowKind.ROLLBACK


def off_the_line(history: History) -> Iterator[str]:
    """Yield every row that builds on another than the end of the line, unless it goes back; ticks that began elsewhere.

    Of a rollback: a parent that was not there, and rows that stayed although nobody pinned them. Rows from before
    the history are not known: the first one that is seen ends the line.
    """
    there: dict[CheckpointId, CheckpointRecord] = {}
    highest, newest = NO_CHECKPOINT, NO_CHECKPOINT
    for event in history.events:
        match event:
            case DoorStarted(generation, _, restored) if newest:
                began = restored.checkpoint if restored else NO_CHECKPOINT
                if began != newest:
                    yield f"generation {generation} began from {began}, and the line ends in {newest}"
            case RowCommitted(record, kept):
                if record.checkpoint <= highest:
                    yield f"row {record.checkpoint} came after row {highest}"
                if goes_back(record):
                    yield from _turned_wrongly(record, there, kept)
                elif newest and record.parent != newest:
                    yield f"row {record.checkpoint} builds on {record.parent}, and the line ends in {newest}"
                there = {each: row for each, row in there.items() if each in kept} | {record.checkpoint: record}
                highest = max(highest, record.checkpoint)
                newest = record.checkpoint if record.commits else newest
            case _:
                pass


def _turned_wrongly(
    record: CheckpointRecord, there: dict[CheckpointId, CheckpointRecord], kept: tuple[CheckpointId, ...]
) -> Iterator[str]:
    if record.parent not in there:
        yield f"rollback {record.checkpoint} goes back to {record.parent}, which is not there"
        return
    turn = turn_back(there.values(), there[record.parent])
    for left in turn.dropped:
        if left in kept:
            yield f"row {left} is still there after rollback {record.checkpoint} to {record.parent}"
    for pinned in (*turn.abandoned, *turn.adopted):
        if pinned not in kept:
            yield f"savepoint {pinned} is gone after rollback {record.checkpoint} to {record.parent}"


def not_gone_back(history: History) -> Iterator[str]:
    """Yield what of a rollback is not its parent's: positions, state or ranges in the row, files in its cut.

    A plain savepoint has no cut to compare with; what it brings is judged with its restores (`savepoints`).
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    cuts: dict[CheckpointId, CutWritten] = {}
    for event in history.events:
        match event:
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                if goes_back(record) and record.parent in rows and _cut_of(record) != _cut_of(rows[record.parent]):
                    yield f"rollback {record.checkpoint} holds other positions or state than {record.parent}"
            case CutWritten(checkpoint) if checkpoint not in cuts:
                cuts[checkpoint] = event
                record_of = rows.get(checkpoint)
                if record_of is not None and goes_back(record_of) and record_of.parent in cuts:
                    yield from _other_files(event, cuts[record_of.parent])
            case _:
                pass


def _cut_of(record: CheckpointRecord) -> dict[str, tuple[SubtaskSnapshot, ...]]:
    """Return the cut as a restore reads it: staged files are the tables', not the snapshots'."""
    return {
        vertex.vertex: tuple(replace(snapshot, staged=()) for snapshot in vertex.subtasks) for vertex in record.vertices
    }


def _other_files(cut: CutWritten, parent: CutWritten) -> Iterator[str]:
    before = dict(parent.active)
    for table, active in cut.active:
        if active != before.get(table, frozenset()):
            yield f"{table} shows other files at rollback {cut.checkpoint} than at checkpoint {parent.checkpoint}"
