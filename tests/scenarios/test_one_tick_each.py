"""Runs a cheap tick on Spark and Delta for each feature whose other real ticks are dear, in every `make test`."""

import polars as pl
import pytest

from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import SavepointKind, SavepointRequested, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline.planning import plan
from jobs.reading import Cuts
from jobs.tick.at_rest.cancellation import delete_checkpoints
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.driver import Inbox
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.checkpoints import CheckpointStore, rests_on
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobTables
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime import cut_jobs
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, ONE, declared, read_cut

pytestmark = pytest.mark.spark

ROWS = {"a": 30, "b": 30}


@pytest.fixture
def tick(spark, tmp_path):
    """Return a function that runs a tick over a few numbers in this test's warehouse, with one checkpoint."""

    def run(pipeline=None, *, inbox=None, parallelism=2):
        pipeline = pipeline or declared(ROWS, config=ONE)
        settings = RuntimeSettings(warehouse=tmp_path)
        return run_tick(plan(pipeline, parallelism=parallelism), settings, spark=spark, inbox=inbox)

    return run


def records(root):
    """Return the entries of checkpoints, oldest first."""
    found = CheckpointStore(Warehouse(root, ProtocolPaths(JOB))).observe()[1]
    return sorted((row for row in found if isinstance(row, CheckpointRecord)), key=lambda row: row.checkpoint)


def test_a_cut_of_another_job_causes_a_checkpoint(spark, tmp_path):
    """The source announces the barrier when it has read a cut (A10)."""
    cut_jobs.tick(cut_jobs.SHOP, tmp_path, 20)
    upstream = max(CutStore(Warehouse(tmp_path / cut_jobs.SHOP, ProtocolPaths(cut_jobs.SHOP))).recorded())
    settings = RuntimeSettings(warehouse=tmp_path / cut_jobs.REPORT)
    report = run_tick(cut_jobs.planned(cut_jobs.REPORT, tmp_path), settings, spark=spark)
    assert TickOutcome.CAUGHT_UP is report.outcome
    cut = Cuts(tmp_path / cut_jobs.REPORT, cut_jobs.REPORT).latest()
    assert [20, 20] == [cut.arrow(f"gold/{name}").num_rows for name in cut_jobs.SOURCES]
    (upstream_cut,) = map(str, rests_on(report.completed[-1]))
    assert upstream_cut.startswith(f"cut {upstream} of {cut_jobs.SHOP} in ")


def test_a_job_whose_sources_end_is_finished(tick):
    """The last checkpoint records that the job is finished, and the next tick does nothing (B4)."""
    bounded = declared(ROWS, config=ONE, bounded=True)
    report = tick(bounded)
    assert TickOutcome.FINISHED is report.outcome
    assert report.completed[-1].finished
    assert (TickOutcome.FINISHED, ()) == ((again := tick(bounded)).outcome, again.completed)


def test_another_parallelism_keeps_every_key(tick, tmp_path):
    """Two subtasks hold the keys, then three (D3)."""
    tick(declared({"a": 15, "b": 15}, config=ONE))
    tick(parallelism=3)
    vertices = [vertex for record in records(tmp_path) for vertex in record.vertices]
    assert [2, 3] == [len(vertex.subtasks) for vertex in vertices if vertex.vertex == "by_key"]
    counted = pl.from_records(read_cut(tmp_path)[GOLD], orient="row")
    numbers = read_cut(tmp_path)[BRONZE]
    assert (60, 7) == (len(numbers), len(counted))


def test_the_job_fails_if_a_checkpoint_fails_and_none_is_tolerated(tick, tmp_path, monkeypatch):
    """The check of the tables before the commit fails, so nothing is published (E5)."""

    def away(*_):
        raise OSError("the log is away")

    monkeypatch.setattr(JobTables, "check", away)
    report = tick()
    assert (TickOutcome.FAILED, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE) == (report.outcome, report.reason)
    assert "a checkpoint failed, tolerable_failures is 0" in report.message
    assert [] == records(tmp_path)


def test_a_stop_takes_a_savepoint_and_ends_the_job(tick, tmp_path):
    """The next tick goes on from the savepoint (F4)."""
    inbox = Inbox()
    inbox.put(SavepointRequested("stop", SavepointKind.SUSPEND))
    report = tick(inbox=inbox)
    assert TickOutcome.STOPPED is report.outcome
    (savepoint,) = records(tmp_path)
    assert savepoint.pinned
    assert TickOutcome.CAUGHT_UP is tick().outcome
    assert savepoint.checkpoint == records(tmp_path)[-1].parent
    assert 60 == len(read_cut(tmp_path)[BRONZE])


def test_a_cancelled_job_keeps_its_savepoints_only(tick, tmp_path):
    """The job's checkpoints are deleted as configured. The tables stay (G3)."""
    tick()
    warehouse = Warehouse(tmp_path, ProtocolPaths(JOB))
    before, savepoint = read_cut(tmp_path), savepoint_at_rest(warehouse)
    gone = delete_checkpoints(warehouse, plan(declared(ROWS, config=ONE)))
    assert savepoint.parent in gone.checkpoints
    assert [savepoint.checkpoint] == [record.checkpoint for record in records(tmp_path)]
    assert 60 == len(before[BRONZE]) == pl.read_delta(str(tmp_path / BRONZE)).height
