"""Tests Delta tables as sources: Spark's Delta and delta-rs write them, real Spark and whole ticks read them."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import VertexId
from checkpointing.messages import PollSource
from jobs.pipeline import Pipeline, count, sum_of
from jobs.sources.delta.delta_source import SPLIT, DeltaSource
from jobs.sources.port import SourceError, read_schema
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.jars("delta")]
FEED = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"


@pytest.fixture
def table(tmp_path):
    """Return the table's place, in a folder with an odd name."""
    return tmp_path / "in put#1" / "orders"


def sql_name(table):
    return f"delta.`{table}`"


def slices(source, rows_max=100, position=None):
    while (piece := source.poll(PollSource(VertexId("in"), SPLIT, position, rows_max))) is not None:
        yield piece
        position = piece.end


def rows(spark, source, pieces, *columns):
    frame = source.read(spark, list(pieces))
    assert read_schema(source).simpleString() == frame.schema.simpleString()
    found = frame.orderBy("_position").select("_position", *columns).collect()
    assert [row._position for row in found] == list(range(found[0]._position, found[0]._position + len(found)))
    return [tuple(row)[1:] for row in found]


TYPED = {
    "id": pa.array(range(4), pa.int64()),
    "price": pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.10")], pa.decimal128(10, 2)),
    "at": pa.array([dt.datetime(2020, 1, 1, 0, 0, 0, n, dt.UTC) for n in range(4)], pa.timestamp("us", "UTC")),
    "clock": pa.array([dt.datetime(1969, 1, 1, 0, 0, n) for n in range(4)], pa.timestamp("us")),  # noqa: DTZ001
    "bytes": pa.array([b"\x00\xff", b"", None, b"'"], pa.binary()),
    "nested": [{"a": 1, "b": ["x"]}, None, {"a": 2, "b": []}, {"a": 3, "b": ["y", "z"]}],
    "day": [dt.date(2020, 1, 1), dt.date(1969, 12, 31), None, dt.date(2020, 1, 1)],
    "word": ["a b", "c%2Fd/e", "${user}'\\ü", "="],
    "flag": [True, False, None, True],
    "moment": pa.array(
        [dt.datetime(2020, 1, 1, 12, 30, 0, 5, dt.UTC), None, *[dt.datetime(1950, 1, 1, tzinfo=dt.UTC)] * 2],
        pa.timestamp("us", "UTC"),
    ),
}
PARTITIONS = ["day", "word", "flag", "moment"]


@pytest.mark.parametrize("writer", [pytest.param("spark", marks=pytest.mark.dear), "delta-rs"])
def test_the_source_reads_the_rows_that_delta_itself_reads(spark, table, writer):
    """The rows have all types, as columns of files and of the table's partitions.

    The files of the snapshot come first, then those of later versions.
    """
    frame = pa.table(TYPED)

    def append():
        if writer == "spark":
            written = spark.createDataFrame(pl.from_arrow(frame).to_arrow())
            written.write.format("delta").mode("append").partitionBy(*PARTITIONS).save(str(table))
        else:
            write_deltalake(str(table), frame, mode="append", partition_by=PARTITIONS)

    append()
    source = DeltaSource(table)
    read = list(slices(source, 2))
    append()
    read += slices(source, 3, read[-1].end)
    expected = spark.read.format("delta").load(str(table))
    assert dict(expected.dtypes) == dict(source.read(spark, read).drop("_split", "_position").dtypes)
    found = source.read(spark, read).select(*expected.columns)
    assert 8 == found.count()
    assert [] == expected.exceptAll(found).collect() == found.exceptAll(expected).collect()


def test_a_slice_is_exactly_its_rows(spark, table):
    """The slices begin and end within files, alone or together, in any order."""
    for n in range(3):
        spark.range(n * 10, n * 10 + 10, 1, 1).write.format("delta").mode("append").save(str(table))
    source = DeltaSource(table)
    pieces = list(slices(source, 4))
    assert 8 == len(pieces)  # only a file that fits into a slice is never split
    assert [(n,) for n in range(30)] == rows(spark, source, reversed(pieces), "id")
    assert [(n,) for n in (*range(4, 8),)] == rows(spark, source, pieces[1:2], "id")
    some = source.read(spark, [pieces[0], pieces[2], pieces[5]]).select("id").collect()
    assert sorted(row.id for row in some) == [*range(4), *range(8, 12), *range(20, 24)]


