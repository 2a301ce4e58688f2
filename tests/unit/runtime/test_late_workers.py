"""A worker that joins after the first micro-batch is compared when its first task reports."""

import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from checkpointing.messages import RunMicroBatch
from jobs.distribution import versions
from jobs.operators.execute import MicroBatch, MicroBatchError
from jobs.operators.reports import TaskReport, report_batch
from jobs.spark.session import SparkConfig
from jobs.state.worker_copy import NO_USES
from jobs.tick import engine
from jobs.tick.listener import TickListener

EFFECT = RunMicroBatch("sums", 7, 2, (), (), ())


def worker(host, **other):
    """Return what a worker with some other versions reports."""
    return json.dumps({"host": host, "versions": versions() | other})


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs a micro-batch, whose tasks these workers report."""
    made = engine.SparkEngine(SparkConfig(master="spark://h:1"), TickListener(), given=MagicMock())

    def run_on(*workers):
        done = MicroBatch(SimpleNamespace(), NO_USES, frozenset(workers))
        monkeypatch.setattr(engine, "run_micro_batch", lambda *_: done)
        return done.finished, made.run(MagicMock(), EFFECT, "w", "j")

    return run_on


def test_a_worker_that_joins_later_with_another_version_is_named(run):
    """The micro-batch that it worked on fails, so its files do not count."""
    before, after = run(worker("early"))
    assert before is after
    with pytest.raises(
        MicroBatchError, match=r"worker late has polars 0\.1, and this process has .*: install the same"
    ):
        run(worker("early"), worker("late", polars="0.1"))
    before, after = run(worker("early"), worker("later"))
    assert before is after


def test_an_unfit_worker_stays_unfit(run):
    """The next micro-batch on it fails too."""
    for _ in range(2):
        with pytest.raises(MicroBatchError, match="worker late has no pyarrow"):
            run(worker("late", pyarrow=""))


def test_a_task_reports_its_worker():
    """With its host, and the versions that the driver compares."""
    (batch,) = report_batch(TaskReport(0))
    said = json.loads(batch.column("worker")[0].as_py())
    assert versions() == said["versions"]
    assert said["host"]
