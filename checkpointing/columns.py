"""The columns of a table as the entries of `checkpoints` list them: name, type, and since when each has values (D6)."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName

_PLAIN: Final = frozenset(
    {
        "binary",
        "boolean",
        "byte",
        "date",
        "double",
        "float",
        "integer",
        "long",
        "short",
        "string",
        "timestamp",
        "timestamp_ntz",
    }
)
_DECIMAL: Final = re.compile(r"decimal\(([1-9]|[12][0-9]|3[0-8]),([0-9]|[12][0-9]|3[0-8])\)")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column. `type` is the Delta type: its name, or for a nested type its JSON with sorted keys.

    If a column was added to a table that had rows, it has values only for rows that came after checkpoint `after`. It
    is null in older rows, and an aggregate has counted nothing before. `after` is 0 if the column is as old as the
    table.

    `first` is the name with which a column of an append table began, if it was renamed since. Empty: its present name.
    """

    name: str
    type: str
    after: CheckpointId = NO_CHECKPOINT
    first: str = ""

    @property
    def identity(self) -> tuple[str, CheckpointId]:
        """What stays of a column when it is renamed: its first name, and since when its values are valid."""
        return self.first or self.name, self.after


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of one table at a cut, in order.

    `dropped` are the names of columns that left an append table. Its files may still hold them, so these names cannot
    come back.
    """

    table: TableName
    columns: tuple[TableColumn, ...]
    dropped: tuple[str, ...] = ()


def columns_then(now: Collection[str], then: Collection[str], renamed: Mapping[str, str]) -> Mapping[str, str]:
    """Return a map from new to old names, for the columns that a file or table has under the old name only.

    `now` are the columns that the reader wants, and `then` the columns of the file. `renamed` maps all new names to old
    names.
    """
    return {new: old for new, old in renamed.items() if new in now and new not in then and old in then}


def renamed_between(was: Iterable[TableColumn], now: Iterable[TableColumn]) -> tuple[tuple[str, str], ...]:
    """Return the new and the old name of each column that a table has at both cuts under different names."""
    before = {column.identity: column.name for column in was}
    pairs = ((column.name, before.get(column.identity, column.name)) for column in now)
    return tuple((new, old) for new, old in pairs if new != old)


def in_another_order(was: Iterable[TableColumn], now: Iterable[TableColumn]) -> bool:
    """Return whether the columns that a table has at both cuts stand in another order."""
    before, after = ([column.identity for column in columns] for columns in (was, now))
    return [each for each in before if each in after] != [each for each in after if each in before]


def is_delta_type(text: str) -> bool:
    """Return whether a text from outside is a type that `TableColumn` allows.

    A type that is nested too deeply is refused.
    """
    try:
        return _is_type(json.loads(text) if text.startswith("{") else text)
    except (ValueError, RecursionError):
        return False


def _is_type(kind: Any) -> bool:  # noqa: ANN401 - whatever JSON holds
    if isinstance(kind, str):
        return kind in _PLAIN or _DECIMAL.fullmatch(kind) is not None
    if not isinstance(kind, dict):
        return False
    match kind.get("type"):
        case "struct":
            fields = kind.get("fields")
            return isinstance(fields, list) and all(_is_field(field) for field in fields)
        case "array":
            return _is_type(kind.get("elementType")) and isinstance(kind.get("containsNull"), bool)
        case "map":
            parts = kind.get("keyType"), kind.get("valueType")
            return all(_is_type(part) for part in parts) and isinstance(kind.get("valueContainsNull"), bool)
        case _:
            return False


def _is_field(field: Any) -> bool:  # noqa: ANN401 - whatever JSON holds
    named = isinstance(field, dict) and isinstance(field.get("name"), str)
    return named and isinstance(field.get("nullable"), bool) and _is_type(field.get("type"))
