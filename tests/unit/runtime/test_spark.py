"""Tests the Spark session of a tick: its settings, memory, jars, messages, and a start that fails."""

import hashlib
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from unittest.mock import MagicMock

import pyarrow as pa
import pyspark
import pytest

from checkpointing.identifiers import job_name
from checkpointing.messages import RunMicroBatch, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.distribution import versions
from jobs.doctor.examination import machine_section
from jobs.operators.execute import MicroBatch, MicroBatchError
from jobs.operators.reports import TaskReport, report_batch
from jobs.sources.committed_positions import CommitsToFile
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import with_needed_jars
from jobs.spark import jars, session
from jobs.spark.jars import (
    DELTA,
    JAR_SETS,
    JARS_VARIABLE,
    KAFKA,
    JarsError,
    JarSet,
    delta_jars,
    fetch,
    jar_set,
    jars_of,
    not_fetched,
    sets_of,
)
from jobs.spark.programs import UnfitProgramError, java, must_start_spark, worker_python
from jobs.spark.session import (
    ENABLED,
    FOLDER,
    JVM_OPTIONS,
    SparkConfig,
    classic_settings,
    places,
    private_folder,
    socket_settings,
)
from jobs.state.worker_copy import NO_USES
from jobs.tick import class_archive, engine
from jobs.tick.class_archive import ArchiveNotMadeError, make_archive
from jobs.tick.engine import fetch_missing_jars
from jobs.tick.listener import JarsFetching, TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime.sequence_job import build

CONTENT = b"a jar"
SMALL = JarSet(
    name="small", serves="Small", coordinates=("a:a:1",), locked={"a-1.jar": hashlib.sha256(CONTENT).hexdigest()}
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path / "jars"))
    monkeypatch.setitem(JAR_SETS, "small", SMALL)
    return tmp_path / "jars"


def brings(monkeypatch, name, content):
    def resolve(ivy, _jars):
        (ivy / name).write_bytes(content)
        return {name: ivy / name}

    monkeypatch.setattr(jars, "_resolve", resolve)


@pytest.mark.parametrize(
    ("wanted", "command"), [(DELTA, "Delta jars with '.*-m jobs.spark.jars'"), (KAFKA, "Kafka .*spark.jars kafka'")]
)
def test_missing_jars_name_the_command_that_fetches_them(folder, wanted, command):
    """A session without its jars must fail before the JVM starts."""
    with pytest.raises(JarsError, match=rf"\.jar is missing: fetch the {command}"):
        jars_of(sets_of("4.2")[wanted])


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("3.5", []),
        ("4.0", ["delta", "kafka", "s3a"]),
        ("4.1", ["delta", "kafka", "s3a"]),
        ("4.2", ["delta", "kafka", "s3a"]),
        ("4.3", ["kafka", "s3a"]),
    ],
)
def test_each_spark_has_jars_of_its_own(release, names):
    """For each package that is named, the jar of that version is locked."""
    found = sets_of(release)
    assert [*names, "debezium"] == list(found)
    named = [(*coordinate.split(":"), each.locked) for each in found.values() for coordinate in each.coordinates]
    assert [] == [artifact for _, artifact, number, locked in named if f"{artifact}-{number}.jar" not in locked]
    assert {release} == {release, *re.findall(r"delta-spark_([\d.]+)_", str(found))}


def test_a_spark_without_delta_jars_says_what_still_reads_its_tables(monkeypatch):
    """Delta publishes its jars some months after Spark."""
    monkeypatch.setattr(jars, "JAR_SETS", {name: each for name, each in JAR_SETS.items() if name != "delta"})
    with pytest.raises(JarsError, match=r"Delta has no jars for Spark 4\.\d, .*: read them with Polars, Arrow or Duck"):
        delta_jars()


def test_fetched_jars_are_found_and_not_fetched_twice(folder, monkeypatch):
    assert (SMALL,) == not_fetched(["small"])
    brings(monkeypatch, "a-1.jar", CONTENT)
    assert 1 == fetch(folder, SMALL)
    assert (folder / "a-1.jar",) == jars_of(SMALL)
    assert () == not_fetched(["small"])
    monkeypatch.setattr(jars, "_resolve", None)
    assert 0 == fetch(folder, SMALL)
    assert ["a-1.jar"] == [path.name for path in folder.iterdir()]


