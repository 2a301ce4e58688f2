"""Turns the positions of a file source into words and back: the last read file and its rows, `2013-01-07.parquet:842`.

A file that is read whole needs no rows. `2013-01-07.csv` is the position after it, and `2013-01-07.csv:0` the one
before.
"""

from jobs.sources.file_position import PLACES, FilePosition, SeenFile
from jobs.sources.port import NoSuchPositionError


def written(position: FilePosition) -> str:
    """Return the words that `tidemark reset --to` takes for the position."""
    if not position.files:
        return "start"
    last = position.files[-1]
    return last.name if last.rows == position.consumed == PLACES else f"{last.name}:{position.consumed}"


def rows_before(position: FilePosition) -> int:
    """Return the number of the split's rows before the position."""
    return position.before + position.consumed


def names_file(position: FilePosition, words: str) -> bool:
    """Return True if the words name one of the position's files."""
    return any(_rows(file, words) is not None for file in position.files)


def in_file(position: FilePosition, words: str) -> FilePosition:
    """Return the position that the words name in one of the position's files. Raise NoSuchPositionError."""
    if not position.files:
        raise NoSuchPositionError("the split is empty so far: only 'start' is there")
    for index, (file, before) in enumerate(position.places()):
        rows = _rows(file, words)
        if rows is None:
            continue
        if rows.isdecimal() and (int(rows) in {0, file.rows} if file.rows == PLACES else int(rows) <= file.rows):
            return FilePosition(files=position.files[: index + 1], consumed=int(rows), before=before)
        if file.rows == PLACES:
            raise NoSuchPositionError(f"{file.name} is read whole: write {file.name}:0 or {file.name}")
        if rows.isdecimal():
            raise NoSuchPositionError(f"{file.name} has {file.rows} rows")
    names = [file.name for file in position.files]
    shown = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    form = "FILE" if position.files[-1].rows == PLACES else "FILE:ROWS"
    raise NoSuchPositionError(f"write 'start', 'end' or {form}, like {written(position)}; files: {shown}")


def _rows(file: SeenFile, words: str) -> str | None:
    """Return the number of the file's rows in the words, or None if they do not name the file."""
    if words == file.name and file.rows == PLACES:
        return str(PLACES)
    name, colon, rows = words.rpartition(":")
    return rows if colon and name == file.name else None
