"""Runs files of test vectors on the real doors: `python -m spec.flink.vectors FILE...`.

A file is `{"legend": ..., "cases": [...]}`. Its legend says how to run a case. Every module
`spec/flink/<name>_cases.py` is a runner, and is found by its name. A runner has:

- `claims(legend) -> bool`: whether it runs files with this legend.
- `run_case(legend, case) -> list[str]`: runs one case and returns its problems, each as `step S: expected E, got G`.
- optionally `skip_reason(legend, case) -> str | None`: why the case cannot apply. Such a case is listed, and counts
  neither as passed nor as failed.

It prints a line for each failing case, and last `N passed, N failed`. The exit code is 1 if any failed. These are
failures too: a file that cannot be read, a file whose legend no runner claims, a case that is not well formed
(`spec.flink.case_form`), and a case that raises an error. They are reported with file, case and step.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from spec import flink
from spec.flink.case_form import problems_of_form

Legend = Mapping[str, Any]
Case = Mapping[str, Any]


class Runner(Protocol):
    """The interface of a module `spec/flink/<name>_cases.py`."""

    def claims(self, legend: Legend, /) -> bool:
        """Return whether this runner runs files with that legend."""

    def run_case(self, legend: Legend, case: Case, /) -> list[str]:
        """Return the problems of one case."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one case. `skipped` is the reason why it cannot apply."""

    name: str
    problems: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def passed(self) -> bool:
        """True if it was run and had no problem."""
        return not self.problems and self.skipped is None


def runners() -> tuple[Runner, ...]:
    """Import and return all runners, in order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(flink.__path__) if module.name.endswith("_cases"))
    return tuple(cast("Runner", importlib.import_module(f"{flink.__name__}.{name}")) for name in names)


def load(path: str) -> tuple[Legend, list[Case]]:
    """Return legend and cases of a file. Raise OSError or ValueError if it cannot be read."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the path is a plain argument
        content = json.load(file)
    legend, cases = (content.get("legend"), content.get("cases")) if isinstance(content, dict) else (None, None)
    if not isinstance(legend, dict) or not isinstance(cases, list):
        message = "it needs 'legend', an object, and 'cases', a list"
        raise ValueError(message)  # noqa: TRY004 - a file's content, no argument's type
    return legend, cases


def run_file(path: str) -> list[Outcome]:
    """Run all cases of a file. A file that cannot be read is one failure."""
    try:
        legend, cases = load(path)
    except (OSError, ValueError) as error:
        return [Outcome(path, problems=(f"no file of vectors: {error}",))]
    return list(run_cases(legend, cases, path))


def run_cases(legend: Legend, cases: Iterable[Case], path: str = "the file") -> Iterator[Outcome]:
    """Run the cases one by one. Without a runner for the legend, every case fails. `path` is for messages."""
    runner = next((runner for runner in runners() if _claims(runner, legend)), None)
    for number, case in enumerate(cases):
        name = str(case["name"]) if isinstance(case, dict) and "name" in case else f"case {number} of {path}"
        if runner is None:
            yield Outcome(name, problems=(f"no runner claims the legend of {path}",))
        else:
            yield _run(runner, legend, case, name, path)


def _claims(runner: Runner, legend: Legend) -> bool:
    try:
        return runner.claims(legend)
    except (TypeError, ValueError, AttributeError):
        return False


def _run(runner: Runner, legend: Legend, case: Case, name: str, path: str) -> Outcome:
    try:
        malformed = "; ".join(problems_of_form(legend, case))
        if malformed:
            return Outcome(name, problems=(f"{path} is malformed here: {malformed}",))
        reason = getattr(runner, "skip_reason", _never_skipped)(legend, case)
        if reason is not None:
            return Outcome(name, skipped=reason)
        return Outcome(name, problems=tuple(runner.run_case(legend, case)))
    except Exception as error:  # noqa: BLE001 - a door that raises fails its case, not the run
        where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
        return Outcome(name, problems=(f"{where}raised {type(error).__name__}: {error} (in {path})",))


def _never_skipped(_legend: Legend, _case: Case) -> str | None:
    return None


def report(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield the lines of the report. The last one has the sums."""
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
    """Run all files. Return the exit code."""
    if not paths:
        sys.stderr.write("usage: python -m spec.flink.vectors FILE...\n")
        return 2
    outcomes = [outcome for path in paths for outcome in run_file(path)]
    sys.stdout.writelines(f"{line}\n" for line in report(outcomes))
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
