"""Tests Delta tables as sources: Spark's Delta and delta-rs write them, real Spark and whole ticks read them."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import VertexId
from checkpointing.messages import PollSource
from jobs.operators.spec import arrow_schema
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
    """The slices begin and end within files. They are read alone and together, in any order."""
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
@pytest.mark.parametrize("vectors", [False, True])
def test_the_feed_equals_the_one_that_delta_itself_reads(neighbour, table, vectors):
    """This also holds with deletion vectors, some of which RESTORE undoes, and with other names of columns in files."""
    spark = neighbour
    name = sql_name(table)
    spark.sql(f"CREATE TABLE {name} (id BIGINT, word STRING) USING DELTA {FEED}")
    if vectors:
        set_ = f"{VECTORS}, 'delta.columnMapping.mode' = 'name'"
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({set_})")
        spark.sql(f"ALTER TABLE {name} RENAME COLUMN word TO text")
        spark.sql(f"ALTER TABLE {name} ADD COLUMN word STRING")
        spark.sql(f"ALTER TABLE {name} DROP COLUMN text")
    begin = spark.sql(f"DESCRIBE HISTORY {name}").count()
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
    if vectors:
        spark.sql(f"INSERT INTO {name} SELECT id, 'x' FROM range(100, 110, 1, 1)")
        spark.sql(f"DELETE FROM {name} WHERE id = 104")
        spark.sql(f"DELETE FROM {name} WHERE id = 106 OR id = 101")
        spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {spark.sql(f'DESCRIBE HISTORY {name}').first().version - 1}")
    spark.sql(f"DELETE FROM {name}")
    source = DeltaSource(table, changes=True, start=begin)
    read = list(slices(source, 2))
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", begin).load(str(table))
    columns = ("id", "word", "_change_type", "_commit_version")
    expected = sorted(tuple(row) for row in feed.select(*columns).collect())
    assert expected == sorted(rows(spark, source, read, *columns))
    versions = [version for (version,) in rows(spark, source, read, "_commit_version")]
    assert sorted(versions) == versions


@pytest.mark.dear
def test_the_source_reads_on_after_optimize_and_names_a_vacuumed_version(neighbour, table):
    """After OPTIMIZE, the source reads the old files until VACUUM deletes them. Then it fails and names the version."""
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


VECTORS = "'delta.enableDeletionVectors' = 'true'"
MADE = (
    "id, named_struct('x', int(id), 'y', array(named_struct('z', string(id)))) AS part, concat('w', id) AS word, "
    "date'2020-01-01' + int(id % 2) AS day"
)


@pytest.mark.dear
@pytest.mark.parametrize(
    ("mode", "partition"), [("none", ""), ("name", ""), ("name", "PARTITIONED BY (day)"), ("id", "")]
)
def test_marked_rows_and_mapped_columns_are_read_as_spark_reads_them(neighbour, table, mode, partition):
    """Another program deletes, updates and merges rows, renames, drops and adds columns, and later appends rows."""
    spark, name = neighbour, sql_name(table)
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, part STRUCT<x: INT, y: ARRAY<STRUCT<z: STRING>>>, word STRING, day DATE) "
        f"USING DELTA {partition} TBLPROPERTIES ({VECTORS}, 'delta.columnMapping.mode' = '{mode}')"
    )
    spark.sql(f"INSERT INTO {name} SELECT {MADE} FROM range(0, 100, 1, 1)")
    spark.sql(f"DELETE FROM {name} WHERE id % 5 = 0 OR id BETWEEN 40 AND 79")
    spark.sql(f"UPDATE {name} SET word = 'new' WHERE id = 7")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT {MADE} FROM range(98, 102)) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
    )
    if mode != "none":
        spark.sql(f"ALTER TABLE {name} RENAME COLUMN part.x TO `new x`")
        spark.sql(f"ALTER TABLE {name} RENAME COLUMN day TO `the day`")
        spark.sql(f"ALTER TABLE {name} DROP COLUMN word")
        spark.sql(f"ALTER TABLE {name} ADD COLUMN word STRING")
    source = DeltaSource(table)
    read = list(slices(source, 7))
    assert {7} == {piece.rows for piece in read[1:3]}
    day = "day" if mode == "none" else "`the day`"
    for number in (200, 300):
        spark.sql(f"INSERT INTO {name} (id, part, word, {day}) SELECT {MADE} FROM range({number}, {number + 10}, 1, 1)")
    if mode != "none":
        spark.sql(f"ALTER TABLE {name} RENAME COLUMN word TO words")
    read += slices(source, 7, read[-1].end)
    now, found = spark.table(name).withColumnRenamed("words", "word"), source.read(spark, read)
    assert not any(field.metadata for field in source.schema())
    rows_, found = found.orderBy("_position").collect(), found.drop("_split", "_position")
    assert list(range(now.count())) == [row._position for row in rows_]
    assert now.schema.simpleString() == found.schema.simpleString()
    assert by_id(now.collect()) == by_id(found.collect())
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    assert by_id(rows_[7:14]) == by_id(source.read(spark, read[1:2]).collect())
    if mode != "none":
        old = DeltaSource(table, schema=StructType().add("word", StringType()), new_columns="ignore")
        with pytest.raises(SourceError, match="has no column 'word'"):
            old.read(spark, read)
    if not partition:
        columns = StructType([field for field in spark.table(name).schema if field.name != "part"])
        of_task = DeltaSource(table, schema=columns, new_columns="ignore")
        names = ("id", *(("word", "day") if mode == "none" else ("words", "the day")), "_position")
        expected = [(row.id, row.word, row[names[2]], row._position) for row in rows_]
        assert expected == scanned(of_task, read, names)
        assert expected[7:14] == scanned(of_task, read[1:2], names)


def by_id(rows):
    found = {row.id: row for row in rows}
    assert len(found) == len(rows)
    return found


def scanned(source, pieces, names):
    """Return the rows that a task reads, in order of their positions."""
    columns = arrow_schema(read_schema(source))
    scans = source.scans(pieces)
    assert scans is not None
    found = pa.Table.from_batches([batch for scan in scans for batch in scan.batches(columns)], columns)
    assert found.num_rows == sum(scan.rows for scan in scans) == sum(piece.rows for piece in pieces)
    return [tuple(row[name] for name in names) for row in found.sort_by("_position").to_pylist()]


@pytest.mark.dear
def test_a_slice_keeps_its_rows_until_its_deletion_vector_is_vacuumed(neighbour, table):
    """A later deletion vector replaces the slice's one. Another source object reads the slice again."""
    spark, name = neighbour, sql_name(table)
    spark.sql(f"CREATE TABLE {name} (id BIGINT) USING DELTA TBLPROPERTIES ({VECTORS})")
    spark.sql(f"INSERT INTO {name} SELECT id FROM range(0, 10, 1, 1)")
    spark.sql(f"DELETE FROM {name} WHERE id IN (2, 3)")
    pieces = list(slices(DeltaSource(table), 3))
    spark.sql(f"DELETE FROM {name} WHERE id IN (0, 5)")
    assert [(n,) for n in (0, 1, 4, 5, 6, 7, 8, 9)] == rows(spark, DeltaSource(table), pieces, "id")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"VACUUM {name} RETAIN 0 HOURS")
    with pytest.raises(SourceError, match="the deletion vectors of version 2 cannot be read"):
        DeltaSource(table).read(spark, pieces)
    with pytest.raises(SourceError, match=r"vectors of version 2 cannot be read .*VACUUM.*--to 'version 3'"):
        list(slices(DeltaSource(table), 3, pieces[0].end))
    anew = DeltaSource(table)
    assert [(n,) for n in (1, 4, 6, 7, 8, 9)] == rows(spark, anew, slices(anew), "id")


