"""Tests a stateless micro-batch on real Spark."""

import gc
from datetime import UTC, datetime

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType, TimestampType

from checkpointing.graph import TableMode
from checkpointing.identifiers import table_name, vertex_id
from checkpointing.messages import SubtaskOutput
from jobs.operators.execute import MicroBatchError
from jobs.operators.python_workers import reported
from jobs.operators.spec import InputPlan, RowRule, StagedTable, StatelessSpec, VertexPlan, quarantine_schema
from jobs.operators.stateless_job import failed_rules
from jobs.quality.expectation import Expectation
from jobs.quality.rules import compile_row_rule

pytestmark = pytest.mark.spark

SCHEMA = StructType(
    [
        StructField("origin", StringType()),
        StructField("hour", TimestampType()),
        StructField("delay", IntegerType()),
        StructField("temp", DoubleType()),
    ]
)
HOUR = datetime(2013, 3, 10, 7, 0, 0, 123456, tzinfo=UTC)
ROWS = pa.table(
    {
        "origin": ["EWR", "JFK", None],
        "hour": pa.array([HOUR, None, HOUR], pa.timestamp("us", "UTC")),
        "delay": pa.array([5, None, -3], pa.int32()),
        "temp": [float("nan"), 1.0, None],
    }
)
BRONZE = StagedTable(table_name("bronze/flights"), TableMode.APPEND, SCHEMA)
QUARANTINE = StagedTable(table_name("quarantine/flights"), TableMode.APPEND, quarantine_schema(SCHEMA))
RULES = (RowRule("has a delay", "delay is not null"), RowRule("is late", lambda: F.col("delay") > 0))


def bronze(**changes):
    """Return the plan of a bronze vertex with these changes."""
    fields = {
        "vertex": vertex_id("bronze"),
        "schema": SCHEMA,
        "table": BRONZE,
        "rules": RULES,
        "quarantine": QUARANTINE,
    }
    return VertexPlan(StatelessSpec(**fields | changes), (InputPlan(SCHEMA),))


def test_all_rows_go_to_the_table_and_failing_ones_also_to_quarantine(bench):
    """The next vertex gets the table's own files. `_failed` names each failed rule.

    A rule that is null counts as passed.
    """
    vertex = bench(bronze())
    (output,) = vertex.run(ROWS).outputs
    assert output.emitted == tuple(file for table, file in output.staged if table == BRONZE.name)
    assert ROWS.to_pylist()[1:] == vertex.read(output.emitted).to_arrow().to_pylist()[1:]
    (rejected,) = (file for table, file in output.staged if table == QUARANTINE.name)
    expected = [(None, "has a delay"), (-3, "is late")]
    assert expected == vertex.read([rejected]).select("delay", "_failed").sort("delay", nulls_last=False).rows()


def test_moments_keep_their_microsecond_and_nan_is_not_null(bench):
    """No value shifts on its way from Parquet through Spark and Arrow and back to Parquet."""
    vertex = bench(bronze())
    (output,) = vertex.run(ROWS).outputs
    rows = vertex.read(output.emitted)
    assert [HOUR, None, HOUR] == rows["hour"].to_list()
    assert pl.Datetime("us", "UTC") == rows.schema["hour"]
    assert "[nan, 1.0, None]" == str(rows["temp"].to_list())


def test_without_failing_rows_there_is_no_quarantine_file(bench):
    """Publishing a file without rows would be useless work."""
    (output,) = bench(bronze()).run(ROWS.slice(0, 1)).outputs
    assert [BRONZE.name] == [table for table, _ in output.staged]


@pytest.mark.parametrize("rows", [pytest.param(None, id="no segment"), pytest.param(ROWS.slice(0, 0), id="no row")])
def test_an_empty_micro_batch_writes_nothing(bench, rows):
    """It answers nevertheless."""
    assert (SubtaskOutput(),) == bench(bronze()).run(rows).outputs


def test_steps_before_the_vertex_run_in_its_spark_job(bench):
    """One Spark job reads, applies the steps and writes the files. Without a table, the rows go to a channel."""
    shape = StructType([StructField("origin", StringType()), StructField("double", IntegerType())])
    spec = StatelessSpec(vertex=vertex_id("shape"), schema=shape)
    doubled = InputPlan(SCHEMA, chain=lambda rows: rows.where("delay > 0").withColumn("double", F.col("delay") * 2))
    vertex = bench(VertexPlan(spec, (doubled,)))
    (output,) = vertex.run(ROWS).outputs
    assert () == output.staged
    assert output.emitted[0].path.startswith("_tidemark/demo/channels/shape/_data/1/shape-1-")
    assert [("EWR", 10)] == vertex.read(output.emitted).rows()


def test_a_file_that_a_task_cannot_write_is_named(bench):
    """The message has the file's name and the way out instead of a stack trace."""
    vertex = bench(bronze())
    (vertex.warehouse / "bronze").write_text("in the way")
    with pytest.raises(
        MicroBatchError, match=r"micro-batch 1 of vertex bronze could not be written: StagedFileError: .*bronze/flights"
    ):
        vertex.run(ROWS)


def test_a_step_that_loses_a_column_is_named(bench):
    """A missing column is an error. It is not filled with nulls."""
    with pytest.raises(
        MicroBatchError, match=r"vertex bronze failed: InvalidSpecError: rows should have .* but lack \['delay'\]"
    ):
        bench(VertexPlan(bronze().spec, (InputPlan(SCHEMA, chain=lambda rows: rows.drop("delay")),))).run(ROWS)


def test_a_worker_keeps_its_imports_from_the_garbage_collector(bench):
    """Spark's daemon collects garbage after each task. It does not walk over what the worker has imported."""
    vertex = bench(bronze())
    vertex.run(ROWS)
    (counted,) = reported(vertex.jobs.session.range(0, 1, 1, 1), _counts).collect()
    assert int(counted.report) > int(counted.worker)


def _counts(_batches):
    """Yield how many objects are frozen and how many are not, where a report and a worker's name are expected."""
    frozen, alive = str(gc.get_freeze_count()), str(len(gc.get_objects()))
    yield pa.RecordBatch.from_pydict({"report": [frozen], "worker": [alive]})


def test_a_value_that_a_rule_cannot_compare_does_not_pass(spark):
    """Without ANSI mode, `'x' >= 5` is null in Spark. The value was not judged, so the row goes to quarantine."""
    rule = Expectation("expect_column_values_to_be_between", {"column": "a", "min_value": 5})
    rules = (RowRule("at least 5", compile_row_rule(rule)),)
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        rows = spark.createDataFrame([("x",), ("7",), ("3",), (None,)], "a string")
        failed = [row.failed for row in rows.select(failed_rules(rules).alias("failed")).collect()]
    finally:
        spark.conf.set("spark.sql.ansi.enabled", ansi)
    assert ["at least 5", None, "at least 5", None] == failed
