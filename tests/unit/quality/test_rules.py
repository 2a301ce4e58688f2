"""Row rules: the SQL that divides rows agrees with Great Expectations, and is never null."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from jobs.quality.expectation import Expectation, InvalidExpectationError, Suite
from jobs.quality.rules import compile_row_rule, literal


def _rule(kind: str, **kwargs: object) -> str:
    return compile_row_rule(Expectation(kind, kwargs))


@pytest.mark.parametrize(
    ("kind", "kwargs", "expected"),
    [
        ("expect_column_values_to_not_be_null", {"column": "a"}, "(`a` IS NOT NULL)"),
        ("expect_column_values_to_be_null", {"column": "a"}, "(`a` IS NULL)"),
        (
            "expect_column_values_to_be_between",
            {"column": "a", "min_value": 0, "max_value": 9, "strict_max": True},
            "(`a` IS NULL OR COALESCE((`a` >= 0 AND `a` < 9), FALSE))",
        ),
        (
            "expect_column_value_lengths_to_be_between",
            {"column": "a", "max_value": 3},
            "(`a` IS NULL OR COALESCE((length(`a`) <= 3), FALSE))",
        ),
        (
            "expect_column_values_to_be_in_set",
            {"column": "a", "value_set": ["x", "y"]},
            "(`a` IS NULL OR COALESCE((`a` IN ('x', 'y')), FALSE))",
        ),
        (
            "expect_column_values_to_be_in_set",
            {"column": "a", "value_set": []},
            "(`a` IS NULL OR COALESCE(FALSE, FALSE))",
        ),
        (
            "expect_column_values_to_not_be_in_set",
            {"column": "a", "value_set": [1]},
            "(`a` IS NULL OR COALESCE(NOT (`a` IN (1)), FALSE))",
        ),
        (
            "expect_column_values_to_match_regex",
            {"column": "a", "regex": r"^\d"},
            r"(`a` IS NULL OR COALESCE((CAST(`a` AS STRING) RLIKE '^\\d'), FALSE))",
        ),
        (
            "expect_column_pair_values_a_to_be_greater_than_b",
            {"column_A": "a", "column_B": "b", "or_equal": True},
            "((`a` IS NULL AND `b` IS NULL) OR COALESCE(`a` >= `b`, FALSE))",
        ),
        (
            "expect_column_pair_values_to_be_equal",
            {"column_A": "a", "column_B": "b", "ignore_row_if": "either_value_is_missing"},
            "(`a` IS NULL OR `b` IS NULL OR COALESCE(`a` = `b`, FALSE))",
        ),
    ],
)
def test_an_expectation_becomes_this_sql(kind: str, kwargs: dict[str, object], expected: str) -> None:
    """There is an SQL rule for each kind of expectation. The rule treats nulls as Great Expectations does."""
    assert expected == _rule(kind, **kwargs)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "TRUE"),
        (-3, "-3"),
        (1e300, "1e+300D"),
        (0.1, "0.1D"),
        (Decimal("1.50"), "1.50BD"),
        ("it's \\ `x`", "'it\\'s \\\\ `x`'"),
        (date(2013, 1, 2), "DATE'2013-01-02'"),
        (datetime(2013, 1, 2, 3, 4, 5), "TIMESTAMP_NTZ'2013-01-02 03:04:05'"),  # noqa: DTZ001 - without a zone
        (datetime(2013, 1, 2, 3, 4, 5, tzinfo=UTC), "TIMESTAMP'2013-01-02 03:04:05+00:00'"),
    ],
)
def test_a_value_stays_the_same_in_sql(value: object, expected: str) -> None:
    """A literal keeps type and value, also for texts with quotes and backslashes."""
    assert expected == literal(value)


def test_a_column_name_is_quoted() -> None:
    assert "(`a``b` IS NOT NULL)" == _rule("expect_column_values_to_not_be_null", column="a`b")


@pytest.mark.parametrize(
    ("kind", "kwargs", "expected"),
    [
        ("expect_column_mean_to_be_between", {"column": "a", "min_value": 1}, "cannot split rows; row rules are: "),
        ("expect_column_values_to_be_between", {"column": "a"}, "min_value or max_value must be given"),
        ("expect_column_values_to_be_between", {"column": "a", "min_value": 2, "max_value": 1}, "is above max_value 1"),
        ("expect_column_values_to_be_between", {"column": "a", "min_value": 2, "max_value": "x"}, "cannot be compared"),
        ("expect_column_values_to_not_be_null", {}, "argument column is missing"),
        ("expect_column_values_to_not_be_null", {"column": 3}, "argument column must name a column"),
        ("expect_column_values_to_not_be_null", {"column": "a", "mostly": 0.9}, "'mostly' says nothing about a single"),
        ("expect_column_values_to_not_be_null", {"column": "a", "row_condition": "x"}, "no argument row_condition"),
        ("expect_column_values_to_be_in_set", {"column": "a", "value_set": "x"}, "value_set must be a list"),
        ("expect_column_values_to_be_in_set", {"column": "a", "value_set": [float("nan")]}, "only finite numbers"),
        ("expect_column_values_to_be_in_set", {"column": "a", "value_set": [object()]}, "holds a object"),
        ("expect_column_pair_values_to_be_equal", {"column_A": "a", "column_B": "b", "ignore_row_if": "x"}, "'x'"),
        ("values_must_be_good", {}, "must look like expect_"),
    ],
)
def test_an_expectation_that_is_no_row_rule_is_refused(kind: str, kwargs: dict[str, object], expected: str) -> None:
    """The error names the expectation and the rule that it breaks."""
    with pytest.raises(InvalidExpectationError, match=kind) as error:
        compile_row_rule(Expectation(kind, kwargs))
    assert expected in str(error.value)


def test_mostly_of_one_and_notes_are_accepted() -> None:
    """An expectation that is copied from a suite works unchanged if its meaning is the same."""
    kwargs = {"column": "a", "mostly": 1.0, "notes": "why", "severity": "critical"}
    assert "(`a` IS NOT NULL)" == _rule("expect_column_values_to_not_be_null", **kwargs)


def test_an_unsupported_type_is_refused_with_every_supported_one() -> None:
    """The message lists the supported types."""
    with pytest.raises(InvalidExpectationError) as error:
        _rule("expect_column_values_to_be_unique", column="a")
    _, _, named = str(error.value).partition("row rules are: ")
    assert 10 == named.count("expect_")
    assert {"expect_column_values_to_be_between", "expect_column_pair_values_to_be_equal"} <= set(named.split(", "))


def test_an_empty_suite_or_one_with_duplicates_is_refused() -> None:
    """So an author's mistakes are found where the suite is declared."""
    one = Expectation("expect_column_values_to_not_be_null", {"column": "a"})
    with pytest.raises(InvalidExpectationError, match="suite s of table t has no expectation"):
        Suite("s", "t", ())
    with pytest.raises(InvalidExpectationError, match="twice"):
        Suite("s", "t", (one, Expectation(one.type, dict(one.kwargs))))
    with pytest.raises(InvalidExpectationError, match="beyond 2\\*\\*53"):
        Suite("s", "t", (Expectation("expect_column_values_to_be_between", {"column": "a", "max_value": 2**53 + 1}),))
