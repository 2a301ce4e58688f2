"""Tests a keyed function that emits a row under another subtask's key: no upsert table shows a key twice."""

from dataclasses import dataclass

import polars as pl
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.identifiers import JobName
from checkpointing.messages import TickOutcome
from jobs.operators.process import Processed
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("each_way")]

ALL = -1


@dataclass(frozen=True, slots=True)
class WithTotal:
    """Counts rows by key. It also emits one row for all keys together, under a key of its own."""

    def process(self, inputs, state):
        """Return the counts of the touched keys, and their sum under the key ALL."""
        known = state.select("key", before="n")
        counted = inputs[0].group_by("key").agg(pl.len().cast(pl.Int64).alias("more")).join(known, on="key", how="left")
        new = counted.select("key", n=pl.col("more") + pl.col("before").fill_null(0))
        total = new.select(pl.lit(ALL, dtype=pl.Int64).alias("key"), pl.col("n").sum())
        return Processed(new, pl.concat([new, total]))


def tick(spark, root, function, parallelism):
    """Run the job until it is caught up or fails."""
    pipeline = Pipeline(JobName("totals"), parallelism=parallelism)
    counts = StructType().add("n", LongType())
    output = StructType().add("key", LongType()).add("n", LongType())
    numbers = pipeline.source("numbers", SequenceSource({"a": 40}, keys=8)).key_by("key")
    numbers.process("counts", function, state=counts, output=output).upsert("gold/counts")
    return run_tick(plan(pipeline), RuntimeSettings(warehouse=root), spark=spark)


def test_a_row_under_a_foreign_key_fails_the_tick_and_nothing_is_visible(spark, tmp_path):
    """With two subtasks there would be two rows for ALL. The message names vertex, key and the way out."""
    report = tick(spark, tmp_path, WithTotal(), 2)
    assert TickOutcome.FAILED is report.outcome
    assert "vertex counts: its function emitted a row with the key key=-1" in report.message
    assert "key the stream by the table's keys" in report.message
    assert () == report.completed
    assert 0 == pl.read_delta(str(tmp_path / "gold/counts")).height


def test_a_single_subtask_owns_every_key(spark, tmp_path):
    """A single subtask emits only one row for ALL, so the tick accepts it."""
    report = tick(spark, tmp_path, WithTotal(), 1)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    rows = dict(pl.read_delta(str(tmp_path / "gold/counts")).select("key", "n").rows())
    assert {ALL: 40, **dict.fromkeys(range(8), 5)} == rows
