"""Tests that tasks decode JSON records as Spark's `from_json` does, or leave them to Spark."""

import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    FloatType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
)

from jobs.sources.kafka.readers import VALUE
from jobs.sources.kafka.records import UNDECODED_COLUMN, PlainJson, RecordForm, can_be_plain
from jobs.sources.slice_reading import LeftToSparkError

pytestmark = pytest.mark.spark

SCHEMA = (
    StructType()
    .add("l", "long")
    .add("i", "integer")
    .add("d", "double")
    .add("b", "boolean")
    .add("s", "string")
    .add("day", "date")
    .add("at", "timestamp")
)
PLAIN = PlainJson.of(SCHEMA, VALUE, UNDECODED_COLUMN)
ODD = rb"""
{"l":1.0} {"l":1e3} {"l":"7"} {"l":-0} {"l":01} {"l":+1} {"l":9223372036854775807} {"l":9223372036854775808}
{"i":2147483648} {"i":-2147483648} {"d":1} {"d":-0} {"d":-0.0} {"d":NaN} {"d":"NaN"} {"d":Infinity} {"d":-Inf}
{"d":1e400} {"d":1e-400} {"d":123456789012345678901234567890} {"d":0.1} {"d":1.} {"d":.5} {"d":0x1} {"d":5e-324}
{"d":9007199254740993} {"b":1} {"b":"true"} {"b":True} {"b":true} {"s":1} {"s":null} {"s":{"a":1}} {"s":[1]}
{"s":""} {"s":"\u0000"} {"s":"\ud83d\ude00"} {"s":"\ud83d"} {"s":"\udc00"} {"s":"\x"} {'s':'a'} {s:"a"}
{"s":"a","s":"b"} {"x":1,"x":2} {"S":"a"} {"s":"a"}} {"s":"a"}{"s":"b"} {} [] [{"l":1}] null 1 "a" {"x":NaN}
{"x":1e999} {"x":INF} {"x":[{"y":null},[]],"l":2} {"x":/*c*/1} {"l":1,} {,} {"day":"2026-02-30"}
{"day":"2026-02-28"} {"day":"2026-2-8"} {"day":20000} {"day":"2026-02-28T00:00:00Z"} {"day":"1582-10-10"}
{"day":"0000-01-01"} {"at":"2026-02-28T23:59:59Z"} {"at":"2026-02-28T23:59:59.1234567Z"}
{"at":"2026-02-28T23:59:59.12+05:30"} {"at":"2026-02-28T24:00:00Z"} {"at":"2026-02-28T23:59:60Z"}
{"at":"2026-02-28T23:59:59"} {"at":"2026-02-28"} {"at":1772323199} {"at":"2026-02-28T23:59:59+19:00"}
{"at":"2026-02-28T23:59:59-00:00"} {"at":"1999-12-31T23:59:59.999999Z"} {"at":"2026-02-28t23:59:59z"} {"at":""}
{"\u006c":5}
""".split()
ODD += [
    b'{"s":"\xff"}',
    b'{"x":"\xff"}',
    b'{"\xff":1}',
    b'{"s":"\xc3\xa4"}',
    b'{"s":"\xed\xa0\x80"}',
    b'\xef\xbb\xbf{"l":1}',
    b' {"l":1}',
    b'{"l":1} ',
    b'{"l":1}\n',
    b'{"l":\n1}',
    b'{"l":\r1}',
    b'{"l":\t1}',
    b'{"s":"\t"}',
    b'{"s":"a\x00b"}',
    b'{"l":1}\x00',
    b"",
    b" ",
    b'{"x":' + b"1" * 1001 + b"}",
    b'{"x":0.' + b"1" * 1200 + b"}",
    b'{"x":' + b"[" * 1100 + b"]" * 1100 + b"}",
    b'{"x":' + b"[" * 400 + b"]" * 400 + b"}",
    b'{"s":"' + b"long " * 500 + b'"}',
]

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.integers(-100, 100),
    st.floats(),
    st.text(max_size=8),
    st.dates().map(str),
    st.datetimes().map(lambda at: at.isoformat() + "Z"),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from("ls"), st.integers(), max_size=1),
)
FITTING = {
    "l": st.integers(-(2**63), 2**63 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "d": st.floats(),
    "b": st.booleans(),
    "s": st.text(max_size=8),
    "day": st.dates().map(str),
    "at": st.datetimes().map(lambda at: at.isoformat() + "Z"),
}
OBJECTS = st.one_of(
    st.dictionaries(st.sampled_from([*SCHEMA.names, "x", "L"]), VALUES, max_size=4),
    st.fixed_dictionaries({}, optional=FITTING),
)
RECORDS = st.builds(
    lambda found, ascii_only, spaces: json.dumps(found, ensure_ascii=ascii_only, separators=spaces).encode(
        errors="surrogatepass"
    ),
    OBJECTS,
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", " : ")]),
)


def decoded(values):
    """Return the rows that a task makes of these values. Raises LeftToSparkError."""
    batch = pa.RecordBatch.from_pydict({VALUE: pa.array(values, pa.binary())})
    (found,) = PLAIN.run(iter([batch]))
    return found


def taken(value):
    """Return whether a task decodes the value."""
    try:
        decoded([value])
    except LeftToSparkError:
        return False
    return True


def judged(spark, values):
    """Require that a task makes the rows of these values that Spark makes of them."""
    in_order = [(number, None if value is None else bytearray(value)) for number, value in enumerate(values)]
    records = spark.createDataFrame(in_order, "offset long, value binary")
    form = RecordForm(format="json", value=SCHEMA)
    by_spark = form.rows(records, F.lit("a")).orderBy("_position").toArrow()
    names = [*SCHEMA.names, UNDECODED_COLUMN]
    by_task = pa.Table.from_batches([decoded(values)])
    for name in names:
        theirs, own = by_spark.column(name).combine_chunks(), by_task.column(name).combine_chunks()
        found = zip(values, theirs.to_pylist(), own.cast(theirs.type).to_pylist(), strict=True)
        assert [] == [each for each in found if str(each[1]) != str(each[2])], name


def test_odd_records_are_left_to_spark_or_decoded_as_spark_does(spark):
    """Some of them are known to be plain, and some are known not to be."""
    kept = [value for value in ODD if taken(value)]
    assert {b'{"d":0.1}', b'{"s":"\xc3\xa4"}', b'{"at":"2026-02-28T23:59:59.12+05:30"}', b'{"d":1}'} <= set(kept)
    assert {b'{"s":1}', b'{"d":NaN}', b'{"at":"2026-02-28T23:59:59"}', b'{"s":"\xff"}', b""} <= {*ODD} - {*kept}
    judged(spark, [None, *kept, None])


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(RECORDS, min_size=150, max_size=400))
def test_records_that_a_task_decodes_are_those_of_spark(spark, records):
    """Whatever the records are, Spark's `from_json` finds the same columns, and none of them undecoded."""
    kept = [value for value in records if taken(value)]
    if kept:
        judged(spark, kept)


