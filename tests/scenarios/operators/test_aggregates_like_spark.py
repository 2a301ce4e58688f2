"""Compares aggregates over random rows, cut into random micro-batches, with one query of Spark SQL over all rows."""

import math
import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import tidemark
from checkpointing.graph import TableMode
from checkpointing.identifiers import table_name, vertex_id
from jobs.operators.execute import MicroBatchError
from jobs.operators.keyed_vertices import aggregate_spec
from jobs.operators.spec import InputPlan, StagedTable, VertexPlan, arrow_schema
from jobs.pipeline.aggregates import named_aggregates, sum_of
from jobs.pipeline.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import read_schema

pytestmark = pytest.mark.spark

COLUMNS = {
    "tiny": ByteType(),
    "large": LongType(),
    "single": FloatType(),
    "twice": DoubleType(),
    "money": DecimalType(10, 2),
    "exact": DecimalType(38, 4),
    "text": StringType(),
    "flag": BooleanType(),
    "day": DateType(),
    "at": TimestampType(),
}
NUMBERS = ["tiny", "large", "single", "twice", "money", "exact"]
ROWS = StructType([StructField("k", StringType()), *(StructField(name, kind) for name, kind in COLUMNS.items())])
TOLERANCE = 1e-6
"""For doubles that were added up in another order."""


def drawn(chance, position):
    """Return a row. Any value may be null. Some numbers are NaN, infinite, equal, or large and near each other."""
    values = {
        "tiny": chance.randint(-128, 127),
        "large": 2**26 + chance.randint(-9, 9),
        "single": chance.choice([1.5, -0.25, 1024.0, 3.0]),
        "twice": chance.choice([2.5, -0.125, 4096.0, 0.1, *([math.nan, math.inf] if chance.random() < 0.05 else [])]),
        "money": Decimal(chance.randint(-(10**6), 10**6)).scaleb(-2),
        "exact": Decimal(chance.randint(-(10**26), 10**26)).scaleb(-4),
        "text": chance.choice(["", "a", "ä", "zz", "b" * 40]),
        "flag": chance.random() < 0.5,
        "day": date(2026, 1, 1) + timedelta(days=chance.randint(0, 9)),
        "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randint(0, 10**9)),
    }
    key = chance.choice([None, "a", "b", "c", f"k{chance.randint(0, 9)}"])
    row = {name: None if chance.random() < 0.2 else value for name, value in values.items()}
    return {"k": key, **row, "_split": chance.choice(["x", "y"]), "_position": position}


def chosen(best, order, name, where="true"):
    """Return Spark SQL for a column's value in the first (min) or last (max) row that fulfils a condition."""
    return f"{best}(case when {where} then named_struct('order', struct({order}), 'value', {name}) end).value"


def pairs_of(columns):
    """Return our aggregate and Spark's, by output column, over these columns."""
    found = {"rows": (tidemark.count(), "count(*)")}
    for name in [name for name in columns if name in NUMBERS]:
        found |= {
            f"avg_{name}": (tidemark.avg_of(name), f"avg({name})"),
            f"var_{name}": (tidemark.var_of(name), f"var_samp({name})"),
            f"var_pop_{name}": (tidemark.var_of(name, population=True), f"var_pop({name})"),
            f"stddev_{name}": (tidemark.stddev_of(name), f"stddev_samp({name})"),
            f"stddev_pop_{name}": (tidemark.stddev_of(name, population=True), f"stddev_pop({name})"),
        }
    place = "_position, _split"
    for name in columns:
        known = f"{name} is not null"
        found |= {
            f"first_{name}": (tidemark.first_of(name), chosen("min", place, name)),
            f"last_{name}": (tidemark.last_of(name), chosen("max", place, name)),
            f"first_known_{name}": (tidemark.first_of(name, ignore_nulls=True), chosen("min", place, name, known)),
            f"last_known_{name}": (tidemark.last_of(name, ignore_nulls=True), chosen("max", place, name, known)),
            f"min_by_{name}": (tidemark.min_by("text", name), chosen("min", name, "text", known)),
            f"max_by_{name}": (tidemark.max_by("text", name), chosen("max", name, "text", known)),
            f"list_{name}": (tidemark.collect_list(name), f"sort_array(collect_list({name}))"),
            f"set_{name}": (tidemark.collect_set(name), f"sort_array(collect_set({name}))"),
            f"distinct_{name}": (tidemark.count_distinct(name), f"count(distinct {name})"),
            f"about_{name}": (tidemark.approx_count_distinct(name), f"count(distinct {name})"),
        }
    days = "day, flag"
    return found | {
        "first_of_day": (tidemark.first_of("tiny", order_by=["day", "flag"]), chosen("min", days, "tiny")),
        "last_of_day": (tidemark.last_of("tiny", order_by=["day", "flag"]), chosen("max", days, "tiny")),
    }


def aggregating(pairs, folder, parallelism=2):
    pipeline = Pipeline("p", parallelism=parallelism)
    rows = pipeline.source("rows", FileSource(folder, ROWS))
    rows.key_by("k").aggregate("every", **{name: ours for name, (ours, _) in pairs.items()}).upsert("gold/every")
    return plan(pipeline).vertices["every"], arrow_schema(read_schema(FileSource(folder, ROWS)))


