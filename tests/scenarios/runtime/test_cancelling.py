"""A job is cancelled: its tick ends now, its checkpoints stay or are deleted, and no row is published twice (G3)."""

import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from checkpointing.identifiers import CheckpointId, VertexId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointKind, StopKind, StopRequested, TickOutcome
from jobs.cli.errors import ExitCode
from jobs.sources.hybrid import SequenceSource
from jobs.tick.at_rest.cancellation import delete_checkpoints
from jobs.tick.at_rest.import_entry import import_row
from jobs.tick.at_rest.request_client import end_now, stop
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.source_reset import Reset, reset
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.discovery import discover
from jobs.tick.driver import Inbox
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import newest_restorable
from jobs.warehouse.lease import this_process
from jobs.warehouse.refusals import TablesAheadError
from jobs.warehouse.savepoint_copy import named_files
from tests.scenarios.processes import Dead, Mortal, killed
from tests.scenarios.processes import Running as RunningProcess
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    KEYS,
    ONE,
    ROWS,
    LocalEngine,
    at,
    build,
    contents,
    read_cut,
    records,
    run,
    ticked,
    wanted,
)
from tests.scenarios.runtime.test_savepoints import nobody_waits
from tests.scenarios.runtime.test_tick import Running, patiently, requests

PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"
DELETE = ("--set", "retain_on_cancellation=false")
STEPS = (
    "before:Claim",
    "after:Claim",
    "before:Release",
    "before:LogCommit:checkpoints",
    "after:LogCommit:checkpoints",
    "after:Release",
    "before:DropCuts",
    "before:LogCommit:cuts",
    "after:LogCommit:cuts",
    "after:DropCuts",
    "before:DropFiles",
    "after:DropFiles",
)


def state_files(root):
    """Return the staged files that lie in the job's own folders."""
    return {str(path.relative_to(root)) for path in (root / "_tidemark").rglob("_data/*/*.parquet")}


