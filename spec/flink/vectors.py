"""Runs files of test vectors on the real doors: `python -m spec.flink.vectors FILE...`.

A file is `{"legend": ..., "cases": [...]}`. The legend describes how to run a case. Every module
`spec/flink/<name>_cases.py` is a runner, and is found by its name. A runner has:

- `claims(legend) -> bool`: whether it runs files with this legend.
- `run_case(legend, case) -> list[str]`: runs one case and returns its problems, each as `step S: expected E, got G`.
- optionally `skip_reason(legend, case) -> str | None`: why the case cannot apply. Such a case is listed, and counts
  neither as passed nor as failed.

It prints a line for each failing case, and last `N passed, N failed`. The exit code is 1 if any failed. These are
failures too: a file that cannot be read, a file whose legend no runner claims, a case that is not well formed
(`spec.flink.vectors`), and a case that raises an error. They are reported with file, case and step.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

from spec import flink

Legend = Mapping[str, Any]


@contextmanager
def named_step(index: int, word: object) -> Iterator[None]:
    """Add the step to the message of any error raised inside."""
    try:
        yield
    except Exception as error:
        error.add_note(f"step {index} {word}")
        raise


def problems_of_form(legend: Legend, case: object) -> Iterator[str]:
    """Yield what is wrong with the form of a case."""
    if not isinstance(case, dict):
        yield f"a case is an object with a name, this is {_short(case)}"
        return
    if not isinstance(case.get("name"), str):
        yield "the case has no name"
    yield from _fields(legend, case)


def _fields(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    wanted, check = _form(legend)
    missing = [f"{field} must be {_ARTICLE[kind]}" for field, kind in wanted.items() if not _is(case.get(field), kind)]
    yield from missing
    if not missing:
        yield from check(legend, case)


def _form(legend: Legend) -> tuple[dict[str, type], Callable[[Legend, Mapping[str, Any]], Iterator[str]]]:
    if "modes" in legend and "events" in legend:
        return {"channels": int, "mode": str, "events": list, "expect": list, "asserted": dict}, _barrier_form
    if "events" in legend and "kinds" in legend:
        return {"kind": str, "given": dict, "events": list, "expect": list}, _events_form
    if "steps" in legend:
        return {"given": dict, "steps": list, "expect": list}, _steps_form
    return {"kind": str, "given": dict, "expect": dict}, _kind_form


_ARTICLE = {int: "a number", str: "a word", list: "a list", dict: "an object"}


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


# ---------------------------------------------------------------------- barrier cases


def _barrier_form(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    mode = case["mode"]
    if mode not in legend["modes"]:
        yield f"unknown mode {mode!r}; known: {', '.join(legend['modes'])}"
        return
    words = legend["events"].get(mode, legend["events"])
    for index, event in enumerate(case["events"]):
        problem = _word_problem(words, event) or _channel_problem(words, event, case["channels"])
        if problem is not None:
            yield f"step {index}: {problem}"
    unknown = sorted(set(case["asserted"]) - set(legend.get("asserted", case["asserted"])))
    if unknown:
        yield f"asserted: unknown fact {', '.join(map(repr, unknown))}"


def _channel_problem(words: Mapping[str, Any], event: list[Any], channels: int) -> str | None:
    names = words[event[0]]["args"]
    if "channel" not in names:
        return None
    channel = event[1 + names.index("channel")]
    if _is(channel, int) and 0 <= channel < channels:
        return None
    return f"{event[0]}: channel {channel!r} of {channels} channels, numbered from 0"


# ---------------------------------------------------------------------- cases of steps


def _steps_form(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    units = legend.get("units", {})
    if units and case["given"].get("unit", "coordinator") not in units:
        yield f"given: unknown unit {case['given']['unit']!r}; known: {', '.join(units)}"
    for index, step in enumerate(case["steps"]):
        problem = _word_problem(legend["steps"], step)
        if problem is not None:
            yield f"step {index}: {problem}"
    facts = {*legend.get("facts", ()), "after"}
    for entry in case["expect"]:
        after = entry.get("after") if isinstance(entry, dict) else None
        if not isinstance(after, int) or not 0 <= after < len(case["steps"]):
            yield f"expect: 'after' must be the index of one of {len(case['steps'])} steps, in {_short(entry)}"
            continue
        unknown = sorted(set(entry) - facts)
        if unknown:
            yield f"step {after}: unknown fact {', '.join(map(repr, unknown))}"


def _kind_form(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    kinds = legend.get("kinds", {})
    if case["kind"] not in kinds:
        yield f"step 0: unknown kind {case['kind']!r}; known: {', '.join(kinds)}"


def _events_form(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    yield from _kind_form(legend, case)
    for index, event in enumerate(case["events"]):
        problem = _word_problem(legend["events"], event)
        if problem is not None:
            yield f"step {index}: {problem}"
    for entry in case["expect"]:
        after = entry.get("after") if isinstance(entry, dict) else None
        if not isinstance(after, int) or not -1 <= after < len(case["events"]):
            yield f"expect: 'after' must be -1, or the index of one of {len(case['events'])} events, in {_short(entry)}"


# ---------------------------------------------------------------------- words


def _word_problem(words: Mapping[str, Any], raw: object) -> str | None:
    """Return what is wrong with `[word, argument ...]`: the word, or the number of its arguments."""
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], str):
        return f"must be [word, argument ...], this is {_short(raw)}"
    word, *args = raw
    if word not in words:
        return f"unknown word {word!r}; known: {', '.join(words)}"
    least, most = _argument_counts(words[word])
    given = len(args) - (1 if len(args) > most and isinstance(args[-1], dict) else 0)
    if least <= given <= most:
        return None
    return f"{word} takes {least} to {most} arguments, here are {given}"


def _argument_counts(description: Mapping[str, Any]) -> tuple[int, int]:
    args = description["args"]
    if all(isinstance(arg, int) for arg in args) and args:
        least, most = args
        return least, most
    return sum(not arg.endswith("?") for arg in args), len(args)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."  # noqa: PLR2004 - a line of a report


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
