"""The doctor, as a user types it: each finding comes with its repair, and the repair removes the finding."""

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from checkpointing.messages import SavepointKind
from checkpointing.metadata.files import handles_to_restore
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Holder
from jobs.cli.errors import ExitCode
from jobs.doctor.examination import Examination, examine
from jobs.doctor.table_health import key_section
from jobs.spark.session import SparkConfig
from jobs.tick.at_rest.take_savepoint import dispose, savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.warehouse import lease
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.requests import RequestFolder
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, at, records, run
from tests.scenarios.runtime.test_savepoints import hold

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Make a warehouse with two checkpoints, and rows left to read."""
    root = tmp_path_factory.mktemp("history")
    run(root, 2)
    return root


@pytest.fixture
def root(history, tmp_path):
    return shutil.copytree(history, tmp_path / "warehouse")


def of_job(root: Path, *, verify: bool = False, grace_ms: int = DAY_MS) -> dict[str, str]:
    found: Examination = examine(at(root), grace_ms, SparkConfig(), verify=verify)
    return {
        finding.what: finding.repair
        for section in found.sections
        if section.name != "machine"
        for finding in section.findings
    }


def _left_behind(root: Path) -> Path:
    clean_up(at(root), 0)
    path = root / BRONZE / "_data/1" / "bronze-9-11111111-2222-3333-4444-555555555555.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left behind")
    return path


def the_one(found: dict[str, str]) -> tuple[str, str]:
    ((what, repair),) = found.items()
    return what, repair


def test_a_job_at_rest_is_healthy(root):
    """The doctor finds nothing, by size or by checksum, and changes nothing."""
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert {} == of_job(root)
    assert {} == of_job(root, verify=True)
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def test_a_key_that_an_upsert_table_holds_twice_is_found_with_verify(root):
    """The doctor names the table, the number of double keys, and one key. Without --verify, it does not find them."""
    rows = DeltaTable(str(root / GOLD)).to_pyarrow_table()
    write_deltalake(str(root / GOLD), rows.slice(0, 2), mode="append")
    assert not any("more than once" in what for what in of_job(root))
    key = rows.column("key")[0].as_py()
    repairs = {what: repair for what, repair in of_job(root, verify=True).items() if "more than once" in what}
    what, repair = the_one(repairs)
    assert what.startswith("upsert table gold/by_key holds 2 keys more than once, such as key=")
    assert what.endswith("(2 rows)")
    assert f"key={key} " in what or f"key={rows.column('key')[1].as_py()} " in what
    assert "tidemark run numbers --warehouse EMPTY_FOLDER" in repair


def test_a_table_that_cannot_be_read_is_not_called_free_of_double_keys(root):
    """The table's files are gone. The doctor reports that the keys were not read, and lists the files as damaged."""
    shutil.rmtree(root / GOLD / "_data")
    ((table, seen),) = key_section(at(root), JobStores(at(root), cross_freely).entries.rows(), verify=True).seen
    assert str(GOLD) == table
    assert seen.startswith("not read (")


def test_a_running_tick_is_no_ailment(root):
    """The doctor names the job's holder. Work that the tick has not finished yet is no finding."""
    hold(root)
    found = examine(at(root), DAY_MS, SparkConfig(), verify=False)
    (job,) = (section for section in found.sections if section.name == "job")
    assert () == job.findings
    assert "holds the job" in dict(job.seen)["generation"]


def test_a_dead_holder_and_an_unpublished_checkpoint_are_repaired_by_the_next_tick(tmp_path, tick, monkeypatch):
    """A tick died right after its commit point. The doctor names both findings and one command, which repairs both."""
    with pytest.raises(Dead):
        tick(boundary=Mortal("after:AppendRow", 2))
    monkeypatch.setattr(lease, "_process_alive", lambda _: False)
    found = of_job(tmp_path)
    assert [True, True] == [
        any("died while it held the job" in what for what in found),
        any(what.startswith("checkpoint 2 is committed, but its tables are not published") for what in found),
    ]
    assert {f"tidemark run numbers --warehouse {tmp_path}"} == set(found.values())
    monkeypatch.undo()
    tick(take_over=True)
    assert {} == of_job(tmp_path)


