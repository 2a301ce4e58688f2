"""A tick from its claim to its release, on real Delta tables, without Spark."""

import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from checkpointing.commit.fencing import newest_claim, release_of
from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import Generation
from checkpointing.job.door import JobDoor
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.job.setup import TickLimits
from checkpointing.messages import RowAppended, SavepointKind, StopKind, StopRequested, TickOutcome
from checkpointing.metadata.files import files_of as files_of_entry
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, RowKind
from checkpointing.trace import read
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.pipeline import Pipeline, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.tick.at_rest.import_entry import import_row
from jobs.tick.at_rest.request_client import NothingRunsError, stop, take_savepoint
from jobs.tick.driver import DoorFailedError, Inbox
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore, this_process
from jobs.warehouse.refusals import JobHeldError, SavepointRefusedError
from jobs.warehouse.requests import RequestFolder
from jobs.warehouse.savepoint_copy import copy_savepoint, named_files
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime import kept_job
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    CONFIG,
    GOLD,
    JOB,
    LocalEngine,
    at,
    build,
    read_cut,
    records,
    run,
    wanted,
)


def stores_at(root: Path) -> JobStores:
    return JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely)


def files_of(root: Path) -> dict[str, int]:
    tables = [root / BRONZE, root / GOLD]
    return {str(path): path.stat().st_size for table in tables for path in table.rglob("*") if path.is_file()}


def entries(trace: Path):
    return read(trace.read_bytes().splitlines(keepends=True))


class Notes:
    """A listener that records its events."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def claimed(self, claim, why):
        self.heard.append(("claimed", claim.generation))

    def recovered(self, recovery):
        self.heard.append(("recovered", recovery.restored, recovery.rolled_forward, recovery.leftovers))

    def completed(self, record, notes, versions):
        self.heard.append(("completed", record.checkpoint, versions[BRONZE]))

    def failed(self, checkpoint, reason, message, *, ends_tick):
        self.heard.append(("failed", checkpoint, reason))

    def progress(self, progress):
        return


class NoEngine(LocalEngine):
    """An engine for ticks that must not run a micro-batch."""

    def run(self, *asked):
        raise AssertionError(f"a micro-batch was run: {asked}")


def test_a_tick_ends_caught_up_with_every_row_once(tick, tmp_path):
    report = tick()
    assert TickOutcome.CAUGHT_UP is report.outcome
    tables = read_cut(tmp_path)
    assert 300 == len(set(tables["bronze/numbers"])) == len(tables["bronze/numbers"])
    assert 300 == sum(rows for _, rows, _ in tables["gold/by_key"])
    assert 2 * sum(range(150)) == sum(total for _, _, total in tables["gold/by_key"])


def test_a_second_tick_finds_nothing_and_changes_nothing(tick, tmp_path):
    """A tick without new rows starts no engine, completes nothing and leaves the tables' files alone."""
    tick()
    before = files_of(tmp_path)
    report = tick(engine=NoEngine())
    assert (TickOutcome.CAUGHT_UP, ()) == (report.outcome, report.completed)
    assert before == files_of(tmp_path)


def test_the_listener_hears_claim_recovery_and_each_checkpoint_in_order(tick):
    """A listener gets events in the order in which they happened, with the Delta version of each table."""
    first, second = Notes(), Notes()
    tick(listener=first)
    tick(listener=second)
    completed = [("completed", 1, 1), ("completed", 2, 2), ("completed", 3, 3)]
    assert [("claimed", 1), ("recovered", None, None, 0), *completed] == first.heard
    assert [("claimed", 2), ("recovered", 3, None, 0)] == second.heard


def test_a_held_job_is_refused_by_name_and_left_alone(tick, tmp_path):
    """While a live holder has a lease, another tick is refused. The error names the holder and the way out (G5)."""
    tick(limits=TickLimits(checkpoints=1))
    stores = stores_at(tmp_path)
    seen = stores.observe()
    claim = newest_claim(seen.rows).model_copy(update={"generation": 2, "nonce": "another", "holder": this_process()})
    assert isinstance(stores.entries.append(claim, seen.version), RowAppended)
    LeaseStore(stores.warehouse).renew(Generation(2), claim.holder, 60_000)
    before = stores.observe().version
    with pytest.raises(JobHeldError, match=rf"process {os.getpid()} on .*generation 2.*--take-over"):
        tick()
    assert before == stores.observe().version
    assert TickOutcome.CAUGHT_UP is tick(take_over=True).outcome
    assert Generation(3) == newest_claim(stores.observe().rows).generation


def test_a_cut_that_does_not_fit_is_refused_before_the_claim(tick, tmp_path):
    """Another max_parallelism is refused naming both numbers, and the job stays free."""
    tick()
    before = stores_at(tmp_path).observe().version
    with pytest.raises(CutDoesNotFitError, match=r"max_parallelism 128.*64"):
        tick(plan=build(config=CONFIG.model_copy(update={"max_parallelism": 64})))
    assert before == stores_at(tmp_path).observe().version


