"""Fixtures of all scenarios: a warm Connect server for ticks in other processes, and the spec's check of traces.

Every trace that a scenario's ticks leave is replayed on the core, and no invariant may be broken.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.trace import TickBroken, TickStarted, UnreadableTraceError, read
from jobs.spark.connect_server import connect_server
from jobs.spark.session import SparkConfig
from spec.traces import judge, lines_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log_file: Path = tmp_path_factory.mktemp("connect") / "server.log"
    with connect_server(SparkConfig(cores=2, memory="1g"), log_file) as server:
        yield server.url


@pytest.fixture
def neighbour(spark: "SparkSession") -> Iterator["SparkSession"]:
    """Return the session for another program that changes small tables: with one task, and without generated code.

    Delta's projections of a log's actions are so wide that Spark takes longer to generate their code than to run them.
    """
    before = {name: spark.conf.get(name, None) for name in SMALL}
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture
def typed(capsys, monkeypatch):
    """Return a function that runs a command and returns exit code, stdout and stderr. Ticks run without Spark."""
    from jobs.cli import run as run_command
    from jobs.cli.main import execute
    from jobs.tick.tick import run_tick
    from tests.scenarios.runtime.sequence_job import LocalEngine

    monkeypatch.setattr(run_command, "run_tick", lambda *told: run_tick(*told, engine=LocalEngine()))

    def type_in(*words):
        code = execute([str(word) for word in words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return type_in


@pytest.fixture
def answered(typed):
    """Return a function like `typed`, which returns the exit code, and all output as one line."""

    def type_in(*words):
        code, out, err = typed(*words)
        return code, " ".join((out + err).split())

    return type_in


@pytest.fixture(autouse=True)
def traces_are_judged(request):
    """Judge the trace of every tick that the test ran in its own folder. A killed tick's trace may end early."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for trace in sorted(folder.rglob("_tidemark/*/traces/*.ndjson") if folder else ()):
        lines = lines_of(trace)
        if _is_of_the_core(lines):
            assert [] == judge(lines).problems, trace


def _is_of_the_core(lines):
    """Return whether the core can replay the trace.

    It cannot if a test made the tick raise, or if a kill cut off the trace's start.
    """
    try:
        entries = list(read(lines))
    except UnreadableTraceError:
        return True
    return bool(entries) and isinstance(entries[0].body, TickStarted) and not isinstance(entries[-1].body, TickBroken)
