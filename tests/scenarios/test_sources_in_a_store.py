"""Tests sources in object stores: the contract of sources, and ticks that are killed."""

import hashlib
import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.reading import Cuts
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_source import DeltaSource
from jobs.spark.jars import fetch, jar_set, jars_folder
from jobs.storage.address import StoreUrl, parsed
from jobs.storage.place import place_in
from jobs.warehouse.boundaries import KILL_VARIABLE
from tests.cloud_stores import STORES
from tests.object_store import KEY, SECRET
from tests.scenarios.runtime import cut_jobs
from tidemark.testing import SourceContract, SurvivesKills


@pytest.fixture
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


@pytest.mark.usefixtures("store")
class TestDelta(SourceContract):
    source = staticmethod(delta)


@pytest.mark.usefixtures("store")
class TestChanges(SourceContract):
    source = staticmethod(changes)


@pytest.mark.usefixtures("store")
class TestCuts(SourceContract):
    """A table of another job, read cut by cut."""

    source = staticmethod(cuts)


@pytest.mark.usefixtures("store")
class TestDeltaSurvives(SurvivesKills):
    """A Delta table in real ticks, into a warehouse in a folder."""

    source = staticmethod(delta)
    kills = ("before:AppendRow", "after:AppendRow#2")


@pytest.mark.usefixtures("store")
class TestCutsSurvive(SurvivesKills):
    """Another job's cuts in real ticks, into a warehouse in a folder."""

    source = staticmethod(cuts)
    kills = ("after:AppendRow",)


# ------------------------------------------------------------------
# Input in an object store, read by Spark or by its tasks: `tidemark run --data URL`, against real servers.


SHOP = """
import os
from pyspark.sql.types import LongType, StringType, StructType
from tidemark import CheckpointConfig, FileSource, Pipeline, count, sum_of

ORDERS = StructType().add("n", LongType()).add("city", StringType())


def build(data):
    pipeline = Pipeline("shop", config=CheckpointConfig(every_rows=40, slice_rows_max=25), parallelism=2)
    orders = pipeline.source("parquet", FileSource(data / "parquet", ORDERS))
    parquet = orders.table("bronze/parquet", id="bronze_parquet")
    if "WITH_CSV" in os.environ:
        texts = FileSource(data / "csv", ORDERS, format="csv", glob="**/*.csv", one_split=True)
        pipeline.source("csv", texts).table("bronze/csv", id="bronze_csv")
    by_city = parquet.where("n >= 10").key_by("city")
    by_city.aggregate("sums", orders=count(), total=sum_of("n")).upsert("gold/sums")
    return pipeline
"""


@pytest.fixture
def lake(each_store, monkeypatch):
    if each_store.url().startswith("s3://"):
        fetch(jars_folder(), jar_set("s3a"))
    for name, value in each_store.environment.items():
        monkeypatch.setenv(name, value)
    return parsed(f"{each_store.url()}/{uuid4().hex}")


@pytest.fixture
def run(lake, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)

    def type_it(**environment):
        words = [sys.executable, "-m", "tidemark", "run", "shop:build", "--data", str(lake / "in")]
        return subprocess.run(
            [*words, "--warehouse", str(lake / "warehouse")],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return type_it


@pytest.mark.kill
def test_rows_of_objects_are_read_once_whatever_the_objects_are_called(lake, run, monkeypatch):
    """A tick is killed, the next one goes on, and a later one reads a new object. Each row has its own position.

    Spark reads from S3. From other stores, tasks read the Parquet files, even if Spark's steps follow, and Spark needs
    no jar.
    """
    if lake.scheme == "s3":
        monkeypatch.setenv("WITH_CSV", "yes")
    put = place_in(lake / "in", "").storage.write
    names = ("berlin/1.parquet", "berlin/a b=ü.parquet", "paris/{x}*.parquet")
    for number, name in enumerate(names):
        put(f"parquet/{name}", _parquet(range(100 * number, 100 * number + 30)))
    put("csv/2026/11/1.csv", "".join(f"{n},berlin\n" for n in range(50)).encode())
    assert -signal.SIGKILL == run(**{KILL_VARIABLE: "after:AppendRow#2"}).returncode
    done = run()
    assert 0 == done.returncode, done.stderr
    put("parquet/berlin/0.parquet", _parquet(range(900, 910)))
    done = run()
    assert 0 == done.returncode, done.stderr

    cut = Cuts(lake / "warehouse", "shop").latest()
    bronze = cut.polars("bronze/parquet").collect()
    there = [*range(30), *range(100, 130), *range(200, 230), *range(900, 910)]
    assert there == sorted(bronze["n"])
    assert len(there) == len(set(bronze.select("_split", "_position").rows()))
    if "bronze/csv" in cut.tables:
        assert list(range(50)) == sorted(cut.polars("bronze/csv").collect()["n"])
    summed = [n for n in there if n >= 10]
    assert [("w", len(summed), sum(summed))] == cut.polars("gold/sums").collect().rows()


@pytest.mark.parametrize("each_store", STORES[1:], indirect=True)
def test_a_format_that_only_spark_reads_is_one_sentence_where_spark_has_no_reader(lake, run):
    put = place_in(lake / "in", "").storage.write
    put("csv/2026/11/1.csv", b"1,berlin\n")
    put("parquet/berlin/1.parquet", _parquet([1]))
    done = run(WITH_CSV="yes")
    assert 1 == done.returncode
    assert "Spark has no reader for the object store in which the input lies: add Hadoop's connector" in done.stderr
    assert "Traceback" not in done.stderr


def _parquet(numbers):
    sink = BytesIO()
    pq.write_table(pa.table({"n": numbers, "city": ["w"] * len(numbers)}), sink)
    return sink.getvalue()
