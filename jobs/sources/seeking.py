"""Turns a place in a split that a user names, such as `end`, into the source's own position.

A source with `port.SeeksPositions` understands words of its own. For any other source, a user can only name `start` and
`end`. Polling the split to its end finds the position of the end. A poll reads no row.
"""

from dataclasses import dataclass
from typing import Final

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.asked import asked_as
from jobs.sources.port import NoSuchPositionError, SeeksPositions, Source, layers
from jobs.sources.position_words import END, START

_ALL: Final = 1_000_000_000_000
"""The number of rows to poll for. A split that offers so many has no end."""
_POLLS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """A split of a source, and its present position (None: its start)."""

    source: VertexId
    split: SplitId
    position: str | None


def seek(source: Source, place: Place, words: str) -> str | None:
    """Return the position that `words` name in that split, None for its start.

    Raises NoSuchPositionError, and SourceError if the split cannot be read.
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
    """Return the position that words other than `start` name. Raises as `seek` does, without the name of the split."""
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
