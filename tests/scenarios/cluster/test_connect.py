"""A Connect server on a cluster that shares nothing: a client without Java, and a server that is killed."""

import os
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest

from jobs.spark.connect_server import connect_server
from jobs.spark.object_stores import s3a_settings
from jobs.spark.session import SparkConfig
from tests.scenarios.cluster.accidents import RESTARTS, SMALL, Reader, ended, until_committed
from tests.spark_cluster import PYTHON, free_port

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.dear, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def january(lay_out):
    """Return the first half of the month."""
    return lay_out("001")


@pytest.fixture
def serving(cluster, driver, monkeypatch):
    """Return a function that lends a Connect server on the cluster, at one port."""
    port = free_port()
    monkeypatch.setenv("PYSPARK_PYTHON", str(PYTHON))
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
    """Return what runs ticks without Java, on a Connect server."""
    without_java = tmp_path / "bin"
    without_java.mkdir()
    variables = driver.variables | {"PATH": str(without_java)}
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_CONF_DIR"):
        variables.pop(name, None)
    return replace(driver, variables=variables)


def test_a_killed_connect_server_comes_back_and_the_tick_goes_on(client, serving):
    """The client has no Java. Its restart strategy waits for the server, which something starts anew at its port."""
    with serving() as server:
        client = replace(client, words=("--spark-connect", server.url, "--spark-cores", "2"))
        process = client.start(*SMALL, *RESTARTS)
        with Reader(client.warehouse) as reader:
            until_committed(client, process)
            os.kill(server.pid, signal.SIGKILL)
            with serving():
                ended(client, process)
    assert reader.seen
    assert [] == reader.problems
    assert {} == client.wrong()
    assert "restart" in (client.folder / "tick.log").read_text()
