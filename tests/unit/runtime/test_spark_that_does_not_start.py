"""Spark that cannot be had is one sentence with the way out: no JVM, no memory, no Connect server (K1)."""

import subprocess
import sys
import time

import pytest

from checkpointing.messages import TickOutcome
from jobs.spark import session
from jobs.spark.session import SparkConfig
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from tests.scenarios.runtime.sequence_job import build

OPEN = """
import sys
from pathlib import Path
from jobs.spark.session import SparkConfig, SparkNotStartedError, open_session
try:
    open_session(SparkConfig(memory=sys.argv[1], log_file=Path(sys.argv[2])))
except SparkNotStartedError as error:
    print(error)
"""
BROKEN = '#!/bin/sh\necho "Error: LinkageError occurred" >&2\nexit 1\n'


def said(tmp_path, memory="1g", **environment) -> str:
    """Return what a process says that opens a session with this heap and environment."""
    words = [sys.executable, "-c", OPEN, memory, tmp_path / "spark.log"]
    path = "/usr/bin:/bin"
    return subprocess.run(
        words, env={"PATH": path, "HOME": str(tmp_path), **environment}, capture_output=True, text=True, check=False
    ).stdout


@pytest.mark.timeout(120)
def test_a_heap_that_the_machine_does_not_have_is_named(tmp_path):
    """The JVM says so on stdout, which belongs to the command's report. Nothing else is printed there."""
    (line,) = said(tmp_path, "900000g").splitlines()
    assert "Spark's JVM did not start (" in line
    assert "--spark-memory (now 900000g)" in line


@pytest.mark.timeout(120)
def test_a_java_that_does_not_run_is_named(tmp_path):
    assert "JAVA_HOME is /nowhere" in said(tmp_path, JAVA_HOME="/nowhere")
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(BROKEN)
    java.chmod(0o755)
    line = said(tmp_path, JAVA_HOME=str(tmp_path / "jdk"))
    assert "LinkageError occurred" in line
    assert f"let JAVA_HOME name a JDK 17 or 21 (JAVA_HOME is {tmp_path / 'jdk'})" in line


@pytest.mark.timeout(120)
def test_a_connect_server_that_does_not_answer_ends_the_tick_soon_and_its_token_is_nowhere(tmp_path, monkeypatch):
    """PySpark itself would ask for ten minutes. The message, the trace and the entries name the server alone."""
    monkeypatch.setattr(session, "CONNECT_S", 0.5)
    spark = SparkConfig(connect_url="sc://127.0.0.1:9/;token=geheim;x-mine=verborgen")
    begun = time.monotonic()
    report = run_tick(build(), RuntimeSettings(warehouse=tmp_path, spark=spark))
    assert time.monotonic() - begun < 40
    assert TickOutcome.FAILED is report.outcome
    sentence = report.message.splitlines()[0]
    assert "the Spark Connect server sc://127.0.0.1:9/;token=***;x-mine=*** did not answer within" in sentence
    assert "geheim" not in report.message
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"geheim" not in written
    assert b"verborgen" not in written
