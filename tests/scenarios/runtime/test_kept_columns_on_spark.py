"""Spark reads and follows an append table whose columns change (D6, G2)."""

import pytest
from pyspark.sql.functions import col

from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_source import DeltaSource
from tests.scenarios.runtime.kept_job import (
    AGAIN,
    DROPPED,
    JOB,
    NARROW,
    RENAMED,
    TABLE,
    Version,
    columns,
    foreign,
    laid_out,
    numbers,
    shown,
    tick,
)
from tidemark import Pipeline
from tidemark.testing import TickFailedError, Trial

pytestmark = pytest.mark.spark

HALF = 20


def by_spark(spark, root, *names, version=None):
    reader = spark.read.format("delta")
    frame = (reader if version is None else reader.option("versionAsOf", version)).load(str(root / TABLE))
    return sorted(tuple(row) for row in frame.select(*names).collect())


def test_spark_reads_each_version_under_its_own_columns(tmp_path, neighbour):
    laid_out(tmp_path, HALF)
    foreign(tmp_path, 100)
    tick(tmp_path, HALF + 1, RENAMED)
    expected = numbers([*range(HALF + 1), 100])
    assert expected == by_spark(neighbour, tmp_path, "n", "amount")
    found = neighbour.read.format("delta").load(str(tmp_path / TABLE)).where(col("amount") == 3).collect()
    assert [3] == [row["n"] for row in found]
    renamed = len(neighbour.sql(f"DESCRIBE HISTORY delta.`{tmp_path / TABLE}`").collect()) - 1
    tick(tmp_path, HALF + 2, Version(("n", "key"), drop=("amount",)))
    assert ["n", "key"] == neighbour.read.format("delta").load(str(tmp_path / TABLE)).columns
    assert expected == by_spark(neighbour, tmp_path, "n", "amount", version=renamed)
    assert numbers(range(HALF)) == by_spark(neighbour, tmp_path, "n", "value", version=1)


def test_spark_reads_a_widened_column_of_old_files(tmp_path, neighbour):
    """Filters beyond the old type's range find the rows too."""
    laid_out(tmp_path, HALF, NARROW)
    tick(tmp_path, HALF + 1)
    assert numbers(range(HALF + 1)) == by_spark(neighbour, tmp_path, "n", "value")
    table = neighbour.read.format("delta").load(str(tmp_path / TABLE))
    assert HALF + 1 == table.where("value < 3000000000 and value > -3000000000").count()


def test_a_stream_that_begins_with_the_rename_gets_no_row_twice(tmp_path, neighbour):
    """It gets the new rows only, and not those that were written again. A stream from before stops by name."""
    laid_out(tmp_path, HALF)
    got: list[int] = []

    def follow(name, **options):
        reader = neighbour.readStream.format("delta").options(**options).load(str(tmp_path / TABLE))
        writer = reader.writeStream.foreachBatch(lambda rows, _: got.extend(row["n"] for row in rows.collect()))
        started = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        started.awaitTermination()

    follow("before")
    assert [*range(HALF)] == sorted(got)
    got.clear()
    tick(tmp_path, HALF + 3, RENAMED)
    with pytest.raises(Exception, match="DELTA_SCHEMA_CHANGED_WITH_VERSION"):
        follow("before")
    follow("after", startingVersion="2")
    tick(tmp_path, HALF + 5, RENAMED)
    follow("after", startingVersion="2")
    assert [*range(HALF, HALF + 5)] == sorted(got)


@pytest.mark.parametrize("by_cuts", [False, True])
def test_a_source_follows_without_a_row_twice(tmp_path, spark, by_cuts):
    """It has caught up before the rename. Its pipeline then declares the rename of its own table.

    One that has not caught up before another rename is refused, and does not read nulls.
    """
    upstream, trial = tmp_path / "up", tmp_path / "down"
    laid_out(upstream, HALF)

    def following(**renamed_from):
        def build(data):
            pipeline = Pipeline("following")
            source = CutSource(upstream, JOB, TABLE) if by_cuts else DeltaSource(upstream / TABLE)
            rows = pipeline.source("kept", source)
            rows.table("bronze/copy", id="copy").change_columns(renamed_from=renamed_from)
            return pipeline

        return Trial(build, trial)

    assert HALF == following().run().polars("bronze/copy").collect().height
    tick(upstream, HALF + 3, RENAMED)
    cut = following(amount="value").run()
    assert numbers(range(HALF + 3)) == sorted(cut.polars("bronze/copy").select("n", "amount").collect().rows())
    tick(upstream, HALF + 5, RENAMED)
    tick(upstream, HALF + 6, AGAIN)
    with pytest.raises(TickFailedError, match="has columns that the table no longer has: 'amount'"):
        following(sum="amount").run()
    assert cut.checkpoint == following(sum="amount").cuts.latest().checkpoint


def test_a_deletion_vector_is_refused_before_anything_runs(tmp_path, neighbour):
    """Only Spark knows which rows it hides, so the file cannot be written again. Purged, the table is renamed."""
    laid_out(tmp_path, HALF)
    place = f"delta.`{tmp_path / TABLE}`"
    neighbour.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableDeletionVectors'='true')")
    neighbour.sql(f"DELETE FROM {place} WHERE n = 3")
    tick(tmp_path, HALF + 1)
    with pytest.raises(AssertionError, match=r"has deletion vectors on 1 files.*REORG TABLE"):
        tick(tmp_path, HALF + 2, RENAMED)
    neighbour.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableDeletionVectors'='false')")
    neighbour.sql(f"REORG TABLE {place} APPLY (PURGE)")
    tick(tmp_path, HALF + 2, RENAMED)
    assert ["n", "key", "amount"] == columns(tmp_path)
    assert numbers(n for n in range(HALF + 2) if n != 3) == shown(tmp_path, "n", "amount")


def test_a_drop_goes_on_beside_deletion_vectors(tmp_path, neighbour):
    """No file is written again, so nothing stands in the way."""
    laid_out(tmp_path, HALF)
    place = f"delta.`{tmp_path / TABLE}`"
    neighbour.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableDeletionVectors'='true')")
    neighbour.sql(f"DELETE FROM {place} WHERE n = 3")
    tick(tmp_path, HALF + 1, DROPPED)
    assert [n for n in range(HALF + 1) if n != 3] == [n for (n,) in by_spark(neighbour, tmp_path, "n")]
