"""Aggregates over changes: after any changes, the results are those of a batch over the remaining rows."""

import math
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

import tidemark
from jobs.operators.aggregate import KeyedAggregates, state_schema
from jobs.operators.aggregate_functions import SumOverflowError
from jobs.operators.changelog_aggregates import ChangingAggregates, changing_aggregates, changing_state_schema
from jobs.operators.changes import DELETE, INSERT, KIND, UPDATE_AFTER, UPDATE_BEFORE, changes_of
from jobs.operators.spec import arrow_schema
from jobs.pipeline.aggregates import named_aggregates
from jobs.state.files import empty_frame
from jobs.state.merge import KEY_GROUP
from spec.flink import vectors
from tests.unit.operators import changelog_cases

ROWS = StructType(
    [
        StructField("k", StringType()),
        StructField("v", DoubleType()),
        StructField("o", LongType()),
        StructField("s", StringType()),
        StructField("d", DecimalType(12, 2)),
        StructField("i", IntegerType()),
        StructField("_hash_of_o", LongType()),
    ]
)


class Longest:
    """A user's aggregate without `retract`: the number of letters of the longest text, times the number of rows."""

    name = "longest"
    columns = ("s",)
    accumulator = StructType().add("most", LongType()).add("rows", LongType())
    returns = LongType()

    def init(self):
        """Return None: an aggregate of no rows has no accumulator."""

    def add(self):
        most = pl.col("s").str.len_chars().max().fill_null(0).cast(pl.Int64)
        return pl.struct(most=most, rows=pl.len().cast(pl.Int64))

    def merge(self, one, other):
        most = pl.max_horizontal(one.struct.field("most"), other.struct.field("most"))
        both = pl.struct(most=most, rows=one.struct.field("rows") + other.struct.field("rows"))
        return pl.when(one.is_null()).then(other).otherwise(both)

    def result(self, accumulator):
        return accumulator.struct.field("most") * accumulator.struct.field("rows")


EVERY = {
    "rows": tidemark.count(),
    "values": tidemark.count("v"),
    "total": tidemark.sum_of("v"),
    "whole": tidemark.sum_of("o"),
    "exact": tidemark.sum_of("d"),
    "least": tidemark.min_of("v"),
    "most": tidemark.max_of("s"),
    "mean": tidemark.avg_of("v"),
    "whole_mean": tidemark.avg_of("i"),
    "exact_mean": tidemark.avg_of("d"),
    "spread": tidemark.var_of("v"),
    "deviation": tidemark.stddev_of("i", population=True),
    "cheapest": tidemark.min_by("s", "v"),
    "first": tidemark.first_of("s", order_by=["o"]),
    "last": tidemark.last_of("s", order_by=["o"], ignore_nulls=True),
    "listed": tidemark.collect_list("s"),
    "set": tidemark.collect_set("v"),
    "distinct": tidemark.count_distinct("d"),
    "about": tidemark.approx_count_distinct("o"),
    "median": tidemark.approx_percentile("v", 0.5),
    "own": tidemark.aggregate_of(Longest()),
}

ROW = st.tuples(
    st.sampled_from([None, "a", "b"]),
    st.none() | st.sampled_from([1.5, -2.0, 0.0, 7.25, math.nan, math.inf]),
    st.none() | st.integers(-5, 5),
    st.none() | st.sampled_from(["x", "yy"]),
    st.none() | st.sampled_from([Decimal("1.10"), Decimal("-3.05")]),
    st.none() | st.integers(-3, 3),
).map(lambda row: (*row, row[2]))