@pytest.mark.parametrize(
    ("damage", "verify", "expected"),
    [
        (Path.unlink, False, "is missing"),
        (lambda path: path.write_bytes(b"short"), False, "has 5 bytes instead of"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"), True, "is damaged: its checksum is"),
    ],
)
def test_a_damaged_snapshot_is_named_with_the_older_one_to_go_back_to(root, damage, verify, expected):
    """A file is missing, or has another size or checksum. The doctor names entry, file and a rollback."""
    newest = records(root)[2]
    names = {file.path for file in handles_to_restore(records(root)[1])}
    state = next(file for file in handles_to_restore(newest) if file.path not in names)
    damage(root / state.path)
    what, repair = the_one(of_job(root, verify=verify))
    assert what.startswith("checkpoint 2 is damaged: file ")
    assert state.path in what
    assert expected in what
    assert "tidemark rollback numbers 1" in repair


def test_a_damaged_savepoint_may_be_given_up(root):
    saved = savepoint_at_rest(at(root)).checkpoint
    run(root, 1)
    others = {file.path for number, row in records(root).items() if number != saved for file in handles_to_restore(row)}
    names = [file.path for file in handles_to_restore(records(root)[saved])]
    path = next((path for path in names if path not in others), names[0])
    (root / path).unlink()
    repairs = [repair for what, repair in of_job(root).items() if what.startswith(f"savepoint {saved} is damaged")]
    assert [True] == [f"tidemark savepoint numbers --dispose {saved}" in repair for repair in repairs]


def test_a_hollow_table_is_named(root):
    """If a file of a retained cut is gone, the doctor names table, version and file."""
    DeltaTable(root / BRONZE).optimize.compact()
    run(root, 1)
    (foreign,) = (root / BRONZE).glob("*.parquet")
    foreign.unlink()
    what, repair = the_one(of_job(root))
    assert what.startswith(f"table {BRONZE} at version ")
    assert foreign.name in what
    assert "restore" in repair


def test_what_nobody_needs_is_told_until_it_is_cleaned_up(root):
    """The doctor shows the unneeded files' tables, and the command that deletes the files."""
    _left_behind(root)
    what, repair = the_one(of_job(root, grace_ms=0))
    assert f"unneeded: in {BRONZE}" in what
    assert f"tidemark cleanup numbers --warehouse {root}" == repair
    clean_up(at(root), 0)
    assert {} == of_job(root)


def test_others_changes_and_features_are_named(root):
    """A tick undoes others' changes to an upsert table. A constraint forbids publishing until it is dropped."""
    DeltaTable(root / GOLD).delete("key = 1")
    what, repair = the_one(of_job(root))
    assert what.startswith(f"table {GOLD} was changed by others since the last checkpoint (DELETE at version 3)")
    assert f"tidemark run numbers --warehouse {root}" in repair
    DeltaTable(root / GOLD).alter.add_constraint({"small": "key < 1000"})
    found = of_job(root)
    assert any(
        "has the check constraint small" in what and "DROP CONSTRAINT" in repair for what, repair in found.items()
    )


def test_a_table_whose_log_is_gone_is_named(root):
    """The doctor says that a tick makes the log again from the newest entry. There is no other finding."""
    shutil.rmtree(root / GOLD / "_delta_log")
    what, repair = the_one(of_job(root))
    assert what.startswith(f"table {GOLD} shows less than the recorded cuts say")
    assert f"tidemark run numbers --warehouse {root}, which publishes the missing files again" == repair


def test_a_long_log_is_told(root, monkeypatch):
    """A table with a long log takes long to open. Delta log checkpoints, which ticks write, shorten this."""
    monkeypatch.setattr("jobs.doctor.table_health.LONG_LOG", 3)
    found = of_job(root)
    assert f"table {GOLD}: every reader has to read 3 log entries" in found


def test_requests_that_nobody_answered_are_told(root, monkeypatch):
    """The doctor names an old request and an unreadable one with their files. A tick may still answer a new request."""
    monkeypatch.setattr("jobs.doctor.job_health.UNANSWERED_MS", DAY_MS)
    folder = RequestFolder(at(root))
    dead = Holder(host="elsewhere", pid=1, started="s")
    old = RequestFolder(Warehouse(root, ProtocolPaths(JOB), now_ms=lambda: 1)).ask(SavepointKind.PLAIN, dead)
    fresh = folder.ask(SavepointKind.PLAIN, dead)
    broken = at(root).path(at(root).paths.requests) / "broken.json"
    broken.write_text("{")
    found = of_job(root)
    assert not any(fresh.request in what for what in found)
    assert any(f"request {old.request} was made" in what for what in found)
    assert f"rm {broken}" in found.values()


def test_the_page_has_an_exit_code_and_a_document(root, typed, monkeypatch):
    """The exit code is 0 for a healthy job and 1 with findings, with and without --json."""
    monkeypatch.setattr("jobs.doctor.examination.machine_section", _no_machine)
    code, out, _ = typed("doctor", "numbers", "--warehouse", root)
    assert ExitCode.DONE is code
    assert f"numbers in {root} is healthy" in out.replace("\n", "")
    (root / next(iter(handles_to_restore(records(root)[2]))).path).unlink()
    code, out, _ = typed("doctor", "numbers", "--warehouse", root)
    assert ExitCode.FAILED is code
    assert "checkpoint 2 is damaged" in out
    assert "repair: Restore it from a backup, or go back to" in out
    code, out, _ = typed("doctor", "numbers", "--json", "--verify", "--warehouse", root)
    document = json.loads(out)
    assert (ExitCode.FAILED, "findings", "numbers") == (code, document["verdict"], document["job"])
    assert {"section", "what", "repair"} == set(document["findings"][0])
    assert {"job", "tables", "files"} <= set(document["sections"])


def test_a_program_gets_numbers_and_hears_what_was_not_looked_at(root, typed):
    """The JSON has numbers, ids and lists too. Without the pipeline's code, the doctor did not look at sources."""
    shutil.rmtree(root / GOLD / "_data")
    code, out, _ = typed("doctor", "numbers", "--json", "--verify", "--warehouse", root)
    document = json.loads(out)
    values = document["values"]
    assert ExitCode.FAILED is code
    assert [1, 2] == [each["checkpoint"] for each in values["job"]["retained"]]
    assert (2, "at_rest") == (values["job"]["last_cut"]["checkpoint"], values["job"]["activity"])
    assert {"version", "files", "mode", "log_entries", "log_entries_to_open"} == set(values["tables"][BRONZE])
    assert values["tables"][BRONZE]["version"] == DeltaTable(str(root / BRONZE)).version()
    assert ("checksum", True) == (values["files"]["checked_by"], values["files"]["needed"]["bytes"] > 0)
    assert any(path.startswith(f"{GOLD}/_data/") for path in values["files"]["damaged"])
    assert {GOLD: None} == values["keys"]
    assert values["machine"]["packages"].keys() >= {"pyspark", "deltalake"}
    assert document["not_looked"]["input"] == ["sources and sinks: the code of the pipeline is not registered here"]
    assert document["not_looked"]["keys"][0].startswith(f"double keys of {GOLD}: not read (")


def test_a_page_says_what_was_not_looked_at(root, typed, monkeypatch):
    monkeypatch.setattr("jobs.doctor.examination.machine_section", _no_machine)
    _, out, _ = typed("doctor", "numbers", "--warehouse", root)
    assert "is healthy, except what was not looked at" in out.replace("\n", " ")
    assert "not looked at: sources and sinks" in out
    _, out, _ = typed("doctor", "tests.scenarios.runtime.sequence_job:as_pipeline", "--warehouse", root)
    assert "not looked at" not in out


def _no_machine(*_):
    from jobs.doctor.findings import Section

    return Section("machine")


def test_before_the_first_tick_it_says_how_to_begin(tmp_path, typed):
    """Without a warehouse of the job, the exit code is 4, and the doctor creates nothing."""
    code, out, _ = typed("doctor", "tests.scenarios.runtime.sequence_job:as_pipeline", "--warehouse", tmp_path / "none")
    assert ExitCode.NOT_THERE is code
    assert f"numbers has never run in {tmp_path / 'none'}" in out
    assert f"tidemark run tests.scenarios.runtime.sequence_job:as_pipeline --warehouse {tmp_path / 'none'}" in out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["doctor", "Nope"], "job name 'Nope' does not match"),
        (["doctor", "numbers", "--verfy"], "no such option: --verfy"),
        (["cleanup", "numbers", "--reader-grace", "soon"], "reader_grace_ms (given on the command line): write a"),
        (["cleanup", "numbers", "--reader-grace=-1"], "reader_grace_ms (given on the command line): must be greater"),
        (["cleanup", "numbers", "7"], "got unexpected extra argument"),
    ],
)
def test_wrong_words_are_answered_with_what_to_type(typed, root, words, expected):
    """A wrong name, option or value gives exit code 2 and one sentence."""
    code, _, err = typed(*words, "--warehouse", root)
    assert ExitCode.USAGE is code
    assert expected in err.lower() or expected in err


