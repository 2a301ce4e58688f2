"""The columns of a table as the entries of `checkpoints` list them: names, types, and since when each counts (D6)."""

import json
import re
from collections.abc import Collection, Mapping
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

    If a column was added to a table that had rows, it has values only for what came after checkpoint `after`. Older
    rows are null there, and an aggregate has counted nothing before. 0: the column is as old as the table.
    """

    name: str
    type: str
    after: CheckpointId = NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of one table at a cut, in order."""

    table: TableName
    columns: tuple[TableColumn, ...]


def columns_then(now: Collection[str], then: Collection[str], renamed: Mapping[str, str]) -> Mapping[str, str]:
    """Return the renamed columns that a file or table has under the old name only: old names by the new ones.

    `now` are the columns that the reader wants, and `then` those of the file. `renamed` has all old names by the new
    ones.
    """
    return {new: old for new, old in renamed.items() if new in now and new not in then and old in then}


def is_delta_type(text: str) -> bool:
    """Return whether a text from outside is a type as `TableColumn` has it. A type with too deep nesting is refused."""
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
