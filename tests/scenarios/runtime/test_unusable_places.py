"""A warehouse cannot be written, a disk is full, or a file is a pipe: one sentence says so, and no commit is lost.

Small and read-only disks are real ones, which a separate process mounts in its own namespace.
"""

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from checkpointing.messages import SavepointKind, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.doctor.examination import examine
from jobs.reading import Cuts
from jobs.spark.session import SparkConfig
from jobs.storage.place import local
from jobs.storage.port import NotARegularFileError
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.warehouse.cut_check import TableLogDamagedError
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.internal_tables import OwnTableChangedError
from jobs.warehouse.lease import LeaseStore
from jobs.warehouse.refusals import TablesBehindError, UnusableWarehouseError
from jobs.warehouse.requests import RequestFolder, Unreadable
from jobs.warehouse.savepoint_copy import copy_savepoint
from jobs.warehouse.warehouse import Warehouse
from spec.traces import judge as judge_trace
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    JOB,
    KEEPS_ALL,
    at,
    at_cut,
    contents,
    laid_out,
    read_cut,
    records,
    run,
    tick,
)
from tests.scenarios.runtime.test_tables_behind import of_job

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path, ProtocolPaths(JOB))


@pytest.fixture
def in_time():
    """Fail the test if it hangs for 60 s, because to open a named pipe may block for ever."""

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
    """The disk is full before the claim or later, or is read-only.

    On a repaired disk, the next tick ends with exact tables.
    """
    told = on_a_small_disk(tmp_path, free)
    assert told["said"][0].startswith(first.format(root=tmp_path / "warehouse"))
    assert "caught_up: " == told["said"][1]
    assert rows_of(undisturbed) == told["rows"]


def test_traces_that_are_a_file_are_refused_before_the_claim(tick, warehouse, tmp_path):
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
    sections = examine(warehouse, 0, SparkConfig(), verify=False).sections
    return [finding.what for section in sections if section.name == "places" for finding in section.findings]


@pytest.mark.usefixtures("in_time")
def test_named_pipes_hang_nobody(tick, warehouse, tmp_path, undisturbed):
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
    folder = RequestFolder(warehouse)
    asked = folder.ask(SavepointKind.PLAIN, warehouse_holder())
    os.mkfifo(warehouse.path(f"{warehouse.paths.requests}/{asked.request}.answer.json"))
    assert folder.answer_to(asked.request) is None


def warehouse_holder():
    from jobs.warehouse.lease import this_process

    return this_process()


@pytest.mark.usefixtures("in_time")
def test_only_a_regular_file_is_read(tmp_path):
    """A read of a named pipe, a folder or a device fails at once, and the error names the path."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(NotARegularFileError, match=f"{path} is no file but"):
            local(path).read(10)
    (tmp_path / "file").write_text("content")
    assert b"cont" == local(tmp_path / "file").read(4)


@pytest.mark.parametrize("typed", ["run {own}", "cut {own}", "doctor {own}", "savepoint {own}", "cleanup {own}"])
def test_a_warehouse_that_is_a_file_is_refused_by_name(typed, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("x")
    own = "tests.scenarios.runtime.sequence_job:as_pipeline"
    code = execute([*typed.format(own=own).split(), "--warehouse", str(file)])
    shown = capsys.readouterr()
    assert code in {ExitCode.FAILED, ExitCode.USAGE}
    assert f"{file} is a file, and a" in shown.out + shown.err
    assert "Traceback" not in shown.err
    assert "x" == file.read_text()


# ------------------------------------------------------------------
# The disk of a table's files is full or read-only for a while. The same tick goes on afterwards (B2, E5).
#
# The disks are real ones, which a separate process mounts in its own namespace.


def ticked(folder, *how, timeout_s=120):
    program = str(Path(__file__).with_name("full_table.py"))
    command = ["unshare", "--map-root-user", "--mount", sys.executable, program, str(folder), *how]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment)
    assert 0 == ended.returncode, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def must_have_gone_on(told, words, undisturbed):
    """Check that the tick failed checkpoints with the cause, tried again, and ended with exact tables."""
    assert ("caught_up", "") == (told["outcome"], told["message"])
    assert len(told["failures"]) >= 2
    for _, reason, message in told["failures"]:
        assert "CHECKPOINT_ASYNC_EXCEPTION" == reason
        assert "of vertex bronze could not be written: " in message.partition("\n")[0]
        assert words in message.partition("\n")[0]
    assert len(told["held_back"]) >= len(told["failures"])
    assert json.loads(json.dumps(undisturbed)) == told["rows"]
    assert [] == told["unreferenced"]
    assert [] == judge_trace([line.encode() + b"\n" for line in told["trace"].splitlines()]).problems


@pytest.mark.parametrize(
    ("how", "words"), [("full", "the disk is full"), ("read-only", "the file system is read-only")]
)
def test_a_disk_that_takes_nothing_for_a_while_costs_checkpoints_and_no_row(how, words, tmp_path, undisturbed):
    """Without Spark, the checkpoints fail with the cause. The tick catches up when the disk can be written again."""
    must_have_gone_on(ticked(tmp_path, how), words, undisturbed)


@pytest.mark.dear
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_disk_that_fills_up_under_spark_costs_checkpoints_and_no_row(tmp_path, undisturbed):
    """Spark's tasks find the disk full. The same tick goes on, and leaves no unreferenced file."""
    must_have_gone_on(ticked(tmp_path, "full", "--spark", timeout_s=380), "the disk is full", undisturbed)


