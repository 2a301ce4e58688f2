"""Knows which tests take long. They get the mark `long`, and `make test` runs a quarter of them, another one each day.

`pytest --note-long` measures: it adds each test of this run that took LONG_S seconds or more to `long_tests.txt`, and
takes each out that took less. Tests that did not run stay there or stay out.
"""

from pathlib import Path

import pytest

LONG_S = 1.0
ALWAYS = (
    "tests/style/",
    "tests/spec/test_simulator.py::test_every_seed_keeps_every_invariant",
    "tests/spec/sharpness/test_sharpness.py::test_a_slip",
    "tests/spec/tla/test_model.py::test_a_small_world",
    "tests/spec/oracle/",
)
"""Tests that every run has, however long they take: style, and a small part of each way in which the spec looks."""
NAMES = Path(__file__).with_name("long_tests.txt")
"""The node ids, one in each line, in order."""


def long_tests() -> frozenset[str]:
    """Return the node ids of the tests that took long when they were last measured."""
    return frozenset(NAMES.read_text().splitlines()) if NAMES.exists() else frozenset()


class NotesLong:
    """A pytest plugin that measures tests, also those of several processes, and writes the long ones at the end."""

    def __init__(self) -> None:
        """Begin without any test."""
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the seconds of a test. What it shares with others, such as a server's start, is not counted."""
        if report.when == "call":
            self._seconds[report.nodeid] = report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the names."""
        slow = (name for name, seconds in self._seconds.items() if seconds >= LONG_S)
        found = {name for name in slow if not name.startswith(ALWAYS)}
        kept = long_tests() - self._seconds.keys()
        NAMES.write_text("".join(f"{name}\n" for name in sorted(found | kept)))
