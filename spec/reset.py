"""The invariants of resets: exactly the positions that somebody asked for move, and nothing else changes (K2).

To an observer a reset is an entry like any other. The reference says what tables hold afterwards (`cut_contents`): rows
that are sent again count again, and skipped rows never count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from checkpointing.metadata.record import CheckpointRecord, RowKind, VertexRecord
from spec.entries_say import ended_at
from spec.history import CutsCorrected, CutWritten, History, ResetAsked, RowCommitted

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId, TableName

Splits = dict[tuple[str, str], str | None]
"""(source, split) -> its position."""


def badly_moved(history: History) -> Iterator[str]:
    """Yield what a reset changed in its entry or its cut besides the positions that were asked for.

    If nobody was seen to ask for a reset, it must at least move splits of one source only.
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    cuts: dict[CheckpointId, dict[TableName, int]] = {}
    asked: Mapping[str, str | None] | None = None
    for event in history.without_flow:
        match event:
            case ResetAsked(positions):
                asked = dict(positions)
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                if record.kind is RowKind.RESET:
                    yield from _of_row(record, rows.get(record.parent), asked)
                    asked = None
            case CutWritten(checkpoint, versions) if checkpoint not in cuts:
                cuts[checkpoint] = dict(versions)
                record_of = rows.get(checkpoint)
                if record_of is not None and record_of.kind is RowKind.RESET and record_of.parent in cuts:
                    before = cuts[record_of.parent]
                    if dict(versions) != before:
                        yield f"the cut of reset {checkpoint} is {versions}, that of {record_of.parent} was {before}"
            case CutsCorrected(changed):
                cuts |= {checkpoint: dict(versions) for checkpoint, versions in changed}
            case _:
                pass


def _of_row(
    record: CheckpointRecord, parent: CheckpointRecord | None, asked: Mapping[str, str | None] | None
) -> Iterator[str]:
    if parent is None:
        yield f"reset {record.checkpoint} moves positions of {record.parent}, which never was"
        return
    if record.tables or _cut_of(record) != _cut_of(parent):
        yield f"reset {record.checkpoint} holds another cut than {parent.checkpoint}, or publishes something"
    if record.is_savepoint:
        yield f"reset {record.checkpoint} stays for ever: nobody has taken it for a savepoint"
    was, now = _splits(parent), _splits(record)
    changed = {at for at in was.keys() | now if was.get(at) != now.get(at)}
    if len({source for source, _ in changed}) > 1:
        yield f"reset {record.checkpoint} moves splits of more than one source: {sorted(changed)}"
    if asked is None:
        return
    for (source, split), position in now.items():
        due = asked.get(split, was.get((source, split)))
        if position != due:
            yield f"reset {record.checkpoint} has split {split} at {position}, due is {due}"
        if split in asked and (source, split) in ended_at(record):
            yield f"reset {record.checkpoint} moves split {split}, which has ended nevertheless"


def _splits(record: CheckpointRecord) -> Splits:
    return {
        (vertex.vertex, split): subtask.position
        for vertex in record.vertices
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
    }


def _cut_of(record: CheckpointRecord) -> tuple[VertexRecord, ...]:
    """Return the cut without its positions and ends. Staged files belong to the tables, not to the snapshots."""
    return tuple(
        vertex.model_copy(
            update={
                "subtasks": tuple(replace(each, staged=(), position=None, finished=False) for each in vertex.subtasks)
            }
        )
        for vertex in record.vertices
    )
