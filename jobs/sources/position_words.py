"""Shows positions in the words of their sources, and counts the rows between two positions.

Only a source knows the meaning of its positions (`port.NamesPositions`, `port.CountsRows`). If a source is unknown or
does not name its positions, a position is shown in the form in which it is stored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from checkpointing.metadata.record import CheckpointRecord
from jobs.sources.port import CountsRows, NamesPositions, NoSuchPositionError, SeeksPositions, Source, asked_as, layers

START: Final = "start"
END: Final = "end"
_SHOWN_MAX: Final = 60


def moment_named(words: str | datetime) -> datetime | None:
    """Return the moment that a user writes, such as `2026-01-31T12:00:00Z`, or None for any other text.

    A moment without a time zone is in UTC.
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
    """Asks a pipeline's sources to name their positions. If a source fails, the position is shown as it is stored."""

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
        """Return the number of rows between two positions, or None if it is not known.

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
    """Return a short form of a position that no source names: numbers and texts as they are, a list as its length."""
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


# ------------------------------------------------------------------
# Turns a place in a split that a user names, such as `end`, into the source's own position.
#
# A source with `port.SeeksPositions` understands words of its own. For any other source, a user can only name `start`
# and `end`. Polling the split to its end finds the position of the end. A poll reads no row.


_ALL: Final = 1_000_000_000_000
"""The number of rows to poll for. A split that offers this many rows has no end."""
_POLLS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """A split of a source, and its present position (None: its start)."""

    source: VertexId
    split: SplitId
    position: str | None


def seek(source: Source, place: Place, words: str) -> str | None:
    """Return the position that `words` name in that split, or None for the split's start.

    Raises NoSuchPositionError if the words name no position, and SourceError if the split cannot be read.
    """
    if words == START:
        return None
    try:
        with asked_as(place.source):
            return sought(source, place, words)
    except NoSuchPositionError as error:
        raise NoSuchPositionError(
            f"{words!r} is not a position in split {place.split} of source {place.source}: {error}"
        ) from error


def sought(source: Source, place: Place, words: str) -> str | None:
    """Return the position that words other than `start` name.

    Raises the errors of `seek`, but without the split's name in the message.
    """
    seeks = next((each for each in layers(source) if isinstance(each, SeeksPositions)), None)
    if seeks is not None:
        return seeks.seek(place.split, place.position, words)
    if words == END:
        return _end_of(source, place)
    raise NoSuchPositionError("of this source only 'start' and 'end' can be named")


def _end_of(source: Source, place: Place) -> str | None:
    """Return the present end of the split. Raise NoSuchPositionError for a split without an end."""
    position, left = place.position, _ALL
    for _ in range(_POLLS_MAX):
        found = source.poll(PollSource(place.source, place.split, position, left))
        if found is None:
            return position
        position, left = found.end, left - found.rows
        if left <= 0:
            break
    raise NoSuchPositionError("it has no end: name a position")
