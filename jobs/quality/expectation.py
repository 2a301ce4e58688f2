"""An expectation as a user writes it: Great Expectations' type and keyword arguments, checked at once."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from types import MappingProxyType
from typing import Any, Final

Scalar = str | bool | int | float | Decimal | date | datetime
"""The types of an argument, besides None. Their values have the same meaning in pandas, in SQL and in a report."""

Argument = Scalar | tuple[Scalar, ...] | None

_EXACT: Final = 2**53
_TYPE: Final = re.compile(r"expect_[a-z0-9_]+")

SAYS_SOMETHING_OF_NO_ROWS: Final = frozenset(
    {
        "expect_table_row_count_to_be_between",
        "expect_table_row_count_to_equal",
        "expect_column_unique_value_count_to_be_between",
        "expect_column_sum_to_be_between",
        "expect_column_distinct_values_to_contain_set",
        "expect_column_distinct_values_to_equal_set",
    }
)
"""Expectations on a number or a set that an empty batch has too. Great Expectations judges them on an empty batch.

The other expectations find nothing in an empty batch: no value, no column, no least value. There, Great Expectations
passes expectations on values, and fails expectations on a statistic that does not exist.
"""


class InvalidExpectationError(ValueError):
    """An expectation is invalid; the message names the expectation, the argument and the rule."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation: `type` is Great Expectations' name of it, `kwargs` its arguments.

    Raises InvalidExpectationError if the type is not the name of an expectation, or if an argument is not a plain
    finite value or a sequence of such values.
    """

    type: str
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the type's form and make the arguments immutable."""
        if not _TYPE.fullmatch(self.type):
            raise InvalidExpectationError(f"expectation type {self.type!r} must look like expect_column_values_to_...")
        plain = {name: self._plain(name, value) for name, value in self.kwargs.items()}
        object.__setattr__(self, "kwargs", MappingProxyType(plain))

    def __hash__(self) -> int:
        """Hash by type and arguments."""
        return hash((self.type, tuple(sorted(self.kwargs.items(), key=lambda pair: pair[0]))))

    def __str__(self) -> str:
        """Return the expectation as it would be written: `type(name=value, ...)`."""
        return f"{self.type}({', '.join(f'{name}={value!r}' for name, value in self.kwargs.items())})"

    def of_all_rows(self) -> "Expectation":
        """Return the expectation without its condition that selects rows."""
        kept = {name: value for name, value in self.kwargs.items() if name not in ("row_condition", "condition_parser")}
        return Expectation(self.type, kept)

    def plain_kwargs(self) -> dict[str, Any]:
        """Return the arguments as JSON has them."""
        return {name: _json(value) for name, value in self.kwargs.items()}

    def _plain(self, name: str, value: object) -> Argument:
        if isinstance(value, list | tuple | set | frozenset):
            ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            return tuple(self._scalar(name, each) for each in ordered)
        return None if value is None else self._scalar(name, value)

    def _scalar(self, name: str, value: object) -> Scalar:
        if not isinstance(value, Scalar):
            kind = type(value).__name__
            raise InvalidExpectationError(
                f"{self.type}: argument {name} holds a {kind}; only plain values can be judged"
            )
        if isinstance(value, float | Decimal) and not isfinite(value):
            raise InvalidExpectationError(f"{self.type}: argument {name} is {value}; only finite numbers can be judged")
        return value


def _json(value: object) -> object:
    if isinstance(value, tuple):
        return [_json(each) for each in value]
    return str(value) if isinstance(value, date | Decimal) else value


@dataclass(frozen=True, slots=True)
class Suite:
    """Expectations on all rows staged for one table since the last checkpoint. They are judged at the barrier."""

    name: str
    table: str
    expectations: tuple[Expectation, ...]

    @property
    def judges_no_rows(self) -> bool:
        """Whether some expectation can be judged without rows.

        It is judged even if no row of the epoch reached the table.
        """
        return any(each.type in SAYS_SOMETHING_OF_NO_ROWS for each in self.expectations)

    def __post_init__(self) -> None:
        """Refuse an empty suite, and a suite that holds an expectation twice."""
        if not self.expectations:
            raise InvalidExpectationError(f"suite {self.name} of table {self.table} has no expectation")
        twice = [each for each in self.expectations if self.expectations.count(each) > 1]
        if twice:
            raise InvalidExpectationError(f"suite {self.name} of table {self.table} holds {twice[0]} twice")
        for expectation in self.expectations:
            _refuse_inexact_bounds(expectation)


def _refuse_inexact_bounds(expectation: Expectation) -> None:
    """Refuse whole-number bounds beyond 2**53: Great Expectations converts them to inexact floating point."""
    for name in ("min_value", "max_value"):
        bound = expectation.kwargs.get(name)
        if isinstance(bound, int) and abs(bound) > _EXACT:
            raise InvalidExpectationError(
                f"{expectation.type}: {name} {bound} is beyond 2**53, where a suite is not exact; use a row rule"
            )
