"""Workers that have only Python, Java and Spark run what `tidemark package` packed: a project and its packages."""

import os
import re
import subprocess
import sys
from uuid import uuid4

import pytest

from jobs.spark.connect_server import connect_server
from jobs.spark.jars import JARS_VARIABLE, fetch, jar_set, jars_folder
from jobs.spark.session import SparkConfig, s3a_settings
from jobs.storage.address import StoreUrl
from tests import spark_cluster
from tests.spark_cluster import PYTHON, ROOT
from tests.stock_project import counted_once, write_project
from tests.wheel_environment import UV, run, without_this_checkout

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(900)]


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
def warehouse():
    return StoreUrl(f"s3://lake/{uuid4().hex}/warehouse")


@pytest.fixture
def type_it(environment, store_server, tmp_path, monkeypatch):
    fetch(jars_folder(), jar_set("s3a"))
    write_project(tmp_path)
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


def unpacked(cluster, pattern):
    return all(
        list((worker.folder / "work").glob(f"app-*/*/{pattern}tidemark/bin/python")) for worker in cluster.workers
    )


@pytest.fixture
def archive(type_it, tmp_path):
    code, said = type_it("package")
    assert 0 == code, said
    assert "stock-workers.tar.gz" in said
    assert (tmp_path / "stock-workers.tar.gz").stat().st_size < 400 << 20
    return "stock-workers.tar.gz"


def test_workers_with_only_python_run_what_was_packed(bare, type_it, archive, warehouse):
    """The tick and a function of the project run on these workers, and every number is counted once."""
    where = ("--warehouse", str(warehouse), "--spark-master", bare.master, "--spark-cores", "2")
    code, said = type_it("run", *where, "--spark-archive", archive)
    assert 0 == code, said
    assert counted_once(warehouse)
    assert unpacked(bare, "")


def test_a_connect_server_takes_the_archive_from_its_client(bare, type_it, archive, warehouse, tmp_path, monkeypatch):
    """The server's own Python and packages are not used. Each session has a folder of its own on the workers."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    settings = s3a_settings(os.environ)
    config = SparkConfig(master=bare.master, cores=2, memory="1g", jar_sets=("s3a",), settings=settings)
    with connect_server(config, tmp_path / "server.log") as server:
        where = ("--warehouse", str(warehouse), "--spark-connect", server.url, "--spark-cores", "2")
        code, said = type_it("run", *where, "--spark-archive", archive)
    assert 0 == code, said
    assert counted_once(warehouse)
    assert unpacked(bare, "*/")


# ------------------------------------------------------------------
# A standalone cluster whose workers share nothing but the store and the network, and `tidemark run` on it.


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
    """Every table has each row once. Flights that are in no table wait in the state."""
    code, said = driver.run()
    assert 0 == code, said
    assert {} == driver.wrong()
    silver, quarantine = (driver.january.tables[name].total() for name in ("silver/flights", "quarantine/flights"))
    assert driver.january.flights == silver + quarantine + driver.waiting()


def test_a_worker_without_the_drivers_python_is_told_what_to_name(driver, environment):
    """By default a worker runs Python at the driver's path, and no other machine has that path."""
    code, said = driver.run(PYSPARK_PYTHON=None)
    assert 0 != code
    said = re.sub(r"\s+", " ", said)
    assert f"a worker has no program {environment}/bin/python: name the worker's own Python in PYSPARK_PYTHON" in said
