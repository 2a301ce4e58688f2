"""How persisted rows of older formats become rows of the present one: a chain of single steps.

A step takes the JSON object of a row in format n and returns the one of format n + 1; nothing is ever
read in an old format anywhere else. Format 1 is the first, so the chain has no step yet: whoever
raises `FORMAT` adds the step from the format before, and a test with a row of it.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from checkpointing.metadata.record import FORMAT

Document = dict[str, Any]
"""A row as a JSON object."""

Step = Callable[[str, Document], Document]
"""(kind, row in format n) -> row in format n + 1."""

STEPS: Mapping[int, Step] = MappingProxyType({})
"""Format n -> the step to n + 1."""


class UnknownFormatError(ValueError):
    """A row in a format that this version cannot read: names who wrote it and what to install."""


def migrate(kind: str, document: Document, *, at: int, to: int = FORMAT, steps: Mapping[int, Step] = STEPS) -> Document:
    """Return the row, which is in format `at`, in format `to`; raise UnknownFormatError if no chain leads there."""
    for number in range(at, to):
        if number not in steps:
            raise UnknownFormatError(f"no way leads from format {number} of a {kind} row to format {to}")
        document = steps[number](kind, document)
    return document
