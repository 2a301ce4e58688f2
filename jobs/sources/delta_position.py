"""The position of a Delta source in a table's history, and the rows that a slice of it describes.

A position is the next row to read: a version, a file of that version, and a row of that file. At first its files are
those of the whole table at that version (`snapshot`), later those that the version's commit brought. Both lists have a
fixed order. So a position names the same rows for as long as the log has the version's entry.
"""

from enum import Enum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError, model_validator

from jobs.sources.port import SourceError


class ChangeType(Enum):
    """What a commit did to the rows of a file, as the change data feed words it."""

    INSERT = "insert"
    DELETE = "delete"
    SAID_IN_FILE = "in the file"
    """The file has a column that says it for each row."""


class _Persisted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeltaPosition(_Persisted):
    """The next row to read: row `row` of file `file` of a version, both from 0; `before` rows were read so far.

    `table` is the id that the table was created with.
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
        """Return the position of that canonical JSON text; raise SourceError if no Delta source has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(
                f"{text[:200]!r} is not a position of a Delta source; was the source of this vertex replaced? "
                "Give the new source an id of its own"
            ) from error

    def text(self) -> str:
        """Return the canonical JSON text: the same position always gives the same text."""
        return self.model_dump_json()

    def after(self, rows: int, *, ends_file: bool) -> Self:
        """Return the position behind so many more rows of the file, or behind the file."""
        place = {"file": self.file + 1, "row": 0} if ends_file else {"row": self.row + rows}
        return self.model_copy(update=place | {"before": self.before + rows})

    def next_version(self) -> Self:
        """Return the position before the first row of the next version."""
        return self.model_copy(update={"version": self.version + 1, "snapshot": False, "file": 0, "row": 0})

    def __str__(self) -> str:
        """Return the position in words; files and rows count from 1 there, as people count."""
        if self.snapshot or self.file or self.row:
            of = "table at version" if self.snapshot else "version"
            return f"{of} {self.version}, file {self.file + 1}, row {self.row + 1:,}"
        return f"version {self.version}"


class DeltaRange(_Persisted):
    """Rows `first` to `end` (exclusive) of a Parquet file of the table; `before` rows of the split precede its row 0.

    `path` is as the log has it, decoded. `before` may be negative: a range need not begin at the file's first row.
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
        """The range's share of the file, an estimate."""
        return self.size * (self.end - self.first) // self.rows


class DeltaSlice(_Persisted):
    """What a slice's reader needs: ranges of files, in order."""

    ranges: tuple[DeltaRange, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a slice's detail; raise SourceError if no Delta source has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(f"{text[:200]!r} describes no rows of a Delta source") from error
