"""Flink's own barrier cases, run against the real gate."""

from pathlib import Path

import pytest

from spec.vectors import load
from spec.vectors_barriers import run_case

VECTORS = Path(__file__).parents[2] / "vectors"
FILES = {"aligned": 21, "tracker": 14, "unaligned": 34}


def _cases() -> list[object]:
    return [
        pytest.param(legend, case, id=case["name"])
        for legend, cases in (load(str(VECTORS / f"{name}.json")) for name in FILES)
        for case in cases
    ]


@pytest.mark.parametrize(("legend", "case"), _cases())
def test_the_gate_does_what_flinks_handlers_do(legend: dict[str, object], case: dict[str, object]) -> None:
    """Deliveries, triggers, aborts, blocks and in-flight sets equal those of Flink's handlers."""
    assert [] == run_case(legend, case)


@pytest.mark.parametrize(("name", "count"), FILES.items())
def test_no_case_is_left_out(name: str, count: int) -> None:
    """The files hold all the cases they are known to hold."""
    assert count == len(load(str(VECTORS / f"{name}.json"))[1])