def test_a_jar_of_another_content_is_never_used(folder, monkeypatch):
    """A jar that does not match the lock is not put into the folder."""
    brings(monkeypatch, "a-1.jar", b"another jar")
    with pytest.raises(JarsError, match=r"a-1\.jar has SHA-256 .*, not the locked"):
        fetch(folder, SMALL)
    assert [] == list(folder.iterdir())


def test_a_jar_that_does_not_come_is_named(folder, monkeypatch):
    """If the resolution has changed, the error lists the jars that came."""
    brings(monkeypatch, "b-1.jar", CONTENT)
    with pytest.raises(JarsError, match=r"did not bring a-1\.jar, only \['b-1\.jar'\]"):
        fetch(folder, SMALL)


def test_a_set_of_no_name_is_refused_with_the_names(folder):
    """With a misspelt name on the command line or in a source, nothing is fetched."""
    with pytest.raises(
        JarsError, match=r"no set of jars 'kafkas' for Spark 4\.\d: the sets are debezium, delta, kafka"
    ):
        jar_set("kafkas")


def test_the_command_fetches_the_sets_that_it_names(folder, monkeypatch, capsys):
    """The command fetches these sets, and prints how many jars came."""
    brings(monkeypatch, "a-1.jar", CONTENT)
    jars.main(["small"])
    assert "1 Small jars in" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="tidemark: there is no set of jars"):
        jars.main(["larger"])


def test_a_session_gets_the_jars_of_its_sets_once(folder, monkeypatch):
    """A missing set is reported before a JVM starts. A set that is named twice is on the class path once."""
    config = SparkConfig(jar_sets=("small", "small"))
    with pytest.raises(JarsError, match="fetch the Small jars"):
        classic_settings(config)
    brings(monkeypatch, "a-1.jar", CONTENT)
    fetch(folder, SMALL)
    assert str(folder / "a-1.jar") == classic_settings(config)["spark.jars"]


class Reads(SequenceSource):
    """A source whose reading needs a set."""

    jar_sets = ("small",)


def test_a_session_has_what_its_sources_need(tmp_path):
    """The sets of a wrapped source are included, and sets that the configuration names are kept."""
    wrapped = CommitsToFile(Reads({"all": 1}), tmp_path / "positions.json")
    config = with_needed_jars(SparkConfig(jar_sets=("delta",)), [SequenceSource({"all": 1}), wrapped])
    assert ("delta", "small") == config.jar_sets


def test_a_tick_fetches_what_is_missing_and_says_so(folder, monkeypatch):
    """So the user sees why the tick takes long. The next tick fetches nothing."""
    told = []
    listener = SimpleNamespace(progress=told.append)
    brings(monkeypatch, "a-1.jar", CONTENT)
    fetch_missing_jars(SparkConfig(jar_sets=("small",)), listener)
    fetch_missing_jars(SparkConfig(jar_sets=("small",)), listener)
    assert [JarsFetching("Small")] == told


# ------------------------------------------------------------------
# The programs that Spark starts: the error for a wrong one names it, and comes before the job is claimed.


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
    """Return a function that writes a program of a given name, output and exit code."""

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
    """Return a function that runs a tick on the command line. It returns the exit code and stderr."""
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
    """The tick names the program and what to install. Nothing is written."""
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
    """No JVM is started for this: the program here would report another version."""
    home = program("jdk/bin/java", 'openjdk version "11"').parents[1]
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert "" == java().problem
    assert "is Java 11" in java(thorough=True).problem


