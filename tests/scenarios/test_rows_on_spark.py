"""Rows of docs/FLINK_MAP.md on real Spark and Delta, each shown by the smallest job that can show it."""

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from deltalake import DeltaTable

from checkpointing.config import RestartStrategyKind
from checkpointing.failures import CheckpointFailureReason
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.tick.listener import Restarting, TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import JobHeldError
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime.conftest import Dead, Mortal
from tests.scenarios.runtime.hook_job import Notebook, notes, with_hooks
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, JOB, KEYS, ROWS, declared, read_cut

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAUSE_MS = 300


def changed(**changes):
    """Return the job's configuration with these changes, validated."""
    return type(CONFIG)(**(CONFIG.model_dump() | changes))


@pytest.fixture
def tick(spark, tmp_path):
    """Return a function that runs a tick of the numbers on Spark, in this test's warehouse."""

    def run(pipeline=None, *, listener=None, boundary=None, **settings):
        planned = plan(pipeline or declared())
        how = RuntimeSettings(warehouse=tmp_path, **settings)
        return run_tick(planned, how, listener, spark=spark, boundary=boundary)

    return run


@pytest.fixture(scope="module")
def undisturbed(spark, tmp_path_factory):
    """Return the tables as a run on Spark leaves them that nothing disturbed."""
    root = tmp_path_factory.mktemp("undisturbed")
    run_tick(plan(declared()), RuntimeSettings(warehouse=root), spark=spark)
    return read_cut(root)


def stores_at(root):
    """Open the job's stores as another process would."""
    return JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely)


def checkpoints_at(root):
    """Return the retained checkpoints, oldest first."""
    rows = (row for row in stores_at(root).rows() if isinstance(row, CheckpointRecord))
    return sorted(rows, key=lambda record: record.checkpoint)


def die(tick, name):
    """Run a tick that dies at a boundary; it must come to it. This process lives on, so the next tick takes over."""
    mortal = Mortal(name)
    with suppress(Dead):
        tick(boundary=mortal, take_over=True)
    assert mortal.dead, name


class LosesReply:
    """A boundary at which a commit's reply is lost, once: the commit is in, and the tick gets an error."""

    def __init__(self, name):
        self.lost = False
        self._name = name

    def __call__(self, name):
        if name == self._name and not self.lost:
            self.lost = True
            raise OSError("the reply is lost")


class Hears(TickListener):
    """Writes down what a pipeline's listener and a tick's listener are told; raises in the pipeline's, if told so."""

    def __init__(self, error=None):
        self.complete, self.restarts, self._error = [], [], error

    def notify_checkpoint_complete(self, checkpoint):
        self.complete.append(checkpoint)
        if self._error is not None:
            raise self._error

    def notify_checkpoint_aborted(self, checkpoint, reason):
        raise AssertionError((checkpoint, reason))

    def progress(self, progress):
        if isinstance(progress, Restarting):
            self.restarts.append(progress)


# ------------------------------------------------------------------ triggering


def test_the_interval_triggers_and_the_pause_after_each_checkpoint_is_kept(tick):
    """The clock alone triggers, and never sooner than the pause after a checkpoint has completed (A1)."""
    by_time = changed(every_rows=None, interval_ms=20, min_pause_ms=PAUSE_MS, retained=4)
    limits = TickLimits(until_caught_up=False, checkpoints=4)
    report = tick(declared(config=by_time), limits=limits)
    assert "" == report.message
    lives = [record.statistics for record in report.completed]
    assert 4 == len(lives)
    assert all(after.triggered_ms - before.committed_ms >= PAUSE_MS for before, after in pairwise(lives))


def test_ids_rise_over_ticks_and_deaths_and_none_is_used_twice(tick, tmp_path):
    """An orderly tick's ids go on without a gap; behind a dead tick lies the block that it had reserved (A6)."""
    tick(limits=TickLimits(checkpoints=1))
    die(tick, "before:AppendRow")
    tick(take_over=True)
    first, *rest = [record.checkpoint for record in checkpoints_at(tmp_path)]
    assert first > 2
    assert rest == list(range(first + 1, first + 1 + len(rest)))


# ------------------------------------------------------------------ completion and commit


def test_a_lost_reply_of_the_commit_point_is_read_back(tick, tmp_path, undisturbed):
    """The row is in although nobody said so: it is found by its nonce, and published once (E3)."""
    lost = LosesReply("after:LogCommit:checkpoints")
    assert ("", TickOutcome.CAUGHT_UP) == _told(tick(boundary=lost))
    assert lost.lost
    assert undisturbed == read_cut(tmp_path)


def test_the_newest_checkpoints_are_retained_and_older_ones_subsumed(tick, tmp_path):
    """Three complete and two are retained: rows and cuts of the first are gone (E4)."""
    report = tick()
    completed = [record.checkpoint for record in report.completed]
    assert 3 == len(completed)
    assert completed[1:] == [record.checkpoint for record in checkpoints_at(tmp_path)]
    assert set(completed[1:]) == set(stores_at(tmp_path).recorded_cuts())


