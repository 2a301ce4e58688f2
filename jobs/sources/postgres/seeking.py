"""Finds the position that a user names in the staged log: a place between two transactions."""

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import pyarrow.parquet as pq

from jobs.sources.change_rows import COMMITTED_AT
from jobs.sources.port import NoSuchPositionError
from jobs.sources.position_words import END, moment_named
from jobs.sources.postgres.lsn import parsed
from jobs.sources.postgres.position import ChangesPosition
from jobs.sources.postgres.staged_log import ChangeFile, StagedLog, ends_of

CHANGES = "changes"
"""The word for the place after the snapshot, where the changes begin."""


def position_named(log: StagedLog, words: str) -> ChangesPosition:
    """Return the position of `end`, `changes`, a number of rows, a place of the server's log, or a moment.

    A place of the log means the position after all transactions that were committed before it. A moment means the
    position before the first transaction that was committed at that time or later. Raises NoSuchPositionError, which
    lists the valid words.
    """
    places = tuple(_places(log))
    found = _found(log, places, words) if places else None
    if found is None:
        rows = f", a number of rows after which a transaction ends, from {places[0].row} to {places[-1].row}"
        raise NoSuchPositionError(
            f"write 'start', 'end', '{CHANGES}' (behind the snapshot), a place of the server's log such as 0/16B3748, "
            f"a moment such as 2026-01-31T12:00:00Z{rows if places else ''}"
        )
    return found


def _found(log: StagedLog, places: tuple[ChangesPosition, ...], words: str) -> ChangesPosition | None:
    if words == END:
        return places[-1]
    if words == CHANGES:
        return next((_end_of(file) for file in log.files if file.is_snapshot), None)
    if words.isdecimal():
        return next((place for place in places if place.row == int(words)), None)
    moment = moment_named(words)
    if moment is not None:
        row = _first_since(log, moment)
        return places[-1] if row is None else next((each for each in reversed(places) if each.row <= row), None)
    try:
        lsn = parsed(words)
    except ValueError:
        return None
    return next((place for place in reversed(places) if place.lsn <= lsn), None)


def _places(log: StagedLog) -> Iterator[ChangesPosition]:
    """Yield each place between two transactions, in order."""
    for file in log.files:
        if file.is_snapshot:
            yield _end_of(file)
        elif file.rows:
            ends = ends_of(file.path)
            for row, lsn in zip(ends.rows.tolist(), ends.lsns.tolist(), strict=True):
                yield ChangesPosition(row=file.note.before + row, lsn=lsn)


def _end_of(file: ChangeFile) -> ChangesPosition:
    return ChangesPosition(row=file.after, lsn=file.note.end)


def _first_since(log: StagedLog, moment: datetime) -> int | None:
    """Return the number of the first row that was committed at this moment or later. None if there is none."""
    wanted = np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "us")
    for file in log.files:
        times = pq.read_table(file.path, columns=[COMMITTED_AT]).column(0).to_numpy()
        later = np.flatnonzero(times >= wanted)  # a row of the snapshot has no time, and is never later
        if later.size:
            return file.note.before + int(later[0])
    return None
