"""The position of a Delta source in a table's history, and the rows of a slice.

A position is the next row to read: a version, a file of that version, and a row of that file. First these are the files
of the whole table at a version (`snapshot`). Later they are the files that each version's commit added. Both lists have
a fixed order. So a position names the same rows for as long as the log has the version's entry.
"""

from enum import Enum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError, model_validator

from jobs.sources.port import SourceError


class ChangeType(Enum):
    """Says what a commit did to the rows of a file, in the words of the change data feed."""

    INSERT = "insert"
    DELETE = "delete"
    SAID_IN_FILE = "in the file"
    """The file has a column with the change of each row."""


class _Persisted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeltaPosition(_Persisted):
    """The next row to read: row `row` of file `file` of a version, both counted from 0, after `before` rows.

    `table` is the id that the table got when it was created.
    """

    format: Literal[1] = 1
    table: str
    version: NonNegativeInt
    snapshot: bool = False
    file: NonNegativeInt = 0
    row: NonNegativeInt = 0
    before: NonNegativeInt = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position in this canonical JSON text. Raise SourceError if it is not of a Delta source."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(
                f"{text[:200]!r} is not a position of a Delta source; was the source of this vertex replaced? "
                "Give the new source an id of its own"
            ) from error

    def text(self) -> str:
        """Return the canonical JSON text. The same position always has the same text."""
        return self.model_dump_json()

    def after(self, rows: int, *, ends_file: bool) -> Self:
        """Return the position after so many more rows of the file, or after the file."""
        place = {"file": self.file + 1, "row": 0} if ends_file else {"row": self.row + rows}
        return self.model_copy(update=place | {"before": self.before + rows})

    def next_version(self) -> Self:
        """Return the position before the first row of the next version."""
        return self.model_copy(update={"version": self.version + 1, "snapshot": False, "file": 0, "row": 0})

    def __str__(self) -> str:
        """Return the position in words. Files and rows are counted from 1 there."""
        if self.snapshot or self.file or self.row:
            of = "table at version" if self.snapshot else "version"
            return f"{of} {self.version}, file {self.file + 1}, row {self.row + 1:,}"
        return f"version {self.version}"


class DeltaRange(_Persisted):
    """Rows `first` to `end` (exclusive) of a Parquet file of the table. `before` rows of the split precede its row 0.

    `path` is the decoded path from the log. `before` may be negative, because a range need not begin at the file's
    first row.
    """

    path: str
    size: NonNegativeInt
    rows: PositiveInt
    first: NonNegativeInt
    end: PositiveInt
    before: int
    version: NonNegativeInt
    change: ChangeType
    partition: dict[str, str | None] = {}

    @model_validator(mode="after")
    def _of_its_file(self) -> Self:
        if not self.first < self.end <= self.rows:
            raise ValueError("must be rows of the file")
        return self

    @property
    def bytes(self) -> int:
        """Return the range's estimated share of the file."""
        return self.size * (self.end - self.first) // self.rows


class DeltaSlice(_Persisted):
    """The content of a slice: ranges of files, in order."""

    ranges: tuple[DeltaRange, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a slice's detail; raise SourceError if no Delta source has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(f"{text[:200]!r} describes no rows of a Delta source") from error
