"""Suites are judged beside the loop of a real tick: the judgement of an expired checkpoint ends unseen (J3, B2)."""

import json
import threading
import time

import pytest

from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.quality.judge import Judge, JudgementCancelledError
from jobs.quality.verdict import Verdict
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse
from spec.traces import judge as judge_trace
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, GOLD, JOB, KEYS, ROWS, LocalEngine, read_cut

from jobs.pipeline import Pipeline, count, sum_of  # isort: skip
from jobs.sources.hybrid import SequenceSource  # isort: skip

TIMEOUT_MS = 1_000
ON_SPARK_MS = 8_000
"""An epoch on Spark takes a second or two by itself."""


def judged(timeout_ms=TIMEOUT_MS):
    """Return the numbers with a suite on bronze; a checkpoint may take so long."""
    config = type(CONFIG)(**(CONFIG.model_dump() | {"timeout_ms": timeout_ms, "tolerable_failures": 9}))
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    numbers.expect(Expectation("expect_column_values_to_not_be_null", {"column": "n"}), suite="numbers")
    numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD)
    return plan(pipeline)


class Failed(TickListener):
    """Writes down which checkpoints failed."""

    def __init__(self):
        self.checkpoints = []
        self.messages = []

    def failed(self, checkpoint, reason, message):
        self.checkpoints.append((checkpoint, reason.name))
        self.messages.append(message)


class SlowFirst:
    """A judge that never ends its first suite unless it is cancelled, and judges the later ones at once."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.judged = 0

    def judge(self, suite, files, is_cancelled):
        self.judged += 1
        if self.judged == 1:
            until = time.monotonic() + 60
            while not is_cancelled():
                assert time.monotonic() < until
                time.sleep(0.01)
            self.ended.set()
            raise JudgementCancelledError
        rows = sum(file.rows for file in files)
        return Verdict(suite=suite.name, table=suite.table, passed=True, rows=rows, expectations=())


def run_judged(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS, **how):
    """Run a tick whose first judgement hangs until it is cancelled; return what must be true of it."""
    slow, failed = SlowFirst(), Failed()
    monkeypatch.setattr(Judge, "judge", slow.judge)
    report = run_tick(judged(timeout_ms), RuntimeSettings(warehouse=tmp_path), failed, **how)
    assert TickOutcome.CAUGHT_UP is report.outcome, report.message
    assert slow.ended.is_set()
    assert {"CHECKPOINT_EXPIRED"} == {reason for _, reason in failed.checkpoints}
    rows = JobStores(Warehouse(tmp_path, ProtocolPaths(JOB)), cross_freely).rows()
    entries = [row for row in rows if isinstance(row, CheckpointRecord)]
    assert not {row.checkpoint for row in entries} & {checkpoint for checkpoint, _ in failed.checkpoints}
    told = [verdict for row in entries for report in row.statistics.verdicts for verdict in json.loads(report)]
    assert {True} == {verdict["passed"] for verdict in told}
    with report.trace.open("rb") as lines:
        assert [] == judge_trace(lines).problems
    assert '"CancelJudgement"' in report.trace.read_text()


def test_an_expired_checkpoint_ends_its_judgement_and_the_tick_catches_up(tmp_path, monkeypatch, undisturbed):
    """Without Spark: the rows belong to the next checkpoint, and the tables are those of an undisturbed run."""
    run_judged(tmp_path, monkeypatch, engine=LocalEngine())
    assert undisturbed == read_cut(tmp_path)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_expired_checkpoint_ends_its_judgement_on_spark(tmp_path, monkeypatch, spark, undisturbed):
    """The same on Spark."""
    run_judged(tmp_path, monkeypatch, ON_SPARK_MS, spark=spark)
    assert undisturbed == read_cut(tmp_path)


def test_a_judgement_that_nobody_waits_for_ends_at_its_next_step(tmp_path):
    """Once it is cancelled, the real judge reads no file and waits for no other judgement."""
    suite = next(iter(judged().suites.values()))

    class Unread:
        rows, path = 1, "nowhere"

    with pytest.raises(JudgementCancelledError):
        Judge(tmp_path).judge(suite, [Unread()], lambda: True)


class Hidden:
    """Takes bronze's staged files away while the first suite is judged; no micro-batch runs meanwhile."""

    def __init__(self, root):
        self._staged, self._aside = root / BRONZE / "_data", root / BRONZE / "_aside"
        self.there = threading.Lock()
        self.times = 0

    def __call__(self, name):
        if name == "before:JudgeSuites":
            self.times += 1
            if self.times == 1:
                self.there.acquire()
                self._staged.rename(self._aside)
        elif name == "after:JudgeSuites" and self.times == 1 and self._aside.exists():
            self._aside.rename(self._staged)
            self.there.release()


class PatientEngine(LocalEngine):
    """Runs a micro-batch only while no file is hidden."""

    def __init__(self, there):
        super().__init__()
        self._there = there

    def run(self, *args):
        with self._there:
            return super().run(*args)


@pytest.mark.timeout(120)
def test_a_file_that_cannot_be_read_declines_the_checkpoint_and_the_job_goes_on(tmp_path, undisturbed):
    """With the real judge, the checkpoint fails with suite, table and cause. The next one judges the same rows."""
    failed = Failed()
    hidden = Hidden(tmp_path)
    report = run_tick(
        judged(60_000),
        RuntimeSettings(warehouse=tmp_path),
        failed,
        engine=PatientEngine(hidden.there),
        boundary=hidden,
    )
    assert TickOutcome.CAUGHT_UP is report.outcome, report.message
    assert [(1, "CHECKPOINT_ASYNC_EXCEPTION")] == failed.checkpoints
    (said,) = failed.messages
    assert said.startswith(f"suite numbers of table {BRONZE} could not be judged")
    assert "FileNotFoundError" in said
    assert undisturbed == read_cut(tmp_path)
    with report.trace.open("rb") as lines:
        assert [] == judge_trace(lines).problems
