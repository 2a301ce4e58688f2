"""Runs the judges that look for a planted slip: simulator, machines, vectors, and last the unit tests.

A judge's work is cut into trials: a seed, a machine, a file of vectors. Only trials that run the slip's lines are run.
Each has a bound. A slip counts as found if a trial fails, or if a trial does not end within its bound.
"""

import contextlib
import io
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from spec import profiles
from spec.machines.__main__ import MACHINES
from spec.sharpness.core import plant
from spec.sharpness.reach import Lines, lines_run
from spec.sharpness.slips import Slip
from spec.simulate import run_seed
from spec.vectors import run_file

ROOT: Final = Path(__file__).resolve().parents[2]
UNIT: Final = ROOT / "tests" / "unit"
SEEDS: Final = range(120)
FIRST_SEEDS: Final = range(12)
"""These seeds find most slips, and take less time than the machines."""
STEPS: Final = 60
EXAMPLES: Final = 12
EXAMPLES_OF_ONE_DOOR: Final = 48
"""A machine of one door is about ten times as fast as a machine of a whole job."""
SEED_BOUND_S: Final = 20
BOUND_S: Final = 90
"""A trial that computes longer than this hangs.

Without a slip, a seed takes 0.1 s, other trials less than half of this.
"""
MEMORY_BYTES_MAX: Final = 4 << 30
"""A trial that needs more memory than this grows without end."""
SIMULATOR, MACHINE, VECTORS, UNIT_TESTS = "simulator", "machines", "vectors", "unit tests"
SPEC: Final = (SIMULATOR, MACHINE)
JUDGES: Final = (*SPEC, VECTORS, UNIT_TESTS)


@dataclass(frozen=True, slots=True)
class Trial:
    """A part of a judge's work. It finds the slip if `finds` returns True or raises."""

    judge: str
    name: str
    finds: Callable[[], bool]
    bound_s: int = BOUND_S

    def __str__(self) -> str:
        """Return the judge's name and what it runs."""
        return f"{self.judge}, {self.name}"


def trials(seeds: Iterable[int] = SEEDS) -> tuple[Trial, ...]:
    """Return the trials for every slip, in their order. The trials that find most in the least time come first."""
    profiles.register()
    simulated = [Trial(SIMULATOR, f"seed {seed}", partial(_breaks, seed), SEED_BOUND_S) for seed in seeds]
    machines = [Trial(MACHINE, machine.__name__, partial(_errs, machine)) for machine in MACHINES]
    files = sorted((ROOT / "tests" / "vectors").glob("*.json"))
    vectors = [Trial(VECTORS, file.name, partial(_differs, file)) for file in files]
    first = len(FIRST_SEEDS)
    return (*simulated[:first], *machines, *simulated[first:], *vectors)


def rooms() -> tuple[Trial, ...]:
    """Return the unit tests: a trial for each folder, and one for each module outside the folders."""
    found = sorted(each for each in UNIT.iterdir() if each.is_dir() or each.match("test_*.py"))
    return tuple(Trial(UNIT_TESTS, each.name, partial(_fails, (each,))) for each in found if each.name != "__pycache__")


def unit_tests(slip: Slip, names: Iterable[str]) -> Trial:
    """Return one trial of the unit tests in these rooms. The rooms of the slip's package come first."""
    package = slip.module.split(".")[1]
    chosen = sorted(names, key=lambda name: (package not in name, name))
    return Trial(UNIT_TESTS, ", ".join(chosen), partial(_fails, tuple(UNIT / name for name in chosen)))


def reach(trial: Trial) -> Lines | None:
    """Run a trial on the unchanged core, and return the lines that it runs. Return None if the trial fails there."""
    os.chdir(ROOT)
    found: list[bool] = []
    with _silence():
        reached = lines_run(lambda: found.append(trial.finds()))
    return reached if found == [False] else None


def judged(slip: Slip, tried: Sequence[Trial]) -> Trial | None:
    """Plant a slip in this process, and return the first trial that finds it, or None.

    The process keeps the slip, so the caller must end it afterwards.
    """
    os.chdir(ROOT)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    plant(slip)
    return next((trial for trial in tried if _found(trial)), None)


def _found(trial: Trial) -> bool:
    with _silence():
        try:
            with _bound(trial.bound_s):
                return trial.finds()
        except BaseException:  # noqa: BLE001 - any exception means that the slip was noticed
            return True


def _breaks(seed: int) -> bool:
    return bool(run_seed(seed)[1])


def _errs(machine: type[RuleBasedStateMachine]) -> bool:
    """Let Hypothesis search. Its first error ends the search, and is raised."""
    examples = EXAMPLES if "Job" in machine.__name__ else EXAMPLES_OF_ONE_DOOR
    sought = settings(profiles.hunting(), max_examples=examples, stateful_step_count=STEPS)
    run_state_machine_as_test(machine, settings=profiles.fitting(machine, sought))
    return False


def _differs(file: Path) -> bool:
    return any(outcome.problems for outcome in run_file(str(file)))


def _fails(rooms: Sequence[Path]) -> bool:
    chosen = ["-m", "not spark and not kill and not dear and not browser and not matrix"]
    plain = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen]
    return pytest.main([*plain, *map(str, rooms)]) not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@contextlib.contextmanager
def _bound(seconds: int) -> Iterator[None]:
    def hang(_signal: int, _frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, hang)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
