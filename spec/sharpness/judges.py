"""Runs the judges that look for a planted slip: unit and property tests, vectors, simulator, and machines.

A judge's work is cut into trials: a module of unit or property tests, a file of vectors, a seed, a machine. Only trials
that run the slip's lines are tried. A slip also counts as found if a trial raises an error, or takes several times as
long as on the unchanged core.
"""

import contextlib
import io
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from spec.flink.vectors import run_file
from spec.machines import judging
from spec.machines.__main__ import MACHINES
from spec.sharpness.differing import probes
from spec.sharpness.reach import Reach, reached_by
from spec.sharpness.slips import ROOT, Slip, plant
from spec.simulate import run_seed

UNIT: Final = ROOT / "tests" / "unit"
SEEDS: Final = range(300)
STEPS: Final = 60
EXAMPLES: Final = 12
EXAMPLES_OF_ONE_DOOR: Final = 48
"""A machine of one door is some ten times as fast as one of a whole job."""
BOUND_S: Final = 3
SLOWER: Final = 4
"""A trial that takes more than this many times its time on the unchanged core hangs. It gets at least BOUND_S."""
AGAIN_S: Final = 1
"""Hypothesis repeats a step that was stopped because it hung. The step is stopped again after this many seconds."""
MEMORY_BYTES_MAX: Final = 4 << 30
"""A trial that needs more memory than this grows without end."""
UNIT_TESTS, VECTORS, PROPERTIES = "unit tests", "vectors", "properties"
SIMULATOR, MACHINE = "simulator", "machines"
SPEC: Final = (PROPERTIES, SIMULATOR, MACHINE)
JUDGES: Final = (UNIT_TESTS, VECTORS, *SPEC)


@dataclass(frozen=True, slots=True)
class Trial:
    """A part of a judge's work. It finds the slip if `finds` returns True or raises."""

    judge: str
    name: str
    finds: Callable[[], bool]
    bound_s: float = BOUND_S
    """The CPU seconds after which the trial counts as hanging."""

    def within(self, seconds: float) -> "Trial":
        """Return the trial with the bound that fits its time on the unchanged core."""
        return replace(self, bound_s=max(BOUND_S, SLOWER * seconds))

    @property
    def finder(self) -> str:
        """Return the name under which its findings are counted. All seeds of the simulator count together."""
        return SIMULATOR if self.judge == SIMULATOR else str(self)

    def __str__(self) -> str:
        return f"{self.judge}, {self.name}"


@dataclass(frozen=True, slots=True)
class Found:
    """The trials that found a slip. `stopped` is True if the CPU bound came before all trials had run."""

    trials: tuple[Trial, ...]
    stopped: bool = False


def trials(seeds: Iterable[int] = SEEDS) -> tuple[Trial, ...]:
    """Return the trials for every slip, without unit and property tests."""
    judging.register()
    simulated = [Trial(SIMULATOR, f"seed {seed}", partial(_breaks, seed)) for seed in seeds]
    machines = [Trial(MACHINE, machine.__name__, partial(_errs, machine)) for machine in MACHINES]
    files = sorted((ROOT / "tests" / "vectors").glob("*.json"))
    vectors = [Trial(VECTORS, file.name, partial(_differs, file)) for file in files]
    return (*vectors, *simulated, *machines)


def unit_tests() -> tuple[Trial, ...]:
    """Return the unit tests and the property tests of the core, a trial for each module that imports it."""
    modules = [each for each in sorted(UNIT.rglob("test_*.py")) if _imports_the_core(each)]
    return tuple(Trial(_kind(each), str(each.relative_to(UNIT)), partial(_fails, each)) for each in modules)


def _kind(module: Path) -> str:
    """Property tests draw cases, and compare the core with a reference. Each check names its rule, as in a machine."""
    return PROPERTIES if module.stem.endswith("_properties") else UNIT_TESTS


def _imports_the_core(module: Path) -> bool:
    return "import checkpointing" in (text := module.read_text(encoding="utf-8")) or "from checkpointing" in text


