"""A warehouse that cannot be written, a full disk, named pipes: a sentence, and nothing that was committed is lost.

Small and read-only disks are real ones, mounted in a namespace of a process of their own.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkpointing.messages import SavepointKind, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.doctor.examination import examine
from jobs.reading import Cuts
from jobs.spark.session import SparkConfig
from jobs.storage.place import local
from jobs.storage.port import NotARegularFileError
from jobs.warehouse.lease import LeaseStore
from jobs.warehouse.refusals import UnusableWarehouseError
from jobs.warehouse.requests import RequestFolder, Unreadable
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, read_cut

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path, ProtocolPaths(JOB))


@pytest.fixture
def in_time():
    """Let nothing in the test wait for ever: to open a named pipe may."""

    def late(number, frame):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def on_a_small_disk(folder, free):
    program = str(Path(__file__).with_name("small_disk.py"))
    command = ["unshare", "--map-root-user", "--mount", sys.executable, program, str(folder), free]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert 0 == ended.returncode, ended.stderr
    return json.loads(ended.stdout)


def rows_of(tables):
    """Return rows as JSON has them."""
    return json.loads(json.dumps(tables))


@pytest.mark.parametrize(
    ("free", "first"),
    [
        ("30", "refused: {root} cannot be written, the disk is full, or a quota is used up: make room"),
        ("90", "failed: the disk is full, or a quota is used up: make room where the warehouse lies"),
        pytest.param("150", "failed: the disk is full", marks=pytest.mark.matrix),
        pytest.param("200", "failed: the disk is full", marks=pytest.mark.matrix),
        ("read-only", "refused: {root} cannot be written, the file system is read-only: mount it so that it can be"),
    ],
)
def test_a_disk_that_takes_nothing_is_a_sentence_and_loses_nothing(free, first, tmp_path, undisturbed):
    """Full before the claim or later, or read-only: the next tick on a repaired disk makes the tables whole."""
    told = on_a_small_disk(tmp_path, free)
    assert told["said"][0].startswith(first.format(root=tmp_path / "warehouse"))
    assert "caught_up: " == told["said"][1]
    assert rows_of(undisturbed) == told["rows"]


def test_traces_that_are_a_file_are_refused_before_the_claim(tick, warehouse, tmp_path):
    """The doctor says the same."""
    tick()
    rows = sorted(path.name for path in (tmp_path / warehouse.paths.checkpoints / "_delta_log").iterdir())
    traces = warehouse.path(warehouse.paths.traces)
    traces.rename(tmp_path / "elsewhere")
    traces.write_text("x")
    with pytest.raises(UnusableWarehouseError, match=f"{traces} is a file, and a tick needs a folder there: move it"):
        tick()
    assert rows == sorted(path.name for path in (tmp_path / warehouse.paths.checkpoints / "_delta_log").iterdir())
    assert [f"{traces} is a file, and a tick needs a folder there"] == found_by_the_doctor(warehouse)
    traces.unlink()
    assert TickOutcome.CAUGHT_UP is tick().outcome
    assert [] == found_by_the_doctor(warehouse)


def found_by_the_doctor(warehouse):
    """Return what the doctor finds in the section of the places."""
    sections = examine(warehouse, 0, SparkConfig(), verify=False).sections
    return [finding.what for section in sections if section.name == "places" for finding in section.findings]


@pytest.mark.usefixtures("in_time")
def test_named_pipes_hang_nobody(tick, warehouse, tmp_path, undisturbed):
    """Pipes lie in place of lease, request and trace.

    The tick goes on, answers the request, and the doctor names the lease.
    """
    for name in (warehouse.paths.lease, f"{warehouse.paths.requests}/abc.json", warehouse.paths.trace(1)):
        warehouse.path(name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(warehouse.path(name))
    assert [
        "the lease " + str(warehouse.path(warehouse.paths.lease)) + " is a named pipe, not a file: ticks ignore it"
    ] == found_by_the_doctor(warehouse)
    assert LeaseStore(warehouse).read() is None
    (request,) = RequestFolder(warehouse).waiting()
    assert isinstance(request, Unreadable)
    assert "abc.json is no file but a named pipe" in request.error
    assert TickOutcome.CAUGHT_UP is tick().outcome
    assert () == RequestFolder(warehouse).waiting()
    assert undisturbed == read_cut(tmp_path)


@pytest.mark.usefixtures("in_time")
def test_an_answer_that_is_a_named_pipe_is_none(warehouse):
    """The asking process goes on waiting for an answer that it can read."""
    folder = RequestFolder(warehouse)
    asked = folder.ask(SavepointKind.PLAIN, warehouse_holder())
    os.mkfifo(warehouse.path(f"{warehouse.paths.requests}/{asked.request}.answer.json"))
    assert folder.answer_to(asked.request) is None


def warehouse_holder():
    from jobs.warehouse.lease import this_process

    return this_process()


@pytest.mark.usefixtures("in_time")
def test_only_a_regular_file_is_read(tmp_path):
    """A named pipe, a folder and a device are refused by name at once."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(NotARegularFileError, match=f"{path} is no file but"):
            local(path).read(10)
    (tmp_path / "file").write_text("content")
    assert b"cont" == local(tmp_path / "file").read(4)


@pytest.mark.parametrize("typed", ["run {own}", "cut {own}", "doctor {own}", "savepoint {own}", "cleanup {own}"])
def test_a_warehouse_that_is_a_file_is_refused_by_name(typed, tmp_path, capsys):
    """Each command says what the path is, and writes nothing."""
    file = tmp_path / "file"
    file.write_text("x")
    own = "tests.scenarios.runtime.sequence_job:as_pipeline"
    code = execute([*typed.format(own=own).split(), "--warehouse", str(file)])
    shown = capsys.readouterr()
    assert code in {ExitCode.FAILED, ExitCode.USAGE}
    assert f"{file} is a file, and a" in shown.out + shown.err
    assert "Traceback" not in shown.err
    assert "x" == file.read_text()


@pytest.mark.dear
@pytest.mark.spark
def test_a_path_that_is_not_ascii_works_in_the_c_locale(tmp_path, undisturbed):
    """The JVM and its workers read names of files as Python does, whatever the locale says."""
    root = tmp_path / "Lager für Flüge"
    command = [str(Path(sys.executable).with_name("tidemark")), "run"]
    command += ["tests.scenarios.runtime.sequence_job:as_pipeline", "--warehouse", str(root)]
    command += ["--spark-cores", "1", "--spark-memory", "512m"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    environment |= {"LC_ALL": "C", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert 0 == ended.returncode, ended.stderr
    cut = Cuts(root, JOB).latest()
    assert undisturbed == {str(table): sorted(cut.polars(table).collect().rows()) for table in (BRONZE, GOLD)}
