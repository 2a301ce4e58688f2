"""Writes positions of a Python data source as text, and refuses offsets that JSON cannot hold.

An offset belongs to the data source alone. Nobody else knows which of two offsets comes first. So a position also has
the number of the slices before it, from which the rows get their places.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs.sources.port import SourceError

Offset = dict[str, Any]
"""What a data source calls an offset: a dict of texts, numbers, booleans and dicts."""

PLACES: Final = 2**32
"""So many places has a slice for its rows."""


class OffsetPosition(BaseModel):
    """The place after the rows up to `offset`, and after so many slices. `until` is where a bounded source ends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offset: Offset
    slices: int = Field(ge=0, lt=2**31)
    until: Offset | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position that a text says; raise SourceError for another text."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(f"{text} is no position of a Python data source") from error

    def text(self) -> str:
        """Return the position as text. The same position has the same text."""
        end = {} if self.until is None else {"until": self.until}
        return json.dumps({"offset": self.offset, "slices": self.slices, **end}, sort_keys=True)


def checked(offset: object, method: str) -> Offset:
    """Return the offset as JSON gives it back; raise SourceError, naming the method, if JSON changes it."""
    try:
        again = json.loads(json.dumps(offset, allow_nan=False))
    except (TypeError, ValueError):
        again = None
    if not isinstance(offset, dict) or again != offset:
        raise SourceError(
            f"{method} returned the offset {offset!r}, which JSON does not keep as it is: return a dict of texts, "
            "numbers, booleans and such dicts"
        )
    return offset


def went_back(start: Offset, end: Offset) -> bool:
    """Return whether an offset certainly lies before another one: all values that differ are smaller numbers."""
    steps = list(_steps(start, end))
    return bool(steps) and all(step is not None and step < 0 for step in steps)


def distance(start: Offset, end: Offset) -> int:
    """Return how far two offsets lie apart, as an estimate of the rows between them: 1 if their numbers do not say."""
    return max(sum(int(step) for step in _steps(start, end) if step is not None), 1)


def _steps(start: Offset, end: Offset) -> Iterator[float | None]:
    """Yield by how much each number that differs has grown; None for another change."""
    for name in start | end:
        then, now = start.get(name), end.get(name)
        if isinstance(then, dict) and isinstance(now, dict):
            yield from _steps(then, now)
        elif then != now:
            before, after = _number(then), _number(now)
            yield None if before is None or after is None else after - before


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
