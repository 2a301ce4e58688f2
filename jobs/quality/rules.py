"""Compiles an expectation on single rows to a Spark SQL condition, which is true for a good row and never null.

The result is the same as Great Expectations' own on pandas data. Null passes every expectation except the one that
forbids null. An expectation on a pair of columns ignores only rows in which both columns are null. Two differences to
Great Expectations remain. Regular expressions are Java's here and Python's there. NaN is null to pandas and a number to
Spark, so sources should write null instead.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from jobs.quality.expectation import Expectation, InvalidExpectationError

_IGNORED: Final = frozenset({"severity", "meta", "notes", "description"})


def compile_row_rule(expectation: Expectation) -> str:
    """Return the Spark SQL condition of a good row.

    Raises InvalidExpectationError for an expectation that is not about single rows, or for an unknown argument. The
    message lists the valid expectations or arguments.
    """
    if expectation.type not in _RULES:
        raise InvalidExpectationError(
            f"{expectation.type} cannot split rows; row rules are: {', '.join(sorted(_RULES))}. "
            "Put it into a suite instead"
        )
    required, optional, rule = _RULES[expectation.type]
    arguments = {name: value for name, value in expectation.kwargs.items() if name not in _IGNORED}
    _check_arguments(expectation, arguments, required, optional)
    return rule(_Arguments(expectation, arguments))


def _check_arguments(
    expectation: Expectation, arguments: dict[str, Any], required: frozenset[str], optional: frozenset[str]
) -> None:
    missing = sorted(name for name in required if arguments.get(name) is None)
    if missing:
        raise InvalidExpectationError(f"{expectation.type}: argument {missing[0]} is missing")
    if arguments.pop("mostly", 1) != 1:
        raise InvalidExpectationError(f"{expectation.type}: 'mostly' says nothing about a single row; use a suite")
    unknown = sorted(set(arguments) - required - optional)
    if unknown:
        known = ", ".join(sorted(required | optional))
        raise InvalidExpectationError(f"{expectation.type}: a row rule has no argument {unknown[0]}; it has {known}")


class _Arguments:
    """The arguments of one expectation, as SQL."""

    def __init__(self, expectation: Expectation, values: Mapping[str, Any]) -> None:
        self._expectation = expectation
        self._values = values

    def column(self, name: str = "column") -> str:
        value = self._values[name]
        if not isinstance(value, str) or not value:
            raise self.wrong(f"argument {name} must name a column")
        return "`" + value.replace("`", "``") + "`"

    def get(self, name: str) -> Any:  # noqa: ANN401 - an argument's type is its own
        return self._values.get(name)

    def literal(self, name: str) -> str:
        return literal(self._values[name])

    def literals(self, name: str) -> tuple[str, ...]:
        value = self._values[name]
        if not isinstance(value, tuple):
            raise self.wrong(f"argument {name} must be a list")
        return tuple(literal(each) for each in value)

    def wrong(self, rule: str) -> InvalidExpectationError:
        return InvalidExpectationError(f"{self._expectation.type}: {rule}")


def literal(value: object) -> str:
    """Return a value as a Spark SQL literal of the same type and exactly the same value."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            return f"{value!r}D"
        case Decimal():
            return f"{value:f}BD"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{kind}'{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE'{value.isoformat()}'"
        case _:
            raise InvalidExpectationError(f"{value!r} has no literal in SQL")


def _within(arguments: _Arguments, what: str) -> str:
    low, high = arguments.get("min_value"), arguments.get("max_value")
    if low is None and high is None:
        raise arguments.wrong("min_value or max_value must be given")
    if low is not None and high is not None and _above(arguments, low, high):
        raise arguments.wrong(f"min_value {low} is above max_value {high}")
    bounds = []
    if low is not None:
        bounds.append(f"{what} {'>' if arguments.get('strict_min') else '>='} {literal(low)}")
    if high is not None:
        bounds.append(f"{what} {'<' if arguments.get('strict_max') else '<='} {literal(high)}")
    return f"({' AND '.join(bounds)})"


