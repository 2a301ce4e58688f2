"""Reads conditions that are so plain that a task judges them as Spark does, without Spark.

    amount >= 100 AND state IN ('paid', 'sent') AND ended_at IS NOT NULL AND sent_at <= ended_at AND id % 10 = 0

A plain condition compares whole numbers, texts, dates or times: a column with a constant or with another column of the
same type. Each further part follows after AND. Spark judges every other condition.
"""

import re
from typing import Final

from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from jobs.operators.derived_scans import Comparison, NullRule, OneOf, TaskRule

_COMPARE: Final = {
    "=": "equal",
    "==": "equal",
    "<>": "not_equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_NAME: Final = r"(?:[A-Za-z_]\w*|`[^`]+`)"
_NUMBER: Final = r"-?\d{1,18}"
_TEXT: Final = r"'[^'\\$]*'"
"""Spark reads backslashes, and a dollar with a brace, in its own way."""
_CONSTANT: Final = rf"(?:{_NUMBER}|{_TEXT})"
_COMPARED: Final = re.compile(
    rf"({_NAME})(?:\s*%\s*([1-9]\d{{0,17}}))?\s*(<=|>=|<>|!=|==|=|<|>)\s*(?:({_CONSTANT})|({_NAME}))", re.ASCII
)
_ONE_OF: Final = re.compile(
    rf"({_NAME})\s+IN\s*\(\s*({_CONSTANT}(?:\s*,\s*{_CONSTANT})*)\s*\)", re.ASCII | re.IGNORECASE
)
_OF_NULL: Final = re.compile(rf"({_NAME})\s+IS\s+(NOT\s+)?NULL", re.ASCII | re.IGNORECASE)
_WORDS: Final = frozenset({"null", "true", "false", "not", "case", "exists", "and", "or"})
_AND: Final = re.compile(r"\s+AND\s+", re.IGNORECASE)
_WHOLE: Final = (ByteType(), ShortType(), IntegerType(), LongType())
_ALIKE: Final = (StringType(), DateType(), TimestampType(), TimestampNTZType())


def plain_rules(condition: str, rows: StructType) -> tuple[TaskRule, ...] | None:
    """Return the parts of a condition over these rows, each as a rule; None if one of them is not plain."""
    rules: list[TaskRule] = []
    at, text = 0, condition.strip()
    while True:
        found, rule = _rule_at(text, at, rows)
        if found is None or rule is None:
            return None
        rules.append(rule)
        if found.end() == len(text):
            return tuple(rules)
        following = _AND.match(text, found.end())
        if following is None:
            return None
        at = following.end()


def plain_copy(expression: str, kind: DataType, rows: StructType) -> str | None:
    """Return the column of which an expression of this type is a copy; None if it is none."""
    name = re.fullmatch(rf"\s*({_NAME})\s*", expression, re.ASCII)
    column = None if name is None else _column(name[1])
    return column if column is not None and _type(column, rows) == kind else None


def _rule_at(text: str, at: int, rows: StructType) -> tuple["re.Match[str] | None", TaskRule | None]:
    for pattern, read in _READ.items():
        found = pattern.match(text, at)
        if found is not None:
            return found, read(found, rows)
    return None, None


def _one_of(found: "re.Match[str]", rows: StructType) -> TaskRule | None:
    column, listed = _column(found[1]), re.findall(_CONSTANT, found[2])
    values = [_constant(each, _type(column, rows)) for each in listed]
    return None if column is None or None in values else OneOf(column, tuple(values))  # type: ignore[arg-type]


def _of_null(found: "re.Match[str]", rows: StructType) -> TaskRule | None:
    column = _column(found[1])
    return None if column is None or column not in rows.names else NullRule(column, null=found[2] is None)


def _comparison(found: "re.Match[str]", rows: StructType) -> TaskRule | None:
    column, divisor, compare, constant = _column(found[1]), found[2], _COMPARE[found[3]], found[4]
    kind = _type(column, rows)
    if column is None or kind is None:
        return None
    modulo = None if divisor is None else int(divisor)
    if modulo is not None and kind not in _WHOLE:
        return None
    if constant is not None:
        value = _constant(constant, kind)
        return None if value is None else Comparison(column, compare, constant=value, modulo=modulo)
    other = _column(found[5])
    if other is None:
        return None
    beside = _type(other, rows)
    alike = (kind in _WHOLE and beside in _WHOLE) or (kind in _ALIKE and kind == beside)
    return Comparison(column, compare, other=other, modulo=modulo) if alike else None


def _constant(text: str, kind: DataType | None) -> int | str | None:
    """Return a constant of a column's type. A text for a date or time is no plain one."""
    if text.startswith("'"):
        return text[1:-1] if kind == StringType() else None
    return int(text) if kind in _WHOLE else None


def _column(name: str) -> str | None:
    """Return the name of a column; None for a word that means something else to SQL."""
    return name.strip("`") if name.startswith("`") or name.lower() not in _WORDS else None


def _type(column: str | None, rows: StructType) -> DataType | None:
    return rows[column].dataType if column in rows.names else None


_READ: Final = {_ONE_OF: _one_of, _OF_NULL: _of_null, _COMPARED: _comparison}
