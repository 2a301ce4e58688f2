"""How an operator's state may change its columns between two runs (D6; Flink: `TypeSerializerSchemaCompatibility`).

Columns are found by name. A new one is null in old rows, one that is gone is dropped, one may be
widened where no value is lost; structs, arrays and maps are compared inside in the same way. The key
is part of where a row lies: its columns, their order and their types stay. Types are written as Spark
and Delta write them in JSON: `integer`, `decimal(10,2)`, `{"type": "struct", "fields": [...]}`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

ColumnType = str | Mapping[str, Any]

WIDER: Final[Mapping[str, frozenset[str]]] = {
    "byte": frozenset({"short", "integer", "long", "double"}),
    "short": frozenset({"integer", "long", "double"}),
    "integer": frozenset({"long", "double"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}
"""What Delta's type widening allows. A date is no `timestamp`: that would depend on a time zone."""

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_DIGITS: Final[Mapping[str, int]] = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Digits before the point that a decimal needs to hold every value (Delta's rule, not the least number)."""


class Compatibility(Enum):
    """What a changed schema means for the state that is there (Flink's three verdicts)."""

    AS_IS = "compatible as is"
    AFTER_MIGRATION = "compatible after migration"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the state and its type."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class StateSchema:
    """The columns of a state row, the key's first; `keys` names those, None if it is not known any more."""

    columns: tuple[Column, ...]
    keys: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two schemas; `refused` says why the state cannot follow it, and the way out."""

    column: str
    what: str
    refused: str = ""

    def __str__(self) -> str:
        """Return the change as a user reads it."""
        return f"column {self.column} {self.what}" + (f": {self.refused}" if self.refused else "")


def changes(was: StateSchema, now: StateSchema) -> tuple[Change, ...]:
    """Return how the columns changed, in the order of the new ones; `now.keys` must be known."""
    return (*_of_keys(was, now), *_of_columns(was, now, now.keys or ()))


def verdict(found: Sequence[Change]) -> Compatibility:
    """Return what these changes mean together."""
    if any(change.refused for change in found):
        return Compatibility.INCOMPATIBLE
    return Compatibility.AFTER_MIGRATION if found else Compatibility.AS_IS


def _of_keys(was: StateSchema, now: StateSchema) -> Iterator[Change]:
    keys = now.keys or ()
    before = tuple(column.name for column in was.columns[: len(keys)]) if was.keys is None else was.keys
    if before != keys:
        what = f"is keyed by ({', '.join(keys)}), and its state was by ({', '.join(before)})"
        yield Change(", ".join(keys), what, f"rows would be in other key groups; {_another_id('key it as before')}")
        return
    old = {column.name: column.type for column in was.columns}
    for column in now.columns[: len(keys)]:
        if column.name in old and old[column.name] != column.type:
            what = f"of the key was {shown(old[column.name])} and is now {shown(column.type)}"
            way_out = _another_id(f"cast it to {shown(old[column.name])} before it is keyed")
            yield Change(column.name, what, f"equal keys would hash to other key groups; {way_out}")


def _of_columns(was: StateSchema, now: StateSchema, keys: tuple[str, ...]) -> Iterator[Change]:
    old = {column.name: column.type for column in was.columns if column.name not in keys}
    for column in now.columns:
        if column.name in keys:
            continue
        if column.name not in old:
            yield Change(column.name, f"({shown(column.type)}) is new, null in old rows")
        elif old[column.name] != column.type:
            yield _of_type(column.name, old[column.name], column.type)
    names = {column.name for column in now.columns}
    yield from (Change(name, f"({shown(kind)}) is dropped") for name, kind in old.items() if name not in names)


def _of_type(name: str, was: ColumnType, now: ColumnType) -> Change:
    what = f"was {shown(was)} and is now {shown(now)}"
    if is_wider(was, now):
        return Change(name, what)
    way_out = _another_id(f"keep {shown(was)}, or give the new column another name")
    return Change(name, what, f"old values might not survive that; {way_out}")


def _another_id(otherwise: str) -> str:
    return f"{otherwise}, or give the operator another id and start it without state"


def is_wider(was: ColumnType, now: ColumnType) -> bool:
    """Return whether every value of `was` is a value of `now`, or becomes one with nulls for what it lacks."""
    if was == now:
        return True
    if isinstance(was, str) and isinstance(now, str):
        return now in WIDER.get(was, ()) or _is_wider_decimal(was, now)
    if isinstance(was, str) or isinstance(now, str) or was["type"] != now["type"]:
        return False
    match was["type"]:
        case "struct":
            old = {field["name"]: field["type"] for field in was["fields"]}
            return all(is_wider(old.get(field["name"], field["type"]), field["type"]) for field in now["fields"])
        case "array":
            return is_wider(was["elementType"], now["elementType"])
        case "map":
            return bool(was["keyType"] == now["keyType"]) and is_wider(was["valueType"], now["valueType"])
        case _:
            return False


def _is_wider_decimal(was: str, now: str) -> bool:
    wide = _DECIMAL.fullmatch(now)
    if wide is None:
        return False
    precision, scale = int(wide[1]), int(wide[2])
    narrow = _DECIMAL.fullmatch(was)
    if narrow is None:
        return was in _DIGITS and precision - scale >= _DIGITS[was]
    return scale >= int(narrow[2]) and precision - scale >= int(narrow[1]) - int(narrow[2])


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
