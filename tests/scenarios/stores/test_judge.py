"""Tests suites at the barrier: Great Expectations judges staged files, and row rules agree with it."""

import re
import socket
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpointing.handles import FileHandle
from jobs.quality.expectation import SAYS_SOMETHING_OF_NO_ROWS, Expectation, Suite
from jobs.quality.judge import Judge
from jobs.quality.rules import compile_row_rule
from jobs.quality.verdict import Verdict

NOT_NULL, BETWEEN = "expect_column_values_to_not_be_null", "expect_column_values_to_be_between"
IN_SET, NOT_IN_SET = "expect_column_values_to_be_in_set", "expect_column_values_to_not_be_in_set"


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    judge = Judge(tmp_path_factory.mktemp("judged"))
    judge.warm_up().join()
    return judge


def _write(judge: Judge, table: pa.Table, *, name: str = "rows.parquet") -> FileHandle:
    path = Path(judge._root) / name
    pq.write_table(table, path)
    return FileHandle(name, table.num_rows, path.stat().st_size, 0)


def _judged(judge, table, *expectations):
    suite = Suite("suite", "silver/flights", tuple(expectations))
    return judge.judge(suite, [_write(judge, table)])


def test_a_failed_suite_names_values_files_and_ways_out(judge):
    good = _write(judge, pa.table({"distance": pa.array([1, 2, None], pa.int32())}), name="good.parquet")
    bad = _write(judge, pa.table({"distance": pa.array([3, -7], pa.int32())}), name="bad.parquet")
    suite = Suite("sane", "silver/flights", (Expectation(BETWEEN, {"column": "distance", "min_value": 0}),))
    verdict = judge.judge(suite, [good, bad])
    (found,) = verdict.expectations
    assert (False, 5, 1, 25.0, ("-7",), ("bad.parquet",)) == (
        verdict.passed,
        verdict.rows,
        found.unexpected_count,
        found.unexpected_percent,
        found.sample,
        found.files,
    )
    report = verdict.report()
    for word in ("suite sane", "silver/flights", "min_value=0", "-7", "bad.parquet", "quarantine"):
        assert word in report
    assert "good.parquet" not in report


def test_a_verdict_survives_its_json(judge):
    when = datetime(2013, 1, 1, tzinfo=UTC)
    table = pa.table({"t": pa.array([when], pa.timestamp("us", "UTC"))})
    verdict = _judged(judge, table, Expectation(BETWEEN, {"column": "t", "min_value": when}))
    assert verdict.passed
    assert verdict == Verdict.model_validate_json(verdict.model_dump_json())


def test_each_expectation_gets_its_own_verdict_in_the_suites_order(judge):
    """Great Expectations reorders results, and reports errors in another form. The verdict shows neither."""
    table = pa.table({"a": [1, 2, None], "b": ["x", None, "y"]})
    verdict = _judged(
        judge,
        table,
        Expectation(NOT_NULL, {"column": "missing"}),
        Expectation("expect_table_row_count_to_be_between", {"min_value": 1, "max_value": 2}),
        Expectation(IN_SET, {"column": "b", "value_set": ["x", "y"]}),
        Expectation("expect_nothing_that_exists", {}),
        Expectation(NOT_NULL, {"column": "a"}),
        Expectation("expect_column_mean_to_be_between", {"column": "a", "min_value": 1, "max_value": 2}),
    )
    assert [False, False, True, False, False, True] == [each.success for each in verdict.expectations]
    assert verdict.rejects
    assert '"missing"' in verdict.expectations[0].error
    assert "3" == verdict.expectations[1].observed
    assert "expect_nothing_that_exists" in verdict.expectations[3].error
    assert ("null",) == verdict.expectations[4].sample


def test_an_expectation_that_cannot_be_judged_rejects_nothing(judge):
    """The rows may be good, so nothing is rejected. The message names suite, table, expectation and cause."""
    verdict = _judged(judge, pa.table({"a": [1]}), Expectation(NOT_NULL, {"column": "missing"}))
    assert (False, False) == (verdict.passed, verdict.rejects)
    assert verdict.failure().startswith("suite suite of table silver/flights could not be judged")
    assert '"missing"' in verdict.failure()