def test_a_running_tick_is_cancelled_and_its_checkpoints_retained(tmp_path, undisturbed, typed):
    """The tick ends without a savepoint. The command says how to go on. The next tick ends with exact tables."""
    gate = tmp_path / "gate"
    run(tmp_path, 1)
    tick = Running(tmp_path, engine=LocalEngine(gate=gate)).start()
    opened = threading.Timer(0.5, gate.touch)
    opened.start()
    code, out, err = typed("cancel", PIPELINE, "--warehouse", tmp_path)
    tick.join()
    assert (ExitCode.DONE, "") == (code, err)
    assert TickOutcome.STOPPED is tick.report.outcome
    assert f"numbers is cancelled: {this_process()} ended; the next tick reads again what it had not committed" in out
    assert f"the next tick begins after {max(records(tmp_path))}" in out
    assert f"go on with: tidemark run {PIPELINE}" in out
    assert [] == requests(tmp_path)
    run(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def test_a_running_tick_is_cancelled_and_its_checkpoints_deleted(tmp_path, typed, monkeypatch):
    """Entries, cuts and state are deleted, as an environment variable configures it.

    The tables keep what they show, and no tick begins on them.
    """
    monkeypatch.setenv("TIDEMARK_RETAIN_ON_CANCELLATION", "false")
    run(tmp_path, 2)
    before = contents(tmp_path)
    tick = Running(tmp_path, engine=LocalEngine(gate=tmp_path / "never")).start()
    threading.Timer(1.0, (tmp_path / "never").touch).start()
    code, out, err = typed("cancel", PIPELINE, "--warehouse", tmp_path)
    tick.join()
    assert (ExitCode.DONE, "") == (code, err)
    assert "deleted, since retain_on_cancellation is false: 2 checkpoints (" in out
    assert "start over in an empty warehouse" in out
    assert ({}, frozenset(), set()) == (records(tmp_path), CutStore(at(tmp_path)).recorded(), state_files(tmp_path))
    after = contents(tmp_path)
    assert set(before[str(BRONZE)]) <= set(after[str(BRONZE)])
    code, _, err = typed("run", PIPELINE, "--warehouse", tmp_path)
    assert ExitCode.FAILED is code
    assert f"table bronze/numbers in {tmp_path} shows checkpoint " in err
    for way in (
        f"in an empty warehouse with 'tidemark run {PIPELINE} --warehouse",
        f"delete the folders of its tables in {tmp_path}",
    ):
        assert way in err
    assert after == contents(tmp_path)


def test_a_savepoint_outlives_the_deletion_and_is_restored_from_where_it_lies(tmp_path, undisturbed, typed):
    """The savepoint's entry and files and its parent's cut stay.

    `--from WAREHOUSE@N` into an empty warehouse ends with exact tables.
    """
    root, fork = tmp_path / "warehouse", tmp_path / "fork"
    run(root, 1)
    savepoint = savepoint_at_rest(at(root))
    run(root, 1)
    code, out, _ = typed("cancel", PIPELINE, *DELETE, "--warehouse", root)
    assert ExitCode.DONE is code
    assert f"kept: 1 savepoint ({savepoint.checkpoint})" in out
    assert f"--from {root}@{savepoint.checkpoint} --warehouse EMPTY_FOLDER" in out
    assert {savepoint.checkpoint: savepoint} == records(root)
    assert {savepoint.parent} == CutStore(at(root)).recorded()
    assert state_files(root) == {path for path in named_files(savepoint) if path.startswith("_tidemark/")}
    code, out, err = typed("run", PIPELINE, "--from", f"{root}@{savepoint.checkpoint}", "--warehouse", fork)
    assert ExitCode.DONE is code, err
    assert undisturbed == read_cut(fork)


def test_a_job_that_was_stopped_with_a_savepoint_goes_on_from_it_after_a_deletion(tmp_path, undisturbed):
    """The tables show the savepoint that the stop left, so a restore from it adds no row twice."""
    tick = Running(tmp_path).start()
    taken = stop(at(tmp_path), SavepointKind.SUSPEND, patiently)
    tick.join()
    deleted = delete_checkpoints(at(tmp_path), build())
    assert [taken.record.checkpoint] == [record.checkpoint for record in deleted.kept] == list(records(tmp_path))
    assert taken.record.checkpoint == deleted.resumes.checkpoint
    run(tmp_path)
    assert undisturbed == read_cut(tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("occurrence", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_a_death_between_the_steps_is_made_up_for(tmp_path, undisturbed, monkeypatch, step, occurrence):
    """Wherever a deletion dies, the next one leaves the savepoint, its files, its cut, and whole tables."""
    root, fork = tmp_path / "warehouse", tmp_path / "fork"
    run(root, 1)
    savepoint = savepoint_at_rest(at(root))
    with suppress(Dead):
        run_tick(build(), RuntimeSettings(warehouse=root), engine=LocalEngine(), boundary=Mortal("after:AppendRow", 1))
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    pending = max(records(root))
    with suppress(Dead):
        delete_checkpoints(at(root), build(), boundary=Mortal(step, occurrence))
    delete_checkpoints(at(root), build())
    assert [savepoint.checkpoint] == list(records(root))
    assert {savepoint.parent} == CutStore(at(root)).recorded()
    assert state_files(root) == {path for path in named_files(savepoint) if path.startswith("_tidemark/")}
    with pytest.raises(TablesAheadError, match=f"shows checkpoint {pending} "):
        run(root)
    import_row(wanted(f"{root}@{savepoint.checkpoint}", fork))
    run(fork)
    assert undisturbed == read_cut(fork)


def test_a_tick_that_dies_while_it_is_asked_is_noticed(tmp_path, undisturbed):
    root = tmp_path / "warehouse"
    run(root, 1)
    process = RunningProcess(ticked, root, gate=tmp_path / "never").process
    limit = time.monotonic() + 60
    while f'"pid":{process.pid}' not in lease(root):
        assert time.monotonic() < limit, lease(root)
        assert process.is_alive()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGSTOP)

    def kill(waiting):
        patiently(waiting)
        if process.is_alive():
            process.kill()
            process.join()

    ended = end_now(at(root), kill)
    assert (process.pid, True) == (ended.by.pid, ended.died)
    assert [] == requests(root)
    run(root)
    assert undisturbed == read_cut(root)


def lease(root):
    try:
        return (root / "_tidemark/numbers/lease").read_text().replace(" ", "")
    except FileNotFoundError:
        return ""


def test_at_rest_nothing_is_asked(tmp_path, typed):
    """The command prints which checkpoints stay, or that they are deleted.

    A second deletion prints that no checkpoint was left.
    """
    run(tmp_path, 2)
    assert None is end_now(at(tmp_path), nobody_waits).by
    code, out, _ = typed("cancel", PIPELINE, "--warehouse", tmp_path)
    assert ExitCode.DONE is code
    assert "numbers is cancelled: no tick of it runs (the last tick ended normally)" in out
    assert "retained: 2 checkpoints; the next tick begins after 2" in out
    _, out, _ = typed("cancel", PIPELINE, *DELETE, "--warehouse", tmp_path)
    assert "deleted, since retain_on_cancellation is false: 2 checkpoints (1, 2), and " in out
    _, out, _ = typed("cancel", PIPELINE, *DELETE, "--warehouse", tmp_path)
    assert "deleted, since retain_on_cancellation is false: no checkpoint; the tables stay as they are" in out
    _, out, _ = typed("cancel", PIPELINE, "--warehouse", tmp_path)
    assert f"nothing is retained: it has no checkpoint in {tmp_path}" in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("cancel", PIPELINE), ExitCode.NOT_THERE, "numbers has never run in"),
        (("cancel", "nonsuch"), ExitCode.NOT_THERE, "nonsuch"),
        (("cancel", PIPELINE, "--set", "retain_on_cancellation=perhaps"), ExitCode.USAGE, "retain_on_cancellation"),
        (("run", PIPELINE, "--set", "retain_on_cancellation=false"), ExitCode.USAGE, "a tick does not use"),
        (("cancel", PIPELINE, "--delete"), ExitCode.USAGE, "'tidemark cancel --help' shows what can be given"),
    ],
)
def test_a_wrong_cancellation_says_what_to_type(tmp_path, typed, words, code, said):
    got, _, err = typed(*words, "--warehouse", tmp_path / "none")
    assert code is got, err
    assert said in err
    assert not (tmp_path / "none").exists()