@pytest.mark.dear
def test_the_feed_equals_the_one_that_delta_itself_reads(neighbour, table):
    spark = neighbour
    name = sql_name(table)
    spark.sql(f"CREATE TABLE {name} (id BIGINT, word STRING) USING DELTA {FEED}")
    source = DeltaSource(table, changes=True, start=1)
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    spark.sql(f"UPDATE {name} SET word = 'new' WHERE id = 2")
    spark.sql(f"INSERT INTO {name} VALUES (4, 'd')")
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"DELETE FROM {name} WHERE id IN (1, 4)")
    new = "SELECT 3 AS id, 'merged' AS word UNION ALL SELECT 9, 'inserted'"
    spark.sql(
        f"MERGE INTO {name} t USING ({new}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    spark.sql(f"DELETE FROM {name}")
    read = list(slices(source, 2))
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(str(table))
    columns = ("id", "word", "_change_type", "_commit_version")
    expected = sorted(tuple(row) for row in feed.select(*columns).collect())
    assert expected == sorted(rows(spark, source, read, *columns))
    versions = [version for (version,) in rows(spark, source, read, "_commit_version")]
    assert sorted(versions) == versions


@pytest.mark.dear
def test_the_source_reads_on_after_optimize_and_names_a_vacuumed_version(neighbour, table):
    """The source reads compacted files until VACUUM deletes them. Then it names the version, and skips nothing."""
    spark = neighbour
    name = sql_name(table)
    for n in range(4):
        spark.range(n, n + 1, 1, 1).write.format("delta").mode("append").save(str(table))
    source = DeltaSource(table)
    first = next(slices(source, 1))
    spark.sql(f"OPTIMIZE {name}")
    assert [(1,), (2,), (3,)] == rows(spark, source, slices(source, 2, first.end), "id")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"VACUUM {name} RETAIN 0 HOURS")
    with pytest.raises(SourceError, match=r"is gone, before its rows of version 3 .*VACUUM.*--to 'version 4'"):
        list(slices(source, 2, first.end))
    with pytest.raises(SourceError, match="cannot be read"):
        source.read(spark, [first])
    anew = DeltaSource(table)
    assert [(n,) for n in range(4)] == sorted(rows(spark, anew, slices(anew), "id"))


@pytest.mark.dear
def test_features_that_this_source_lacks_are_refused_by_name(neighbour, tmp_path):
    """The features are deletion vectors, column mapping, features unknown to delta-rs, and an in-place replacement."""
    spark = neighbour
    names = {kind: tmp_path / kind for kind in ("vectors", "mapped", "widened", "replaced")}
    for table in names.values():
        spark.range(0, 10, 1, 1).write.format("delta").save(str(table))
    ends = {kind: next(slices(DeltaSource(table))).end for kind, table in names.items()}

    def set_property(kind, name, value):
        spark.sql(f"ALTER TABLE {sql_name(names[kind])} SET TBLPROPERTIES ('{name}' = '{value}')")

    set_property("vectors", "delta.enableDeletionVectors", "true")
    spark.sql(f"DELETE FROM {sql_name(names['vectors'])} WHERE id = 3")
    with pytest.raises(SourceError, match=r"version 2 \(DELETE\) deletes or changes rows"):
        list(slices(DeltaSource(names["vectors"]), 10, ends["vectors"]))
    with pytest.raises(SourceError, match=r"deleted by a deletion vector.*REORG TABLE"):
        list(slices(DeltaSource(names["vectors"])))
    spark.sql(f"REORG TABLE {sql_name(names['vectors'])} APPLY (PURGE)")
    assert 9 == sum(piece.rows for piece in slices(DeltaSource(names["vectors"])))
    set_property("mapped", "delta.columnMapping.mode", "name")
    with pytest.raises(SourceError, match="maps its columns to other names"):
        list(slices(DeltaSource(names["mapped"]), 10, ends["mapped"]))
    set_property("mapped", "delta.columnMapping.mode", "none")
    assert 10 == sum(piece.rows for piece in slices(DeltaSource(names["mapped"])))
    set_property("widened", "delta.enableTypeWidening", "true")
    with pytest.raises(SourceError, match="typeWidening"):
        list(slices(DeltaSource(names["widened"]), 10, ends["widened"]))
    other = spark.range(0, 1).selectExpr("cast(id AS string) AS id").write.format("delta").mode("overwrite")
    other.option("overwriteSchema", "true").save(str(names["replaced"]))
    with pytest.raises(SourceError, match=r"version 1: column 'id' is string, but is read as bigint"):
        list(slices(DeltaSource(names["replaced"], schema=StructType().add("id", LongType())), 10, ends["replaced"]))
    with pytest.raises(SourceError, match=r"version 1 \(WRITE\) deletes or changes rows"):
        list(slices(DeltaSource(names["replaced"]), 10, ends["replaced"]))


