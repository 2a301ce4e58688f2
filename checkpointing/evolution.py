"""One difference between what a checkpoint holds and what the pipeline now declares, as every report shows it.

Each kind of change has a module that decides what it means (`state_evolution`, `state_meaning`). All of them give
the same list of changes: a tick refuses the first one that the old data cannot serve, and a dry run shows them all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum


class ChangeKind(Enum):
    """What is different."""

    NAME = "name"
    STATE_SCHEMA = "columns of state"
    STATE_MEANING = "meaning of state"
    TABLE_SCHEMA = "columns of table"


class Compatibility(Enum):
    """What changes mean for the data that is there (Flink's `TypeSerializerSchemaCompatibility`)."""

    AS_IS = "compatible as is"
    AFTER_MIGRATION = "compatible after migration"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference: a column of `thing` was one thing and is now another; None: there was, or is, no such column.

    `becomes` says what becomes of the old data. `refused` says instead why it cannot serve the pipeline, and the
    way out; it is empty if the pipeline may go on.
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
        """Return what the change leads to, in a few words."""
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
    """Return the changes of one thing, in which a dropped column tells which new one may be it under another name.

    `saying` returns what a user writes to rename the old column to the new one, None if the new one cannot be it.
    """
    new = [change for change in found if change.was is None]

    def hinted(change: Change) -> Change:
        alike = (saying(change.column, one.column) for one in new if change.now is None and one.now == change.was)
        hint = next((f"{change.becomes}; if it has a new name, say {said}" for said in alike if said), None)
        return change if hint is None else replace(change, becomes=hint)

    return tuple(hinted(change) for change in found)


def verdict(found: Sequence[Change]) -> Compatibility:
    """Return what these changes mean together."""
    if first_refused(found) is not None:
        return Compatibility.INCOMPATIBLE
    return Compatibility.AFTER_MIGRATION if found else Compatibility.AS_IS


def first_refused(found: Iterable[Change]) -> Change | None:
    """Return the first change that the old data cannot serve, None if the pipeline may go on."""
    return next((change for change in found if change.refused), None)
