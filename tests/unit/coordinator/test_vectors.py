"""Flink's own scenarios for coordinator, registry and rescaling have the same results with the product's doors."""

from pathlib import Path

import pytest

from spec.flink import coordinator_cases, registry_cases, rescale_cases, vectors

FILES = Path(__file__).parents[2] / "vectors"
RUNNERS = {"coordinator": coordinator_cases, "registry": registry_cases, "rescale": rescale_cases}
RUNNERS |= {f"further_{name}": runner for name, runner in RUNNERS.items()}
LOADED = {name: vectors.load(str(FILES / f"{name}.json")) for name in RUNNERS}


@pytest.mark.parametrize(
    ("name", "case"),
    [pytest.param(name, case, id=case["name"]) for name, (_, cases) in LOADED.items() for case in cases],
)
def test_the_doors_behave_as_in_flinks_scenario(name, case):
    """What Flink's test asserts after a step also holds here after the same facts."""
    legend, _ = LOADED[name]
    assert RUNNERS[name].run_case(legend, case) == []


@pytest.mark.parametrize("name", RUNNERS)
def test_each_file_has_one_runner(name):
    """Each file is run by exactly one runner, which alone accepts the file's legend."""
    legend, _ = LOADED[name]
    claiming = {runner.__name__ for runner in RUNNERS.values() if runner.claims(legend)}
    assert {RUNNERS[name].__name__} == claiming


def test_a_wrong_expectation_is_reported_with_its_step():
    """An expectation that does not hold is reported with step, expected and actual value."""
    legend, cases = LOADED["coordinator"]
    case = {**cases[0], "expect": [{"after": 1, "pending": [7], "future": {"c": "ok"}}]}
    assert coordinator_cases.run_case(legend, case) == [
        "step 1 trigger: pending: expected [7], got []",
        "step 1 trigger: future: expected {'c': 'ok'}, got {'c': 'failed:IO_EXCEPTION'}",
    ]
