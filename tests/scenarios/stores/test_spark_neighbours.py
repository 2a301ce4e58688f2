"""Tests Spark and Delta's own writer beside Tidemark. They read Tidemark's tables, and may change them."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, table_name
from checkpointing.messages import Publication, PublishFailed, TablePublished
from jobs.quality.expectation import Expectation, Suite
from jobs.quality.judge import Judge
from jobs.quality.rules import compile_row_rule
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore

pytestmark = [pytest.mark.spark, pytest.mark.jars("delta")]


@pytest.fixture
def made(tables, schema):
    def make(name, mode):
        table = table_name(f"silver/{name}")
        tables.output.ensure(table, schema, mode)
        files = tuple(tables.stage(table, rows) for rows in ({"a": 1, "b": 2}, {"c": 3}))
        publication = Publication(table, mode, adds=files, files=files)
        assert isinstance(tables.publisher.publish(publication, CheckpointId(1)), TablePublished)
        return table, f"delta.`{tables.warehouse.path(table)}`", files

    return make


def _rows(spark, sql_name):
    return sorted((row.k, row.v) for row in spark.sql(f"SELECT k, v FROM {sql_name}").collect())


def _next(tables, table, mode, files, checkpoint=2):
    fresh = tables.stage(table, {"d": 4})
    publication = Publication(table, mode, adds=(fresh,), files=(*files, fresh))
    return tables.publisher.publish(publication, CheckpointId(checkpoint))


def test_spark_reads_tables_entries_and_cuts(spark, tables, warehouse, made, rows):
    table, name, files = made("read", TableMode.UPSERT)
    store, cuts = CheckpointStore(warehouse), CutStore(warehouse)
    store.append(rows.claim(1), 0)
    store.append(rows.checkpoint(1), 1)
    cuts.record(CheckpointId(1), [(table, 1)])
    _next(tables, table, TableMode.UPSERT, files)
    version = spark.read.format("delta").load(str(warehouse.path(warehouse.paths.cuts))).first().version
    assert [("a", 1), ("b", 2), ("c", 3)] == _rows(spark, f"{name} VERSION AS OF {version}")
    assert [("a", 1), ("b", 2), ("c", 3), ("d", 4)] == _rows(spark, name)
    kinds = spark.read.format("delta").load(str(warehouse.path(warehouse.paths.checkpoints))).orderBy("version")
    assert ["claim", "checkpoint"] == [row.kind for row in kinds.collect()]


def test_sparks_optimize_of_an_upsert_table_is_undone_and_named(neighbour, tables, made):
    """Publishing makes the checkpoint's files the only active ones again. No row is doubled."""
    table, name, files = made("optimized", TableMode.UPSERT)
    neighbour.sql(f"OPTIMIZE {name}")
    result = _next(tables, table, TableMode.UPSERT, files)
    assert "foreign OPTIMIZE at version 2" in result.note
    assert [("a", 1), ("b", 2), ("c", 3), ("d", 4)] == _rows(neighbour, name)


