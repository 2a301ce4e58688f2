"""The invariant of tables that a pipeline did not have before."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from checkpointing.metadata.record import CheckpointRecord, RenameKind, RowKind
from spec.history import CutWritten, History, RowCommitted

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId


def not_begun_empty(history: History) -> Iterator[str]:
    """Yield every new table that shows a file which its first entry does not name.

    A table of that name may have existed before. Its old content belongs to older cuts.
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
            case CutWritten(checkpoint, _, active) if checkpoint in rows and rows[checkpoint].parent in rows:
                record = rows[checkpoint]
                new = _tables(record) - _tables(rows[record.parent]) - _renamed(record)
                named = {file.path for table in record.tables for file in (*table.adds, *table.files)}
                for table, files in active:
                    if record.kind is RowKind.CHECKPOINT and table in new and files - named:
                        yield f"new table {table} shows {min(files - named)} at {checkpoint}, from before"
            case _:
                pass


def _tables(record: CheckpointRecord) -> set[str]:
    return {str(each.table) for each in record.columns}


def _renamed(record: CheckpointRecord) -> set[str]:
    return {str(rename.now) for rename in record.renames if rename.kind is RenameKind.TABLE}
