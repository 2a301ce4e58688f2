"""A standalone cluster whose workers share nothing but the store and the network, and `tidemark run` on it."""

import re

import pytest

from tests.spark_cluster import PYTHON, ROOT

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(900)]


def test_the_workers_share_nothing_with_the_driver(cluster, driver, environment):
    """No worker sees the checkout, the driver's environment or working folder. Each has a Python of its own."""
    for worker in cluster.workers:
        for hidden in (ROOT / "pyproject.toml", environment / "bin/python", driver.folder, worker.folder):
            assert hidden.exists(), hidden
            assert not worker.sees(hidden), hidden
        assert worker.sees(PYTHON)
    assert not PYTHON.exists()
    assert 2 == len({worker.folder for worker in cluster.workers})


def test_a_month_of_flights_is_exact(driver):
    """Every table has each row once, and the other flights wait in the state."""
    code, said = driver.run()
    assert 0 == code, said
    assert {} == driver.wrong()
    silver, quarantine = (driver.january.tables[name].total() for name in ("silver/flights", "quarantine/flights"))
    assert driver.january.flights == silver + quarantine + driver.waiting()


def test_a_worker_without_the_drivers_python_is_told_what_to_name(driver, environment):
    """By default a worker runs the driver's Python by its path, which no other machine has."""
    code, said = driver.run(PYSPARK_PYTHON=None)
    assert 0 != code
    said = re.sub(r"\s+", " ", said)
    assert f"a worker has no program {environment}/bin/python: name the worker's own Python in PYSPARK_PYTHON" in said
