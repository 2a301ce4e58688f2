"""Decides on which days each of the kills, matrices and long tests runs.

A test runs on one of PERIOD days. A very long one runs less often, as LONGER says. No day is much longer than another:
the longest tests choose first, and each takes the days that have least to do so far.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm

PERIOD = 6
LONGER = {5: 12, 15: 24}
"""From this many seconds on (key), a test runs on one of this many days (value)."""
DAYS = lcm(PERIOD, *LONGER.values())
"""After this many days, all tests run in the same order again."""


@dataclass(frozen=True, slots=True)
class Rotating:
    """A test that does not run every day, with its whole seconds."""

    name: str
    seconds: int


def days_between(seconds: int) -> int:
    """Return n for a test that runs on one of n days."""
    return max((days for least, days in LONGER.items() if seconds >= least), default=PERIOD)


def share(tests: Iterable[Rotating], day: int) -> set[str]:
    """Return the names of the tests that run on this day. Nothing else decides, so a run can be repeated."""
    busy_s = [0] * DAYS
    todays = set()
    for test in sorted(tests, key=lambda test: (-test.seconds, test.name)):
        period = days_between(test.seconds)
        first = min(range(period), key=lambda first: sum(busy_s[first::period]))
        for its_day in range(first, DAYS, period):
            busy_s[its_day] += test.seconds
        if day % period == first:
            todays.add(test.name)
    return todays
