"""Decides how an operator's state may change its columns between two runs (D6).

Columns are found by name. A new column is null in old rows. A column that the pipeline no longer has is dropped. A
column may be widened if no value is lost. The types inside structs, arrays and maps are compared in the same way. The
key decides where a row lies, so the key's columns, their order and their types stay. Types are written as Spark and
Delta write them in JSON: `integer`, `decimal(10,2)`, `{"type": "struct", "fields": [...]}`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Final

from checkpointing.columns import columns_then

# ------------------------------------------------------------------
# Describes a difference between what a checkpoint holds and what the pipeline declares now.
#
# A module for each kind of change decides what the change means (`state_evolution`, `state_meaning`). All modules
# return a list of `Change`. A tick refuses the first change for which the old data cannot be used. A dry run shows all
# changes.


NOT_WRITTEN: Final = "no longer written"
"""Stands in place of the type of a column that an append table keeps and the pipeline does not have."""


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
    """One difference of a column of `thing`: what the column was and is now. None: it was, or is, not there.

    `becomes` says what happens to the old data. `refused` is empty if the pipeline may go on. Otherwise it says why the
    pipeline cannot use the old data, and the way out. `called` is the user's word for a column that Tidemark named.
    """

    kind: ChangeKind
    thing: str
    column: str
    was: str | None
    now: str | None
    becomes: str = ""
    refused: str = ""
    called: str = ""

    @property
    def verdict(self) -> str:
        """Return the result of the change, in a few words."""
        return "refused" if self.refused else self.becomes

    def __str__(self) -> str:
        """Return the change as one sentence."""
        said = f"{self.thing}: {self.called or f'column {self.column}'} {self._difference()}"
        return said + (f": {self.refused}" if self.refused else "")

    def _difference(self) -> str:
        if self.was is None:
            return f"({self.now}) is new, {self.becomes}"
        if self.now is None:
            return f"({self.was}) is dropped"
        return f"was {self.was} and is now {self.now}"


def with_hints(found: Sequence[Change], saying: Callable[[str, str], str | None]) -> tuple[Change, ...]:
    """Return the changes of one thing.

    A dropped column gets a hint at the new column that may be the same one under another name. `saying` returns what a
    user writes to rename the old column to the new one, or None if the new column cannot be the same.
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
    """Return what these changes together mean for the existing data."""
    if first_refused(found) is not None:
        return Compatibility.INCOMPATIBLE
    return Compatibility.AFTER_MIGRATION if found else Compatibility.AS_IS


def first_refused(found: Iterable[Change]) -> Change | None:
    """Return the first refused change, or None if the pipeline may go on."""
    return next((change for change in found if change.refused), None)


ColumnType = str | Mapping[str, Any]

