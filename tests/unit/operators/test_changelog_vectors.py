"""Flink's own cases of aggregates over a changelog hold for the functions that the tasks call."""

import re
from pathlib import Path

import pytest

from spec import vectors, vectors_changelog

FILE = Path(__file__).parents[2] / "vectors" / "changelog.json"
LEGEND, CASES = vectors.load(str(FILE))
RUN = [case for case in CASES if vectors_changelog.skip_reason(LEGEND, case) is None]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in RUN])
def test_aggregates_over_changes_put_out_what_flinks_do(case):
    """The changes after each event are equal by effect: which rows are added, and which are taken back."""
    assert vectors_changelog.run_case(LEGEND, case) == []


def test_cases_that_need_what_is_missing_are_skipped_by_name():
    """Only a time-to-live of state is missing here."""
    outcomes = list(vectors.run_cases(LEGEND, CASES))
    assert [len(RUN), 0, 4] == [
        sum(one.passed for one in outcomes),
        sum(bool(one.problems) for one in outcomes),
        sum(one.skipped == "state has no time-to-live" for one in outcomes),
    ]


def test_a_wrong_expectation_is_reported():
    """A case that does not hold names the event and both sides."""
    case = next(case for case in RUN if case["name"].startswith("ours#the least"))
    wrong = {**case, "expect": [{"after": 2, "out": [["+I", ["a", 1, 7]]]}]}
    (problem,) = vectors_changelog.run_case(LEGEND, wrong)
    assert problem.startswith("after 2: expected Counter({(True, ('a', 1, 7)): 1}) too, got Counter(")


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        ("topn", ["+I", ["a", 1, 5, 3]], r"after 3, changelog: expected \{\('a', 1, 5, 3\): 1\}, got"),
        ("upsert_sink", ["+I", [1, 1, "no"]], r"expected the table \[\(1, 1, 'no'\)\], got \{\(1, 1, 'a"),
    ],
)
def test_a_wrong_expectation_of_top_rows_is_reported(kind, wrong, said):
    """Another first row is expected than the one that comes."""
    case = next(case for case in RUN if case["kind"] == kind and case["name"].startswith("ours#"))
    first = case["expect"][0]["after"]
    found = vectors_changelog.run_case(LEGEND, {**case, "expect": [{"after": first, "out": [wrong]}]})
    assert re.search(said, found[0])