def test_a_worker_python_of_another_version_or_none_is_refused(program, run, tmp_path, monkeypatch):
    """Functions are sent to the workers as bytecode, so both Pythons must have the same version."""
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
    """PYSPARK_PYTHON names a program on the workers' machines. If the workers run here, the program must be here."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/image/bin/python")
    with pytest.raises(UnfitProgramError, match="PYSPARK_PYTHON=/image/bin/python is no program"):
        must_start_spark()
    must_start_spark(workers_here=False)


def test_the_doctor_does_not_look_here_for_what_other_machines_have(program, tmp_path, monkeypatch):
    """On a cluster, the workers have the Python. A Connect server has the Java, too."""
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
    """The doctor also reads the environment, like every command."""
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
    """In addition, the doctor starts a JVM to see whether the JVM has the module that Spark needs."""
    warehouse = Warehouse(tmp_path / "not/there/yet", ProtocolPaths(job_name("flights")))
    java17 = program("jdk/bin/java", 'openjdk version "17.0.9" 2023-10-17', without_module=True)
    monkeypatch.setenv("JAVA_HOME", str(java17.parents[1]))
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "nowhere"))
    said = [finding.what for finding in machine_section(warehouse, SparkConfig()).findings]
    assert f"{java17} lacks the module jdk.incubator.vector, so Spark does not start" in said
    assert f"PYSPARK_PYTHON={tmp_path}/nowhere is no program, and Spark's workers need a Python" in said


# ------------------------------------------------------------------
# Spark's JVM and its workers talk through sockets in a private folder, if its path is short enough.


NAME = ".00000000-0000-0000-0000-000000000000.sock"


def of_length(size):
    made = Path(mkdtemp())
    folder = made / ("x" * (size - len(str(made)) - 1))
    folder.mkdir()
    return folder


def test_there_are_settings_only_for_a_path_that_a_socket_can_have():
    """Otherwise Spark uses TCP.

    In a folder of the longest accepted path, a socket with a name of Spark's length can be made.
    """
    longest = of_length(60)
    assert {ENABLED: "true", FOLDER: str(longest)} == socket_settings(longest)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(longest / NAME))
    (longest / NAME).unlink()
    assert {} == socket_settings(of_length(61))


def test_a_folder_without_room_for_sockets_gets_none():
    """Some file systems cannot hold sockets. The trial leaves no file."""
    assert {} == socket_settings(Path("/proc"))
    folder = of_length(40)
    assert socket_settings(folder)
    assert [] == list(folder.iterdir())


def test_a_cluster_decides_about_its_folders_itself():
    """Folders of this machine need not exist on a cluster's workers."""
    assert {} == places(SparkConfig(master="spark://h:1"))
    assert places(SparkConfig())["spark.local.dir"].startswith(str(private_folder()))


@pytest.mark.spark
def test_a_worker_is_reached_through_a_socket_of_the_private_folder(spark):
    """Each task looks at its own descriptors: one is the daemon's socket, and none is TCP. Spark 4.0 has only TCP."""

    def families(batches):
        for _ in batches:
            kinds = []
            for descriptor in range(256):
                try:
                    with socket.socket(fileno=os.dup(descriptor)) as found:
                        kinds.append(f"{found.family.name} {found.getsockname()!s}")
                except OSError:
                    continue  # no socket
            yield pa.RecordBatch.from_pydict({"kind": kinds})

    rows = spark.range(1).coalesce(1).mapInArrow(families, "kind string").collect()
    has_sockets = pyspark.__version__ >= "4.1"
    assert has_sockets == ({"AF_UNIX"} == {row["kind"].split()[0] for row in rows})
    assert has_sockets == any(str(private_folder()) in row["kind"] for row in rows)


# ------------------------------------------------------------------
# The archive of Spark's classes is used if it exists, and is never required.


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Return the path of the archive, in a folder with a space in its name."""
    path = tmp_path / "an environment" / "spark-classes.jsa"
    path.parent.mkdir()
    monkeypatch.setattr(session, "CLASS_ARCHIVE", path)
    monkeypatch.setattr(class_archive, "CLASS_ARCHIVE", path)
    return path


def test_a_session_starts_with_the_archive_if_it_is_there(archive):
    """Without an archive the JVM gets no option for it. The user's own options come last."""
    assert session.LATE_C2 == classic_settings(SparkConfig())[JVM_OPTIONS]
    archive.write_bytes(b"classes")
    with_archive = f'{session.LATE_C2} "-XX:SharedArchiveFile={archive}" {session.SILENT}'
    assert with_archive == classic_settings(SparkConfig())[JVM_OPTIONS]
    own = SparkConfig(settings={JVM_OPTIONS: "-Xss4m"})
    assert "-Xss4m" == classic_settings(own)[JVM_OPTIONS]


