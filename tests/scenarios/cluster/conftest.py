"""What the tests of a cluster share: an environment from the wheel, the cluster, input and warehouse in a store."""

import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from uuid import uuid4

import polars as pl
import pytest

from jobs.pipelines import flights_data
from jobs.reading import Cuts
from jobs.spark.connect_server import connect_server
from jobs.spark.jars import JARS_VARIABLE, fetch, jar_set, jars_folder
from jobs.spark.session import SparkConfig, s3a_settings
from jobs.storage.address import StoreUrl
from jobs.storage.place import place_in
from tests import spark_cluster
from tests.scenarios.modes.first_days import exact, multiset
from tests.wheel_environment import with_wheel, without_this_checkout


@pytest.fixture(scope="session")
def environment(tmp_path_factory, wheel_file):
    """Return a Python environment that was made from the wheel. Each worker gets a copy of it."""
    folder = tmp_path_factory.mktemp("driver")
    with_wheel(folder, wheel_file, "s3")
    return folder / "env"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, environment, store_server):
    """Lend a cluster of two workers that share nothing. It fails by name on a machine that cannot separate them."""
    assert "" == spark_cluster.why_not()
    folder = tmp_path_factory.mktemp("cluster")
    with spark_cluster.running(folder, environment, store_server.environment) as started:
        yield started


@dataclass(frozen=True)
class January:
    """Input in the store, and every table that it makes, with each row once."""

    url: StoreUrl
    tables: dict
    flights: int


@pytest.fixture(scope="session")
def lay_out(tmp_path_factory, store_server):
    year = tmp_path_factory.mktemp("year")
    flights_data.prepare(year)

    def lay_out_files(*files):
        month, url = tmp_path_factory.mktemp("month"), StoreUrl(f"s3://lake/january-{uuid4().hex}")
        with pytest.MonkeyPatch.context() as patched:
            for name, value in store_server.environment.items():
                patched.setenv(name, value)
            put = place_in(url, "").storage.write
            for kind, airport in product(("flights", "weather"), flights_data.ORIGINS):
                (month / kind / airport).mkdir(parents=True)
                for file in files:
                    name = f"{kind}/{airport}/{file}.parquet"
                    put(name, (year / name).read_bytes())
                    shutil.copyfile(year / name, month / name)
        tables = exact(month)
        return January(url, tables, tables["bronze/flights"].total())

    return lay_out_files


@pytest.fixture(scope="session")
def january(lay_out):
    return lay_out("001", "002")


@dataclass(frozen=True)
class Driver:
    """Runs ticks of the flights on the cluster, from the environment that was made from the wheel."""

    environment: Path
    variables: dict
    folder: Path
    words: tuple
    january: January
    warehouse: StoreUrl
    started: list

    def command(self, *words):
        own = ("--warehouse", str(self.warehouse), "--data", str(self.january.url))
        return [str(self.environment / "bin/tidemark"), "run", "flights", *own, *self.words, *words]

    def on(self, url):
        return replace(self, words=("--spark-connect", url, "--spark-cores", "2"))

    def start(self, *words, **variables):
        environment = {name: value for name, value in (self.variables | variables).items() if value is not None}
        with (self.folder / "tick.log").open("wb") as log:
            self.started.append(
                subprocess.Popen(self.command(*words), cwd=self.folder, env=environment, stdout=log, stderr=log)
            )
        return self.started[-1]

    def run(self, *words, within_s=400, **variables):
        code = self.start(*words, **variables).wait(within_s)
        return code, (self.folder / "tick.log").read_text()

    def tables(self):
        cut = Cuts(self.warehouse, "flights").latest()
        return {name: multiset(cut.polars(name).collect()) for name in self.january.tables}

    def wrong(self):
        """Return the tables that do not hold exactly their rows, with a count of both."""
        found = self.tables()
        return {
            name: (rows.total(), found[name].total())
            for name, rows in self.january.tables.items()
            if rows != found[name]
        }

    def waiting(self):
        state = Cuts(self.warehouse, "flights").latest().state("silver_flights").polars()
        return state.select(pl.col("waiting").list.len().sum()).collect().item()


@pytest.fixture
def driver(cluster, environment, january, store_server, tmp_path, monkeypatch):
    """Lend what runs ticks on the cluster, with an empty warehouse. Ticks that still run at the end are killed."""
    fetch(jars_folder(), jar_set("s3a"))
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    settings = tmp_path / "conf" / "spark-defaults.conf"
    settings.parent.mkdir()
    settings.write_text("spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC\n")
    own = {
        "SPARK_CONF_DIR": str(settings.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(spark_cluster.PYTHON),
        JARS_VARIABLE: str(jars_folder().absolute()),
        **store_server.environment,
    }
    words = ("--spark-master", cluster.master, "--spark-cores", "2")
    warehouse = StoreUrl(f"s3://lake/{uuid4().hex}/warehouse")
    made = Driver(environment, without_this_checkout() | own, tmp_path, words, january, warehouse, [])
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.fixture
def serving(cluster, driver, monkeypatch):
    port = spark_cluster.free_port()
    monkeypatch.setenv("PYSPARK_PYTHON", str(spark_cluster.PYTHON))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_CONF_DIR", driver.variables["SPARK_CONF_DIR"])
    config = SparkConfig(
        master=cluster.master, cores=2, memory="1g", jar_sets=("s3a",), settings=s3a_settings(os.environ)
    )

    @contextmanager
    def lend():
        with connect_server(config, driver.folder / "server.log", port=port) as server:
            yield server

    return lend


@pytest.fixture
def client(driver, serving, tmp_path):
    without_java = tmp_path / "bin"
    without_java.mkdir()
    variables = driver.variables | {"PATH": str(without_java)}
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_CONF_DIR"):
        variables.pop(name, None)
    return replace(driver, variables=variables)