# ------------------------------------------------------------------
# `checkpoints` and `cuts` lose files, or others write there. The tables are rebuilt, the changes ignored, or the tick
# is refused in one sentence.


OWN = ("checkpoints", "cuts")


def own(root, name):
    return root / f"_tidemark/{JOB}/{name}"


def row_files(root, name):
    return sorted((own(root, name) / "_rows").glob("*.parquet"))


@pytest.mark.parametrize("which", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_lost_files_of_cuts_are_rebuilt(tmp_path, undisturbed, which):
    """Whichever files are lost, the next tick records the same cuts with the same versions, and goes on."""
    laid_out(tmp_path, 3)
    before = CutStore(at(tmp_path)).all()
    for path in [row_files(tmp_path, "cuts")[place] for place in which]:
        path.unlink()
    assert len(CutStore(at(tmp_path)).all()) == len(before) - len(which)
    assert [] != of_job(tmp_path)
    tick(tmp_path, 0)
    assert [] == of_job(tmp_path)
    assert before == CutStore(at(tmp_path)).all()
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_a_savepoint_at_rest_tells_a_lost_cut_again_first(tmp_path):
    laid_out(tmp_path, 2)
    before = CutStore(at(tmp_path)).all()
    row_files(tmp_path, "cuts")[0].unlink()
    savepoint_at_rest(at(tmp_path))
    assert before == CutStore(at(tmp_path)).all()


def test_a_cut_that_nothing_proves_is_refused_by_name(tmp_path, capsys):
    """All files of `cuts` are gone, and bronze lost the newest checkpoint's rows. Tidemark guesses no version."""
    laid_out(tmp_path, 3)
    for path in row_files(tmp_path, "cuts"):
        path.unlink()
    max((tmp_path / BRONZE / "_delta_log").glob("*.json")).unlink()
    with pytest.raises(
        TablesBehindError, match=rf"newest cut of {JOB} .* is lost: .*which version of table {BRONZE} belonged"
    ):
        tick(tmp_path)
    pipeline = "tests.scenarios.runtime.sequence_job:as_pipeline"
    assert execute(["run", pipeline, "--warehouse", str(tmp_path)])
    assert f"restore the folder {own(tmp_path, 'cuts')} from a backup" in capsys.readouterr().err


def strange(root, name, mode):
    table = DeltaTable(str(own(root, name)))
    schema = pa.schema(table.schema())
    row = pa.Table.from_pylist([dict.fromkeys(schema.names)], schema=schema)
    write_deltalake(table, row, mode=mode)


@pytest.mark.parametrize("name", OWN)
def test_what_others_append_is_passed_over(tmp_path, undisturbed, name):
    """A row of nulls is never read, and Tidemark's next commit removes it."""
    laid_out(tmp_path, 2)
    strange(tmp_path, name, "append")
    ((what, _),) = of_job(tmp_path)
    assert f"{name} holds 1 files that others wrote" in what
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)
    paths = pa.table(DeltaTable(str(own(tmp_path, name))).get_add_actions()).column("path").to_pylist()
    assert [] == [path for path in paths if not path.startswith("_rows/")]


