"""A tick on Spark, whose warehouse is in an object store, dies by SIGKILL at each boundary. The next tick goes on.

The ticks are clients of one warm Connect server. Its tasks write to the store themselves, and go on without the client.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from jobs.reading import Cuts
from jobs.spark.connect_server import connect_server
from jobs.spark.jars import fetch, jar_set, jars_folder
from jobs.spark.session import SparkConfig, s3a_settings
from jobs.storage.address import StoreUrl
from jobs.warehouse.boundaries import KILL_VARIABLE, boundary_names
from tests.scenarios.runtime import sequence_job
from tests.scenarios.runtime.conftest import ONCE, RARE
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, build, read_cut

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(300)]

COMMITTED = "after:AppendRow#2"
RECOVERING = ("RollForward", "RollForwardCut")


def deaths(name):
    """Return where each of the processes of a case dies: in its second checkpoint, or while it recovers."""
    effect = name.split(":")[1]
    if effect in RECOVERING:
        return COMMITTED, name
    return (name if effect in ONCE else f"{name}#2",)


SHARED = ("after:RunMicroBatch", "after:AppendRow", "after:PublishTable:bronze/numbers")
"""Where a death leaves jobs, staged files or half of the publications to a server that lives on."""


def _has_it(name):
    """Return True for every boundary but those of effects that only a failed checkpoint has."""
    effect = name.split(":")[1]
    return effect in RECOVERING or effect not in RARE


CASES = [
    pytest.param(name, marks=() if name in SHARED else pytest.mark.dear)
    for name in boundary_names(build().graph)
    if _has_it(name)
]


@pytest.fixture(scope="module")
def store(store_server):
    """Let the environment of this module reach the store."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in store_server.environment.items():
            patched.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def server(store, tmp_path_factory):
    """Lend the address of a Connect server that reads s3a."""
    fetch(jars_folder(), jar_set("s3a"))
    config = SparkConfig(cores=2, memory="1g", jar_sets=("s3a",), settings=s3a_settings(os.environ))
    with connect_server(config, tmp_path_factory.mktemp("connect") / "server.log") as server:
        yield server.url


def _program(url, server, kill_at=""):
    """Run a tick in a process of its own."""
    root = str(Path(__file__).resolve().parents[3])
    return subprocess.run(
        [sys.executable, sequence_job.__file__, str(url), "--connect", server],
        env=os.environ | {"PYTHONPATH": root, KILL_VARIABLE: kill_at},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_tick_on_spark_killed_at_any_boundary_loses_nothing_in_a_store(server, undisturbed, name):
    """The tables are an undisturbed run's, and each row of bronze is there once."""
    url = StoreUrl(f"s3://lake/{uuid4().hex}/warehouse")
    for kill_at in deaths(name):
        killed = _program(url, server, kill_at)
        assert -signal.SIGKILL == killed.returncode, killed.stdout + killed.stderr
    done = _program(url, server)
    assert "caught_up" == json.loads(done.stdout.splitlines()[-1])["outcome"], done.stdout + done.stderr
    assert undisturbed == read_cut(url)
    newest = Cuts(url, JOB).latest()
    assert undisturbed == {str(table): sorted(newest.polars(str(table)).collect().rows()) for table in (BRONZE, GOLD)}
