"""Overwrite tables, and append tables whose columns change, in a warehouse on a real S3 server."""

from uuid import uuid4

import pytest

from jobs.reading import Cuts
from jobs.storage.address import StoreUrl
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.cleaning import clean_up
from tests.scenarios.runtime import newest_job
from tests.scenarios.runtime.kept_job import AGAIN, BACK, DROPPED, JOB, RENAMED, TABLE, at, newest, numbers, tick

HALF = 20


@pytest.fixture
def url(store_server, monkeypatch):
    """Return an empty warehouse's URL; the environment reaches the server."""
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return StoreUrl(f"s3://lake/{uuid4().hex}/warehouse")


def rows(url, *names):
    """Return these columns of the newest cut, sorted by n."""
    return Cuts(url, JOB).latest().polars(TABLE).collect().select(names).sort("n").rows()


def test_columns_of_an_append_table_change_in_a_store(url):
    """Renamed twice, rolled back and dropped. Old cuts keep their names, and a clean-up deletes no file of theirs."""
    tick(url, HALF)
    first = newest(url).checkpoint
    tick(url, HALF + 2, RENAMED)
    assert numbers(range(HALF + 2)) == rows(url, "n", "amount")
    tick(url, HALF + 3, AGAIN)
    clean_up(at(url), grace_ms=0)
    assert (
        numbers(range(HALF)) == Cuts(url, JOB).at(first).polars(TABLE).collect().select("n", "value").sort("n").rows()
    )
    assert numbers(range(HALF + 3)) == rows(url, "n", "sum")
    roll_back(at(url), first)
    assert numbers(range(HALF)) == rows(url, "n", "value")
    tick(url, HALF + 4, RENAMED)
    tick(url, HALF + 5, BACK)
    assert numbers(range(HALF + 5)) == rows(url, "n", "value")
    tick(url, HALF + 6, DROPPED)
    assert ["key", "n"] == sorted(Cuts(url, JOB).latest().polars(TABLE).collect().columns)
    assert HALF + 6 == len(rows(url, "n"))


def test_an_overwrite_table_in_a_store_goes_on_after_a_rollback(url):
    """It shows the rows of the greatest version, as in a folder."""
    newest_job.tick(url, HALF)
    first = Cuts(url, newest_job.JOB).latest().checkpoint
    assert newest_job.expected(HALF) == newest_job.shown(url)
    newest_job.tick(url, 2 * HALF)
    assert newest_job.expected(2 * HALF) == newest_job.shown(url)
    clean_up(newest_job.at(url), grace_ms=0)
    roll_back(newest_job.at(url), first)
    assert newest_job.expected(HALF) == newest_job.shown(url)
    newest_job.tick(url, 3 * HALF)
    assert newest_job.expected(3 * HALF) == newest_job.shown(url)
