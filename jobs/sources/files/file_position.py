"""The position of a file source in a split: the files in order of discovery, and the rows read of the last file.

This module only computes, and opens no file. The files' names do not decide their order: a file that arrives late is
discovered late, whatever its name.

A position names all files in the folder that were discovered, and the `GONE_KEPT` removed files that were discovered
last. So a position grows with the folder, and not with the number of files that were ever read (ADR 9).
"""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from jobs.sources.port import SourceError

GONE_KEPT: Final = 1_000
"""A position remembers this many removed files. If one of them comes back, it is not read again."""

PLACES: Final = 2**40
"""More than the rows of any file. A file whose rows are not counted gets this many places."""
_SHOWN_MAX: Final = 200


class _Persisted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SeenFile(_Persisted):
    """A file at its discovery. `name` is its path below the split's folder. `modified_ns` is in nanoseconds.

    `contents` is the digest of its footer, and is empty in positions of format 1. A position forgets files that were
    removed long ago. `skipped` counts the rows of forgotten files between the previous file of the position and this
    one.
    """

    name: str
    size: NonNegativeInt
    modified_ns: int
    rows: NonNegativeInt
    contents: str = ""
    skipped: NonNegativeInt = 0

    @field_validator("name")
    @classmethod
    def _of_its_folder(cls, name: str) -> str:
        """Refuse a name that leads out of the split's folder, because a position may come from another warehouse."""
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise ValueError("must be the path of a file below the split's folder")
        return name


_FIELDS: Final = tuple(SeenFile.model_fields)


class FileRange(_Persisted):
    """The rows `first` to `end` (exclusive) of one file. `before` rows of the split lie before the file's row 0."""

    file: SeenFile
    first: NonNegativeInt
    end: PositiveInt
    before: NonNegativeInt

    @model_validator(mode="after")
    def _of_its_file(self) -> Self:
        if not self.first < self.end <= self.file.rows:
            raise ValueError("must be rows of the file")
        return self

    @property
    def rows(self) -> int:
        """Return how many rows the range has."""
        return self.end - self.first

    @property
    def bytes(self) -> int:
        """Return the range's estimated share of the file's bytes."""
        return self.file.size * self.rows // self.file.rows


class SliceDetail(_Persisted):
    """All that a slice's reader needs: ranges of one or more files, in order."""

    ranges: tuple[FileRange, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a slice's detail; raise SourceError if no file source has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(f"{_short(text)} describes no rows of a file source ({_first(error)})") from error


class FilePosition(_Persisted):
    """A position in a split. All rows of all files except the last have been read.

    `consumed` is the number of read rows of the last file, and `before` the number of rows of all other files. So the
    place of a row in the split can be computed without a sum over the files. Format 1 has files as objects, without
    `contents`.
    """

    format: Literal[1, 2] = 2
    files: tuple[SeenFile, ...] = ()
    consumed: NonNegativeInt = 0
    before: NonNegativeInt = 0

    @model_validator(mode="after")
    def _in_its_last_file(self) -> Self:
        if self.consumed > (self.files[-1].rows if self.files else 0):
            raise ValueError("consumed: must not be more than the last file has")
        return self

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Return the position of that canonical JSON text. None is the start.

        Raises SourceError if the text is not a position of a file source.
        """
        if text is None:
            return cls()
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(
                f"{_short(text)} is not a position of a file source; was the source of this vertex replaced? "
                f"Give the new source an id of its own. ({_first(error)})"
            ) from error

    @field_validator("files", mode="before")
    @classmethod
    def _from_arrays(cls, files: object) -> object:
        """Read files from arrays of fields. This form is shorter and faster to read than objects."""
        if not isinstance(files, list):
            return files
        return [dict(zip(_FIELDS, file, strict=False)) if isinstance(file, list) else file for file in files]

    @field_serializer("files")
    def _as_arrays(self, files: tuple[SeenFile, ...]) -> list[list[str | int]]:
        return [_array(file) for file in files]

    def text(self) -> str:
        """Return the canonical JSON text. The same position always has the same text."""
        return self.model_copy(update={"format": 2}).model_dump_json()

    def places(self) -> Iterator[tuple[SeenFile, int]]:
        """Yield each file with the number of the split's rows before the file."""
        before = 0
        for file in self.files:
            before += file.skipped
            yield file, before
            before += file.rows

    @property
    def rest(self) -> FileRange | None:
        """Return the unread rest of the last file if it was read in part."""
        if not self.files or self.consumed == self.files[-1].rows:
            return None
        last = self.files[-1]
        return FileRange(file=last, first=self.consumed, end=last.rows, before=self.before)

    def remembering(self, present: Container[str]) -> "FilePosition":
        """Return the same position without the files that were removed long ago."""
        gone = [place for place, file in enumerate(self.files[:-1]) if file.name not in present]
        forgotten = frozenset(gone[:-GONE_KEPT])
        if not forgotten:
            return self
        files, skipped = [], 0
        for place, file in enumerate(self.files):
            skipped += file.skipped
            if place in forgotten:
                skipped += file.rows
            else:
                files.append(file.model_copy(update={"skipped": skipped}))
                skipped = 0
        return self.model_copy(update={"files": tuple(files)})


def _first(error: ValidationError) -> str:
    """Return the first error of a validation, and its place."""
    problem = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".removeprefix(": ")


def _short(text: str) -> str:
    """Return the beginning of an untrusted text, for a message."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


def _array(file: SeenFile) -> list[str | int]:
    values: list[str | int] = [file.name, file.size, file.modified_ns, file.rows, file.contents]
    return [*values, file.skipped] if file.skipped else values


def advance(
    position: FilePosition,
    unseen: Iterable[SeenFile],
    rows_max: int,
    estimate: Callable[[SeenFile], int] | None = None,
) -> tuple[FilePosition, tuple[FileRange, ...]]:
    """Return the position after at most `rows_max` more rows, and the ranges up to it.

    The rest of the last file comes first, then the unseen files in the given order. A file with at most `rows_max` rows
    is never divided. If it does not fit into this slice, it is left to the next slice. Files without rows have no
    range. The position has them, but it is used only if there are ranges. No more of `unseen` is consumed than needed.
    With `estimate`, which returns a file's probable number of rows, no file is ever divided.
    """
    rest = position.rest
    if rest is not None and rest.rows > rows_max:
        taken = rest.model_copy(update={"end": rest.first + rows_max})
        return position.model_copy(update={"consumed": taken.end}), (taken,)
    ranges = [rest] if rest is not None else []
    files, before = list(position.files), position.before
    consumed = files[-1].rows if files else 0
    gap = before + consumed - sum(file.skipped + file.rows for file in files)
    left = rows_max - sum(part.rows for part in ranges)
    for found in unseen:
        rows = found.rows if estimate is None or not found.rows else estimate(found)
        if ranges and rows > left:
            break
        before += consumed
        file = found.model_copy(update={"skipped": gap}) if gap else found
        gap = 0
        files.append(file)
        consumed = min(file.rows, left) if estimate is None else file.rows
        if file.rows:
            ranges.append(FileRange(file=file, first=0, end=consumed, before=before))
        left -= consumed if estimate is None else rows
        if left <= 0:
            break
    then = {"files": tuple(files), "consumed": consumed, "before": before}
    return position.model_copy(update=then), tuple(ranges)
