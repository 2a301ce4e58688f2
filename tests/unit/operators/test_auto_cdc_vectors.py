"""The cases of Spark's own tests of AUTO CDC hold for the functions that the tasks call."""

from collections import Counter
from pathlib import Path

import pytest

from spec import vectors, vectors_auto_cdc

FILE = Path(__file__).parents[2] / "vectors" / "auto_cdc.json"
LEGEND, CASES = vectors.load(str(FILE))
SUITES = {
    "AutoCdcScd1SinglePipelineSuite": 2,
    "Scd2BatchProcessorSuite": 3,
    "Scd2CoalesceIgnoredNullsSuite": 9,
    "Scd2ForeachBatchHandlerSuite": 19,
}


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_tables_of_changes_are_those_of_spark(case):
    """After each micro-batch the table has Spark's rows. In any order of the changes, it has the last ones."""
    assert vectors_auto_cdc.run_case(LEGEND, case) == []


def test_each_case_has_a_name_of_its_own_and_a_form():
    """The suites of Spark have as many cases as the documentation says. The runner finds the file by its legend."""
    assert SUITES == Counter(case["name"].split("#")[0] for case in CASES)
    outcomes = list(vectors.run_cases(LEGEND, CASES))
    assert len(CASES) == len({one.name for one in outcomes}) == sum(one.passed for one in outcomes)


@pytest.mark.parametrize("kind", ["scd1", "scd2"])
def test_a_wrong_expectation_is_reported(kind):
    """The message has both tables, of the micro-batch and of another order."""
    case = next(case for case in CASES if case["kind"] == kind and len(case["events"]) > 1)
    wrong = [1, "nobody"] if kind == "scd1" else [1, "nobody", 7, None]
    last = len(case["events"]) - 1
    found = vectors_auto_cdc.run_case(LEGEND, {**case, "expect": [{"after": last, "table": [wrong]}]})
    assert [f"after {last}: expected [{wrong}], got ", "in the order ["] == [
        found[0][: len(f"after {last}: expected [{wrong}], got ")],
        found[1][: len("in the order [")],
    ]
