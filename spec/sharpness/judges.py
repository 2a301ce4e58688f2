"""Who looks for a planted slip: the simulator, the machines, the vectors, and at last the unit tests.

Each judge runs in a process of its own, in which the slip is planted. An error counts as found, and so does a judge
that does not come to its end.
"""

import contextlib
import io
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spec.machines.__main__ import MACHINES
from spec.profiles import hunting
from spec.sharpness.core import plant
from spec.sharpness.slips import Slip
from spec.simulate import run_seed
from spec.vectors import run_file

ROOT: Final = Path(__file__).resolve().parents[2]
SEEDS: Final = range(120)
EXAMPLES: Final = 12
STEPS: Final = 60
BOUND_S: Final = 90
"""A judge that computes for longer hangs. Without a slip none takes half of it."""

Judge = Callable[[Slip], bool]


def simulator(_slip: Slip, seeds: Iterable[int] = SEEDS) -> bool:
    """Whether a seed breaks an invariant."""
    return any(broken for _, broken in map(run_seed, seeds))


def machines(_slip: Slip) -> bool:
    """Whether a state machine of Hypothesis finds its door wrong; its first error ends the search."""
    sought = settings(hunting(), max_examples=EXAMPLES, stateful_step_count=STEPS)
    for machine in MACHINES:
        run_state_machine_as_test(machine, settings=sought)
    return False


def vectors(_slip: Slip) -> bool:
    """Whether a case of Flink's fails."""
    files = sorted((ROOT / "tests" / "vectors").glob("*.json"))
    return any(outcome.problems for file in files for outcome in run_file(str(file)))


def unit_tests(slip: Slip) -> bool:
    """Whether a unit test of the slip's package fails."""
    room = ROOT / "tests" / "unit" / slip.module.split(".")[1]
    folder = room if room.is_dir() else ROOT / "tests" / "unit"
    chosen = ["-m", "not spark and not kill and not dear and not browser and not matrix"]
    plain = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen]
    return pytest.main([*plain, str(folder)]) != pytest.ExitCode.OK


SPEC: Final[Mapping[str, Judge]] = MappingProxyType({"simulator": simulator, "machines": machines})
OTHERS: Final[Mapping[str, Judge]] = MappingProxyType({"vectors": vectors, "unit tests": unit_tests})


def judged(slip: Slip, judges: Mapping[str, Judge]) -> str:
    """Plant a slip in this process and return the name of the first judge that finds it, or nothing.

    Call it in a process that ends afterwards.
    """
    os.chdir(ROOT)
    plant(slip)
    for name, judge in judges.items():
        with _silence():
            try:
                with _bound():
                    found = judge(slip)
            except BaseException:  # noqa: BLE001 - whatever a slip makes raise, it has been noticed
                found = True
        if found:
            return name
    return ""


@contextlib.contextmanager
def _bound() -> Iterator[None]:
    def hang(_signal: int, _frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, hang)
    signal.setitimer(signal.ITIMER_VIRTUAL, BOUND_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