def test_a_table_that_cannot_be_written_fails_the_tick_and_frees_the_job(tick, tmp_path):
    """The report names the table with a foreign column type, and the tick releases the job."""
    write_deltalake(str(tmp_path / BRONZE), pa.table({"split": [1]}))
    report = tick()
    assert (TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED) == (report.outcome, report.reason)
    assert "bronze/numbers" in report.message
    assert release_of(stores_at(tmp_path).observe().rows, report.generation) is not None


def test_a_stop_ends_the_tick_in_order_and_the_next_goes_on(tick, tmp_path, undisturbed):
    """A tick that is asked to stop now commits nothing more. The next one reads the uncommitted rows again."""
    inbox = Inbox()
    inbox.put(StopRequested(StopKind.NOW))
    report = tick(inbox=inbox)
    assert (TickOutcome.STOPPED, ()) == (report.outcome, report.completed)
    assert release_of(stores_at(tmp_path).observe().rows, report.generation) is not None
    tick()
    assert undisturbed == read_cut(tmp_path)


def test_a_bug_of_the_door_is_loud_and_names_the_trace(tick, tmp_path, monkeypatch, undisturbed):
    """If the door raises, the tick raises. Its trace holds all facts so far, and the job is free again."""
    steps = JobDoor.step
    seen = []

    def broken(self, fact):
        seen.append(fact)
        if len(seen) == 9:
            raise KeyError("no such vertex")
        return steps(self, fact)

    monkeypatch.setattr(JobDoor, "step", broken)
    with pytest.raises(DoorFailedError, match="report it with the trace") as raised:
        tick()
    monkeypatch.undo()
    facts = [entry.body for entry in entries(raised.value.trace)]
    assert seen[-1] in facts
    assert "KeyError" in facts[-1].error
    assert TickOutcome.CAUGHT_UP is tick().outcome
    assert undisturbed == read_cut(tmp_path)


# ------------------------------------------------------------------
# Commands ask a running tick for savepoints and stops, through files in its job's folder, and the tick answers. Without
# Spark.


class Running:
    """A tick that waits for more rows, in a thread of this process."""

    def __init__(self, root, **how):
        self.root = root
        self.inbox = Inbox()
        self.report = None
        engine = how.pop("engine", None) or LocalEngine()
        settings = RuntimeSettings(warehouse=root, limits=TickLimits(until_caught_up=False))
        self._thread = threading.Thread(target=self._run, args=(settings, engine))

    def _run(self, settings, engine):
        self.report = run_tick(build(), settings, engine=engine, inbox=self.inbox)

    def start(self):
        self._thread.start()
        limit = time.monotonic() + 60
        while not (self.root / "_tidemark/numbers/lease").exists():
            assert time.monotonic() < limit
            time.sleep(0.01)
        return self

    def end(self):
        self.inbox.put(StopRequested(StopKind.NOW))
        self.join()

    def join(self):
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


@contextmanager
def running(root, **how):
    tick = Running(root, **how).start()
    try:
        yield tick
    finally:
        tick.end()


def requests(root):
    return sorted(path.name for path in (root / "_tidemark/numbers/requests").iterdir())


def patiently(waiting):
    assert waiting.seconds < 30, waiting


