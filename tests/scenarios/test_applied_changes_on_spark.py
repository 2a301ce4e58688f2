"""Applies changes in any order to tables of types 1 and 2 on real Spark, and compares them with Spark SQL."""

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType

from tidemark import Pipeline, SequenceSource, apply_changes, count, sum_of
from tidemark.testing import Trial

EVERY = """
  SELECT key, at, v, gone FROM changes WHERE NOT empties
  UNION ALL SELECT keys.key, emptied.at, null, true
  FROM (SELECT DISTINCT key FROM changes WHERE NOT empties) keys, (SELECT at FROM changes WHERE empties) emptied"""
ONCE = f"""SELECT key, at, max(v) v, max(gone) gone FROM ({EVERY}) GROUP BY key, at"""
NEWEST = f"""
  SELECT key, at, v FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY at DESC) place FROM ({ONCE}))
  WHERE place = 1 AND NOT gone"""
VERSIONS = f"""
  WITH told AS (SELECT *, lag(v) OVER w was, lag(gone) OVER w was_gone FROM ({ONCE}) WINDOW w AS
    (PARTITION BY key ORDER BY at)),
  begun AS (SELECT * FROM told WHERE was_gone IS NULL OR gone <> was_gone OR (NOT gone AND v <> was)),
  ended AS (SELECT *, lead(at) OVER (PARTITION BY key ORDER BY at) until FROM begun)
  SELECT key, v, at valid_from, until valid_to, until IS NULL current FROM ended WHERE NOT gone"""


EMPTIES = "at IN (16, 41)"
"""Some of these truncating changes come late. Keys whose rows came before have older and newer changes."""


def build(data):
    """Return a pipeline whose changes come far out of order, since 37 and 61 have no common divisor."""
    pipeline = Pipeline("scd", parallelism=2)
    rows = pipeline.source("numbers", SequenceSource({"a": 120, "b": 60}, keys=5))
    told = rows.with_column("at", "if(_split = 'b', 2, 1) * ((n * 37) % 61)", LongType())
    told = told.with_column("v", "at % 3", LongType())
    changes = told.select("key", "at", "v").table("bronze/changes", id="changes")
    removes = {"apply_as_deletes": "at % 7 = 0", "apply_as_truncates": EMPTIES}
    newest = apply_changes(changes, "newest", keys=["key"], sequence_by="at", **removes)
    newest.upsert("silver/newest")
    versions = apply_changes(
        changes, "versions", keys=["key"], sequence_by="at", type=2, except_columns=["at"], **removes
    )
    versions.upsert("silver/versions")
    versions.key_by("v").aggregate("by_value", versions=count(), began=sum_of("valid_from")).upsert("gold/by_value")
    return pipeline


def judge(cut, spark):
    rows = cut.polars("bronze/changes").collect()
    frame = spark.createDataFrame(rows.rows(), "key long, at long, v long").coalesce(1)
    frame.selectExpr("*", "at % 7 = 0 gone", f"{EMPTIES} empties").createOrReplaceTempView("changes")
    expected = {
        "silver/newest": spark.sql(NEWEST),
        "silver/versions": spark.sql(VERSIONS),
        "gold/by_value": spark.sql(f"SELECT v, count(*), sum(valid_from) FROM ({VERSIONS}) GROUP BY v"),
    }
    for table, wanted in expected.items():
        assert sorted(map(tuple, wanted.collect()), key=str) == sorted(cut.polars(table).collect().rows(), key=str)
    return rows.height


@pytest.mark.spark
def test_tables_of_changes_equal_spark_sql_at_each_cut(tmp_path, spark):
    """Late changes split versions and empty the tables, and the aggregate takes back the versions that they end.

    A second tick reads the rest of the rows, with another parallelism.
    """
    trial = Trial(build, tmp_path)
    assert 0 < judge(trial.run(every_rows=40, slice_rows_max=20, checkpoints=2), spark) < 180
    assert 180 == judge(trial.run(every_rows=40, slice_rows_max=20, parallelism=3), spark)
    assert DeltaTable(str(tmp_path / "warehouse" / "silver" / "versions")).version() > 1


def keys_that_go(data):
    pipeline = Pipeline("going", parallelism=2)
    rows = pipeline.source("numbers", SequenceSource({"a": 600}))
    told = rows.with_column("id", "if(n % 2 = 0, n, n - 3)", LongType()).select("id", "n")
    for name, distance in (("bounded", 20), ("unbounded", None)):
        newest = apply_changes(
            told,
            name,
            keys=["id"],
            sequence_by="n",
            apply_as_deletes="n % 2 = 1",
            forget_deletes_after=distance,
            except_columns=["n"],
        )
        newest.upsert(f"silver/{name}")
    return pipeline