def test_many_records_are_taken_only_if_each_is():
    """One odd record among plain ones, wherever it is, makes the task leave all of them to Spark."""
    good = [b'{"l":%d}' % number for number in range(50)]
    assert 50 == decoded(good).num_rows
    for odd in (value for value in ODD if not taken(value)):
        for place in (0, 25, 50):
            assert not all_taken([*good[:place], odd, *good[place:]]), odd


def all_taken(values):
    """Return whether a task decodes all these values at once."""
    try:
        decoded(values)
    except LeftToSparkError:
        return False
    return True


def test_other_types_are_left_to_spark():
    """A column of another type makes no JSON record plain."""
    numbers = ArrayType(LongType())
    for kind in (
        FloatType(),
        DecimalType(10, 2),
        numbers,
        StructType().add("a", "long"),
        TimestampNTZType(),
        BinaryType(),
    ):
        assert not can_be_plain(StructType().add("l", "long").add("x", kind)), kind
    assert not can_be_plain(StructType().add("x", StringType("UNICODE_CI")))
    assert can_be_plain(SCHEMA)


def test_a_record_that_only_seems_to_be_one_is_undecoded(spark):
    """Spark itself would read its first object, the present day, 15 and a rounded number."""
    schema = StructType().add("l", LongType()).add("at", "timestamp").add("n", DecimalType(5, 2))
    good = [
        b'{"l":1}',
        b'{"l":1,"x":{"y":"}{"}}',
        b'{"at":"2024-05-01"}',
        b'{"n":"1.5"}',
        b'{"n":-1.25}',
        b'{"n":"1e1"}',
    ]
    bad = [b'{"l":1}{"l":2}', b'{"l":1} 2', b'{"x":{}}]', b'[{"l":1}]', b'{"at":"12:00"}', b'{"at":"T1"}']
    bad += [b'{"at":"\\u0031:00"}', b'{"n":"1,5"}', b'{"n":1.239}', b'{"l":1']
    form = RecordForm(format="json", value=schema)
    records = spark.createDataFrame(
        [(value, place) for place, value in enumerate([*good, *bad])],
        StructType().add(VALUE, "binary").add("offset", "long"),
    )
    rows = form.rows(records, F.lit("t-0")).orderBy("_position").collect()
    assert [None] * len(good) + bad == [row[UNDECODED_COLUMN] and bytes(row[UNDECODED_COLUMN]) for row in rows]
    assert all(row.l is row["at"] is row.n is None for row in rows[len(good) :])