ON_NO_ROWS = {
    "expect_table_row_count_to_be_between": {"min_value": 1},
    "expect_table_row_count_to_equal": {"value": 1},
    "expect_column_unique_value_count_to_be_between": {"column": "a", "min_value": 1},
    "expect_column_sum_to_be_between": {"column": "a", "min_value": 1},
    "expect_column_distinct_values_to_contain_set": {"column": "a", "value_set": [1]},
    "expect_column_distinct_values_to_equal_set": {"column": "a", "value_set": [1]},
}


@pytest.mark.parametrize("kind", sorted(SAYS_SOMETHING_OF_NO_ROWS))
@pytest.mark.parametrize("staged", [True, False])
def test_no_rows_are_judged_as_great_expectations_judges_an_empty_batch(judge, kind, staged):
    """A count, a sum and a set are judged, both on files without rows and without files, even under a condition.

    The expectation on values in the same suite has no rows to judge, and its verdict says so.
    """
    files = [_write(judge, pa.table({"a": pa.array([], pa.int64())}))] if staged else []
    condition = {"row_condition": "a > 1", "condition_parser": "pandas"}
    counted = Expectation(kind, ON_NO_ROWS[kind] | condition)
    verdict = judge.judge(Suite("s", "t", (Expectation(NOT_NULL, {"column": "a"}), counted)), files)
    values, rows = verdict.expectations
    assert (False, True, 0) == (verdict.passed, verdict.rejects, verdict.rows)
    assert (False, None, None) == (rows.success, rows.error, rows.unjudged)
    assert (True, "no rows came to the table") == (values.success, values.unjudged)
    assert "rejects the checkpoint, because no rows came to table t" in verdict.report()
    assert kind in verdict.report()


def test_a_suite_on_values_is_not_judged_without_rows_and_loads_nothing(tmp_path):
    """Such an epoch does not import Great Expectations. The verdict says that no rows came."""
    cold = Judge(tmp_path)
    least = Expectation("expect_column_min_to_be_between", {"column": "a", "min_value": 1})
    verdict = cold.judge(Suite("s", "t", (Expectation(NOT_NULL, {"column": "a"}), least)), [])
    assert cold._batch_definition is None
    assert (True, False, "no rows came to the table") == (verdict.passed, verdict.rejects, verdict.unjudged)
    assert verdict.report() == "suite s of table t: not judged: no rows came to the table"


def test_an_expectation_that_saw_only_nulls_says_so_and_mostly_says_what_it_let_in(judge):
    """Great Expectations lets both expectations pass.

    The report calls the first one not judged, and names values of the second one.
    """
    table = pa.table({"a": pa.array([None, None], pa.int64()), "b": [1, -1]})
    half = Expectation(BETWEEN, {"column": "b", "min_value": 0, "mostly": 0.5})
    verdict = _judged(judge, table, Expectation(BETWEEN, {"column": "a", "min_value": 0}), half)
    first, second = verdict.expectations
    assert (True, "all 2 values are null", None) == (verdict.passed, first.unjudged, second.unjudged)
    assert verdict.unjudged is None
    assert "not judged: all 2 values are null" in verdict.report()
    assert "met, as mostly=0.5 allows: 1 row (50 %) not as expected, among them -1" in verdict.report()


def test_large_integers_beside_nulls_stay_exact(judge):
    """The sample shows the exact value from the file. pandas would round it to floating point."""
    table = pa.table({"a": pa.array([2**60 + 1, None, 5])})
    verdict = _judged(judge, table, Expectation(BETWEEN, {"column": "a", "max_value": 10}))
    assert (str(2**60 + 1),) == verdict.expectations[0].sample


def test_a_new_column_in_some_of_the_files_is_null_in_the_others(judge):
    """Some files were staged before the column came. The judge reads null from them, as readers do."""
    old = _write(judge, pa.table({"a": [1]}), name="old.parquet")
    new = _write(judge, pa.table({"a": [2], "b": ["x"]}), name="new.parquet")
    suite = Suite("s", "t", (Expectation(NOT_NULL, {"column": "b"}),))
    (found,) = judge.judge(suite, [old, new]).expectations
    assert (1, ("old.parquet",)) == (found.unexpected_count, found.files)