@pytest.mark.dear
def test_a_widened_column_is_read_as_spark_reads_it(neighbour, table):
    """The files from before the change have the narrower type. Spark and a task read them alike."""
    spark, name = neighbour, sql_name(table)
    spark.sql(
        f"CREATE TABLE {name} (id INT, price DECIMAL(5, 2), part STRUCT<x: FLOAT>) USING DELTA "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    spark.sql(f"INSERT INTO {name} VALUES (1, 1.25, named_struct('x', 0.1)), (NULL, NULL, NULL)")
    before = DeltaSource(table)
    end = next(slices(before)).end
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN id TYPE BIGINT")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN price TYPE DECIMAL(12, 4)")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN part.x TYPE DOUBLE")
    spark.sql(f"INSERT INTO {name} VALUES (20000000000, 1.2345, named_struct('x', 0.1D))")
    with pytest.raises(
        SourceError, match=r"column 'id' was widened to bigint since this tick began. Run the tick again"
    ):
        list(slices(before, 100, end))
    source = DeltaSource(table)
    assert 1 == sum(piece.rows for piece in slices(source, 100, end))
    read = list(slices(source))
    names = ("id", "price", "part")
    assert set(spark.table(name).collect()) == set(source.read(spark, read).select(*names).collect())
    by_task = {(number, price, part and tuple(part.values())) for number, price, part in scanned(source, read, names)}
    assert {(row.id, row.price, row.part and tuple(row.part)) for row in spark.table(name).collect()} == by_task


