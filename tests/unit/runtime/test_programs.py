"""The programs that Spark starts: a wrong one is refused by name before the job is claimed."""

import stat
import sys

import pytest

from checkpointing.identifiers import job_name
from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.doctor.examination import machine_section
from jobs.spark.programs import UnfitProgramError, java, must_start_spark, worker_python
from jobs.spark.session import SparkConfig
from jobs.warehouse.warehouse import Warehouse

PIPELINE = """
from jobs.pipeline import Pipeline
from jobs.sources.hybrid import SequenceSource


def build(data):
    pipeline = Pipeline("programs")
    pipeline.source("numbers", SequenceSource({"a": 10})).table("bronze/numbers", id="bronze")
    return pipeline
"""


@pytest.fixture
def program(tmp_path):
    """Write a program of that name that prints this and ends with that code."""

    def write(path, says, code=0, without_module=False):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        refuses = 'case "$*" in *incubator*) exit 1;; esac\n' if without_module else ""
        file.write_text(f"#!/bin/sh\n{refuses}echo '{says}' >&2\nexit {code}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    return write


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a tick by the command line; return its exit code and what it complains of."""
    (tmp_path / "programs_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call():
        code = execute(["run", "programs_pipeline:build", "--warehouse", str(tmp_path / "warehouse")])
        return code, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("says", "code", "expected"),
    [
        ("no", 127, "is no working Java, and Spark needs Java 17 or 21"),
        ('openjdk version "11.0.2" 2019-01-15', 0, "is Java 11, and Spark needs 17 or 21"),
        ('java version "1.8.0_401"', 0, "is Java 1, and Spark needs 17 or 21"),
    ],
)
def test_a_java_that_spark_does_not_start_on_is_refused_before_the_claim(
    says, code, expected, program, run, tmp_path, monkeypatch
):
    """The tick names the program and what to install; nothing is written."""
    home = program("jdk/bin/java", says, code).parents[1]
    monkeypatch.setenv("JAVA_HOME", str(home))
    ended, said = run()
    assert ExitCode.FAILED == ended
    assert f"tidemark: {home}/bin/java {expected}: install a JDK 17 or 21" in said
    assert not list((tmp_path / "warehouse").rglob("*.json"))


def test_no_java_is_refused_by_the_variable_or_the_path(run, tmp_path, monkeypatch):
    """JAVA_HOME wins over PATH, as it does for Spark."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"JAVA_HOME={tmp_path} has no bin/java" in run()[1]
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no java is on PATH" in run()[1]


def test_the_version_is_read_from_the_release_file_of_the_jdk(program, monkeypatch):
    """No JVM is started for it: the program here would state another version."""
    home = program("jdk/bin/java", 'openjdk version "11"').parents[1]
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert "" == java().problem
    assert "is Java 11" in java(thorough=True).problem


def test_a_worker_python_of_another_version_or_none_is_refused(program, run, tmp_path, monkeypatch):
    """Functions travel to the workers as bytecode, so both must be one version."""
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "nowhere"))
    ended, said = run()
    assert ExitCode.FAILED == ended
    assert f"tidemark: PYSPARK_PYTHON={tmp_path}/nowhere is no program" in said
    assert f"unset PYSPARK_PYTHON, or set it to {sys.executable}" in said
    other = program("python3.9", "3.9")
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"PYSPARK_PYTHON={other} is Python 3.9, and this tick runs on {mine}: unset PYSPARK_PYTHON" in run()[1]
    assert not list((tmp_path / "warehouse").rglob("*.json"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert "" == worker_python().problem


def test_the_python_of_a_clusters_workers_need_not_be_on_this_machine(tmp_path, monkeypatch):
    """PYSPARK_PYTHON names a program on theirs. If the workers run here, it must be here."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/image/bin/python")
    with pytest.raises(UnfitProgramError, match="PYSPARK_PYTHON=/image/bin/python is no program"):
        must_start_spark()
    must_start_spark(workers_here=False)


def test_the_doctor_does_not_look_here_for_what_other_machines_have(program, tmp_path, monkeypatch):
    """A cluster has its workers' Python. A Connect server has the Java too."""
    warehouse = Warehouse(tmp_path / "not/there/yet", ProtocolPaths(job_name("flights")))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PYSPARK_PYTHON", "/image/bin/python")

    def missing(config):
        section = machine_section(warehouse, config)
        return dict(section.seen)["Java"], [finding.what.partition(" has no ")[0] for finding in section.findings]

    no_java, no_python = f"JAVA_HOME={tmp_path}/nowhere", "PYSPARK_PYTHON=/image/bin/python is no program"
    assert "none" == missing(SparkConfig())[0]
    assert no_java in missing(SparkConfig())[1]
    assert any(what.startswith(no_python) for what in missing(SparkConfig())[1])
    assert [no_java] == missing(SparkConfig(master="spark://host:7077"))[1]
    assert ("not needed: Spark runs at sc://host:15002", []) == missing(SparkConfig(connect_url="sc://host:15002"))


def test_the_doctor_knows_the_cluster_by_the_options_of_run(tmp_path, monkeypatch, capfd):
    """Or by the environment, like every command."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PYSPARK_PYTHON", "/image/bin/python")
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "warehouse"))

    def said(*words):
        execute(["doctor", "flights", *words])
        return capfd.readouterr().out

    assert "/image/bin/python is no program" in said()
    assert "/image/bin/python" not in said("--spark-master", "spark://host:7077")
    assert "not needed: Spark runs at sc://host:15002" in said("--spark-connect", "sc://host:15002")
    monkeypatch.setenv("TIDEMARK_SPARK_MASTER", "spark://host:7077")
    assert "/image/bin/python" not in said()


def test_the_doctor_finds_what_the_tick_would_refuse(program, tmp_path, monkeypatch):
    """And one thing more, for which a JVM must be started: whether it has the module that Spark needs."""
    warehouse = Warehouse(tmp_path / "not/there/yet", ProtocolPaths(job_name("flights")))
    java17 = program("jdk/bin/java", 'openjdk version "17.0.9" 2023-10-17', without_module=True)
    monkeypatch.setenv("JAVA_HOME", str(java17.parents[1]))
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "nowhere"))
    said = [finding.what for finding in machine_section(warehouse, SparkConfig()).findings]
    assert f"{java17} lacks the module jdk.incubator.vector, so Spark does not start" in said
    assert f"PYSPARK_PYTHON={tmp_path}/nowhere is no program, and Spark's workers need a Python" in said
