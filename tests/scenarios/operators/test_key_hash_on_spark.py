"""Tests that our hash of keys is Spark's, for values of all types that it takes."""

import datetime as dt
import math
import random
import struct
from decimal import Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StringType, StructType

from checkpointing.graph import TableMode
from checkpointing.identifiers import table_name, vertex_id
from jobs.operators.derived_scans import NullRule
from jobs.operators.key_hash import can_hash, key_groups
from jobs.operators.scan.scanned import may_scan
from jobs.operators.spec import RowRule, StagedTable, StatelessSpec, quarantine_schema
from tests.scenarios.operators.test_key_groups_on_spark import counted

pytestmark = pytest.mark.spark

CONTEXT = Context(prec=38)
ROWS = 2_000
GROUPS = 32_768
"""The largest number of key groups shows the most of a hash."""


def numbers(draw, bits):
    """Return whole numbers, among them the outermost ones."""
    most = 2 ** (bits - 1)
    return [-most, -1, 0, 1, most - 1] + [draw.randrange(-most, most) for _ in range(ROWS - 5)]


def floats(draw, form, bits):
    """Return numbers of any bits: tiny, infinite, not a number, both zeros."""
    whole = {2: "H", 4: "I", 8: "Q"}[bits // 8]
    made = [struct.unpack(form, struct.pack(whole, draw.getrandbits(bits)))[0] for _ in range(ROWS - 5)]
    return [0.0, -0.0, math.nan, math.inf, -math.inf, *made]


def texts(draw):
    """Return texts of any length modulo 4, with characters of one to four bytes."""
    letters = "ab0é€\U0001f600\x00\xff"
    return ["", "abcd"] + ["".join(draw.choices(letters, k=draw.randrange(40))) for _ in range(ROWS - 2)]


def decimals(draw, digits, scale):
    """Return decimals of all lengths, among them those at which a byte more is needed."""
    most = 10**digits - 1
    edges = [sign * (2**bits + more) for bits in range(0, 127, 8) for sign in (1, -1) for more in (-1, 0, 1)]
    edges += [sign * (2 ** (bits - 1) + more) for bits in range(8, 127, 8) for sign in (1, -1) for more in (-1, 0, 1)]
    some = [each for each in (0, most, -most, *edges) if abs(each) <= most]
    made = [draw.choice([1, -1]) * draw.randrange(10 ** draw.randrange(1, digits + 1)) for _ in range(ROWS)]
    return pa.array(
        [Decimal(each).scaleb(-scale, CONTEXT) for each in (*some, *made)][:ROWS], pa.decimal128(digits, scale)
    )


def columns():
    """Return a column of each type, with nulls."""
    draw = random.Random(7)  # noqa: S311 - reproducible rows, no secret
    moments = [draw.randrange(-(10**17), 10**17) for _ in range(ROWS)]
    made = {
        "boolean": pa.array([draw.random() < 0.5 for _ in range(ROWS)]),
        "byte": pa.array(numbers(draw, 8), pa.int8()),
        "short": pa.array(numbers(draw, 16), pa.int16()),
        "int": pa.array(numbers(draw, 32), pa.int32()),
        "long": pa.array(numbers(draw, 64), pa.int64()),
        "float": pa.array(floats(draw, "f", 32), pa.float32()),
        "double": pa.array(floats(draw, "d", 64), pa.float64()),
        "text": pa.array(texts(draw)),
        "bytes": pa.array([draw.randbytes(draw.randrange(20)) for _ in range(ROWS)]),
        "date": pa.array([dt.date(1583, 1, 1) + dt.timedelta(draw.randrange(10**6)) for _ in range(ROWS)]),
        "moment": pa.array(moments, pa.timestamp("us", "UTC")),
        "moment_without_zone": pa.array(moments, pa.timestamp("us")),
        "price": decimals(draw, 9, 2),
        "long_price": decimals(draw, 18, 0),
        "longer_price": decimals(draw, 19, 4),
        "longest_price": decimals(draw, 38, 18),
    }
    some = pa.array([draw.random() < 0.1 for _ in range(ROWS)])
    return {name: pc.if_else(some, pa.nulls(ROWS, column.type), column) for name, column in made.items()}


def test_each_type_and_all_together_hash_as_in_spark(spark):
    """A null leaves the hash as it is, and the hash of one column is the seed of the next."""
    made = columns()
    rows = pa.table({"number": range(ROWS), **made})
    every = ", ".join(made)
    sums = [f"pmod(hash({name}), {GROUPS}) as {name}" for name in made] + [f"pmod(hash({every}), {GROUPS}) as every"]
    theirs = spark.createDataFrame(rows).selectExpr("number", *sums).toArrow().sort_by("number")
    for name, column in made.items():
        assert key_groups([column], GROUPS).to_pylist() == theirs.column(name).to_pylist(), name
        assert can_hash(column.type)
    assert key_groups(list(made.values()), GROUPS).to_pylist() == theirs.column("every").to_pylist()


@pytest.mark.parametrize("rows", [9, 300])
def test_long_keys_hash_as_in_spark(spark, rows):
    """Few long keys are hashed one by one, and many word by word together. A key of a megabyte takes no second."""
    draw = random.Random(rows)  # noqa: S311 - reproducible rows, no secret
    lengths = [1_000_003, *(draw.randrange(3_000) for _ in range(rows - 1))]
    keys = pa.table({"number": range(rows), "key": [draw.randbytes(length) for length in lengths]})
    theirs = spark.createDataFrame(keys).selectExpr("number", f"pmod(hash(key), {GROUPS}) as key").toArrow()
    column = keys.column("key").combine_chunks()
    assert key_groups([column], GROUPS).to_pylist() == theirs.sort_by("number").column("key").to_pylist()


def test_a_part_of_a_column_hashes_as_the_whole():
    """Arrow keeps a part as an offset into the whole column's buffers."""
    for name, column in columns().items():
        assert key_groups([column.slice(7, 100)], 128) == key_groups([column], 128).slice(7, 100), name


def test_keys_of_other_types_and_rules_of_sparks_are_left_to_spark():
    """Texts of a collation may be equal and have other bytes. A task judges rules about null, and no other rule."""
    assert may_scan(counted(StringType()).spec, 0)
    assert not may_scan(counted(StringType("UTF8_LCASE")).spec, 0)
    assert not may_scan(counted(StructType().add("a", StringType())).spec, 0)
    known = RowRule("known", "a is not null", NullRule("a", null=False))
    long = RowRule("long", "a > 'm'")
    assert may_scan(stateless(), 0)
    assert may_scan(stateless(known), 0)
    assert not may_scan(stateless(long), 0)
    assert not may_scan(stateless(known, long), 0)


def stateless(*rules):
    """Return a step without state that judges these rules."""
    schema = StructType().add("a", StringType())
    table = StagedTable(table_name("quarantine/q"), TableMode.APPEND, quarantine_schema(schema))
    return StatelessSpec(vertex=vertex_id("v"), schema=schema, rules=rules, quarantine=table if rules else None)