@pytest.mark.dear
def test_changes_of_features_that_this_source_lacks_are_refused_by_name(neighbour, tmp_path):
    """The source refuses deletes by a vector, an unknown feature, two features together, and a replaced column."""
    spark = neighbour
    names = {kind: tmp_path / kind for kind in ("vectors", "mapped", "unknown", "widened", "replaced")}
    for table in names.values():
        spark.range(0, 10, 1, 1).write.format("delta").save(str(table))
    ends = {kind: next(slices(DeltaSource(table))).end for kind, table in names.items()}

    def set_property(kind, name, value):
        spark.sql(f"ALTER TABLE {sql_name(names[kind])} SET TBLPROPERTIES ('{name}' = '{value}')")

    set_property("vectors", "delta.enableDeletionVectors", "true")
    spark.sql(f"DELETE FROM {sql_name(names['vectors'])} WHERE id = 3")
    with pytest.raises(SourceError, match=r"version 2 \(DELETE\) deletes or changes rows"):
        list(slices(DeltaSource(names["vectors"]), 10, ends["vectors"]))
    assert [] == list(slices(DeltaSource(names["vectors"], skip_change_commits=True), 10, ends["vectors"]))
    set_property("mapped", "delta.columnMapping.mode", "name")
    assert [] == list(slices(DeltaSource(names["mapped"]), 10, ends["mapped"]))
    set_property("unknown", "delta.feature.variantType", "supported")
    with pytest.raises(SourceError, match="variantType"):
        list(slices(DeltaSource(names["unknown"]), 10, ends["unknown"]))
    set_property("widened", "delta.enableTypeWidening", "true")
    set_property("widened", "delta.enableDeletionVectors", "true")
    with pytest.raises(SourceError, match="typeWidening together with deletionVectors"):
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
    """SIGKILL ends a tick midway. After OPTIMIZE, more rows and another tick, bronze and gold have every row once."""
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
def test_a_killed_tick_reads_each_row_that_a_vector_leaves_once(neighbour, tmp_path):
    """After the kill, a new vector replaces the one with which the killed tick began to read the snapshot."""
    spark, trial = neighbour, Trial("tests.scenarios.test_delta_source:steadfast", tmp_path)
    name = sql_name(trial.data / FOLDER)
    mapped = f"{VECTORS}, 'delta.columnMapping.mode' = 'name'"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, old BIGINT) USING DELTA TBLPROPERTIES ({mapped})")
    spark.sql(f"INSERT INTO {name} SELECT id, id % 3 FROM range(0, 15, 1, 1)")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN old TO key")
    spark.sql(f"DELETE FROM {name} WHERE id IN (1, 5, 6)")
    trial.kill("before:AppendRow#2", spark_cores=1)
    spark.sql(f"DELETE FROM {name} WHERE id IN (0, 14)")
    spark.sql(f"INSERT INTO {name} VALUES (15, 0), (16, 1)")
    cut = trial.run(spark_cores=1)
    bronze = cut.polars("bronze/orders").collect().sort("_position")
    ids = [n for n in range(17) if n not in {1, 5, 6}]
    assert (ids, list(range(len(ids)))) == (list(bronze["id"]), list(bronze["_position"]))
    expected = {key: [n for n in ids if n % 3 == key] for key in range(3)}
    assert {key: (len(each), sum(each)) for key, each in expected.items()} == counted(cut)


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


def appends(data: Path, **options) -> Pipeline:
    pipeline = Pipeline("appends", config=CONFIG)
    rows = pipeline.source("orders", DeltaSource(data / FOLDER, **options)).table("bronze/orders", id="bronze")
    rows.key_by("key").aggregate("by_key", rows=count(), total=sum_of("id")).upsert("gold/by_key")
    return pipeline


def steadfast(data: Path) -> Pipeline:
    return appends(data, skip_change_commits=True)


def changes(data: Path) -> Pipeline:
    pipeline = Pipeline("changes", config=CONFIG)
    pipeline.source("orders", DeltaSource(data / FOLDER, changes=True)).table("bronze/changes", id="bronze")
    return pipeline