def reach(trial: Trial) -> Reach | None:
    """Run a trial on the unchanged core. Return what it reaches, or None if the trial fails there."""
    os.chdir(ROOT)
    found: list[bool] = []
    with _silence():
        reached = reached_by(lambda: found.append(trial.finds()), probes())
    return reached if found == [False] else None


def judged(slip: Slip, tried: Sequence[Trial], bound_s: float, *, first: bool = False) -> Found:
    """Return all trials that find the slip, but only the first one of the simulator's seeds.

    With `first`, return only the first trial of the spec proper, and the first one of the tests and vectors. Each trial
    runs in a fork of this process, in which the slip is planted. No further trial begins after `bound_s` CPU seconds.
    """
    found: list[Trial] = []
    for trial in tried:
        if any(_is_told_by(trial, each, first=first) for each in found):
            continue
        if _seconds_of_children() >= bound_s:
            return Found(tuple(found), stopped=True)
        if _finds_in_a_fork(slip, trial):
            found.append(trial)
    return Found(tuple(found))


def _is_told_by(trial: Trial, finder: Trial, *, first: bool) -> bool:
    if first:
        return (trial.judge in SPEC) == (finder.judge in SPEC)
    return trial.judge == finder.judge == SIMULATOR


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _finds_in_a_fork(slip: Slip, trial: Trial) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os.chdir(ROOT)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
            plant(slip)
            os._exit(1 if _found(trial) else 0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


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
    sought = settings(judging.hunting(), max_examples=examples, stateful_step_count=STEPS)
    run_state_machine_as_test(machine, settings=judging.fitting(machine, sought))
    return False


def _differs(file: Path) -> bool:
    return any(outcome.problems for outcome in run_file(str(file)))


def _fails(module: Path) -> bool:
    chosen = ["-m", "not spark and not kill and not dear and not browser and not matrix"]
    plain = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen]
    return pytest.main([*plain, str(module)]) not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@contextlib.contextmanager
def _bound(seconds: float) -> Iterator[None]:
    def hang(_signal: int, _frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, hang)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


# ------------------------------------------------------------------
# Keeps the finders of each slip, in a file with which a later run can continue.


@dataclass(frozen=True, slots=True)
class Result:
    """Who found a slip.

    `applies` is true if some trial of the spec proper runs the slip's lines. The spec proper cannot find other slips.
    `stopped` is true if the CPU bound came before all trials had run.
    """

    found: tuple[str, ...]
    """The trials that found the slip. Only the first of the simulator's seeds is listed."""
    applies: bool = True
    stopped: bool = False

    @classmethod
    def of(cls, found: Found, *, applies: bool) -> "Result":
        """Return the result of a slip that these trials have found."""
        return cls(tuple(map(str, found.trials)), applies, found.stopped)

    @property
    def judges(self) -> frozenset[str]:
        """The judges that found it."""
        return frozenset(each.partition(",")[0] for each in self.found)

    @property
    def finders(self) -> frozenset[str]:
        """The trials that found it. The simulator counts as one."""
        return frozenset(SIMULATOR if each.startswith(f"{SIMULATOR},") else each for each in self.found)

    @property
    def is_found_by_spec(self) -> bool:
        """True if the spec proper found it."""
        return not self.judges.isdisjoint(SPEC)

    @property
    def escapes(self) -> bool:
        """True if the spec proper runs the slip's lines, and does not find the slip."""
        return self.applies and not self.is_found_by_spec

    def __str__(self) -> str:
        return "; ".join(self.found) or "SURVIVED"


class Results:
    """Maps slips to their results. Without a file, the results are kept for this run only."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: dict[str, Result] = {}
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                slip = row.pop("slip")
                self._known[slip] = Result(**row | {"found": tuple(row["found"])})

    def of(self, slips: list[Slip]) -> dict[Slip, Result]:
        """Return the results of these slips, as far as they are known."""
        return {slip: self._known[slip.identity] for slip in slips if slip.identity in self._known}

    def add(self, slip: Slip, result: Result) -> None:
        """Keep a result."""
        self._known[slip.identity] = result
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"slip": slip.identity, **asdict(result)}) + "\n")

    def finds(self) -> Mapping[str, int]:
        """Return how many slips each trial has found."""
        return Counter(trial for result in self._known.values() for trial in result.found)