def test_a_clean_up_is_told_by_table(root, typed):
    """The dry run shows files and bytes, and the clean-up also reasons. Afterwards there is nothing left to delete."""
    path = _left_behind(root)
    now = ("--warehouse", root, "--reader-grace", "0s")
    code, out, _ = typed("cleanup", "numbers", "--dry-run", *now)
    assert ExitCode.DONE is code
    assert "numbers: 1 file, 11 B would be deleted" in out
    assert path.exists()
    code, out, _ = typed("cleanup", "numbers", *now)
    assert ExitCode.DONE is code
    assert "bronze/numbers" in out
    assert "staged, and named by no checkpoint" in out
    assert "numbers: 1 file, 11 B deleted; " in out
    assert "GiB are free there now" in out
    _, out, _ = typed("cleanup", "numbers", *now)
    assert "numbers: nothing to delete now" in out


def test_a_cut_that_went_with_its_savepoint_is_no_ailment(tmp_path):
    """A plain savepoint keeps the cut after which it was taken. Once it is disposed of, the cut cannot be read."""
    root = tmp_path / "warehouse"
    run(root, 1)
    taken = savepoint_at_rest(at(root))
    run(root)
    assert {} == of_job(root)
    dispose(at(root), taken.checkpoint)
    assert {} == of_job(root)