@pytest.mark.spark
def test_the_state_of_keys_that_come_and_go_is_bounded(tmp_path, spark):
    """With `forget_deletes_after`, the state holds only the latest deletions.

    Both tables show the keys that were not deleted.
    """
    cut = Trial(keys_that_go, tmp_path).run(every_rows=20, slice_rows_max=20, state_backend="full")
    bounded, unbounded = (cut.state(name).polars().collect().height for name in ("bounded", "unbounded"))
    assert 300 < unbounded
    assert bounded <= 2 * 30
    assert (
        {598}
        == set(cut.polars("silver/bounded").collect()["id"])
        == set(cut.polars("silver/unbounded").collect()["id"])
    )


FILLED = """
  WITH lives AS (SELECT *, count_if(gone) OVER (PARTITION BY key ORDER BY at) life FROM sparse)
  SELECT key, at, gone, last_value(v) IGNORE NULLS OVER w v, last_value(w) IGNORE NULLS OVER w w FROM
    (SELECT key, at, gone, life, if(gone, null, v) v, if(gone, null, w) w FROM lives)
  WINDOW w AS (PARTITION BY key, life ORDER BY at)"""
NEWEST_VALUES = f"""
  SELECT key, at, v, w FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY at DESC) place FROM ({FILLED}))
  WHERE place = 1 AND NOT gone"""
VERSIONS_OF_V = f"""
  WITH told AS (SELECT *, lag(v) OVER w was, lag(gone) OVER w was_gone FROM ({FILLED}) WINDOW w AS
    (PARTITION BY key ORDER BY at)),
  numbered AS (SELECT *, count_if(was_gone IS NULL OR gone <> was_gone OR NOT v <=> was) OVER
    (PARTITION BY key ORDER BY at) n FROM told),
  version AS (SELECT key, gone, v, max_by(w, at) w, min(at) began FROM numbered GROUP BY key, gone, v, n),
  ended AS (SELECT *, lead(began) OVER (PARTITION BY key ORDER BY began) until FROM version)
  SELECT key, v, w, began valid_from, until valid_to, until IS NULL current FROM ended WHERE NOT gone"""


def sparse(data):
    """Return a pipeline whose changes have values for only some columns, and come far out of order."""
    pipeline = Pipeline("sparse", parallelism=2)
    rows = pipeline.source("numbers", SequenceSource({"a": 150}, keys=4))
    told = rows.with_column("at", "(n * 37) % 151", LongType())
    told = told.with_column("v", "if(at % 3 = 0, null, at % 2)", LongType())
    told = told.with_column("w", "if(at % 5 < 2, null, at % 4)", LongType())
    changes = told.select("key", "at", "v", "w").table("bronze/sparse", id="changes")
    said = {"keys": ["key"], "sequence_by": "at", "apply_as_deletes": "at % 13 = 0"}
    newest = apply_changes(changes, "newest", ignore_null_updates_except_columns=["at"], **said)
    newest.upsert("silver/newest")
    versions = apply_changes(
        changes,
        "versions",
        type=2,
        except_columns=["at"],
        ignore_null_updates=True,
        track_history_except_columns=["w"],
        **said,
    )
    versions.upsert("silver/versions")
    return pipeline


@pytest.mark.spark
def test_tables_of_changes_without_all_values_equal_spark_sql_at_each_cut(tmp_path, spark):
    """A null keeps the earlier value. Only a change of `v` begins a version. The second tick is rescaled."""
    trial = Trial(sparse, tmp_path)
    first = trial.run(every_rows=40, slice_rows_max=20, checkpoints=2)
    last = trial.run(every_rows=40, slice_rows_max=20, parallelism=3)
    for cut, least in ((first, 1), (last, 150)):
        rows = cut.polars("bronze/sparse").collect()
        assert least <= rows.height <= 150
        frame = spark.createDataFrame(rows.rows(), "key long, at long, v long, w long").coalesce(1)
        frame.selectExpr("*", "at % 13 = 0 gone").createOrReplaceTempView("sparse")
        for table, wanted in {"silver/newest": NEWEST_VALUES, "silver/versions": VERSIONS_OF_V}.items():
            expected = sorted(map(tuple, spark.sql(wanted).collect()), key=str)
            assert expected
            assert expected == sorted(cut.polars(table).collect().rows(), key=str)
