"""Where a file source is in a split: the files in order of discovery, and rows consumed of the last.

Pure arithmetic on what was found in a folder; no file is touched here. Names tell nothing about
order: a file that arrives late under an earlier name is simply discovered later.
"""

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from jobs.sources.port import SourceError


class _Persisted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SeenFile(_Persisted):
    """A file as it was when it was discovered; `name` is relative to the split's folder, times in ns."""

    name: str
    size: NonNegativeInt
    modified_ns: int
    rows: NonNegativeInt


class FileRange(_Persisted):
    """The rows `first` to `end` (exclusive) of one file; `before` rows of the split lie before the file's row 0."""

    file: SeenFile
    first: NonNegativeInt
    end: PositiveInt
    before: NonNegativeInt

    @property
    def rows(self) -> int:
        """How many rows the range has."""
        return self.end - self.first

    @property
    def bytes(self) -> int:
        """The range's share of the file, an estimate."""
        return self.file.size * self.rows // self.file.rows


class SliceDetail(_Persisted):
    """What a slice's reader needs: ranges of one or more files, in order."""

    ranges: tuple[FileRange, ...]


class FilePosition(_Persisted):
    """A position in a split: every file but the last is consumed whole.

    `consumed` counts rows of the last file, `before` the rows of all the others, so that a row's
    ordinal in the split needs no sum.
    """

    format: Literal[1] = 1
    files: tuple[SeenFile, ...] = ()
    consumed: NonNegativeInt = 0
    before: NonNegativeInt = 0

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Return the position of that canonical JSON text; None is the start.

        Raises SourceError if the text is no position of a file source.
        """
        if text is None:
            return cls()
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(
                f"{text!r} is not a position of a file source; has the source of this vertex been exchanged? "
                f"Give the new source an id of its own. ({error.error_count()} errors)"
            ) from error

    def text(self) -> str:
        """Return the canonical JSON text: the same position always gives the same text."""
        return self.model_dump_json()

    @property
    def rest(self) -> FileRange | None:
        """What is left of the last file, if it was consumed in part."""
        if not self.files or self.consumed == self.files[-1].rows:
            return None
        last = self.files[-1]
        return FileRange(file=last, first=self.consumed, end=last.rows, before=self.before)

    def entered(self, file: SeenFile, consumed: int) -> "FilePosition":
        """Return the position after `consumed` rows of a file that follows on a whole last one."""
        before = self.before + (self.files[-1].rows if self.files else 0)
        return FilePosition(files=(*self.files, file), consumed=consumed, before=before)


def advance(
    position: FilePosition, unseen: Iterable[SeenFile], rows_max: int
) -> tuple[FilePosition, tuple[FileRange, ...]]:
    """Return the position after at most `rows_max` more rows, and the ranges between the two.

    First the rest of the last file, then unseen ones in the order given. A file that fits into
    `rows_max` is never split: it waits for the next slice if this one has rows already. Files without
    rows are passed over, and remembered only if rows follow. `unseen` is consumed no further than needed.
    """
    if position.rest is not None and position.rest.rows > rows_max:
        return _partly(position, position.rest, rows_max)
    ranges = [position.rest] if position.rest is not None else []
    position = position.model_copy(update={"consumed": position.files[-1].rows}) if position.files else position
    left = rows_max - sum(part.rows for part in ranges)
    for file in unseen:
        if ranges and file.rows > left:
            break
        position = position.entered(file, min(file.rows, left))
        if file.rows:
            ranges.append(FileRange(file=file, first=0, end=position.consumed, before=position.before))
        left -= position.consumed
        if not left:
            break
    return position, tuple(ranges)


def _partly(position: FilePosition, rest: FileRange, rows: int) -> tuple[FilePosition, tuple[FileRange, ...]]:
    taken = rest.model_copy(update={"end": rest.first + rows})
    return position.model_copy(update={"consumed": taken.end}), (taken,)
