"""Chooses the days on which each kill test, matrix test and long test runs.

A test runs once in PERIOD days. A very long one runs less often, as LONGER says. The days are balanced: the longest
tests are placed first, and each on the days that have the fewest seconds so far.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm

PERIOD = 6
LONGER = {5: 12, 15: 24}
"""Maps a number of seconds to the period, in days, of a test that takes as long or longer."""
DAYS = lcm(PERIOD, *LONGER.values())
"""The daily selection repeats after this many days."""


@dataclass(frozen=True, slots=True)
class Rotating:
    """A test that does not run every day. `seconds` is how long it takes, in whole seconds, at least 1."""

    name: str
    seconds: int


def days_between(seconds: int) -> int:
    """Return the period, in days, of a test that takes this many seconds."""
    return max((days for least, days in LONGER.items() if seconds >= least), default=PERIOD)


def share(tests: Iterable[Rotating], day: int) -> set[str]:
    """Return the names of the tests that run on this day. Only these tests and the day decide."""
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
