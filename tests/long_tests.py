"""Knows which tests take long. They get the mark `long`, and `make test` runs a share of them, another one each day.

A long test runs on one of PERIOD days, and a very long one on fewer. `pytest --note-long` measures: it adds each test
of this run that took LONG_S seconds or more to `long_tests.txt`, and takes each out that took less. Tests that did not
run stay there or stay out.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

LONG_S = 0.5
PERIOD = 3
LONGER = {5: 9, 15: 18}
"""The days between two runs of a test that takes so many seconds or more."""
ALWAYS = (
    "tests/style/",
    "tests/spec/test_simulator.py::test_every_seed_keeps_every_invariant",
    "tests/spec/sharpness/test_sharpness.py::test_a_slip",
    "tests/spec/tla/test_model.py::test_a_small_world",
    "tests/spec/oracle/",
)
"""Tests that every run has, however long they take: style, and a small part of each way in which the spec looks."""
NAMES = Path(__file__).with_name("long_tests.txt")
"""A line for each test, in order: its seconds, at least 1, a space, and its node id."""


def long_tests() -> dict[str, int]:
    """Return the tests that took long when they were last measured, by node id, each with its whole seconds."""
    lines = NAMES.read_text().splitlines() if NAMES.exists() else ()
    return {name: int(seconds) for seconds, name in (line.split(" ", 1) for line in lines)}


def days_between(seconds: int) -> int:
    """Return on which one of so many days a long test runs."""
    return max((days for least, days in LONGER.items() if seconds >= least), default=PERIOD)


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
        """Write the tests."""
        NAMES.write_text(noted(long_tests(), self._seconds))


def noted(known: Mapping[str, int], measured: Mapping[str, float]) -> str:
    """Return the text that lists the long tests: those of this run, and those known of which nothing was measured."""
    slow = {name: max(1, round(seconds)) for name, seconds in measured.items() if seconds >= LONG_S}
    kept = {name: seconds for name, seconds in known.items() if name not in measured}
    found = {name: seconds for name, seconds in (slow | kept).items() if not name.startswith(ALWAYS)}
    return "".join(f"{seconds} {name}\n" for name, seconds in sorted(found.items()))
