"""Starts a real MariaDB server for the tests of its changes, and makes a database for each test."""

import itertools

import pytest

from tests.maria_server import MariaServer
from tests.scenarios.debezium.shop import Shop

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def mariadb():
    server = MariaServer()
    yield server
    server.close()


@pytest.fixture
def own_mariadb():
    """Return a server that the test may kill or reset."""
    server = MariaServer()
    yield server
    server.close()


@pytest.fixture
def shop(mariadb, tmp_path):
    """Return a new database with two tables of accounts, and the means to use it."""
    made = Shop(mariadb, f"shop{next(_NUMBERS)}", tmp_path / "staged")
    yield made
    made.close()


@pytest.fixture
def own_shop(own_mariadb, tmp_path):
    made = Shop(own_mariadb, "own", tmp_path / "staged")
    yield made
    made.close()
