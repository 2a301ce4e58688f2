"""Starts a real PostgreSQL server for the tests of its changes and of sinks, and makes a database for each test."""

import itertools

import psycopg
import pytest

from tests.postgres_server import PostgresServer
from tests.scenarios.postgres.reading import Bank

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres():
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def bank(postgres, tmp_path):
    """Return a new database with two tables of accounts, and with methods to use it."""
    name = f"bank{next(_NUMBERS)}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    made = Bank(postgres, name, tmp_path / "staged")
    yield made
    made.close()
