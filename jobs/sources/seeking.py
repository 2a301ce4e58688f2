"""Turns a place in a split that a user names, such as `end`, into the source's own position.

The form of the split's positions decides which places have a name (`position_form`). Polling the split to its end
finds out how far it reaches; a poll reads no row. In a source of another kind only `start` and `end` can be named.
"""

from dataclasses import dataclass
from typing import Final

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.file_position import FilePosition
from jobs.sources.port import Source, SourceError
from jobs.sources.position_form import END, START, rows_before, written

_ALL: Final = 1_000_000_000_000
"""How many rows to poll for. A split that offers as many has no end."""


class NoSuchPositionError(SourceError):
    """The words name no place in the split; the message lists the places."""


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
    own = _in_own_files(place, words)
    if own is not None:
        return own
    end = _end(source, place, words)
    if words == END:
        return end
    if end is None:
        raise _unknown(place, words, "the split is empty so far: only 'start' is there")
    if rows_before(end) is not None and end.isdecimal():
        return _number(place, words, int(end))
    try:
        whole = FilePosition.parse(end)
    except SourceError:
        raise _unknown(place, words, "of this source only 'start' and 'end' can be named") from None
    return _in_file(place, words, whole)


def _end(source: Source, place: Place, words: str) -> str | None:
    found = source.poll(PollSource(place.source, place.split, place.position, _ALL))
    if found is None:
        return place.position
    if found.rows >= _ALL and words == END:
        raise _unknown(place, words, "it has no end: name a position")
    return found.end


def _number(place: Place, words: str, end: int) -> str:
    if not words.isdecimal() or int(words) > end:
        raise _unknown(place, words, f"write 'start', 'end' or a number from 0 to {end}")
    return str(int(words))


def _in_own_files(place: Place, words: str) -> str | None:
    """Return the position in a file that was read already; None for other words.

    This needs no poll. So a reset can go back even if a file of the folder has changed or is lost.
    """
    try:
        whole = FilePosition.parse(place.position)
    except SourceError:
        return None
    name, _, _ = words.rpartition(":")
    return _in_file(place, words, whole) if any(file.name == name for file in whole.files) else None


def _in_file(place: Place, words: str, whole: FilePosition) -> str:
    name, _, rows = words.rpartition(":")
    names = [file.name for file in whole.files]
    if name not in names or not rows.isdecimal():
        shown = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
        raise _unknown(place, words, f"write 'start', 'end' or FILE:ROWS, like {written(whole.text())}; files: {shown}")
    index = names.index(name)
    file, before = list(whole.places())[index]
    if int(rows) > file.rows:
        raise _unknown(place, words, f"{name} has {file.rows} rows")
    return FilePosition(files=whole.files[: index + 1], consumed=int(rows), before=before).text()


def _unknown(place: Place, words: str, way_out: str) -> NoSuchPositionError:
    return NoSuchPositionError(
        f"{words!r} is not a position in split {place.split} of source {place.source}: {way_out}"
    )
