"""Reads a schema from Spark's JSON. A file beside input files, and the log of a Delta table, have such JSON.

Anybody who can write to these places can write this JSON, so the JSON is untrusted. PySpark's own parser imports the
module that a user-defined type names, and so runs untrusted code. Therefore the JSON is checked first: a type must be a
name, or a struct, a list or a map of types. PySpark parses only JSON that passed this check.
"""

import re
from typing import Any, Final

from pydantic_core import from_json
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

NESTING_MAX: Final = 100
"""A deeper schema is refused. Spark and delta-rs fail at a depth that is not much larger."""
_SHOWN_MAX: Final = 60
_PARTS: Final = {"struct": (), "array": ("elementType",), "map": ("keyType", "valueType")}
_FLAGS: Final = {"struct": (), "array": ("containsNull",), "map": ("valueContainsNull",)}
_DECIMAL: Final = re.compile(r"decimal\((?P<precision>\d{1,2}),(?P<scale>\d{1,2})\)")
_DIGITS_MAX: Final = 38


class SchemaJsonError(ValueError):
    """The JSON is no schema that Tidemark reads. The message names the column, and what is wrong with it."""


def schema_of_json(said: object) -> StructType:
    """Return the schema of a JSON text or value, without any import. Raise SchemaJsonError for anything else.

    A user-defined type is refused.
    """
    try:
        value: Any = from_json(said) if isinstance(said, str) else said
        _must_be_columns(value)
        schema: StructType = StructType.fromJson(value)
    except SchemaJsonError:
        raise
    except (
        PySparkException,
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise SchemaJsonError(f"Spark has no such schema ({type(error).__name__})") from error
    return schema


def _must_be_columns(value: object) -> None:
    if not (isinstance(value, dict) and value.get("type") == "struct"):
        raise SchemaJsonError("it is no struct of columns")
    _must_be_type(value, "", 0)


def _must_be_type(kind: object, column: str, depth: int) -> None:
    if depth > NESTING_MAX:
        raise SchemaJsonError(f"column {_shown(column)} is nested more than {NESTING_MAX} levels deep")
    if isinstance(kind, str):
        _must_be_name(kind, column)
        return
    name = kind.get("type") if isinstance(kind, dict) else None
    if not (isinstance(kind, dict) and isinstance(name, str) and name in _PARTS):
        what = "a user-defined type" if name == "udt" else "of no type that Spark has"
        raise SchemaJsonError(f"column {_shown(column)} is {what}")
    if not all(isinstance(kind.get(flag), bool) for flag in _FLAGS[name]):
        raise SchemaJsonError(f"column {_shown(column)} does not say whether its values may be null")
    for part in _PARTS[name]:
        _must_be_type(kind.get(part), column, depth + 1)
    if name == "struct":
        _must_be_fields(kind.get("fields"), column, depth)


def _must_be_fields(fields: object, column: str, depth: int) -> None:
    if not isinstance(fields, list):
        raise SchemaJsonError(f"{_shown(column) if column else 'it'} has no list of fields")
    for field in fields:
        if not (isinstance(field, dict) and isinstance(field.get("name"), str)):
            raise SchemaJsonError(f"a field of {_shown(column) if column else 'it'} has no name")
        inside = f"{column}.{field['name']}" if column else field["name"]
        if not isinstance(field.get("nullable"), bool) or not isinstance(field.get("metadata", {}), dict):
            raise SchemaJsonError(f"column {_shown(inside)} does not say whether it may be null, or has odd metadata")
        _must_be_type(field.get("type"), inside, depth + 1)


def _must_be_name(kind: str, column: str) -> None:
    """Refuse a decimal that Spark does not support, as PySpark accepts it. PySpark refuses other unknown names."""
    found = _DECIMAL.fullmatch(kind.replace(" ", ""))
    wrong = kind.startswith("decimal(") and found is None
    if wrong or (found and not 0 <= int(found["scale"]) <= int(found["precision"]) <= _DIGITS_MAX):
        raise SchemaJsonError(
            f"column {_shown(column)} is {_shown(kind)}, and Spark's decimals have {_DIGITS_MAX} digits"
        )


def _shown(text: str) -> str:
    """Return an untrusted name in a form that is safe to show in a message."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")