def test_a_running_tick_takes_a_savepoint_and_goes_on(tmp_path, undisturbed):
    """The tick answers with the savepoint's id and leaves no request file. It ends like an undisturbed run."""
    with running(tmp_path) as tick:
        taken = take_savepoint(at(tmp_path), patiently)
        assert this_process() == taken.by
        assert RowKind.SAVEPOINT is records(tmp_path)[taken.record.checkpoint].kind
        assert tick.report is None
        assert [] == requests(tmp_path)
    run(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def test_a_savepoint_of_a_running_tick_forks_into_the_same_result(tmp_path, undisturbed):
    """The savepoint is taken midway, copied and restored elsewhere. The job ends there with exact tables."""
    root, fork = tmp_path / "warehouse", tmp_path / "fork"
    with running(root):
        taken = take_savepoint(at(root), patiently)
        copy = tmp_path / "copy"
        copy_savepoint(at(root), taken.record.checkpoint, copy)
        assert [] == [
            path for path in named_files(records(root)[taken.record.checkpoint]) if not (root / path).exists()
        ]
    import_row(wanted(str(copy), fork))
    run(fork)
    assert undisturbed == read_cut(fork)


@pytest.mark.parametrize("kind", [SavepointKind.SUSPEND, SavepointKind.DRAIN])
def test_a_stop_ends_the_tick_with_a_published_savepoint(tmp_path, undisturbed, kind):
    """When the stop returns, the tick has released the job. The next tick begins from the savepoint."""
    tick = Running(tmp_path).start()
    taken = stop(at(tmp_path), kind, patiently)
    tick.join()
    row = records(tmp_path)[taken.record.checkpoint]
    assert TickOutcome.STOPPED is tick.report.outcome
    assert (RowKind.CHECKPOINT, True, max(records(tmp_path))) == (row.kind, row.pinned, row.checkpoint)
    report = run(tmp_path)
    assert undisturbed == read_cut(tmp_path)
    assert [row.checkpoint] == [each.parent for each in report.completed[:1]] or () == report.completed


def test_a_tick_that_ends_leaves_the_asker_to_do_it_at_rest(tmp_path):
    run(tmp_path, 1)
    asked = threading.Event()
    gate = tmp_path / "gate"
    tick = Running(tmp_path, engine=LocalEngine(gate=gate)).start()

    def end_it(waiting):
        del waiting
        if not asked.is_set():
            asked.set()
            tick.inbox.put(StopRequested(StopKind.NOW))
            gate.touch()

    taken = take_savepoint(at(tmp_path), end_it)
    tick.join()
    assert RowKind.SAVEPOINT is records(tmp_path)[taken.record.checkpoint].kind
    assert [] == requests(tmp_path)
    with pytest.raises(NothingRunsError):
        stop(at(tmp_path), SavepointKind.DRAIN, patiently)


def test_a_malformed_request_harms_no_tick(tmp_path, undisturbed):
    run(tmp_path, 1)
    folder = tmp_path / "_tidemark/numbers/requests"
    folder.mkdir()
    (folder / "broken.json").write_text('{"kind": "explode"}')
    run(tmp_path)
    assert "cannot be read" in RequestFolder(at(tmp_path)).answer_to("broken").message
    assert undisturbed == read_cut(tmp_path)


def test_a_caller_that_stops_waiting_takes_its_request_back(tmp_path):
    """Ctrl-C while the command waits leaves neither a request nor an answer."""
    gate = tmp_path / "gate"

    def interrupt(waiting):
        raise KeyboardInterrupt

    with running(tmp_path, engine=LocalEngine(gate=gate)):
        with pytest.raises(KeyboardInterrupt):
            take_savepoint(at(tmp_path), interrupt)
        assert [] == requests(tmp_path)
        gate.touch()


def test_a_failing_savepoint_is_told_with_the_reason(tmp_path, monkeypatch):
    run(tmp_path, 1)
    with running(tmp_path):
        monkeypatch.setattr("jobs.tick.at_rest.request_client.RequestFolder.answer_to", refused)
        with pytest.raises(SavepointRefusedError, match=r"process \d+ on .* took no savepoint: a suite said no"):
            take_savepoint(at(tmp_path), patiently)


def refused(folder, request):
    from jobs.warehouse.requests import AnswerStatus, SavepointAnswer

    del folder
    return SavepointAnswer(request=request, status=AnswerStatus.FAILED, message="a suite said no", answered_at_ms=1)


# ------------------------------------------------------------------
# An upsert table's key range has several files, and a micro-batch rewrites only some of them (D4).
#
# The other files still belong to the last checkpoint. A later micro-batch of the same epoch may replace them, but they
# must not be deleted until the next checkpoint is complete.


CONFIG_OF_RANGES_IN_PARTS = CheckpointConfig(every_rows=4, slice_rows_max=1, micro_batch_rows_max=1, retained=9)


def totals(rows):
    pipeline = Pipeline(kept_job.JOB, config=CONFIG_OF_RANGES_IN_PARTS, parallelism=1)
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, keys=4)).drop(SPLIT_COLUMN, POSITION_COLUMN)
    sums = numbers.key_by("key").aggregate("sums", total=sum_of("value"))
    sums.upsert("gold/sums", partition_by=["key"])
    return plan(pipeline)


def test_files_of_the_last_checkpoint_stay_until_the_next_one(tmp_path):
    """The first row of an epoch leaves three of four files as they are. The next rows replace them one by one."""
    kept_job.run(tmp_path, totals(12))
    rows = [row for row in CheckpointStore(kept_job.at(tmp_path)).observe()[1] if isinstance(row, CheckpointRecord)]
    assert len(rows) >= 3
    missing = {
        row.checkpoint: sorted(path for path in files_of_entry(row) if not (tmp_path / path).exists()) for row in rows
    }
    assert not any(missing.values()), missing


# ------------------------------------------------------------------
# A process keeps its own Spark session, whatever ticks it runs.


@pytest.mark.spark
def test_a_tick_does_not_stop_a_session_that_it_found(spark, tmp_path):
    """A notebook or a Dagster op runs a tick in a process that has a session. The session still works afterwards."""
    ran = execute(["run", "tests.scenarios.runtime.sequence_job:as_pipeline", "--warehouse", str(tmp_path)])
    assert (ExitCode.DONE, 3) == (ran, spark.range(3).count())
