"""Lists the tests that take long, and chooses those of them that `make test` runs. They get the mark `long`.

The choice is the same every day. A test that `make test` leaves out runs in `make test-all` only, so the choice has a
quick case of each test function and each file, if there is one.

`pytest --note-long` measures the tests of its run. It adds each test that took LONG_S seconds or more to
`long_tests.txt`, and removes each that took less. It changes nothing for tests that did not run.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

import pytest

LONG_S = 0.5
ALWAYS = (
    "tests/style/",
    "tests/spec/test_simulator.py::test_every_seed_keeps_every_invariant",
    "tests/spec/sharpness/test_sharpness.py::test_a_slip",
    "tests/spec/tla/test_model.py::test_a_small_world",
    "tests/spec/oracle/",
    "tests/scenarios/faults/test_kill_matrix.py",
    "tests/scenarios/nexmark/",
    "tests/scenarios/operators/test_windows_on_spark.py::test_a_killed_tick",
    "tests/scenarios/stores/test_released_warehouses.py",
    "tests/scenarios/test_flights.py",
    "tests/values/test_values.py::test_tables_show",
)
"""Tests that are in every run, however long they take.

These are the tests of style and a small part of each judge of the spec. On Spark, they are the tests that show most at
once: whole pipelines, kills, and warehouses of older releases.
"""
QUICK_S = 1
"""A case that takes at most this many seconds is quick."""
ONE_OF = 12
"""`make test` runs one of this many quick cases of a test function."""
NAMES = Path(__file__).with_name("long_tests.txt")
"""The file has one line for each long test, sorted by node id: its whole seconds (at least 1), a space, and the node
id."""


def long_tests() -> dict[str, int]:
    """Return a dict from the node id of each test that took long, when last measured, to its whole seconds."""
    lines = NAMES.read_text().splitlines() if NAMES.exists() else ()
    return {name: int(seconds) for seconds, name in (line.split(" ", 1) for line in lines)}


def in_every_run(seconds: Mapping[str, int]) -> set[str]:
    """Return which of these tests `make test` runs. `seconds` maps node ids to whole seconds.

    These are the quickest test of each file, and of each test function one in ONE_OF quick cases, but at least one. A
    checksum of their names orders cases that take equally long.
    """
    by_file, by_function = defaultdict(list), defaultdict(list)
    for name in sorted(seconds, key=lambda name: (seconds[name], crc32(name.encode()))):
        by_file[name.split("::")[0]].append(name)
        if seconds[name] <= QUICK_S:
            by_function[name.split("[")[0]].append(name)
    quickest = {names[0] for names in by_file.values()}
    return quickest.union(*(names[::ONE_OF] for names in by_function.values()))


class NotesLong:
    """A pytest plugin that measures tests, in any number of processes, and writes the list of long ones at the end."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the seconds of a test, without what it shares with others, such as a server's start."""
        if report.when == "call":
            self._seconds[report.nodeid] = report.duration

    def pytest_sessionfinish(self) -> None:
        NAMES.write_text(noted(long_tests(), self._seconds))


def noted(known: Mapping[str, int], measured: Mapping[str, float]) -> str:
    """Return the text of the list: the long tests of this run, and the known ones that this run did not measure."""
    slow = {name: max(1, round(seconds)) for name, seconds in measured.items() if seconds >= LONG_S}
    kept = {name: seconds for name, seconds in known.items() if name not in measured}
    found = {name: seconds for name, seconds in (slow | kept).items() if not name.startswith(ALWAYS)}
    return "".join(f"{seconds} {name}\n" for name, seconds in sorted(found.items()))
