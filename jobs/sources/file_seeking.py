"""Words for the positions of a file source: the last file and its rows that were read, `2013-01-07.parquet:842`."""

from jobs.sources.file_position import FilePosition
from jobs.sources.port import NoSuchPositionError


def written(position: FilePosition) -> str:
    """Return the position as `tidemark reset --to` takes it."""
    return f"{position.files[-1].name}:{position.consumed}" if position.files else "start"


def rows_before(position: FilePosition) -> int:
    """Return the rows of the split that lie before the position."""
    return position.before + position.consumed


def names_file(position: FilePosition, words: str) -> bool:
    """Return whether the words name one of the position's files."""
    name, _, _ = words.rpartition(":")
    return any(file.name == name for file in position.files)


def in_file(position: FilePosition, words: str) -> FilePosition:
    """Return the position that `FILE:ROWS` names, in one of the position's files; raise NoSuchPositionError."""
    if not position.files:
        raise NoSuchPositionError("the split is empty so far: only 'start' is there")
    name, _, rows = words.rpartition(":")
    names = [file.name for file in position.files]
    if name not in names or not rows.isdecimal():
        shown = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
        raise NoSuchPositionError(f"write 'start', 'end' or FILE:ROWS, like {written(position)}; files: {shown}")
    index = names.index(name)
    file, before = list(position.places())[index]
    if int(rows) > file.rows:
        raise NoSuchPositionError(f"{name} has {file.rows} rows")
    return FilePosition(files=position.files[: index + 1], consumed=int(rows), before=before)