def test_a_rows_statistics_say_what_the_epoch_was(tick):
    """Rows, bytes, micro-batches and the order of its moments are those of the epoch (E6)."""
    report = tick()
    for record in report.completed:
        statistics = record.statistics
        bronze = next(each for each in statistics.vertices if each.vertex == "bronze")
        assert (100, 100) == (statistics.rows, bronze.rows_in)
        assert bronze.rows_out == sum(file.rows for table in record.tables for file in table.adds)
        assert bronze.bytes_out >= sum(file.bytes for table in record.tables for file in table.adds)
        assert 0 < bronze.micro_batches
        arrived = [barrier.at_ms for barrier in bronze.barriers]
        assert statistics.triggered_ms <= min(arrived) <= bronze.acknowledged_ms <= statistics.committed_ms


def test_every_listener_hears_each_completion_once_though_one_raises(tick, tmp_path, undisturbed):
    """A listener that raises stops neither the other one nor the tick (F1, F2)."""
    raises, hears = Hears(RuntimeError("I heard nothing")), Hears()
    pipeline = declared()
    pipeline.listen(raises)
    pipeline.listen(hears)
    report = tick(pipeline)
    assert ("", TickOutcome.CAUGHT_UP) == _told(report)
    assert [record.checkpoint for record in report.completed] == raises.complete == hears.complete
    assert undisturbed == read_cut(tmp_path)


def test_nothing_is_visible_before_the_commit_point_and_a_dead_commit_is_rolled_forward(tick, tmp_path, undisturbed):
    """Killed before the row, the tables are empty; killed after it, the next tick publishes them, once (F3, G1)."""
    die(tick, "before:AppendRow")
    assert 0 == DeltaTable(str(tmp_path / BRONZE)).to_pyarrow_table().num_rows
    die(tick, "after:AppendRow")
    assert 0 == DeltaTable(str(tmp_path / BRONZE)).to_pyarrow_table().num_rows
    die(tick, "after:RollForward:bronze/numbers")
    assert 0 < DeltaTable(str(tmp_path / BRONZE)).to_pyarrow_table().num_rows
    assert ("", TickOutcome.CAUGHT_UP) == _told(tick(take_over=True))
    assert undisturbed == read_cut(tmp_path)


# ------------------------------------------------------------------ recovery


def test_state_without_an_operator_is_refused_by_name_and_changes_nothing(tick, tmp_path, undisturbed):
    """The pipeline lost its aggregate: the tick names it before it claims the job; put back, all is as before (G2)."""
    tick()
    version = stores_at(tmp_path).observe().version
    smaller = Pipeline(JOB, config=CONFIG, parallelism=2)
    smaller.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    with pytest.raises(CutDoesNotFitError, match="holds state of 'by_key'"):
        tick(smaller)
    assert version == stores_at(tmp_path).observe().version
    tick()
    assert undisturbed == read_cut(tmp_path)


def test_a_failed_job_restarts_in_its_tick_and_ends_with_exact_tables(tick, tmp_path, undisturbed):
    """A micro-batch fails twice and then works: two restarts, each as a new generation (G4)."""
    left = [2]

    def fails_twice(name):
        if name == "before:RunMicroBatch" and left[0]:
            left[0] -= 1
            raise OSError("out of paper")

    restarting = changed(
        restart_strategy=RestartStrategyKind.FIXED_DELAY, restart_attempts=3, restart_delay_ms=0, tolerable_failures=0
    )
    hears = Hears()
    report = tick(declared(config=restarting), boundary=fails_twice, listener=hears)
    assert ("", TickOutcome.CAUGHT_UP, 2) == (*_told(report), report.restarts)
    assert 2 == len(hears.restarts)
    assert undisturbed == read_cut(tmp_path)


def test_a_tick_that_was_taken_over_commits_nothing_more(tick, tmp_path, undisturbed):
    """A second tick is refused by name, a third takes over, and the first one ends fenced off (G5)."""
    met = []

    def rivals(name):
        if name == "before:AppendRow" and not met:
            with pytest.raises(JobHeldError, match="held by process"):
                tick()
            met.append(tick(take_over=True))

    report = tick(boundary=rivals)
    assert ("", TickOutcome.CAUGHT_UP) == _told(met[0])
    assert (TickOutcome.FAILED, CheckpointFailureReason.FENCED) == (report.outcome, report.reason)
    assert f"generation {met[0].generation}" in report.message
    assert ("", TickOutcome.CAUGHT_UP) == _told(tick())
    assert undisturbed == read_cut(tmp_path)


def _told(report):
    return report.message, report.outcome


# ------------------------------------------------------------------ master hooks


def test_a_master_hooks_state_is_in_the_row_and_comes_back_after_a_death(tick, tmp_path, tmp_path_factory, undisturbed):
    """A8: a tick dies behind the hook's answer for checkpoint 2; the next one restores the hook to checkpoint 1."""
    notebook = tmp_path_factory.mktemp("outside") / "notes"
    mortal = Mortal("before:AppendRow", 2)
    with suppress(Dead):
        tick(with_hooks(declared(), ("notebook", Notebook(notebook))), boundary=mortal)
    assert mortal.dead
    assert [["trigger", 1, 1], ["trigger", 2, 2]] == [line for line in notes(notebook) if line[0] == "trigger"]
    before = len(notes(notebook))
    tick(with_hooks(declared(), ("notebook", Notebook(notebook))), take_over=True)
    begins, *asked, closed = notes(notebook)[before:]
    assert (["restore", 1, {"asked": 1}], ["close", None, None]) == (begins, closed)
    assert [json.dumps({"asked": asked[-1][2]})] == [held.state for held in checkpoints_at(tmp_path)[-1].hooks]
    assert undisturbed == read_cut(tmp_path)
