"""Reads the planted bugs from the text files beside this module, and plants them.

A bug is a table of a TOML file:

- `name`: a sentence that says what goes wrong.
- `rule`: the rule that it breaks. Its judge must find it with this rule.
- `file`: the module, as a path from the root of the project.
- `change`: lines of the module (`old`), and the lines in their place (`new`). A few bugs have two changes.
- `judge`: the judge's name in `spec.bugs.judges`, or the path of a module of property tests.
- `flink`: the issues in which Flink had the bug, if any. `story` tells of a bug that Tidemark once had.
- `slow`: its judge needs more than two seconds, so `make test` does not hunt it every time.
"""

import ast
import importlib
import inspect
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import spec
from spec.bugs import planting
from spec.bugs.judges import JUDGES, Judge, by_tests
from spec.bugs.planting import CannotBePlantedError

_HERE = Path(__file__).parent
_PREFIX = spec.__name__.removesuffix("spec")


class BugDoesNotFitError(Exception):
    """A bug whose old lines are no longer in its module, or are there twice: names the bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One planted bug."""

    name: str
    rule: str
    file: str
    judge: str
    changes: tuple[tuple[str, str], ...]
    """Old lines, and the new ones."""
    flink: tuple[str, ...] = ()
    story: str = ""
    slow: bool = False

    @property
    def module(self) -> str:
        """Return the name of the module to change."""
        return _PREFIX + self.file.removesuffix(".py").replace("/", ".")

    @property
    def judged_by(self) -> Judge:
        """Return the judge that must find it."""
        return by_tests(self.judge) if self.judge.endswith(".py") else JUDGES[self.judge]


def files() -> list[Path]:
    """Return the text files, ordered by name."""
    return sorted(_HERE.glob("*.toml"))


@cache
def bugs() -> dict[str, Bug]:
    """Return all bugs by name, in the order of the files."""
    found: dict[str, Bug] = {}
    for file in files():
        for table in tomllib.loads(file.read_text(encoding="utf-8"))["bug"]:
            changes = tuple((change["old"], change["new"]) for change in table.pop("change"))
            bug = Bug(**{**table, "flink": tuple(table.get("flink", ()))}, changes=changes)
            if bug.name in found:
                raise ValueError(f"two bugs have the name {bug.name!r}")
            found[bug.name] = bug
    return found


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant a bug while the context is open. Raise BugDoesNotFitError if its module has changed."""
    module = importlib.import_module(bug.module)
    changed = replaced(bug, inspect.getsource(module))
    try:
        swaps = planting.planted(module, ast.parse(changed))
    except SyntaxError as error:
        raise BugDoesNotFitError(f"the bug {bug.name!r} no longer fits: {bug.file} would be no Python") from error
    try:
        with swaps:
            yield
    except CannotBePlantedError as error:
        raise BugDoesNotFitError(f"the bug {bug.name!r} cannot be planted: {error}") from error


def replaced(bug: Bug, source: str) -> str:
    """Return the module's source with the bug in it. Raise BugDoesNotFitError if old lines are not there once."""
    found = f"\n{source}"
    for old, new in bug.changes:
        count = found.count(f"\n{old}")
        if count != 1:
            times = "no longer has" if count == 0 else f"has {count} times"
            raise BugDoesNotFitError(f"the bug {bug.name!r} no longer fits: {bug.file} {times} these lines:\n{old}")
        found = found.replace(f"\n{old}", f"\n{new}")
    return found[1:]
