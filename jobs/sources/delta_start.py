"""Finds the version of a Delta table with which a new job begins."""

from datetime import UTC, datetime

from jobs.sources.delta_history import DeltaHistory
from jobs.sources.port import SourceError

Start = int | str | datetime | None
"""A version, "latest", a time, or None for a snapshot of the newest version."""


def first_version(history: DeltaHistory, start: Start, newest: int) -> int:
    """Return the first version to read, of which a snapshot comes first if `start` is None.

    It may be the next one, which is not there yet. Raises SourceError for a version or a time that cannot begin.
    """
    match start:
        case None:
            return newest
        case str():
            return newest + 1
        case datetime():
            return _first_since(history, start, newest)
        case version if 0 <= version <= newest + 1:
            return version
        case version:
            raise SourceError(f"{history.folder} has no version {version} to begin with: its newest is {newest}")


def _first_since(history: DeltaHistory, moment: datetime, newest: int) -> int:
    """Return the first version that was committed at or after a time, or the next version if there is none yet."""
    at_ms = int(moment.astimezone(UTC).timestamp() * 1_000)
    oldest = history.oldest()
    low, high = oldest, newest + 1
    while low < high:
        middle = (low + high) // 2
        if history.commit(middle).at_ms >= at_ms:
            high = middle
        else:
            low = middle + 1
    if low == oldest > 0:
        raise SourceError(
            f"{history.folder}: the log begins with version {oldest}, after {moment.isoformat()}, so what was "
            f"committed between is unknown: name a later time, or begin with start={oldest}"
        )
    return low
