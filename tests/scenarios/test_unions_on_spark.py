"""A union of two sources on real Spark, and aggregates of all its rows: each row counts once, after a kill too."""

import polars as pl
import pytest
from pyspark.sql.types import LongType

from tidemark import Pipeline, SequenceSource, avg_of, count, max_of
from tidemark.testing import Trial


def build(data):
    """Return a pipeline that writes two streams, with columns in another order, to one table, and counts them."""
    pipeline = Pipeline("both", parallelism=2)
    left = pipeline.source("left", SequenceSource({"a": 40}, keys=5)).select("key", "n")
    right = pipeline.source("right", SequenceSource({"b": 30, "c": 30}, keys=5)).select("n", "key")
    evens = left.with_column("n", "-n - 1", LongType())
    both = left.union(right, evens, id="both").table("bronze/both")
    both.key_by("key").aggregate("by_key", rows=count()).upsert("gold/by_key")
    both.aggregate("total", rows=count(), largest=max_of("n"), mean=avg_of("n")).upsert("gold/total")
    return pipeline


def judge(cut):
    """Compare the tables with all rows."""
    rows = cut.polars("bronze/both").collect()
    expected = [*range(40), *(-n - 1 for n in range(40)), *range(30), *range(30)]
    assert sorted(expected) == sorted(rows["n"])
    total = pl.DataFrame({"_all": [True], "rows": [140], "largest": [39], "mean": [sum(expected) / 140]})
    assert total.rows() == cut.polars("gold/total").select(total.columns).collect().rows()
    counts = rows["key"].value_counts().rows()
    assert sorted(counts) == sorted(cut.polars("gold/by_key").select("key", "rows").collect().rows())


@pytest.mark.spark
def test_a_union_has_the_rows_of_all_its_streams(tmp_path, spark):
    """One of the streams is read twice, with other steps."""
    judge(Trial(build, tmp_path).run(every_rows=40, slice_rows_max=20))


@pytest.mark.dear
@pytest.mark.spark
def test_a_union_is_exact_after_a_kill(tmp_path, spark):
    """The tick dies after it committed its second checkpoint."""
    trial = Trial(build, tmp_path)
    trial.kill("after:AppendRow#2", spark_cores=1, every_rows=40, slice_rows_max=20)
    judge(trial.run(every_rows=40, slice_rows_max=20))
