"""Knows which tests take long, so that `make test` runs a share of them each day.

`pytest --note-long` measures: it adds each test of this run that took LONG_S seconds or more to `long_tests.txt`, and
takes each out that took less. Tests that did not run stay there or stay out.
"""

from pathlib import Path

import pytest

LONG_S = 1.5
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
        found = {name for name, seconds in self._seconds.items() if seconds >= LONG_S}
        kept = long_tests() - self._seconds.keys()
        NAMES.write_text("".join(f"{name}\n" for name in sorted(found | kept)))
