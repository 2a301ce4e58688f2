"""Runs files of test vectors against the real doors: `python -m spec.vectors FILE...`.

A file is `{"legend": ..., "cases": [...]}`; its legend says how to run a case. Every module `spec/vectors_<name>.py`
is a runner and is found by its name. It has

- `claims(legend) -> bool`: whether it runs files with that legend;
- `run_case(legend, case) -> list[str]`: runs one case against the real doors and returns the problems, none if
  it passed, each as `step S: expected E, got G`;
- optionally `skip_reason(legend, case) -> str | None`: why the case cannot apply. Such a case is listed, and
  counts neither as passed nor as failed.

A line is printed per failing case; the last line is `N passed, N failed`. The exit code is 1 if any failed, or
if no runner claims a file.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import spec

Legend = Mapping[str, Any]
Case = Mapping[str, Any]


class Runner(Protocol):
    """What a module `spec/vectors_<name>.py` offers."""

    def claims(self, legend: Legend, /) -> bool:
        """Return whether files with that legend are this runner's."""

    def run_case(self, legend: Legend, case: Case, /) -> list[str]:
        """Return the problems of one case."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case. `skipped` is the reason why it cannot apply."""

    name: str
    problems: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def passed(self) -> bool:
        """Whether it was run and had no problem."""
        return not self.problems and self.skipped is None


def runners() -> tuple[Runner, ...]:
    """Import and return all runners, in order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(spec.__path__) if module.name.startswith("vectors_"))
    return tuple(cast("Runner", importlib.import_module(f"spec.{name}")) for name in names)


def load(path: str) -> tuple[Legend, list[Case]]:
    """Return legend and cases of a file; raise OSError or ValueError if it cannot be read as such."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the path is a plain argument
        content = json.load(file)
    if not isinstance(content, dict) or not {"legend", "cases"} <= content.keys():
        message = f"{path} is no file of vectors: it needs 'legend' and 'cases'"
        raise ValueError(message)
    return content["legend"], content["cases"]


def run_cases(legend: Legend, cases: Iterable[Case]) -> Iterator[Outcome]:
    """Run the cases one by one; without a runner for the legend every case fails."""
    runner = next((runner for runner in runners() if runner.claims(legend)), None)
    for case in cases:
        yield _run(runner, legend, case)


def _run(runner: Runner | None, legend: Legend, case: Case) -> Outcome:
    name = str(case["name"])
    if runner is None:
        return Outcome(name, problems=("no runner claims this file's legend",))
    reason = getattr(runner, "skip_reason", _never_skipped)(legend, case)
    if reason is not None:
        return Outcome(name, skipped=reason)
    try:
        return Outcome(name, problems=tuple(runner.run_case(legend, case)))
    except Exception as error:  # noqa: BLE001 - a door that raises fails its case, not the run
        return Outcome(name, problems=(f"raised {type(error).__name__}: {error}",))


def _never_skipped(_legend: Legend, _case: Case) -> str | None:
    return None


def report(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield the lines of the report, the sum last."""
    passed = failed = 0
    for outcome in outcomes:
        if outcome.skipped is not None:
            yield f"SKIPPED {outcome.name}: {outcome.skipped}"
        elif outcome.problems:
            failed += 1
            yield f"FAILED {outcome.name}: {'; '.join(outcome.problems)}"
        else:
            passed += 1
    yield f"{passed} passed, {failed} failed"


def main(paths: list[str]) -> int:
    """Run all files; return the exit code."""
    if not paths:
        sys.stderr.write("usage: python -m spec.vectors FILE...\n")
        return 2
    outcomes = [outcome for path in paths for outcome in run_cases(*load(path))]
    sys.stdout.writelines(f"{line}\n" for line in report(outcomes))
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