def _above(arguments: _Arguments, low: Any, high: Any) -> bool:  # noqa: ANN401 - bounds of any one type
    try:
        return bool(low > high)
    except TypeError as error:
        raise arguments.wrong(f"min_value {low!r} and max_value {high!r} cannot be compared") from error


def _member(arguments: _Arguments) -> str:
    values = ", ".join(arguments.literals("value_set"))
    return f"({arguments.column()} IN ({values}))" if values else "FALSE"


def _matches(arguments: _Arguments) -> str:
    if not isinstance(arguments.get("regex"), str):
        raise arguments.wrong("argument regex must be a text")
    return f"(CAST({arguments.column()} AS STRING) RLIKE {arguments.literal('regex')})"


def _pair(arguments: _Arguments, operator: str) -> str:
    left, right = arguments.column("column_A"), arguments.column("column_B")
    good = f"COALESCE({left} {operator} {right}, FALSE)"
    match arguments.get("ignore_row_if"):
        case None | "both_values_are_missing":
            return f"(({left} IS NULL AND {right} IS NULL) OR {good})"
        case "either_value_is_missing":
            return f"({left} IS NULL OR {right} IS NULL OR {good})"
        case "neither":
            return f"({good})"
        case other:
            raise arguments.wrong(
                f"ignore_row_if {other!r} is none of both_values_are_missing, either_value_is_missing, neither"
            )


def _or_null(good: Callable[[_Arguments], str]) -> Callable[[_Arguments], str]:
    """Return the rule that passes null, and every value for which `good` is true.

    Without ANSI mode, Spark returns null for a value that it cannot compare. Such a value was not judged, so it does
    not pass.
    """
    return lambda arguments: f"({arguments.column()} IS NULL OR COALESCE({good(arguments)}, FALSE))"


_Rule = tuple[frozenset[str], frozenset[str], Callable[[_Arguments], str]]
_NONE: Final = frozenset[str]()
_COLUMN: Final = frozenset({"column"})
_SET: Final = frozenset({"column", "value_set"})
_REGEX: Final = frozenset({"column", "regex"})
_BOUNDS: Final = frozenset({"min_value", "max_value", "strict_min", "strict_max"})
_PAIR: Final = frozenset({"column_A", "column_B"})

_RULES: Final[Mapping[str, _Rule]] = {
    "expect_column_values_to_not_be_null": (_COLUMN, _NONE, lambda given: f"({given.column()} IS NOT NULL)"),
    "expect_column_values_to_be_null": (_COLUMN, _NONE, lambda given: f"({given.column()} IS NULL)"),
    "expect_column_values_to_be_between": (_COLUMN, _BOUNDS, _or_null(lambda given: _within(given, given.column()))),
    "expect_column_value_lengths_to_be_between": (
        _COLUMN,
        _BOUNDS,
        _or_null(lambda given: _within(given, f"length({given.column()})")),
    ),
    "expect_column_values_to_be_in_set": (_SET, _NONE, _or_null(_member)),
    "expect_column_values_to_not_be_in_set": (_SET, _NONE, _or_null(lambda given: f"NOT {_member(given)}")),
    "expect_column_values_to_match_regex": (_REGEX, _NONE, _or_null(_matches)),
    "expect_column_values_to_not_match_regex": (_REGEX, _NONE, _or_null(lambda given: f"NOT {_matches(given)}")),
    "expect_column_pair_values_a_to_be_greater_than_b": (
        _PAIR,
        frozenset({"or_equal", "ignore_row_if"}),
        lambda given: _pair(given, ">=" if given.get("or_equal") else ">"),
    ),
    "expect_column_pair_values_to_be_equal": (_PAIR, frozenset({"ignore_row_if"}), lambda given: _pair(given, "=")),
}
"""For each type: its required arguments, its optional arguments, and its rule."""