def test_a_judge_uses_no_network(judge, monkeypatch):
    """The judge sends no analytics and calls no cloud service. Any connection fails the test."""

    def refuse(*_):
        raise AssertionError("a judge must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert _judged(judge, pa.table({"a": [1]}), Expectation(NOT_NULL, {"column": "a"})).passed


_numbers = st.one_of(st.none(), st.integers(-20, 20))
_words = st.one_of(st.none(), st.text("ab1'\\", max_size=3))
_rows = st.lists(st.tuples(_numbers, _numbers, _words), min_size=1, max_size=12)
_bound = st.integers(-20, 20)
_some_words = st.lists(st.text("ab1'\\", max_size=3), max_size=3, unique=True)


def _kwargs(kind, **values):
    return st.fixed_dictionaries(values).map(lambda kwargs: Expectation(kind, kwargs))


_expectations = st.one_of(
    _kwargs(NOT_NULL, column=st.sampled_from(["a", "s"])),
    _kwargs("expect_column_values_to_be_null", column=st.sampled_from(["a", "s"])),
    st.builds(
        lambda low, width, left, right: Expectation(
            BETWEEN,
            {"column": "a", "min_value": low, "max_value": low + width, "strict_min": left, "strict_max": right},
        ),
        _bound,
        st.integers(0, 10),
        st.booleans(),
        st.booleans(),
    ),
    _kwargs(BETWEEN, column=st.just("a"), min_value=_bound, strict_min=st.booleans()),
    _kwargs("expect_column_value_lengths_to_be_between", column=st.just("s"), min_value=st.integers(0, 3)),
    _kwargs(IN_SET, column=st.just("s"), value_set=_some_words),
    _kwargs(NOT_IN_SET, column=st.just("s"), value_set=_some_words),
    _kwargs(IN_SET, column=st.just("a"), value_set=st.lists(_bound, max_size=3, unique=True)),
    _kwargs(
        "expect_column_values_to_match_regex", column=st.just("s"), regex=st.sampled_from(["a", "^b", "1$", "a.b"])
    ),
    _kwargs("expect_column_values_to_not_match_regex", column=st.just("s"), regex=st.sampled_from(["a", "^b", "1$"])),
    _kwargs(
        "expect_column_pair_values_a_to_be_greater_than_b",
        column_A=st.just("a"),
        column_B=st.just("b"),
        or_equal=st.booleans(),
        ignore_row_if=st.sampled_from(["both_values_are_missing", "either_value_is_missing", "neither"]),
    ),
    _kwargs("expect_column_pair_values_to_be_equal", column_A=st.just("a"), column_B=st.just("b")),
)


def _bad_rows_in_sql(table: pa.Table, rule: str) -> int:
    """Count the rows that the rule rejects.

    The rule is first rewritten for DuckDB, whose rules for quotes differ from Spark's.
    """
    connection = duckdb.connect()
    connection.register("rows", table)
    return connection.execute(f"SELECT count(*) FROM rows WHERE NOT ({_for_duckdb(rule)})").fetchone()[0]


def _for_duckdb(rule: str) -> str:
    out, position = [], 0
    while position < len(rule):
        if rule[position] == "'":
            text, position = _string(rule, position + 1)
            out.append("'" + text.replace("'", "''") + "'")
            continue
        out.append('"' if rule[position] == "`" else rule[position])
        position += 1
    return _find("".join(out))


def _string(rule: str, position: int) -> tuple[str, int]:
    text = ""
    while rule[position] != "'":
        position += rule[position] == "\\"
        text += rule[position]
        position += 1
    return text, position + 1


def _find(rule: str) -> str:
    return re.sub(r"\((CAST\([^)]*\)) RLIKE ('(?:[^']|'')*')\)", r"regexp_matches(\1, \2)", rule)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(rows=_rows, expectation=_expectations)
def test_a_row_rule_rejects_exactly_the_rows_that_great_expectations_does(judge, rows, expectation):
    table = pa.table(
        {
            "a": pa.array([row[0] for row in rows], pa.int64()),
            "b": pa.array([row[1] for row in rows], pa.int64()),
            "s": pa.array([row[2] for row in rows], pa.string()),
        }
    )
    (found,) = _judged(judge, table, expectation).expectations
    assert found.error is None
    assert found.unexpected_count == _bad_rows_in_sql(table, compile_row_rule(expectation))
