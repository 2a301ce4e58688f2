"""Workers that have only Python, Java and Spark run what `tidemark package` packed: a project and its packages."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from jobs.reading import Cuts
from jobs.spark.jars import JARS_VARIABLE, fetch, jar_set, jars_folder
from jobs.storage.address import StoreUrl
from tests import spark_cluster
from tests.wheel_environment import UV, run, without_this_checkout

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(900)]

PROJECT = {
    "pyproject.toml": '[tool.tidemark.pipelines]\nstock = "stock:build"\n',
    "totals.py": """
import polars as pl
from pyspark.sql.types import LongType, StructField, StructType
from tidemark import Processed

TOTAL = StructType([StructField("total", LongType())])
KEY_AND_TOTAL = StructType([StructField("key", LongType()), *TOTAL])


class Totals:
    def process(self, inputs, state):
        changed = inputs[0].group_by("key").agg(total=pl.len().cast(pl.Int64))
        both = pl.concat([state, changed]).group_by("key").agg(pl.col("total").sum())
        return Processed(both, both)
""",
    "stock.py": """
from tidemark import Pipeline, SequenceSource

from totals import KEY_AND_TOTAL, TOTAL, Totals


def build(data):
    pipeline = Pipeline("stock", parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource({"all": 700}, keys=7)).table("bronze/numbers", id="bronze")
    numbers.key_by("key").process("totals", Totals(), state=TOTAL, output=KEY_AND_TOTAL).upsert("gold/totals")
    return pipeline
""",
}
"""A project whose keyed function goes to the workers by the name of its module."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory, environment, store_server):
    """Lend a cluster whose workers have a Python without any package, and Spark beside it."""
    assert "" == spark_cluster.why_not()
    folder = tmp_path_factory.mktemp("bare")
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "env", cwd=folder)
    spark = spark_cluster.spark_home(environment)
    with spark_cluster.running(folder, folder / "env", store_server.environment, spark=spark) as started:
        yield started


@pytest.fixture
def type_it(environment, store_server, tmp_path, monkeypatch):
    """Return a function that types a command in the project; it returns its code and what it said."""
    fetch(jars_folder(), jar_set("s3a"))
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    own = {"SPARK_LOCAL_IP": "127.0.0.1", JARS_VARIABLE: str(jars_folder().absolute()), **store_server.environment}

    def call(*words):
        done = subprocess.run(
            [environment / "bin/tidemark", *words],
            cwd=tmp_path,
            env=without_this_checkout() | own,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        return done.returncode, done.stdout + done.stderr

    return call


def test_workers_with_only_python_run_what_was_packed(bare, type_it, tmp_path):
    """The tick and its project's function run there; every number is counted once."""
    code, said = type_it("package")
    assert 0 == code, said
    assert "stock-workers.tar.gz" in said
    warehouse = StoreUrl(f"s3://lake/{uuid4().hex}/warehouse")
    where = ("--warehouse", str(warehouse), "--spark-master", bare.master, "--spark-cores", "2")
    code, said = type_it("run", *where, "--spark-archive", "stock-workers.tar.gz")
    assert 0 == code, said
    totals = Cuts(warehouse, "stock").latest().polars("gold/totals").collect()
    assert (7, 700) == (totals.height, totals["total"].sum())
    assert all(list((worker.folder / "work").glob("app-*/*/tidemark/bin/python")) for worker in bare.workers)
    assert Path(tmp_path / "stock-workers.tar.gz").stat().st_size < 400 << 20
