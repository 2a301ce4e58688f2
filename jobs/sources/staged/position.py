"""A position among the changes: how many rows lie before it, and the horizon of their transactions."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, NonNegativeInt, PlainSerializer, ValidationError

from jobs.sources.port import SourceError
from jobs.sources.staged.lsn import parsed, written


def _number(text: object) -> object:
    return parsed(text) if isinstance(text, str) else text


Lsn = Annotated[NonNegativeInt, BeforeValidator(_number), PlainSerializer(written)]
"""A place in the write-ahead log. In JSON it has the server's notation."""


class ChangesPosition(BaseModel):
    """All transactions before the horizon `lsn` were read. They have `row` rows, including the snapshot's.

    Within a snapshot that is read in parts, `lsn` is 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    row: NonNegativeInt = 0
    lsn: Lsn = 0

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Return the position in this JSON text. None is the start. Raise SourceError for another source's text."""
        if text is None:
            return cls()
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            raise SourceError(
                f"{text[:200]!r} is not a position of PostgreSQL changes; was the source of this vertex replaced? "
                "Give the new source an id of its own"
            ) from None

    def text(self) -> str:
        """Return the canonical JSON text."""
        return self.model_dump_json()

    def named(self) -> str:
        """Return the position in words."""
        if not self.lsn:
            return f"row {self.row:,} of the snapshot" if self.row else "the start"
        return f"transactions before {written(self.lsn)}, {self.row:,} rows"
