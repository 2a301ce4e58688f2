"""Chooses the next rows of the staged log for a slice, which ends where a transaction ends."""

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pyarrow.parquet as pq
import structlog

from jobs.sources.change_rows import COMMITTED_AT
from jobs.sources.file_position import FileRange
from jobs.sources.port import SourceError
from jobs.sources.postgres.columns import SourceTable
from jobs.sources.postgres.lsn import written
from jobs.sources.postgres.position import ChangesPosition
from jobs.sources.postgres.staged_log import ChangeFile, StagedLog, ends_of
from jobs.sources.postgres.way_out import ANEW

_log = structlog.get_logger(__name__)


def next_ranges(
    log: StagedLog, tables: Sequence[SourceTable], row: int, rows_max: int, *, snapshot_in_parts: bool
) -> tuple[FileRange, ...]:
    """Return the next rows from `row` on: at most `rows_max`, or one whole transaction if it has more.

    No slice ends within a transaction, so no checkpoint can show a part of one. The snapshot counts as one transaction,
    unless it may be read in parts. A file may have a column that these tables lack. It waits for a tick that has the
    column.
    """
    ranges: list[FileRange] = []
    place, left = log.at(row), rows_max
    for file in log.files[place:] if place is not None else ():
        if not file.rows:
            continue
        if not file.has_only(tables):
            _log.info("waits for the next tick, which has its columns", file=str(file.path))
            break
        first = max(row - file.note.before, 0)
        end = file.rows
        if end - first > left:
            if not file.is_snapshot:
                end = _boundary(file, first, left, at_least_one=not ranges)
            elif snapshot_in_parts:
                end = first + left
        if end == first:
            break
        ranges.append(FileRange(file=file.seen, first=first, end=end, before=file.note.before))
        left -= end - first
        if end < file.rows or left <= 0:
            break
    return tuple(ranges)


def position_after(log: StagedLog, row: int) -> ChangesPosition:
    """Return the position before that row. The log must have the row before it."""
    place = log.at(row - 1)
    if place is None:
        raise SourceError(f"{log.folder} does not have row {row - 1:,}")
    file = log.files[place]
    if file.is_snapshot:
        return ChangesPosition(row=row, lsn=file.note.end if row == file.after else 0)
    ends = ends_of(file.path)
    number = int(np.searchsorted(ends.rows, row - file.note.before))
    if ends.rows[number] != row - file.note.before:
        raise SourceError(f"row {row:,} of {log.folder} lies within a transaction, so no position can be there")
    return ChangesPosition(row=row, lsn=int(ends.lsns[number]))


def committed_at(log: StagedLog, row: int) -> datetime | None:
    """Return the time of the row's commit. None: the log has no such row, or the row belongs to the snapshot."""
    place = log.at(row)
    if place is None:
        return None
    file = log.files[place]
    times = pq.read_table(file.path, columns=[COMMITTED_AT]).column(0)
    found: datetime | None = times[row - file.note.before].as_py()
    return found


def must_hold(log: StagedLog, position: ChangesPosition) -> None:
    """Raise SourceError if a position lies before the log's first row, or if the log has other transactions there."""
    first = log.files[0] if log.files else None
    if first is None:
        if position.row and not position.lsn:
            raise SourceError(
                f"{log.folder} is gone, and with it the snapshot that was read up to row {position.row:,}: put it back "
                f"from a backup, or {ANEW}"
            )
        return
    if position.row < first.note.before:
        raise SourceError(
            f"the changes from row {position.row:,} on ({position.named()}) are not in {log.folder}, which begins with "
            f"row {first.note.before:,}: they were removed as `keep` says, or the folder was replaced. Put its older "
            "files back from a backup, or go back to a newer checkpoint"
        )
    if position.row > first.note.before and log.at(position.row - 1) is not None:
        found = position_after(log, position.row)
        if found.lsn != position.lsn:
            raise SourceError(
                f"{log.folder} has other changes before row {position.row:,} than those that were read: the position "
                f"is at {written(position.lsn)}, the files at {written(found.lsn)}. Put the folder back as it was, or "
                f"{ANEW}"
            )


def _boundary(file: ChangeFile, first: int, left: int, *, at_least_one: bool) -> int:
    """Return the end of the last transaction that fits, or `first` if none does.

    If one must be returned, return the end of the first transaction.
    """
    rows = ends_of(file.path).rows
    last = int(np.searchsorted(rows, first + left, side="right")) - 1
    if last >= 0 and rows[last] > first:
        return int(rows[last])
    return int(rows[np.searchsorted(rows, first, side="right")]) if at_least_one else first
