"""Describes a difference between what a checkpoint holds and what the pipeline declares now.

A module for each kind of change decides what it means (`state_evolution`, `state_meaning`). All of them return the same
list of changes. A tick refuses the first change that the old data cannot serve. A dry run shows all changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

NOT_WRITTEN: Final = "no longer written"
"""What a column is now that an append table keeps and the pipeline does not have."""


class ChangeKind(Enum):
    """The kind of thing that differs."""

    NAME = "name"
    STATE_SCHEMA = "columns of state"
    STATE_MEANING = "meaning of state"
    TABLE_SCHEMA = "columns of table"


class Compatibility(Enum):
    """What the changes mean for the existing data (Flink's `TypeSerializerSchemaCompatibility`)."""

    AS_IS = "compatible as is"
    AFTER_MIGRATION = "compatible after migration"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference of a column of `thing`: what it was and what it is now. None: there was, or is, no such column.

    `becomes` says what happens to the old data. `refused` is empty if the pipeline may go on. Otherwise it says why the
    old data cannot serve the pipeline, and the way out.
    """

    kind: ChangeKind
    thing: str
    column: str
    was: str | None
    now: str | None
    becomes: str = ""
    refused: str = ""

    @property
    def verdict(self) -> str:
        """Return the result of the change, in a few words."""
        return "refused" if self.refused else self.becomes

    def __str__(self) -> str:
        """Return the change as one sentence."""
        said = f"{self.thing}: column {self.column} {self._difference()}"
        return said + (f": {self.refused}" if self.refused else "")

    def _difference(self) -> str:
        if self.was is None:
            return f"({self.now}) is new, {self.becomes}"
        if self.now is None:
            return f"({self.was}) is dropped"
        return f"was {self.was} and is now {self.now}"


def with_hints(found: Sequence[Change], saying: Callable[[str, str], str | None]) -> tuple[Change, ...]:
    """Return the changes of one thing.

    A dropped column gets a hint which new column may be the same under another name. `saying` returns what a user
    writes to rename the old column to the new one, or None if the new one cannot be the same.
    """
    new = [change for change in found if change.was is None]

    def hinted(change: Change) -> Change:
        alike = (saying(change.column, one.column) for one in new if _goes(change) and one.now == change.was)
        hint = next((f"{change.becomes}; if it has a new name, say {said}" for said in alike if said), None)
        return change if hint is None else replace(change, becomes=hint)

    return tuple(hinted(change) for change in found)


def _goes(change: Change) -> bool:
    return change.now is None or change.now == NOT_WRITTEN


def verdict(found: Sequence[Change]) -> Compatibility:
    """Return what these changes mean together."""
    if first_refused(found) is not None:
        return Compatibility.INCOMPATIBLE
    return Compatibility.AFTER_MIGRATION if found else Compatibility.AS_IS


def first_refused(found: Iterable[Change]) -> Change | None:
    """Return the first change that the old data cannot serve, or None if the pipeline may go on."""
    return next((change for change in found if change.refused), None)
