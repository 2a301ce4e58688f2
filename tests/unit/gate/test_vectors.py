"""Runs Flink's own barrier cases against the real gate."""

import json
from pathlib import Path

import pytest

from spec.flink.gate_cases import run_case
from spec.flink.vectors import load, main

VECTORS = Path(__file__).parents[2] / "vectors"
FILES = {"aligned": 21, "tracker": 14, "unaligned": 34}
FILES |= {"further_aligned": 56, "further_tracker": 32, "further_unaligned": 76}


def _cases() -> list[object]:
    return [
        pytest.param(legend, case, id=case["name"])
        for legend, cases in (load(str(VECTORS / f"{name}.json")) for name in FILES)
        for case in cases
    ]


@pytest.mark.parametrize(("legend", "case"), _cases())
def test_the_gate_behaves_like_flinks_handlers(legend: dict[str, object], case: dict[str, object]) -> None:
    """Deliveries, triggers, aborts, blocked channels and segments in flight are those of Flink's handlers."""
    assert [] == run_case(legend, case)


@pytest.mark.parametrize(("name", "count"), FILES.items())
def test_no_case_is_left_out(name: str, count: int) -> None:
    """The files have the expected number of cases."""
    assert count == len(load(str(VECTORS / f"{name}.json"))[1])


def test_the_report_names_each_failing_case_and_ends_with_the_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong expectation fails with its step, the expected and the actual value.

    The exit code is 1. The last line counts the cases that passed and failed.
    """
    legend, cases = load(str(VECTORS / "tracker.json"))
    wrong = {**cases[0], "expect": [["buffer", 0, 7]]}
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"legend": legend, "cases": [wrong, cases[1]]}))
    assert 1 == main([str(path)])
    *lines, total = capsys.readouterr().out.splitlines()
    assert "1 passed, 1 failed" == total
    assert lines == [f"FAILED {wrong['name']}: step 0: expected ('buffer', 0, 7), got ('buffer', 0, 0)"]


def test_a_file_without_a_runner_fails_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A case that no runner can run is counted as failed."""
    path = tmp_path / "strange.json"
    path.write_text(json.dumps({"legend": {"modes": {"sideways": ""}}, "cases": [{"name": "a"}]}))
    assert 1 == main([str(path)])
    assert capsys.readouterr().out.endswith("0 passed, 1 failed\n")