@pytest.mark.parametrize("name", OWN)
def test_what_others_overwrite_is_refused_and_the_command_takes_it_back(tmp_path, undisturbed, name):
    """Tidemark's rows are gone from the table. The tick is refused, and its message has a command that repairs it."""
    laid_out(tmp_path, 2)
    strange(tmp_path, name, "overwrite")
    with pytest.raises(OwnTableChangedError, match=rf"removed \d+ of Tidemark's own files from .*{name}") as refused:
        tick(tmp_path)
    assert [(refused.value.what, refused.value.way_out)] == of_job(tmp_path)
    with pytest.raises(OwnTableChangedError):
        Cuts(tmp_path, JOB).latest()
    (command,) = re.findall(r"with (python -c .*), and start again", str(refused.value))
    python, *words = shlex.split(command)
    assert "python" == python
    subprocess.run([sys.executable, *words], check=True)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


@pytest.mark.parametrize("name", OWN)
def test_a_log_of_our_own_that_cannot_be_loaded_is_named(tmp_path, capsys, name):
    laid_out(tmp_path, 2)
    (own(tmp_path, name) / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(TableLogDamagedError, match=rf"{name}: entry {1:020d}.json is missing.*from a backup"):
        tick(tmp_path)
    assert execute(["run", "tests.scenarios.runtime.sequence_job:as_pipeline", "--warehouse", str(tmp_path)])
    assert "Traceback" not in capsys.readouterr().err


def test_a_lost_file_of_checkpoints_is_refused_and_the_rollback_that_is_offered_goes_through(tmp_path, undisturbed):
    """The newest checkpoint's entry is gone. The message names an older checkpoint, and the rollback to it works."""
    first, second = laid_out(tmp_path, 2)
    lost = next(path for path in row_files(tmp_path, "checkpoints") if holds(path, second))
    expected = at_cut(tmp_path, first)
    lost.unlink()
    with pytest.raises(Exception, match=f"tidemark rollback {JOB} {first} ") as refused:
        tick(tmp_path)
    assert lost.name in str(refused.value)
    roll_back(at(tmp_path), first)
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    assert second not in records(tmp_path)
    tick(tmp_path, plan=KEEPS_ALL)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def holds(path, checkpoint):
    import pyarrow.parquet as pq

    return checkpoint in pq.read_table(path, columns=["checkpoint"]).column(0).to_pylist()


# ------------------------------------------------------------------
# A warehouse comes from another person. Whatever its entries say, no file outside the job's folders is written or
# deleted.


PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"
EVIL = b"written by somebody else"


@pytest.fixture
def copy(tmp_path):
    run(tmp_path / "warehouse", 2)
    row = savepoint_at_rest(at(tmp_path / "warehouse"))
    copy_savepoint(at(tmp_path / "warehouse"), row.checkpoint, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "home" / "victim.txt"
    path.parent.mkdir()
    path.write_text("precious")
    return path


def _handle(path, content=EVIL, inline=True):
    return {
        "path": str(path),
        "rows": 1,
        "bytes": len(content),
        "crc32": zlib.crc32(content),
        "stats": "{}",
        "inline": base64.b64encode(content).decode() if inline else "",
    }


def _with_state(handle):
    def change(row):
        subtask = row["vertices"][-1]["subtasks"][0]
        subtask["state"].insert(0, {**subtask["state"][-1], "file": handle})

    return change


def _with_add(handle):
    def change(row):
        row["tables"][0]["adds"].append(handle)

    return change


@pytest.mark.parametrize("where", [_with_state, _with_add])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_restore_writes_no_file_outside(copy, victim, tmp_path, typed, where, absolute):
    """The content in the entry would replace the victim's file. The error names entry, field and way out."""
    path = victim if absolute else "../home/victim.txt"
    (number,) = records(copy)
    craft(copy, number, where(_handle(path)))
    code, _, err = typed("run", PIPELINE, "--from", copy, "--warehouse", tmp_path / "mine")
    assert "precious" == victim.read_text()
    assert ExitCode.FAILED is code
    assert f"the entry of checkpoint {number} of job numbers" in err
    assert ".path" in err
    assert "take the savepoint again" in err
    assert not (tmp_path / "mine" / "_tidemark").exists()


@pytest.mark.parametrize(
    "path", ["_tidemark/../../home/victim.txt", "_tidemark/numbers/state/../../../../home/victim.txt"]
)
def test_disposing_deletes_no_file_outside(tmp_path, victim, typed, path):
    """A savepoint's own entry names the victim as a state file below `_tidemark`."""
    root = tmp_path / "warehouse"
    run(root, 2)
    number = savepoint_at_rest(at(root)).checkpoint
    craft(root, number, _with_state(_handle(path, b"precious", inline=False)))
    code, _, err = typed("savepoint", "numbers", "--dispose", number, "--warehouse", root)
    assert "precious" == victim.read_text()
    assert ExitCode.FAILED is code
    assert "vertices[2].subtasks[0].state" in err


def test_a_subsumed_checkpoint_deletes_no_file_outside(tmp_path, victim, typed):
    root = tmp_path / "warehouse"
    run(root, 1)
    (number,) = records(root)
    craft(root, number, _with_state(_handle("_tidemark/../../home/victim.txt", b"precious", inline=False)))
    code, _, _ = typed("run", PIPELINE, "--warehouse", root)
    assert "precious" == victim.read_text()
    assert ExitCode.FAILED is code


def test_a_table_elsewhere_loses_no_file_to_a_clean_up(tmp_path, typed):
    """An entry names a table outside the warehouse. The files that another job staged there stay."""
    root, other = tmp_path / "warehouse", tmp_path / "other"
    run(root, 1)
    run(other, 1)
    staged = sorted(path for path in (other / "bronze/numbers/_data").rglob("*.parquet"))
    (number,) = records(root)

    def change(row):
        row["tables"][0]["table"] = "../other/bronze/numbers"

    craft(root, number, change)
    code, _, _ = typed("cleanup", "numbers", "--warehouse", root)
    assert ExitCode.FAILED is code
    assert staged == sorted(path for path in (other / "bronze/numbers/_data").rglob("*.parquet"))


def test_a_cut_of_a_table_elsewhere_is_refused(tmp_path, typed):
    """`cuts` names a table of another warehouse, and a clean-up would delete the files staged there."""
    root, other = tmp_path / "warehouse", tmp_path / "other"
    run(root, 1)
    run(other, 1)
    staged = sorted((other / "bronze/numbers/_data").rglob("*.parquet"))

    def change(entry):
        if entry["table"] == "bronze/numbers":
            entry["table"] = "../other/bronze/numbers"

    craft_cut(root, change)
    code, _, err = typed("cleanup", "numbers", "--reader-grace", "0s", "--warehouse", root)
    assert staged == sorted((other / "bronze/numbers/_data").rglob("*.parquet"))
    assert ExitCode.FAILED is code
    assert "an entry of" in err
    assert "'../other/bronze/numbers'" in err


def test_a_row_of_another_job_is_refused(tmp_path, typed):
    """The entry's state would lie in the other job's folder, and would be deleted with the savepoint."""
    root = tmp_path / "warehouse"
    run(root, 2)
    number = savepoint_at_rest(at(root)).checkpoint

    def change(row):
        row["job"] = "flights"
        row["columns"] = []
        for subtask in row["vertices"][-1]["subtasks"]:
            subtask["state"] = []

    craft(root, number, change)
    code, _, err = typed("savepoint", "numbers", "--dispose", number, "--warehouse", root)
    assert ExitCode.FAILED is code
    assert f"the entry of savepoint {number} is of job flights and lies among those of numbers" in err


@pytest.mark.parametrize(
    ("column", "value"), [("checkpoint", 1), ("kind", "checkpoint"), ("nonce", "x"), ("version", None)]
)
def test_columns_that_disagree_with_their_row_are_refused(tmp_path, typed, column, value):
    """Retention uses the columns, so a savepoint with `checkpoint` in the column of its kind would be subsumed."""
    root = tmp_path / "warehouse"
    run(root, 2)
    number = savepoint_at_rest(at(root)).checkpoint
    craft_column(root, number, column, value)
    code, _, err = typed("checkpoints", "list", "numbers", "--warehouse", root)
    assert ExitCode.FAILED is code
    assert f"says {column} {value!r} in its column" in err


def test_a_copy_that_counts_beyond_every_job_is_refused(copy, tmp_path, typed):
    """The next tick counts on from the copy's numbers. Near the largest number, its own entries could not be read."""
    (number,) = records(copy)

    def change(row):
        row["generation"] = 2**53 - 1

    craft(copy, number, change)
    craft_column(copy, number, "generation", 2**53 - 1)
    code, _, err = typed("run", PIPELINE, "--from", copy, "--warehouse", tmp_path / "mine")
    assert ExitCode.FAILED is code
    assert "which no job has reached" in err
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("part", ["bronze/numbers/_data", "file"])
def test_a_copy_with_symbolic_links_is_refused(copy, tmp_path, typed, part):
    """A symbolic link may lead to another owner's files."""
    path = copy / part if part != "file" else next((copy / "bronze/numbers/_data").rglob("*.parquet"))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    code, _, err = typed("run", PIPELINE, "--from", copy, "--warehouse", tmp_path / "mine")
    assert ExitCode.FAILED is code
    assert "lies behind a symbolic link" in err
    assert "cp -rL" in err


def test_a_pipe_in_a_copy_is_no_file(copy, tmp_path, typed):
    file = next((copy / "bronze/numbers/_data").rglob("*.parquet"))
    file.unlink()
    os.mkfifo(file)
    code, _, err = typed("run", PIPELINE, "--from", copy, "--warehouse", tmp_path / "mine")
    assert ExitCode.FAILED is code
    assert f"{file.name} in {copy} is missing" in err


def test_no_clean_up_deletes_behind_a_symbolic_link(tmp_path):
    """A link in place of a folder with staged files leads to another owner's files, whatever their names."""
    root, elsewhere = tmp_path / "warehouse", tmp_path / "elsewhere"
    run(root, 1)
    name = next((root / "bronze/numbers/_data").rglob("*.parquet")).name
    (elsewhere / "1").mkdir(parents=True)
    (elsewhere / "1" / name).write_text("precious")
    os.utime(elsewhere / "1" / name, (0, 0))
    (root / "_tidemark/numbers/channels/bronze").mkdir(parents=True)
    (root / "_tidemark/numbers/channels/bronze/_data").symlink_to(elsewhere)
    done = clean_up(at(root), 0)
    assert "precious" == (elsewhere / "1" / name).read_text()
    assert ["behind a symbolic link" in note for note in done.notes] == [True]
    run(root)
    assert "precious" == (elsewhere / "1" / name).read_text()


def test_a_log_that_removes_odd_paths_makes_no_clean_up_delete_them(tmp_path):
    """The table's log has removes of its own first entry, of a file that is needed, and of a file outside the table."""
    root = tmp_path / "warehouse"
    run(root, 1)
    log = root / "bronze/numbers/_delta_log"
    needed = root / "bronze/numbers" / DeltaTable(root / "bronze/numbers").file_uris()[0]
    (root / "precious").touch()
    odd = [
        "_delta_log/00000000000000000000.json",
        f"./_data/1/{needed.name}",
        f"x/../_data/1/{needed.name}",
        "../../precious",
        "%2e%2e/%2e%2e/precious",
    ]
    (root / "bronze/numbers/x").mkdir()
    removes = [json.dumps({"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}) for path in odd]
    newest = max(int(path.stem) for path in log.glob("*.json"))
    (log / f"{newest + 1:020d}.json").write_text("\n".join(removes) + "\n")
    os.utime(log / f"{newest + 1:020d}.json", (1, 1))
    run(root)
    for _ in range(2):
        clean_up(at(root), 0)
    assert (log / "00000000000000000000.json").exists()
    assert needed.exists()
    assert (root / "precious").exists()


# ------------------------------------------------------------------
# Functions that change the entries of a warehouse without Tidemark, like an attacker who gives a crafted copy to a
# victim.


Change = Callable[[dict[str, Any]], None]


def craft(root: Path, checkpoint: int, change: Change) -> None:
    """Change an entry's JSON object in place. The log still names the same files."""

    def in_text(entry: dict[str, Any]) -> None:
        if entry["checkpoint"] == checkpoint:
            payload = json.loads(entry["payload"])
            change(payload["row"])
            entry["payload"] = json.dumps(payload)

    _rewrite(at(root).path(at(root).paths.checkpoints), in_text)


def craft_column(root: Path, checkpoint: int, column: str, value: object) -> None:
    """Change a column beside an entry's JSON text."""

    def in_column(entry: dict[str, Any]) -> None:
        if entry["checkpoint"] == checkpoint:
            entry[column] = value

    _rewrite(at(root).path(at(root).paths.checkpoints), in_column)


def craft_cut(root: Path, change: Change) -> None:
    _rewrite(at(root).path(at(root).paths.cuts), change)


def _rewrite(folder: Path, change: Change) -> None:
    for path in (folder / "_rows").iterdir():
        table = pq.read_table(path)
        entries = table.to_pylist()
        for entry in entries:
            change(entry)
        pq.write_table(pa.Table.from_pylist(entries, schema=table.schema), path)
