"""Tests the sources of Delta tables and cuts on an S3 server: the contract of sources, and ticks that are killed."""

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_source import DeltaSource
from jobs.storage.address import StoreUrl
from tests.object_store import KEY, SECRET
from tests.scenarios.runtime import cut_jobs
from tidemark.testing import SourceContract, SurvivesKills


@pytest.fixture(autouse=True)
def store(spark, store_server, monkeypatch):
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    settings = {
        "endpoint": store_server.endpoint,
        "endpoint.region": "us-east-1",
        "access.key": KEY,
        "secret.key": SECRET,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(f"fs.s3a.{name}", value)
    yield
    for name in settings:
        spark.conf.unset(f"fs.s3a.{name}")


pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.jars("s3a")]


def url_of(folder: Path) -> StoreUrl:
    return StoreUrl(f"s3://lake/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}")


def delta(folder: Path) -> DeltaSource:
    url = url_of(folder) / "table"
    if not DeltaTable.is_deltatable(str(url)):
        for version, rows in enumerate((4, 1, 6)):
            words = [("a b", "c%2Fd", "ü")[n % 3] for n in range(rows)]
            values = pa.table({"n": list(range(rows)), "version": [version] * rows, "word": words})
            write_deltalake(str(url), values, mode="append", partition_by=["word"])
    return DeltaSource(url)


def changes(folder: Path) -> DeltaSource:
    url = url_of(folder) / "fed"
    if not DeltaTable.is_deltatable(str(url)):
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(str(url), pa.table({"n": list(range(9)), "key": [n % 3 for n in range(9)]}), configuration=feed)
        DeltaTable(str(url)).update(updates={"key": "key + 10"}, predicate="n > 6")
        DeltaTable(str(url)).delete("n = 0")
    return DeltaSource(url, changes=True, start=0)


def cuts(folder: Path) -> CutSource:
    url = url_of(folder)
    source = CutSource(url / cut_jobs.SHOP, cut_jobs.SHOP, "silver/orders", schema=cut_jobs.schema())
    if not source._upstream.has_run:
        cut_jobs.tick(cut_jobs.SHOP, url, 30)
    return source


class TestDelta(SourceContract):
    source = staticmethod(delta)


class TestChanges(SourceContract):
    source = staticmethod(changes)


class TestCuts(SourceContract):
    """A table of another job, from cut to cut."""

    source = staticmethod(cuts)


class TestDeltaSurvives(SurvivesKills):
    """A Delta table in real ticks, into a warehouse in a folder."""

    source = staticmethod(delta)
    kills = ("before:AppendRow", "after:AppendRow#2")


class TestCutsSurvive(SurvivesKills):
    """Another job's cuts in real ticks, into a warehouse in a folder."""

    source = staticmethod(cuts)
    kills = ("after:AppendRow",)