def _follow(spark, *texts):
    for text in texts:
        for statement in re.findall(r"((?:ALTER|REORG) TABLE delta\.`[^`]+` .*?)(?: and (?=REORG)|, then|; |$)", text):
            spark.sql(statement)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "statement", "feature"),
    [
        ("tracked", "SET TBLPROPERTIES ('delta.enableRowTracking'='true')", "rowTracking"),
        ("timed", "SET TBLPROPERTIES ('delta.enableInCommitTimestamps'='true')", "inCommitTimestamp"),
    ],
)
def test_a_feature_that_can_be_dropped_is_named_and_its_way_out_works(
    neighbour, tables, made, name, statement, feature
):
    table, sql_name, files = made(name, TableMode.UPSERT)
    neighbour.sql(f"ALTER TABLE {sql_name} {statement}")
    problems = tables.output.check([table])
    assert any(f"table {table} has the table feature {feature} (since version " in problem for problem in problems)
    result = _next(tables, table, TableMode.UPSERT, files)
    assert isinstance(result, PublishFailed)
    assert "DROP FEATURE" in result.error
    _follow(neighbour, *sorted(problems, key=lambda text: feature not in text))
    assert () == tables.output.check([table])
    assert isinstance(_next(tables, table, TableMode.UPSERT, files), TablePublished)
    assert [("a", 1), ("b", 2), ("c", 3), ("d", 4)] == _rows(neighbour, sql_name)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "statement", "feature"),
    [
        ("clustered", "CLUSTER BY (k)", "clustering"),
        ("mapped", "SET TBLPROPERTIES ('delta.columnMapping.mode'='name')", "columnMapping"),
        ("widening", "SET TBLPROPERTIES ('delta.enableTypeWidening'='true')", "typeWidening"),
    ],
)
def test_a_feature_that_cannot_simply_be_dropped_says_so(neighbour, tables, made, name, statement, feature):
    """The message says that Delta cannot drop the feature, or which further step Delta needs."""
    table, sql_name, _ = made(name, TableMode.APPEND)
    neighbour.sql(f"ALTER TABLE {sql_name} {statement}")
    (problem,) = [text for text in tables.output.check([table]) if f"feature {feature}" in text]
    assert "cannot drop it" in problem or "TRUNCATE HISTORY" in problem


@pytest.mark.matrix
@pytest.mark.parametrize("statement", ["'delta.enableChangeDataFeed'='true'", "'delta.checkpointPolicy'='v2'"])
@pytest.mark.parametrize("mode", [TableMode.APPEND, TableMode.UPSERT])
def test_harmless_features_go_on(neighbour, tables, made, statement, mode):
    """A change that does not affect Tidemark's commits is no problem."""
    table, name, files = made(f"harmless_{mode.value}", mode)
    neighbour.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({statement})")
    assert () == tables.output.check([table])
    assert isinstance(_next(tables, table, mode, files), TablePublished)
    assert [("a", 1), ("b", 2), ("c", 3), ("d", 4)] == _rows(neighbour, name)


def test_row_rules_reject_in_spark_what_great_expectations_rejects(spark, tmp_path):
    """The test has every kind of row rule, on values with quotes, backslashes and nulls. Spark evaluates the rules."""
    table = pa.table(
        {
            "a": pa.array([1, None, -3, 7, None], pa.int64()),
            "b": pa.array([1.5, None, -4.0, None, 2.0]),
            "s": pa.array(["it's", "a\\b", None, "x1", ""]),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    handle = FileHandle("rows.parquet", table.num_rows, 1, 0)
    expectations = (
        Expectation("expect_column_values_to_not_be_null", {"column": "s"}),
        Expectation("expect_column_values_to_be_null", {"column": "a"}),
        Expectation("expect_column_values_to_be_between", {"column": "a", "min_value": 1, "strict_min": True}),
        Expectation("expect_column_values_to_be_between", {"column": "b", "max_value": 1.5}),
        Expectation("expect_column_value_lengths_to_be_between", {"column": "s", "min_value": 1, "max_value": 3}),
        Expectation("expect_column_values_to_be_in_set", {"column": "s", "value_set": ["it's", "a\\b"]}),
        Expectation("expect_column_values_to_not_be_in_set", {"column": "s", "value_set": ["it's", ""]}),
        Expectation("expect_column_values_to_be_in_set", {"column": "a", "value_set": []}),
        Expectation("expect_column_values_to_match_regex", {"column": "s", "regex": r"[a-z]\d$|\\"}),
        Expectation("expect_column_values_to_not_match_regex", {"column": "s", "regex": r"^x\d"}),
        Expectation("expect_column_pair_values_a_to_be_greater_than_b", {"column_A": "a", "column_B": "b"}),
        Expectation("expect_column_pair_values_to_be_equal", {"column_A": "a", "column_B": "b"}),
    )
    verdict = Judge(tmp_path).judge(Suite("s", "t", expectations), [handle])
    frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
    rejected = [frame.selectExpr(f"count_if(NOT {compile_row_rule(each)}) AS bad").first().bad for each in expectations]
    assert [each.unexpected_count for each in verdict.expectations] == rejected