WIDER: Final[Mapping[str, frozenset[str]]] = {
    "byte": frozenset({"short", "integer", "long", "double"}),
    "short": frozenset({"integer", "long", "double"}),
    "integer": frozenset({"long", "double"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}
"""What Delta's type widening allows. A date does not become a `timestamp`, since that would depend on a time zone."""

_READ_FROM: Final[Mapping[str, frozenset[str]]] = {
    "byte": frozenset({"short", "integer", "long"}),
    "short": frozenset({"integer", "long"}),
    "integer": frozenset({"long"}),
    "float": frozenset({"double"}),
}
"""The part of `WIDER` that readers convert by themselves."""

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_DIGITS: Final[Mapping[str, int]] = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""How many digits before the point a decimal needs to hold every value (Delta's rule, not the smallest number)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the state and its type."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class StateSchema:
    """The columns of a state row. The key's columns come first.

    `keys` are the names of the key's columns, or None if they are no longer known.
    """

    columns: tuple[Column, ...]
    keys: tuple[str, ...] | None = None


def under_new_names(was: StateSchema, then: Mapping[str, str]) -> StateSchema:
    """Return a state's columns under their new names. `then` maps new names to old names."""
    now = {old: new for new, old in then.items()}
    columns = (replace(column, name=now.get(column.name, column.name)) for column in was.columns)
    return replace(was, columns=tuple(columns))


def renamed_inside(was: StateSchema, now: StateSchema, renamed: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (column, old name, new name) of each renamed field inside a column. `renamed` maps new to old names."""
    before = {column.name: column.type for column in was.columns}
    for column in now.columns:
        for new, old in _fields_then(before.get(column.name, ""), column.type, renamed):
            yield column.name, old, new


def _fields_then(was: ColumnType, now: ColumnType, renamed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(was, str) or isinstance(now, str) or was["type"] != now["type"]:
        return
    if was["type"] == "array":
        yield from _fields_then(was["elementType"], now["elementType"], renamed)
    elif was["type"] == "struct":
        before, after = ({field["name"]: field["type"] for field in kind["fields"]} for kind in (was, now))
        yield from columns_then(after, before, renamed).items()
        for name in before.keys() & after.keys():
            yield from _fields_then(before[name], after[name], renamed)


_Change = partial(Change, kind=ChangeKind.STATE_SCHEMA)


def changes(thing: str, was: StateSchema, now: StateSchema) -> tuple[Change, ...]:
    """Return how the columns of `thing` changed, in the order of the new columns. `now.keys` must be known."""
    return (*_of_keys(thing, was, now), *_of_columns(thing, was, now, now.keys or ()))


def _of_keys(thing: str, was: StateSchema, now: StateSchema) -> Iterator[Change]:
    keys = now.keys or ()
    before = tuple(column.name for column in was.columns[: len(keys)]) if was.keys is None else was.keys
    if before != keys:
        yield _Change(
            thing=thing,
            column=", ".join(keys),
            was=f"keyed by ({', '.join(before)})",
            now=f"keyed by ({', '.join(keys)})",
            refused=f"rows would be in other key groups; {_another_id('key it as before')}",
        )
        return
    old = {column.name: column.type for column in was.columns}
    for column in now.columns[: len(keys)]:
        if column.name in old and old[column.name] != column.type:
            way_out = _another_id(f"cast it to {shown(old[column.name])} before it is keyed")
            yield _Change(
                thing=thing,
                column=column.name,
                was=f"the key as {shown(old[column.name])}",
                now=f"the key as {shown(column.type)}",
                refused=f"equal keys would hash to other key groups; {way_out}",
            )


def _of_columns(thing: str, was: StateSchema, now: StateSchema, keys: tuple[str, ...]) -> Iterator[Change]:
    old = {column.name: column.type for column in was.columns if column.name not in keys}
    for column in now.columns:
        if column.name in keys:
            continue
        if column.name not in old:
            yield _Change(thing=thing, column=column.name, was=None, now=shown(column.type), becomes="null in old rows")
        elif old[column.name] != column.type:
            yield _of_type(thing, column.name, old[column.name], column.type)
    names = {column.name for column in now.columns}
    for name, kind in old.items():
        if name not in names:
            yield _Change(thing=thing, column=name, was=shown(kind), now=None, becomes="dropped")


def _of_type(thing: str, name: str, was: ColumnType, now: ColumnType) -> Change:
    wider = is_wider(was, now)
    way_out = _another_id(f"keep {shown(was)}, or give the new column another name")
    return _Change(
        thing=thing,
        column=name,
        was=shown(was),
        now=shown(now),
        becomes="widened" if wider else "",
        refused="" if wider else f"old values might not survive that; {way_out}",
    )


def _another_id(otherwise: str) -> str:
    return f"{otherwise}, or give the operator another id and start it without state"


def is_wider(was: ColumnType, now: ColumnType) -> bool:
    """Return whether every value of `was` is also a value of `now`, with nulls for new fields if there are any."""
    return _all_inside(was, now, lambda old, new: new in WIDER.get(old, ()) or _is_wider_decimal(old, new))


def reads_narrower(was: ColumnType, now: ColumnType) -> bool:
    """Return whether a table may have type `now` while its files still have type `was`, and are not written again.

    Spark, delta-rs, Polars and DuckDB were tried. All of them read such files correctly, also with filters. For the
    other pairs that `is_wider` allows, Polars refuses the file.
    """
    return _all_inside(was, now, lambda old, new: new in _READ_FROM.get(old, ()) or _has_more_digits(old, new))


def _all_inside(was: ColumnType, now: ColumnType, fits: Callable[[str, str], bool]) -> bool:
    """Return whether all plain types in `was` fit those in `now`. Structs may have new fields, and lose some."""
    if was == now:
        return True
    if isinstance(was, str) and isinstance(now, str):
        return fits(was, now)
    if isinstance(was, str) or isinstance(now, str) or was["type"] != now["type"]:
        return False
    match was["type"]:
        case "struct":
            old = {field["name"]: field["type"] for field in was["fields"]}
            pairs = ((old.get(field["name"], field["type"]), field["type"]) for field in now["fields"])
            return all(_all_inside(before, after, fits) for before, after in pairs)
        case "array":
            return _all_inside(was["elementType"], now["elementType"], fits)
        case "map":
            return bool(was["keyType"] == now["keyType"]) and _all_inside(was["valueType"], now["valueType"], fits)
        case _:
            return False


def _has_more_digits(was: str, now: str) -> bool:
    """Return whether both are decimals with equally many digits after the point, and `now` has more before it."""
    old, new = _DECIMAL.fullmatch(was), _DECIMAL.fullmatch(now)
    return old is not None and new is not None and old[2] == new[2] and int(old[1]) < int(new[1])


def _is_wider_decimal(was: str, now: str) -> bool:
    wide = _DECIMAL.fullmatch(now)
    if wide is None:
        return False
    precision, scale = int(wide[1]), int(wide[2])
    narrow = _DECIMAL.fullmatch(was)
    if narrow is None:
        return was in _DIGITS and precision - scale >= _DIGITS[was]
    return scale >= int(narrow[2]) and precision - scale >= int(narrow[1]) - int(narrow[2])


def parsed(text: str) -> ColumnType:
    """Return a type that was persisted as text: a name, or the JSON of a nested type."""
    found: ColumnType = json.loads(text) if text.startswith("{") else text
    return found


def shown(kind: ColumnType) -> str:
    """Return a type as a user writes it in SQL."""
    if isinstance(kind, str):
        return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(kind, kind)
    match kind["type"]:
        case "struct":
            fields = [f"{field['name']}: {shown(field['type'])}" for field in kind["fields"]]
            return f"struct<{', '.join(fields)}>"
        case "array":
            return f"array<{shown(kind['elementType'])}>"
        case "map":
            return f"map<{shown(kind['keyType'])}, {shown(kind['valueType'])}>"
        case other:
            return str(other)
