"""Compares sums of a pipeline with Spark's own `sum`: both give the same numbers, or both refuse."""

import random
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ByteType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from checkpointing.graph import TableMode
from checkpointing.identifiers import table_name, vertex_id
from jobs.operators.execute import MicroBatchError
from jobs.operators.keyed_vertices import aggregate_spec
from jobs.operators.spec import InputPlan, StagedTable, VertexPlan, arrow_schema
from jobs.pipeline.aggregates import named_aggregates, sum_of

pytestmark = pytest.mark.spark

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
ROWS = StructType([StructField("k", StringType()), *(StructField(name, kind) for name, kind in TYPES.items())])


def totals(schema=ROWS):
    """Return the plan of the sum of every column by key."""
    sums = {f"sum_{name}": sum_of(name) for name in schema.names[1:]}
    aggregates = named_aggregates("vertex totals", ["k"], schema, sums)
    spec = aggregate_spec(
        vertex=vertex_id("totals"), rows=schema, keys=("k",), aggregates=aggregates, parallelism=2, max_parallelism=128
    )
    table = StagedTable(table_name("gold/totals"), TableMode.UPSERT, spec.output, ("k",))
    return VertexPlan(replace(spec, table=table, emits=False), (InputPlan(schema),))


def rows_of(seed, count=60):
    """Return rows of all types, some null, NaN and infinite. A double can hold the sums exactly."""
    chance = random.Random(seed)  # noqa: S311 - test data
    values = {
        "tiny": lambda: chance.randint(-128, 127),
        "small": lambda: chance.randint(-(2**15), 2**15 - 1),
        "whole": lambda: chance.randint(-(2**31), 2**31 - 1),
        "large": lambda: chance.randint(-(2**56), 2**56),
        "single": lambda: chance.choice([1.5, -0.25, 1024.0, float("inf")]),
        "twice": lambda: chance.choice([2.5, -0.125, 4096.0, float("nan")]),
        "money": lambda: Decimal(chance.randint(-(10**10) + 1, 10**10 - 1)).scaleb(-2),
        "exact": lambda: Decimal(chance.randint(-(10**27), 10**27)).scaleb(-4),
    }
    keys = [chance.choice([None, "a", "b", "c"]) for _ in range(count)]
    columns = {name: [None if chance.random() < 0.2 else value() for _ in keys] for name, value in values.items()}
    return pa.table({"k": keys, **columns}, schema=arrow_schema(ROWS))


def test_sums_of_every_type_equal_those_of_spark(bench, spark, tmp_path):
    """Values and types are equal. The pipeline uses several micro-batches, and Spark one query."""
    vertex, batches = bench(totals()), [rows_of(seed) for seed in range(3)]
    for batch in batches:
        vertex.run(batch)
    every = spark.createDataFrame(pa.concat_tables(batches).to_pylist(), ROWS)
    judged = every.groupBy("k").sum(*TYPES)
    assert [field.dataType for field in judged.schema] == [field.dataType for field in vertex.plan.spec.output]
    expected = sorted((tuple(row) for row in judged.collect()), key=lambda row: str(row[0]))
    found = sorted(vertex.upserted().select(vertex.plan.spec.output.names).rows(), key=lambda row: str(row[0]))
    assert [[str(value) for value in row] for row in expected] == [[str(value) for value in row] for row in found]


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
