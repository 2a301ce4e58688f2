"""Tests on real Spark that keys of every type keep their key group, whichever way their rows come."""

import datetime as dt
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from checkpointing.identifiers import vertex_id
from checkpointing.key_groups import key_group_ranges
from jobs.operators.keyed_vertices import aggregate_spec
from jobs.operators.spec import InputPlan, TextSteps, VertexPlan, arrow_schema
from jobs.pipeline.aggregates import count, named_aggregates
from jobs.state.merge import KEY_GROUP

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("each_way")]

GROUPS = 128
MOMENTS = [dt.datetime(year, 2, 3, 4, 5, 6, 789_012, tzinfo=dt.UTC) for year in (1583, 1969, 2013, 9999)]
KEYS = {
    "boolean": (BooleanType(), [True, False]),
    "byte": (ByteType(), [-128, 0, 127]),
    "short": (ShortType(), [-(2**15), 0, 2**15 - 1]),
    "integer": (IntegerType(), [-(2**31), 0, 2**31 - 1]),
    "long": (LongType(), [-(2**63), -1, 0, 2**40, 2**63 - 1]),
    "float": (FloatType(), [-1.5, 0.0, 3.25, float("inf")]),
    "double": (DoubleType(), [-1.5, 0.0, 1e300, float("-inf")]),
    "string": (StringType(), ["", "a", "abcd", "abcde", "Zürich", "\U0001f600", "x" * 1_000]),
    "binary": (BinaryType(), [b"", b"\x00", b"\xff\xfe", b"abcdefgh", b"123456789"]),
    "short decimal": (DecimalType(9, 2), [Decimal("-1.25"), Decimal("0.00"), Decimal("9999999.99")]),
    "long decimal": (DecimalType(38, 4), [Decimal("-1.2500"), Decimal("0.0001"), Decimal(10) ** 33]),
    "date": (DateType(), [dt.date(1583, 1, 1), dt.date(1969, 12, 31), dt.date(2013, 7, 1)]),
    "timestamp": (TimestampType(), MOMENTS),
    "timestamp without zone": (TimestampNTZType(), [moment.replace(tzinfo=None) for moment in MOMENTS]),
    "array": (ArrayType(LongType()), [[], [1], [1, None, 3]]),
    "struct": (StructType().add("a", LongType()).add("b", StringType()), [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
}


def counted(kind, chain=None):
    """Return the plan of a count by a key of this type."""
    rows = StructType().add("k", kind).add("n", LongType())
    spec = aggregate_spec(
        vertex=vertex_id("counts"),
        rows=rows,
        keys=("k",),
        aggregates=named_aggregates("vertex counts", ["k"], rows, {"rows": count()}),
        parallelism=2,
        max_parallelism=GROUPS,
    )
    return VertexPlan(spec, (InputPlan(rows, chain=chain),))


def through_expressions(rows):
    """Return the same rows, after expressions that Spark has to compute for each of them."""
    return rows.withColumn("n", F.col("n") + 1).filter("n > 0")


@pytest.mark.parametrize("name", KEYS)
def test_equal_keys_keep_their_key_group_and_their_count(bench, spark, name):
    """Groups are Spark's hashes of the keys. Rows of a file, of expressions and of texts meet in one state (E2)."""
    kind, values = KEYS[name]
    schema = arrow_schema(StructType().add("k", kind).add("n", LongType()))
    keys = [*values, None]
    rows = pa.table([pa.array(keys, schema.field("k").type), list(range(len(keys)))], schema=schema)
    vertex = bench(counted(kind))
    vertex.run(rows)
    vertex.plan = counted(kind, through_expressions)
    vertex.run(rows)
    vertex.plan = counted(kind, TextSteps(through_expressions))
    vertex.run(rows)
    outputs = vertex.run(rows).outputs
    shown = vertex.read([file for output in outputs for file in output.emitted])
    assert [4] * len(keys) == shown.get_column("rows").to_list()

    hashed = spark.createDataFrame(rows).selectExpr("n", f"pmod(hash(k), {GROUPS}) as g").collect()
    found = [vertex.read([file.file for file in own]) for own in vertex.state if own]
    assert sorted({row["g"] for row in hashed}) == sorted(pl.concat(found).get_column(KEY_GROUP).unique())
    ranges = key_group_ranges(parallelism=2, max_parallelism=GROUPS)
    for own, files in zip(ranges, vertex.state, strict=True):
        groups = [group for file in files for group in vertex.read([file.file]).get_column(KEY_GROUP)]
        assert all(own.first <= group <= own.last for group in groups)
