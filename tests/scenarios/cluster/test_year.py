"""The whole year of flights on a cluster that shares nothing."""

import pytest

from jobs.pipelines.flights_report import accounting
from jobs.reading import Cuts

WITHIN_S = 3000
FILES = tuple(f"{number:03}" for number in range(1, 25))
"""Each airport's year: two files a month."""
COUNTED = {"bronze": 336_776, "silver": 325_819, "quarantine": 9_430, "waiting": 1_527}
"""What `tidemark run flights` says of the year in a folder, as the README shows it."""

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(WITHIN_S + 600)]


@pytest.fixture(scope="module")
def january(lay_out):
    """Return the whole year."""
    return lay_out(*FILES)


def counted(driver):
    """Return the numbers of flights at the newest cut."""
    found = accounting(Cuts(driver.warehouse, "flights").latest())
    return {name: getattr(found, name) for name in COUNTED}


def test_the_year_of_flights_is_exact(driver):
    """Every table has each row once, and the other flights wait in the state."""
    code, said = driver.run(within_s=WITHIN_S)
    assert 0 == code, said
    assert {} == driver.wrong()
    assert COUNTED == counted(driver)
