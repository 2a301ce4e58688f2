"""Each rotating test runs once in its period, and the days are balanced."""

import pytest

from tests.long_tests import long_tests
from tests.shares import DAYS, LONGER, PERIOD, Rotating, days_between, share


@pytest.fixture(scope="module")
def rotating() -> list[Rotating]:
    """Return the long tests of this checkout, and 1,000 invented tests of one second."""
    long = [Rotating(name, seconds) for name, seconds in long_tests().items()]
    return [*long, *(Rotating(f"a short one, number {number}", 1) for number in range(1000))]


def test_every_test_runs_once_in_its_period(rotating):
    """In any consecutive days that are as many as its period, each test runs exactly once."""
    todays = [share(rotating, day) for day in range(2 * DAYS)]
    for test in rotating:
        runs = [day for day in range(2 * DAYS) if test.name in todays[day]]
        period = days_between(test.seconds)
        assert runs, test.name
        assert runs == list(range(runs[0], 2 * DAYS, period)), test.name
        assert runs[0] < period, test.name


def test_no_day_is_much_longer_than_another(rotating):
    """The longest day has at most a tenth more seconds than the shortest."""
    todays = [share(rotating, day) for day in range(DAYS)]
    busy_s = [sum(test.seconds for test in rotating if test.name in todays[day]) for day in range(DAYS)]
    assert max(busy_s) <= 1.1 * min(busy_s), busy_s


def test_a_share_does_not_depend_on_the_order(rotating):
    """Processes that collect in another order run the same tests."""
    assert share(rotating, 20_785) == share(reversed(rotating), 20_785)


@pytest.mark.parametrize(
    ("seconds", "days"), [(1, PERIOD), (4, PERIOD), (5, LONGER[5]), (14, LONGER[5]), (15, LONGER[15])]
)
def test_a_very_long_test_runs_less_often(seconds, days):
    """A test of exactly 5 or 15 seconds gets the longer period."""
    assert days_between(seconds) == days
