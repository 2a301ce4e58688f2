"""The position of a source that reads another job's cuts (A10)."""

from typing import Literal, Self

from pydantic import ConfigDict, ValidationError

from jobs.sources.delta_position import DeltaPosition
from jobs.sources.port import SourceError
from jobs.stores.upstream_cuts import NamesCut


class CutPosition(NamesCut):
    """A place in a table of another job: a cut, and the next row to read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    at: DeltaPosition

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position of that canonical JSON text. Raise SourceError if no source of cuts has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(
                f"{text[:200]!r} is not a position of a source of cuts; was the source of this vertex replaced? "
                "Give the new source an id of its own"
            ) from error

    def text(self) -> str:
        """Return the canonical JSON text. The same position always has the same text."""
        return self.model_dump_json()
