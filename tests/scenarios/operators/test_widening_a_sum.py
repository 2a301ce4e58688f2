"""Tests the way out that an overflowing sum names: the job goes on with a wider type, and no row is lost."""

import polars as pl
import pytest
from pyspark.sql.types import DecimalType

from checkpointing.identifiers import JobName
from checkpointing.messages import TickOutcome
from jobs.pipeline import Pipeline, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("each_way")]

STEP = 2**60
"""The numbers 0 to 4 times this value add up to more than a bigint holds. The numbers 0 to 3 do not."""


def tick(spark, root, rows, kind=None):
    """Run the sum of so many numbers until it is caught up or fails. The values are cast to `kind` before the sum."""
    pipeline = Pipeline(JobName("sums"))
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, step=STEP))
    summed = numbers if kind is None else numbers.with_column("value", "value", kind)
    summed.key_by("key").aggregate("sums", total=sum_of("value")).upsert("gold/sums")
    return run_tick(plan(pipeline), RuntimeSettings(warehouse=root), spark=spark)


def total(root):
    """Return the total that the table shows."""
    return pl.read_delta(str(root / "gold/sums"))["total"].to_list()


def test_a_sum_that_is_too_large_for_bigint_goes_on_as_a_decimal(spark, tmp_path):
    """The tick fails and shows nothing of the epoch. With the cast that it names, the next tick has every row once."""
    assert TickOutcome.CAUGHT_UP is tick(spark, tmp_path, 4).outcome
    failed = tick(spark, tmp_path, 5)
    assert TickOutcome.FAILED is failed.outcome
    assert "vertex sums failed: SumOverflowError: column total" in failed.message
    assert "cast value to decimal(38,0) before the aggregate" in failed.message
    assert [6 * STEP] == total(tmp_path)
    wider = tick(spark, tmp_path, 5, DecimalType(38, 0))
    assert (TickOutcome.CAUGHT_UP, "") == (wider.outcome, wider.message)
    assert [10 * STEP] == [int(value) for value in total(tmp_path)]