def alike(one, other):
    """Return whether two values are equal; doubles may differ in their last digits."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(alike(*pair) for pair in zip(one, other, strict=True))
    return one == other


def plain(kind):
    """Return a type without saying whether an array may hold nulls."""
    return ArrayType(kind.elementType) if isinstance(kind, ArrayType) else kind


def differences(vertex, judged, pairs):
    """Return the values in which the upsert table differs from Spark's answer."""
    ours = {row["k"]: row for row in vertex.upserted().to_dicts()}
    theirs = {row["k"]: row for row in judged.collect()}
    assert ours.keys() == theirs.keys()
    both = ((key, name, theirs[key][name], ours[key][name]) for key in theirs for name in pairs)
    return [(key, name, one, other) for key, name, one, other in both if not alike(in_utc(one), in_utc(other))]


def in_utc(value):
    """Return a time of Spark's, which is in the zone of the machine, as ours."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return [in_utc(each) for each in value] if isinstance(value, list) else value


def judge(bench, spark, folder, seed, columns, rows=150):
    """Compare the table with Spark's answer, after micro-batches of random size and two parallelisms."""
    chance = random.Random(seed)  # noqa: S311 - test data
    made = [drawn(chance, position) for position in range(rows)]
    pairs = pairs_of(columns)
    (first, schema), (second, _) = aggregating(pairs, folder, 2), aggregating(pairs, folder, 1)
    cut = sorted(chance.sample(range(1, rows), 2))
    epochs = [pa.Table.from_pylist(part, schema) for part in (made[: cut[0]], made[cut[0] : cut[1]], made[cut[1] :])]
    vertex = bench(first)
    vertex.run(epochs[0])
    vertex.run(epochs[1])
    before = vertex
    held = tuple(file for files in before.state for file in files), tuple(r for ranges in before.ranges for r in ranges)
    vertex = bench(second, state=[held[0]], ranges=[held[1]], micro_batch=before.micro_batch)
    vertex.run(epochs[2])
    every = spark.createDataFrame(pa.concat_tables(epochs))
    judged = every.groupBy("k").agg(*[F.expr(theirs).alias(name) for name, (_, theirs) in pairs.items()])
    types = {field.name: plain(field.dataType) for field in judged.schema}
    assert types == {field.name: plain(field.dataType) for field in second.spec.output}
    assert not differences(vertex, judged, pairs)


def test_every_aggregate_equals_spark_sql_however_rows_are_cut(bench, spark, tmp_path):
    """Values and types are equal, with nulls and NaN, over three micro-batches and a rescale."""
    judge(bench, spark, tmp_path, seed=1, columns=["twice"])


@pytest.mark.dear
@pytest.mark.parametrize("seed", range(2, 8))
def test_every_aggregate_equals_spark_sql_for_more_rows(bench, spark, tmp_path, seed):
    """Other rows of other types, cut at other places."""
    judge(bench, spark, tmp_path, seed, columns=list(COLUMNS)[seed % 2 :: 2], rows=40 * seed)


# ------------------------------------------------------------------
# Compares sums of a pipeline with Spark's own `sum`: both give the same numbers, or both refuse.


TYPES = {
    "tiny": ByteType(),
    "small": ShortType(),
    "whole": IntegerType(),
    "large": LongType(),
    "single": FloatType(),
    "twice": DoubleType(),
    "money": DecimalType(10, 2),
    "exact": DecimalType(38, 4),
}
ROWS_OF_SUMS_LIKE_SPARK = StructType(
    [StructField("k", StringType()), *(StructField(name, kind) for name, kind in TYPES.items())]
)


def totals(schema=ROWS_OF_SUMS_LIKE_SPARK):
    sums = {f"sum_{name}": sum_of(name) for name in schema.names[1:]}
    aggregates = named_aggregates("vertex totals", ["k"], schema, sums)
    spec = aggregate_spec(
        vertex=vertex_id("totals"), rows=schema, keys=("k",), aggregates=aggregates, parallelism=2, max_parallelism=128
    )
    table = StagedTable(table_name("gold/totals"), TableMode.UPSERT, spec.output, ("k",))
    return VertexPlan(replace(spec, table=table, emits=False), (InputPlan(schema),))


@pytest.mark.parametrize(
    ("kind", "value"), [(LongType(), 2**63 - 1), (DecimalType(38, 0), Decimal("9" * 38))], ids=["bigint", "decimal"]
)
def test_a_sum_that_spark_refuses_is_refused_with_the_vertex_named(bench, spark, kind, value):
    """This also holds over two micro-batches. Then neither state nor table has a row of the second one."""
    schema = StructType([StructField("k", StringType()), StructField("v", kind)])
    one = pa.table({"k": ["a"], "v": [value]}, schema=arrow_schema(schema))
    with pytest.raises(PySparkException, match=r"overflow|OVERFLOW|OUT_OF_RANGE"):
        spark.createDataFrame(pa.concat_tables([one, one]).to_pylist(), schema).groupBy("k").sum("v").collect()
    vertex = bench(totals(schema))
    vertex.run(one)
    before = list(vertex.state), list(vertex.ranges)
    with pytest.raises(MicroBatchError, match="vertex totals failed: SumOverflowError: column sum_v: the sum of v for"):
        vertex.run(one)
    assert before == (vertex.state, vertex.ranges)
    assert [("a", value)] == vertex.upserted().select("k", "sum_v").rows()