class Kept:
    """Aggregates over changes in micro-batches, and the table that the changes of their results make."""

    def __init__(self, columns):
        """Begin without rows."""
        self.batch = named_aggregates("vertex x", ["k"], ROWS, columns)
        changing = changing_aggregates(self.batch, ROWS)
        self.function = ChangingAggregates(("k",), changing)
        self.state = empty_frame(arrow_schema(changing_state_schema(["k"], changing, ROWS)))
        self.schema = empty_frame(arrow_schema(ROWS)).schema
        self.table: list[tuple] = []

    def take(self, changes):
        """Take a micro-batch of changes, and fold the changes of the result into the table."""
        rows = pl.DataFrame(changes, schema={**self.schema, KIND: pl.String}, orient="row")
        touched = rows.select("k").unique()
        before = self.state.join(touched, on="k", how="semi", nulls_equal=True)
        done = self.function.process([rows], before)
        shown = self.function.results(before.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        self.state = pl.concat(
            [self.state.join(touched, on="k", how="anti", nulls_equal=True), done.state.cast(self.state.schema)]
        )
        found = changes_of(shown, done.output.cast(shown.schema), ["k"])
        for *row, kind in found.iter_rows():
            if kind in (DELETE, UPDATE_BEFORE):
                self.table.remove(found_in(self.table, row))
            else:
                self.table.append(tuple(row))
        return found

    def expected(self, live):
        empty = empty_frame(arrow_schema(state_schema(["k"], self.batch, ROWS)))
        rows = pl.DataFrame(live, schema=self.schema, orient="row")
        return KeyedAggregates(("k",), self.batch).process([rows], empty).output.rows()


def found_in(table, row):
    """Return the row of a table that is taken back. In such rows NaN equals NaN, unlike in Python."""
    return next(each for each in table if repr(each) == repr(tuple(row)))


def near(one, other):
    """Compare values. A variance keeps a rounding error after rows are taken back, and its root a larger error."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    return one == other


def by_key(rows):
    return sorted(rows, key=lambda row: row[0] or "")


@given(st.lists(st.lists(st.tuples(ROW, st.integers(0, 9)), max_size=8), max_size=6))
@settings(max_examples=6, deadline=None)
def test_after_any_changes_the_table_is_the_batch_over_the_rows_that_are_left(batches):
    """Rows come and go in random micro-batches. A change whose number is odd takes back a row that is there."""
    kept, live = Kept(EVERY), []
    for batch in batches:
        changes = []
        for row, number in batch:
            if live and number % 2:
                changes.append((*live.pop(number % len(live)), UPDATE_BEFORE if number > 4 else DELETE))
            else:
                live.append(row)
                changes.append((*row, UPDATE_AFTER if number > 4 else INSERT))
        kept.take(changes)
        shown, expected = by_key(kept.table), by_key(kept.expected(live)) if live else []
        assert len(shown) == len(expected)
        for one, other in zip(shown, expected, strict=True):
            for name, own, its in zip(["k", *EVERY], one, other, strict=True):
                assert near(own, its), (name, own, its)


def row_of(key, value):
    return (key, None, value, None, None, None, value)


def test_a_key_without_rows_has_neither_state_nor_row():
    """When the last row of a key is taken back, the key vanishes from state and table."""
    kept = Kept({"total": tidemark.sum_of("o"), "least": tidemark.min_of("o")})
    kept.take([(*row_of("a", 1), INSERT), (*row_of("b", 2), INSERT)])
    assert [("a", 1, 1, DELETE)] == kept.take([(*row_of("a", 1), DELETE)]).rows()
    assert (["b"], [("b", 2, 2)]) == (kept.state["k"].to_list(), kept.table)


def test_a_change_has_the_kind_of_what_became_of_its_row():
    """If the result's row stays equal, there is no change. An update takes the old row back first."""
    kept = Kept({"total": tidemark.sum_of("o")})
    assert [("a", 1, INSERT)] == kept.take([(*row_of("a", 1), INSERT)]).rows()
    assert [("a", 1, UPDATE_BEFORE), ("a", 3, UPDATE_AFTER)] == kept.take([(*row_of("a", 2), INSERT)]).rows()
    assert kept.take([(*row_of("a", 2), UPDATE_BEFORE), (*row_of("a", 2), UPDATE_AFTER)]).is_empty()


def test_a_row_of_an_unknown_key_is_not_taken_back():
    """Such a change is ignored, as in Flink."""
    kept = Kept({"total": tidemark.sum_of("o")})
    assert kept.take([(*row_of("a", 1), DELETE)]).is_empty()
    assert kept.state.is_empty()


def test_a_sum_of_changes_that_does_not_fit_names_column_and_key():
    """The state holds the sum in 38 digits.

    So it may exceed its type within a micro-batch, but not at the end of one.
    """
    most = 2**63 - 1
    kept = Kept({"total": tidemark.sum_of("o")})
    kept.take([(*row_of("a", most), INSERT)])
    kept.take([(*row_of("a", 5), INSERT), (*row_of("a", most), DELETE)])
    assert kept.table == [("a", 5)]
    with pytest.raises(SumOverflowError, match=r"column total: the sum of o for the key \(a\) does not fit bigint"):
        kept.take([(*row_of("a", most), INSERT)])


def test_rows_with_lists_make_changes_too():
    """Lists are compared as values."""
    schema = empty_frame(arrow_schema(StructType().add("k", LongType()).add("l", ArrayType(LongType())))).schema
    before = pl.DataFrame([(1, [1, 2]), (2, None)], schema=schema, orient="row")
    after = pl.DataFrame([(1, [1, 2]), (2, [3])], schema=schema, orient="row")
    assert changes_of(before, after, ["k"]).rows() == [(2, None, UPDATE_BEFORE), (2, [3], UPDATE_AFTER)]


# ------------------------------------------------------------------
# Flink's own cases of aggregates over a changelog hold for the functions that the tasks call.


FILE = Path(__file__).parents[2] / "vectors" / "rows" / "changelog.json"
LEGEND, CASES = vectors.load(str(FILE))
RUN = [case for case in CASES if changelog_cases.skip_reason(LEGEND, case) is None]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in RUN])
def test_aggregates_over_changes_put_out_what_flinks_do(case):
    """After each event, the changes have the same effect as Flink's: which rows are added, and which are taken back."""
    assert changelog_cases.run_case(LEGEND, case) == []


def test_cases_that_need_what_is_missing_are_skipped_by_name():
    """docs/FLINK_MAP.md says why these kinds are left out."""
    skipped = Counter(case["kind"] for case in CASES if case not in RUN)
    assert {"join": 6, "topn": 6, "upsert_sink": 2} == skipped


def test_a_wrong_expectation_is_reported():
    """The report of a case that does not hold names the event, the expected and the actual rows."""
    case = next(case for case in RUN if case["name"].startswith("ours#the least"))
    wrong = {**case, "expect": [{"after": 2, "out": [["+I", ["a", 1, 7]]]}]}
    (problem,) = changelog_cases.run_case(LEGEND, wrong)
    assert problem.startswith("after 2: expected Counter({(True, ('a', 1, 7)): 1}) too, got Counter(")


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        ("topn", ["+I", ["a", 1, 5, 3]], r"after 3, changelog: expected \{\('a', 1, 5, 3\): 1\}, got"),
        ("upsert_sink", ["+I", [1, 1, "no"]], r"expected the table \[\(1, 1, 'no'\)\], got \{\(1, 1, 'a"),
    ],
)
def test_a_wrong_expectation_of_top_rows_is_reported(kind, wrong, said):
    """The case expects another first row than the emitted one."""
    case = next(case for case in RUN if case["kind"] == kind and case["name"].startswith("ours#"))
    first = case["expect"][0]["after"]
    found = changelog_cases.run_case(LEGEND, {**case, "expect": [{"after": first, "out": [wrong]}]})
    assert re.search(said, found[0])
