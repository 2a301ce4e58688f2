"""Shows positions in the words of their sources, and counts the rows between two positions.

Only a source knows the meaning of its positions (`port.NamesPositions`, `port.CountsRows`). If a source is unknown or
has no words, its position is shown as it is written.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.metadata.record import CheckpointRecord
from jobs.sources.port import CountsRows, NamesPositions, Source, layers

START: Final = "start"
END: Final = "end"
_SHOWN_MAX: Final = 60


def moment_named(words: str | datetime) -> datetime | None:
    """Return the moment that a user writes, such as `2026-01-31T12:00:00Z`; None if it is none.

    Without a time zone it is one of UTC.
    """
    try:
        moment = words if isinstance(words, datetime) else datetime.fromisoformat(words)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def positions_of(record: CheckpointRecord | None) -> dict[tuple[VertexId, SplitId], str | None]:
    """Return the position of each split of each source at a cut."""
    return {
        (vertex.vertex, SplitId(split)): subtask.position
        for vertex in (record.vertices if record is not None else ())
        if vertex.splits
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=True)
    }


def ended_splits(record: CheckpointRecord | None, source: VertexId) -> dict[SplitId, bool]:
    """Return whether each split of a source had ended at a cut."""
    return {
        SplitId(split): subtask.finished
        for vertex in (record.vertices if record is not None else ())
        if vertex.vertex == source
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=True)
    }


class PositionWords:
    """Asks the sources of a pipeline for the words of their positions. A source that fails to answer has none."""

    def __init__(self, sources: Mapping[VertexId, Source]) -> None:
        """Ask these sources. There may be none, because a job may outlive its pipeline's code."""
        self._sources = sources

    def named(self, source: VertexId, split: SplitId, position: str | None) -> str:
        """Return a position in words, or `start` for None."""
        if position is None:
            return START
        known = self._sources.get(source)
        names = next((each for each in layers(known) if isinstance(each, NamesPositions)), None) if known else None
        try:
            return _as_written(position) if names is None else names.named(split, position)
        except Exception:  # noqa: BLE001 - a user's code; or the position of a source that had this name before
            return _as_written(position)

    def rows_between(self, source: VertexId, split: SplitId, start: str | None, end: str | None) -> int | None:
        """Return the rows between two positions, or None if unknown.

        The number is negative if `end` lies before `start`.
        """
        if start == end:
            return 0
        known = self._sources.get(source)
        counts = next((each for each in layers(known) if isinstance(each, CountsRows)), None) if known else None
        try:
            return None if counts is None else counts.rows_between(split, start, end)
        except Exception:  # noqa: BLE001 - as above
            return None


def _as_written(position: str) -> str:
    """Return a short form of a text that no source explains: numbers and texts as they are, of a list its length."""
    try:
        found = json.loads(position)
    except ValueError:
        found = position
    if isinstance(found, dict):
        found = ", ".join(f"{name} {_value(value)}" for name, value in found.items() if name != "format")
    text = str(found)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def _value(value: object) -> str:
    match value:
        case bool() | str() | None:
            return str(value)
        case int():
            return f"{value:,}"
        case list() | dict():
            return f"{len(value):,}"
        case _:
            return str(value)
