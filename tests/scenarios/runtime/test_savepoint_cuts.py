"""Tests that the cut on which a plain savepoint stands stays whole: its tables and the operators' state."""

from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.messages import SavepointKind, SavepointRequested, TickOutcome
from checkpointing.metadata.record import CheckpointRecord, RowKind
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.launch import launch
from jobs.pipeline import Pipeline, count
from jobs.reading import cuts
from jobs.settings import Layer
from jobs.sources.files.file_source import FileSource
from jobs.testing.trial import Trial
from jobs.tick.at_rest.take_savepoint import dispose
from jobs.tick.driver import Inbox
from jobs.tick.listener import MicroBatchRan, TickListener
from jobs.tick.tick import run_tick
from jobs.warehouse.checkpoints import CheckpointStore

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(600)]

SCHEMA = StructType().add("id", LongType()).add("city", StringType())
JOB = "shop"


def build(data):
    config = CheckpointConfig(every_rows=4, slice_rows_max=2, retained=1)
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    rows = pipeline.source("in", FileSource(data / "in", SCHEMA)).table("bronze/orders", id="bronze")
    rows.key_by("city").aggregate("by_city", n=count()).upsert("gold/cities")
    return pipeline


class Asks(TickListener):
    """Asks for a plain savepoint when rows have come after the second checkpoint."""

    def __init__(self, inbox):
        self._inbox = inbox
        self._completed = 0

    def completed(self, record, notes, versions):
        self._completed += 1

    def progress(self, progress):
        if isinstance(progress, MicroBatchRan) and progress.vertex == "by_city" and self._completed == 2:
            self._completed += 1
            self._inbox.put(SavepointRequested("mine", SavepointKind.PLAIN))


class Shop(Trial):
    """Orders of three cities, two in a file."""

    def __init__(self, folder, spark):
        super().__init__(build, folder)
        self.spark = spark

    def order(self, first, last):
        for number in range(first, last, 2):
            ids = [number, number + 1]
            cities = [("Graz", "Wien", "Linz")[each % 3] for each in ids]
            self.deliver("in/a", pa.table({"id": pa.array(ids, pa.int64()), "city": cities}))

    def tick(self, listener=None, inbox=None):
        started = launch(build, Layer("set by the test", {"data": self.data, "warehouse": self.warehouse}))
        report = run_tick(started.plan, started.runtime(), listener, spark=self.spark, inbox=inbox)
        assert report.outcome is TickOutcome.CAUGHT_UP, report

    def records(self):
        warehouse = self.cuts._warehouse
        return {
            row.checkpoint: row for row in CheckpointStore(warehouse).observe()[1] if isinstance(row, CheckpointRecord)
        }

    def must_be_whole(self, checkpoint):
        """Check the state at a cut against its own table of all rows, and let the doctor look at all files."""
        cut = self.cuts.at(checkpoint)
        orders = Counter(cut.polars("bronze/orders").collect()["city"])
        state = cut.state("by_city").arrow().to_pylist()
        assert orders == {row["city"]: row["n"] for row in state}
        command = [
            "doctor",
            f"{__name__}:build",
            "--verify",
            "--warehouse",
            str(self.warehouse),
            "--data",
            str(self.data),
        ]
        assert ExitCode.DONE is execute(command)


def test_the_cut_that_a_savepoint_stands_on_stays_whole(tmp_path, spark, monkeypatch):
    """Rows came between the cut and the savepoint, so the two have other state files.

    The cut's entry stays while the savepoint does: after newer checkpoints, after more versions of `checkpoints` than a
    reader looks back, after a rollback to a checkpoint of before, and after a rollback to the savepoint. It goes with
    the savepoint.
    """
    shop, inbox = Shop(tmp_path, spark), Inbox()
    shop.order(0, 24)
    shop.tick(Asks(inbox), inbox)
    saved = next(row for row in shop.records().values() if row.kind is RowKind.SAVEPOINT)
    cut = saved.parent
    files = {file.file.path for vertex in saved.vertices for each in vertex.subtasks for file in each.state}
    assert cut in shop.records()
    its = {file.file.path for vertex in shop.records()[cut].vertices for each in vertex.subtasks for file in each.state}
    assert its - files, "the cut has state files that the savepoint does not name"
    monkeypatch.setattr(cuts, "_LOOK_BACK", 1)
    shop.must_be_whole(cut)
    shop.order(24, 36)
    shop.tick()
    shop.must_be_whole(cut)
    where = ["--warehouse", str(shop.warehouse), "--data", str(shop.data)]
    assert ExitCode.DONE is execute(["rollback", f"{__name__}:build", str(saved.checkpoint), *where])
    shop.must_be_whole(cut)
    shop.tick()
    shop.must_be_whole(cut)
    assert [cut, saved.checkpoint] == sorted(shop.records())[:2]
    dispose(shop.cuts._warehouse, saved.checkpoint)
    shop.order(36, 40)
    shop.tick()
    assert cut not in shop.records()
    assert [cut] != sorted(each.checkpoint for each in shop.cuts.all())[:1]
