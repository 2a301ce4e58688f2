"""The whole year of flights on a cluster that shares nothing: exact totals, also while executors are killed."""

import pytest

from jobs.pipelines.flights_report import accounting
from jobs.reading import Cuts
from tests.scenarios.cluster.conftest import Reader, ended, executors_killed

WITHIN_S = 3000
FILES = tuple(f"{number:03}" for number in range(1, 25))
"""The files of each airport's year, two for each month."""
MANY_RESTARTS = ("--set", "restart_strategy=fixed_delay", "--set", "restart_attempts=200")
COUNTED = {"bronze": 336_776, "silver": 326_433, "quarantine": 9_430, "late": 0, "waiting": 913}
"""What `tidemark run flights` says of the year in a folder, as the README shows it."""

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(WITHIN_S + 600)]


@pytest.fixture(scope="module")
def january(lay_out):
    return lay_out(*FILES)


def counted(driver):
    found = accounting(Cuts(driver.warehouse, "flights").latest())
    return {name: getattr(found, name) for name in COUNTED}


def test_the_year_of_flights_is_exact(driver):
    """Every table has each row once. Flights that are in no table wait in the state."""
    code, said = driver.run(within_s=WITHIN_S)
    assert 0 == code, said
    assert {} == driver.wrong()
    assert COUNTED == counted(driver)


def test_the_year_of_flights_is_exact_through_a_connect_server(client, serving):
    with serving() as server:
        client = client.on(server.url)
        code, said = client.run(within_s=WITHIN_S)
    assert 0 == code, said
    assert {} == client.wrong()
    assert COUNTED == counted(client)


@pytest.mark.kill
def test_the_year_is_exact_although_executors_are_killed_every_few_seconds(cluster, driver):
    """Executors are killed for the whole run. A reader of cuts never sees rows of two checkpoints mixed."""
    process = driver.start(*MANY_RESTARTS, "--set", "restart_delay_ms=500ms")
    with Reader(driver.warehouse) as reader, executors_killed(process, cluster, driver.warehouse) as killed:
        ended(driver, process, WITHIN_S)
    assert len(killed) >= 20
    assert reader.seen
    assert [] == reader.problems
    assert {} == driver.wrong()
    assert COUNTED == counted(driver)
