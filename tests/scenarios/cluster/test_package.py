"""Workers that have only Python, Java and Spark run what `tidemark package` packed: a project and its packages."""

import os
import subprocess
import sys
from uuid import uuid4

import pytest

from jobs.spark.connect_server import connect_server
from jobs.spark.jars import JARS_VARIABLE, fetch, jar_set, jars_folder
from jobs.spark.session import SparkConfig, s3a_settings
from jobs.storage.address import StoreUrl
from tests import spark_cluster
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
    """Return the address of an empty warehouse in the store."""
    return StoreUrl(f"s3://lake/{uuid4().hex}/warehouse")


@pytest.fixture
def type_it(environment, store_server, tmp_path, monkeypatch):
    """Return a function that types a command in the project; it returns its code and what it said."""
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
    """Return whether every worker has unpacked the archive in a folder like this of its executors."""
    return all(
        list((worker.folder / "work").glob(f"app-*/*/{pattern}tidemark/bin/python")) for worker in cluster.workers
    )


@pytest.fixture
def archive(type_it, tmp_path):
    """Return the archive that the command packs."""
    code, said = type_it("package")
    assert 0 == code, said
    assert "stock-workers.tar.gz" in said
    assert (tmp_path / "stock-workers.tar.gz").stat().st_size < 400 << 20
    return "stock-workers.tar.gz"


def test_workers_with_only_python_run_what_was_packed(bare, type_it, archive, warehouse):
    """The tick and its project's function run there; every number is counted once."""
    where = ("--warehouse", str(warehouse), "--spark-master", bare.master, "--spark-cores", "2")
    code, said = type_it("run", *where, "--spark-archive", archive)
    assert 0 == code, said
    assert counted_once(warehouse)
    assert unpacked(bare, "")


def test_a_connect_server_takes_the_archive_from_its_client(bare, type_it, archive, warehouse, tmp_path, monkeypatch):
    """The server's own Python and packages do not count. Each session has a folder of its own on the workers."""
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