def test_a_first_start_accepts_tables_without_transactions_of_a_job(tmp_path, undisturbed):
    inbox = Inbox()
    inbox.put(StopRequested(StopKind.NOW))
    settings = RuntimeSettings(warehouse=tmp_path, limits=TickLimits())
    run_tick(build(), settings, engine=LocalEngine(), inbox=inbox)
    assert ({}, True) == (records(tmp_path), (tmp_path / BRONZE / "_delta_log").exists())
    run(tmp_path)
    assert undisturbed == read_cut(tmp_path)


# ------------------------------------------------------------------
# Jobs whose sources end, in real ticks on real Delta tables without Spark, killed around the last checkpoint.


ALL = sum(ROWS.values())
KILLS = (
    "after:RunMicroBatch",
    "before:AppendRow",
    "after:AppendRow",
    "after:PublishTable",
    "before:RecordCut",
    "after:RecordCut",
    "before:NotifyComplete",
)


class NoEngine:
    """An engine for a tick that must not run a micro-batch."""

    def run(self, *_of: object) -> None:
        raise AssertionError("a micro-batch was run")

    def close(self) -> None:
        """Do nothing, since nothing was opened."""


def tick(root: Path, *, bounded: bool = True, rows: dict[str, int] | None = None, engine: object = None):
    planned = build(rows, config=ONE, bounded=bounded)
    return run_tick(planned, RuntimeSettings(warehouse=root), engine=engine or LocalEngine())


def versions(root: Path) -> int:
    return len([*(root / "_tidemark/numbers/checkpoints/_delta_log").glob("*.json")])


def sources():
    return {VertexId("numbers"): SequenceSource(ROWS, keys=KEYS, bounded=True)}


def test_a_finished_job_says_so_and_starts_nothing(tmp_path):
    """The first tick finishes the job. The next one claims nothing, writes nothing and runs nothing."""
    assert TickOutcome.FINISHED is tick(tmp_path).outcome
    newest, written = newest_restorable(at(tmp_path)), versions(tmp_path)
    assert newest.finished
    report = tick(tmp_path, engine=NoEngine())
    assert (TickOutcome.FINISHED, 1, ()) == (report.outcome, report.generation, report.completed)
    assert written == versions(tmp_path)
    assert ALL == len(read_cut(tmp_path)["bronze/numbers"])
    assert not discover(sources(), newest)[VertexId("numbers")].any


