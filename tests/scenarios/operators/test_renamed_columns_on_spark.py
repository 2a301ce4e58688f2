"""Tests renamed columns of a process function on real Spark, also at another parallelism (G2)."""

from dataclasses import dataclass

import polars as pl
import pytest
from pyspark.sql.types import IntegerType, LongType, StructType

from checkpointing.identifiers import JobName
from checkpointing.messages import TickOutcome
from jobs.operators.process import Processed
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.reading import Cuts
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

pytestmark = pytest.mark.spark

JOB = JobName("remembering")
KEYS = 8


@dataclass(frozen=True, slots=True)
class Count:
    """Counts rows by key, in a column with a name of your choice."""

    name: str

    def process(self, inputs, state):
        """Return the counts of the touched keys."""
        more = inputs[0].group_by("key").agg(pl.len().cast(state.schema[self.name]).alias("more"))
        both = more.join(state, on="key", how="left").with_columns(pl.col(self.name).fill_null(0))
        new = both.select("key", (pl.col(self.name) + pl.col("more")).alias(self.name))
        return Processed(state=new, output=new.cast({self.name: pl.Int64}))


def tick(spark, root, rows, name, *, parallelism, kind, renamed):
    """Count so many numbers in columns with these names, until the job is caught up."""
    pipeline = Pipeline(JOB, parallelism=parallelism)
    state, output = StructType().add(name, kind), StructType().add("key", LongType()).add(name, LongType())
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, keys=KEYS)).key_by("key")
    counted = numbers.process("counts", Count(name), state=state, output=output, columns_renamed_from=renamed)
    counted.upsert("gold/counts")
    report = run_tick(plan(pipeline), RuntimeSettings(warehouse=root), spark=spark)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)


def test_columns_are_renamed_while_their_files_move_to_other_subtasks(spark, tmp_path):
    """Every file of the table goes through the exchange under its new name. The state's type also becomes wider.

    A single row comes with the rename, so most keys keep the values from before. The declaration stays.
    """
    tick(spark, tmp_path, 40, "n", parallelism=2, kind=IntegerType(), renamed={})
    for rows in (41, 42):
        tick(spark, tmp_path, rows, "total", parallelism=3, kind=LongType(), renamed={"total": "n"})
        cut = Cuts(tmp_path, JOB).latest()
        counts = [(key, len(range(key, rows, KEYS))) for key in range(KEYS)]
        assert counts == sorted(cut.polars("gold/counts").select("key", "total").collect().rows())
        assert counts == sorted(cut.state("counts").polars().select("key", "total").collect().rows())