def test_a_disk_that_is_nearly_full_is_named(archive, monkeypatch):
    """An incomplete archive would break the JVMs that map it."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    with pytest.raises(ArchiveNotMadeError, match="has 5 MB left, and an archive needs a gigabyte"):
        make_archive(archive)
    assert [] == list(archive.parent.iterdir())


def test_an_environment_without_an_archive_is_told_and_is_complete(archive, monkeypatch, capsys):
    """The set-up goes on if no archive can be made."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    class_archive.main()
    assert "no archive of Spark's classes" in capsys.readouterr().err
    assert not archive.exists()


def test_an_archive_needs_no_delta_jars(monkeypatch, tmp_path):
    """If the Delta jars were never fetched, the archive is made without them."""
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "none"))
    assert () == class_archive._jars()


@pytest.mark.dear
def test_an_archive_is_made_and_another_file_is_passed_over(tmp_path):
    """A JVM starts with the archive, and ignores a file that is no archive."""
    archive = tmp_path / "made.jsa"
    program = "import sys; from pathlib import Path; from jobs.tick.class_archive import make_archive;"
    words = [sys.executable, "-c", f"{program} make_archive(Path({str(archive)!r}))"]
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(words, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=False, timeout=280)
    assert 0 == done.returncode
    assert archive.stat().st_size > 50 << 20
    assert "build" in _version(archive)
    archive.write_bytes(b"no archive")
    assert "build" in _version(archive)


def _version(archive):
    java = shutil.which("java") or f"{os.environ['JAVA_HOME']}/bin/java"
    words = [java, *session.LATE_C2.split(), f"-XX:SharedArchiveFile={archive}", *session.SILENT.split(), "-version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout + done.stderr


# ------------------------------------------------------------------
# The versions of a worker that joins after the first micro-batch are compared when its first task reports.


EFFECT = RunMicroBatch("sums", 7, 2, (), (), ())


def worker(host, **other):
    return json.dumps({"host": host, "versions": versions() | other})


@pytest.fixture
def late_workers(monkeypatch):
    """Return a function that runs a micro-batch. The tasks report these workers."""
    made = engine.SparkEngine(SparkConfig(master="spark://h:1"), TickListener(), given=MagicMock())

    def run_on(*workers):
        done = MicroBatch(SimpleNamespace(), NO_USES, frozenset(workers))
        monkeypatch.setattr(engine, "run_micro_batch", lambda *_: done)
        return done.finished, made.run(MagicMock(), EFFECT, "w", "j")

    return run_on


def test_a_worker_that_joins_later_with_another_version_is_named(late_workers):
    """The micro-batch that it worked on fails, so its files do not count."""
    before, after = late_workers(worker("early"))
    assert before is after
    with pytest.raises(
        MicroBatchError, match=r"worker late has polars 0\.1, and this process has .*: install the same"
    ):
        late_workers(worker("early"), worker("late", polars="0.1"))
    before, after = late_workers(worker("early"), worker("later"))
    assert before is after


def test_an_unfit_worker_stays_unfit(late_workers):
    """The next micro-batch on the same worker fails, too."""
    for _ in range(2):
        with pytest.raises(MicroBatchError, match="worker late has no pyarrow"):
            late_workers(worker("late", pyarrow=""))


def test_a_task_reports_its_worker():
    """The report has the worker's host, and the versions that the driver compares."""
    (batch,) = report_batch(TaskReport(0))
    said = json.loads(batch.column("worker")[0].as_py())
    assert versions() == said["versions"]
    assert said["host"]


# ------------------------------------------------------------------
# If Spark cannot start, one sentence names the way out: no JVM, no memory, no Connect server (K1).


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
    """Return what a process prints that opens a session with this heap and environment."""
    words = [sys.executable, "-c", OPEN, memory, tmp_path / "spark.log"]
    path = "/usr/bin:/bin"
    return subprocess.run(
        words, env={"PATH": path, "HOME": str(tmp_path), **environment}, capture_output=True, text=True, check=False
    ).stdout


@pytest.mark.timeout(120)
def test_a_heap_that_the_machine_does_not_have_is_named(tmp_path):
    """The JVM reports this on stdout, which belongs to the command's report. So the JVM's own line is not printed."""
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
    """PySpark itself would retry for ten minutes. The message, the trace and the entries name only the server."""
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
