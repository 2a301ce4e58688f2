"""A cluster whose driver dies while flights run: the totals stay exact, and no cut is a mixture."""

import pytest

from tests.scenarios.cluster.accidents import SMALL, Reader, until_committed

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.dear, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def january(lay_out):
    """Return the first half of the month."""
    return lay_out("001")


def test_the_driver_is_killed_and_the_next_one_goes_on(driver):
    """Its executors die with it, or what they still write is never read."""
    process = driver.start(*SMALL)
    with Reader(driver.warehouse) as reader:
        until_committed(driver, process, 2)
        process.kill()
        process.wait()
        code, said = driver.run(*SMALL)
    assert 0 == code, said
    assert "generation" in said
    assert [] == reader.problems
    assert {} == driver.wrong()
