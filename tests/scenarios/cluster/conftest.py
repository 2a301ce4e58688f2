"""What the tests of a cluster share: an environment from the wheel, the cluster, and input and warehouse in a store."""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from uuid import uuid4

import polars as pl
import pytest

from jobs.pipelines import flights_data
from jobs.pipelines.flights_report import accounting
from jobs.reading import Cuts
from jobs.spark.connect_server import connect_server
from jobs.spark.jars import JARS_VARIABLE, fetch, jar_set, jars_folder
from jobs.spark.session import SparkConfig, s3a_settings
from jobs.storage.address import StoreUrl
from jobs.storage.place import place_in
from tests import spark_cluster
from tests.local_server import free_port
from tests.scenarios.modes.modes import exact, multiset
from tests.wheel_environment import with_wheel, without_this_checkout


@pytest.fixture(scope="session")
def environment(tmp_path_factory, wheel_file):
    """Return a Python environment that was made from the wheel. Each worker gets a copy of it."""
    folder = tmp_path_factory.mktemp("driver")
    with_wheel(folder, wheel_file, "connect,object-stores,suites")
    return folder / "env"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, environment, store_server):
    """Lend a cluster of two workers that share nothing. Fail with the reason if the machine cannot separate them."""
    assert "" == spark_cluster.why_not()
    folder = tmp_path_factory.mktemp("cluster")
    with spark_cluster.running(folder, environment, store_server.environment) as started:
        yield started


@dataclass(frozen=True)
class January:
    """The input in the store, and every table that the pipeline makes of it, with each row once."""

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
        """Return each table that does not hold exactly the expected rows, and how many rows it should have and has."""
        found = self.tables()
        return {
            name: (rows.total(), found[name].total())
            for name, rows in self.january.tables.items()
            if rows != found[name]
        }

    def waiting(self):
        return accounting(Cuts(self.warehouse, "flights").latest()).waiting


@pytest.fixture
def driver(cluster, environment, january, store_server, tmp_path, monkeypatch):
    """Lend an object that runs ticks on the cluster, with an empty warehouse. Kill ticks that still run at the end."""
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
    port = free_port()
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


# ------------------------------------------------------------------
# What the tests of accidents on a cluster share: a reader beside the tick, and waiting for the tick.


SMALL = ("--every-rows", "3000", "--set", "slice_rows_max=3000")
KILL_EVERY_S = 4
RESTARTS = ("--set", "restart_strategy=fixed_delay", "--set", "restart_attempts=20", "--set", "restart_delay_ms=500ms")


class Reader(threading.Thread):
    """Reads each new cut while ticks run and die. `problems` has every cut that mixes rows of two checkpoints."""

    def __init__(self, warehouse):
        super().__init__(daemon=True)
        self._warehouse = warehouse
        self._over = threading.Event()
        self.seen, self.problems = [], []

    def run(self):
        while not self._over.wait(1):
            with suppress(Exception):  # there is no cut yet, or a later one has subsumed it
                self._look()

    def _look(self):
        cut = Cuts(self._warehouse, "flights").latest()
        if self.seen and cut.checkpoint == self.seen[-1]:
            return
        counted = accounting(cut)
        golds = {
            table: cut.polars(table).select(pl.col("flights").sum()).collect().item()
            for table in ("gold/delays_by_route", "gold/delays_by_wind")
        }
        self.seen.append(cut.checkpoint)
        if not counted.balanced or {counted.silver} != set(golds.values()):
            self.problems.append((cut.checkpoint, counted, golds))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()


def ended(driver, process, within_s=400):
    assert 0 == process.wait(within_s), (driver.folder / "tick.log").read_text()[-4000:]


def until_committed(driver, process, checkpoints=1):
    while process.poll() is None:
        with suppress(Exception):
            if len(Cuts(driver.warehouse, "flights").all()) >= checkpoints:
                return
        time.sleep(0.3)
    raise AssertionError((driver.folder / "tick.log").read_text()[-4000:])


@contextmanager
def beside(process, act, every_s):
    done, over = [], threading.Event()

    def go_on():
        while not over.wait(every_s) and process.poll() is None:
            done.extend(act())

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def executors_killed(process, cluster, warehouse):
    """Kill a random executor by SIGKILL every few seconds while a tick runs. Yield the list of killed executors.

    The next executor is killed only after tasks have written something. Otherwise a slow machine would never finish.
    """
    written = [0]

    def kill_one():
        found = place_in(warehouse, "").storage.list("", deep=True)
        objects = sum("/_data/" in each.name for each in found)
        executors = cluster.executors() if objects > written[0] else []
        chosen = chance.sample(executors, min(1, len(executors)))
        written[0] = max(objects, written[0])
        for pid in chosen:
            os.kill(pid, signal.SIGKILL)
        return chosen

    chance = random.Random(1)  # noqa: S311 - which one does not matter
    return beside(process, kill_one, KILL_EVERY_S)
