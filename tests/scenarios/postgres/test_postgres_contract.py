"""Tests that PostgresChanges keeps the promises of a source, even if ticks or the server are killed."""

import itertools
import json
import os
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.dying_server import dying
from tests.postgres_server import PostgresServer
from tests.scenarios.postgres.reading import Bank
from tidemark import PostgresChanges
from tidemark.testing import SourceContract, SurvivesKills

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark", "served")]

TOLD = "postgres.json"
SERVED: list[PostgresServer] = []
"""The server that this process uses. A tick that runs in another process finds the server's address in a file."""
BANKS: list[Bank] = []
_NUMBERS = itertools.count(1)


@pytest.fixture
def served(postgres):
    """Enable the source to find the server, and drop the source's slots afterwards."""
    SERVED[:] = [postgres]
    yield
    for bank in BANKS:
        bank.connection.close()  # may not have noticed that the server was killed
        bank.close()
    BANKS.clear()
    SERVED.clear()


def bank(folder: Path) -> PostgresChanges:
    """Return the source over a database that the first call makes: a snapshot, then transactions of several sizes."""
    told = folder / TOLD
    if not told.exists():
        name = f"contract{os.getpid()}_{next(_NUMBERS)}"
        with psycopg.connect(SERVED[0].url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        made = Bank(SERVED[0], name, folder / "staged")
        BANKS.append(made)
        source = made.source(slot=name)
        source.lag({})  # this takes the snapshot, so what follows comes as changes
        source.close()
        for number in range(1, 6):
            made.sql(f"UPDATE giro SET balance = balance + 1 WHERE id <= {number}")
        made.sql("UPDATE giro SET id = 30 WHERE id = 10")
        made.sql("DELETE FROM savings WHERE id < 3")
        made.sql("INSERT INTO savings VALUES (11, 5)")
        told.write_text(json.dumps({"url": SERVED[0].url(name), "publication": "bank", "slot": name}))
    return PostgresChanges(**json.loads(told.read_text()), staged=folder / "staged", snapshot="parts")


@pytest.mark.dear
class TestPostgres(SourceContract):
    """The source gives the same rows for ever, in polls of any size."""

    source = staticmethod(bank)
    may_exceed = True


def test_slices_of_any_size_hold_the_same_rows(tmp_path):
    """Each run of the tests checks this promise, with a snapshot and transactions of one row and of several rows."""
    TestPostgres().test_slices_of_any_size_hold_the_same_rows(tmp_path)


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestPostgresAndKillsOfReading(SurvivesKills):
    """Ticks die while they read and write."""

    source = staticmethod(bank)
    may_exceed = True
    kills = tuple(
        f"{side}:{step}" for step in ("Claim", "PollSource#2", "RunMicroBatch") for side in ("before", "after")
    )


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestPostgresAndKillsOfCommitting(SurvivesKills):
    """Ticks die while they commit a checkpoint, and while they move the slot after it."""

    source = staticmethod(bank)
    may_exceed = True
    kills = tuple(
        f"{side}:{step}"
        for step in ("AppendRow", "PublishTable", "RecordCut", "NotifyComplete")
        for side in ("before", "after")
    )


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestPostgresAndKillsOfTheServer(SurvivesKills):
    """The server dies in each tick and comes back. Some of these ticks are killed too."""

    source = staticmethod(bank)
    may_exceed = True
    kills = ("after:RunMicroBatch", "after:AppendRow")

    @contextmanager
    def around(self, trial):
        with dying(SERVED[0], trial.warehouse):
            yield