def append(table, *ids):
    rows_ = pa.table({"id": pa.array(ids, pa.int64()), "key": pa.array([n % 3 for n in ids], pa.int64())})
    write_deltalake(str(table), rows_, mode="append")


def counted(cut):
    return {row["key"]: (row["rows"], row["total"]) for row in cut.polars("gold/by_key").collect().to_dicts()}


@pytest.mark.dear
@pytest.mark.parametrize("boundary", ["after:PollSource#3", "before:AppendRow#2", "after:AppendRow#2"])
def test_killed_ticks_lose_and_double_no_row(spark, tmp_path, boundary):
    """SIGKILL strikes in mid-tick. After OPTIMIZE, more rows and another tick, bronze and gold have every row once."""
    trial = Trial("tests.scenarios.test_delta_source:appends", tmp_path)
    table = trial.data / FOLDER
    for start in range(0, 12, 4):
        append(table, *range(start, start + 4))
    trial.kill(boundary, spark_cores=1)
    append(table, 12, 13)
    DeltaTable(str(table)).optimize.compact()
    append(table, 14)
    cut = trial.run(spark_cores=1)
    bronze = cut.polars("bronze/orders").collect().sort("_position")
    assert list(range(15)) == sorted(bronze["id"])
    assert list(range(15)) == list(bronze["_position"])
    expected = {key: [n for n in range(15) if n % 3 == key] for key in range(3)}
    assert {key: (len(ids), sum(ids)) for key, ids in expected.items()} == counted(cut)


@pytest.mark.dear
def test_changes_come_once_although_ticks_are_killed(spark, tmp_path):
    trial = Trial("tests.scenarios.test_delta_source:changes", tmp_path)
    table = trial.data / FOLDER
    rows_ = pa.table({"id": pa.array(range(6), pa.int64()), "key": pa.array(range(6), pa.int64())})
    write_deltalake(str(table), rows_, configuration={"delta.enableChangeDataFeed": "true"})
    trial.kill("before:AppendRow#2", spark_cores=1)
    DeltaTable(str(table)).update(updates={"key": "key + 10"}, predicate="id > 3")
    DeltaTable(str(table)).delete("id = 0")
    trial.kill("after:AppendRow#2", spark_cores=1)
    found = trial.run(spark_cores=1).polars("bronze/changes").collect().sort("_position")
    now = {}
    for row in found.to_dicts():
        if row["_change_type"] in ("insert", "update_postimage"):
            now[row["id"]] = row["key"]
        elif row["_change_type"] == "delete":
            del now[row["id"]]
    assert {1: 1, 2: 2, 3: 3, 4: 14, 5: 15} == now
    assert 6 + 4 + 1 == found.height


# ------------------------------------------------------------------
# Defines a pipeline that reads a Delta table beside its data folder: rows to bronze, count and sum by key to gold.


CONFIG = CheckpointConfig(every_rows=4, slice_rows_max=3, retained=3)
FOLDER = "orders"


def appends(data: Path) -> Pipeline:
    pipeline = Pipeline("appends", config=CONFIG)
    rows = pipeline.source("orders", DeltaSource(data / FOLDER)).table("bronze/orders", id="bronze")
    rows.key_by("key").aggregate("by_key", rows=count(), total=sum_of("id")).upsert("gold/by_key")
    return pipeline


def changes(data: Path) -> Pipeline:
    pipeline = Pipeline("changes", config=CONFIG)
    pipeline.source("orders", DeltaSource(data / FOLDER, changes=True)).table("bronze/changes", id="bronze")
    return pipeline