@pytest.mark.parametrize(
    "boundary", [each if each == "after:AppendRow" else pytest.param(each, marks=pytest.mark.dear) for each in KILLS]
)
def test_a_job_that_was_killed_around_its_last_checkpoint_finishes(tmp_path, boundary):
    """Whatever the killed tick leaves, the next ticks end with every row once, and with a finished entry."""
    killed(tick, tmp_path, kill_at=boundary)
    assert TickOutcome.FINISHED is tick(tmp_path).outcome
    assert newest_restorable(at(tmp_path)).finished
    rows = read_cut(tmp_path)
    assert ALL == len(rows["bronze/numbers"]) == len(set(rows["bronze/numbers"]))
    assert ALL == sum(count for _, count, _ in rows["gold/by_key"])
    assert TickOutcome.FINISHED is tick(tmp_path, engine=NoEngine()).outcome


def test_a_reset_lets_the_job_go_on_until_it_finishes_again(tmp_path):
    """The split that the reset moves is read again, and its rows count again. The other split stays at its end."""
    tick(tmp_path)
    reset(at(tmp_path), sources(), Reset("numbers", "100", "a"))
    moved = newest_restorable(at(tmp_path))
    assert not moved.finished
    assert {"a": 50} == {
        split: offer.lag.rows
        for split, offer in discover(sources(), moved)[VertexId("numbers")].splits.items()
        if offer.any
    }
    assert TickOutcome.FINISHED is tick(tmp_path).outcome
    assert ALL + 50 == len(read_cut(tmp_path)["bronze/numbers"])


def test_rows_after_the_end_are_read_only_if_the_source_is_not_bounded_any_more(tmp_path):
    """A bounded source reads neither more rows of a split nor a new split. Without `bounded=True` the splits go on."""
    tick(tmp_path)
    longer = {**ROWS, "a": 500, "c": 10}
    assert TickOutcome.FINISHED is tick(tmp_path, rows=longer, engine=NoEngine()).outcome
    assert TickOutcome.CAUGHT_UP is tick(tmp_path, bounded=False, rows={**ROWS, "a": 200}).outcome
    assert ALL + 50 == len(read_cut(tmp_path)["bronze/numbers"])
    assert not newest_restorable(at(tmp_path)).finished


def test_a_rollback_to_before_the_end_lets_the_job_finish_again(tmp_path):
    tick(tmp_path, bounded=False, rows={"a": 100, "b": 100})
    before = newest_restorable(at(tmp_path)).checkpoint
    tick(tmp_path)
    finished = newest_restorable(at(tmp_path)).checkpoint
    roll_back(at(tmp_path), CheckpointId(before))
    assert not newest_restorable(at(tmp_path)).finished
    assert TickOutcome.FINISHED is tick(tmp_path).outcome
    assert ALL == len(read_cut(tmp_path)["bronze/numbers"])
    assert finished != newest_restorable(at(tmp_path)).checkpoint


def test_a_job_that_begins_from_a_finished_one_is_finished(tmp_path):
    """The next tick publishes the tables in the other warehouse, and runs nothing."""
    old, new = tmp_path / "old", tmp_path / "new"
    tick(old)
    origin = f"{old}@{newest_restorable(at(old)).checkpoint}"
    import_row(wanted(origin, new, plan=build(config=ONE, bounded=True)))
    assert TickOutcome.FINISHED is tick(new, engine=NoEngine()).outcome
    assert read_cut(old) == read_cut(new)


def test_a_finished_job_whose_table_lost_its_newest_entry_is_repaired(tmp_path):
    tick(tmp_path)
    log = tmp_path / "bronze/numbers/_delta_log"
    max(log.glob("*.json")).unlink()
    shutil.rmtree(log / "_sidecars", ignore_errors=True)
    assert TickOutcome.FINISHED is tick(tmp_path, engine=NoEngine()).outcome
    assert ALL == len(read_cut(tmp_path)["bronze/numbers"])
