"""Tests that real Spark reads files from pandas, Polars and pyarrow as the types of the source's schema."""

import datetime as dt
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import read_schema

pytestmark = pytest.mark.spark

UTC = dt.UTC
EWR = SplitId("EWR")
MOMENTS = StructType().add("at", TimestampType()).add("wall clock", TimestampNTZType()).add("n", LongType())


@pytest.fixture
def split(tmp_path):
    """Return the folder of the one split."""
    (tmp_path / EWR).mkdir()
    return tmp_path / EWR


@pytest.fixture(params=["vectorized", "row by row"])
def session(spark, request):
    """Return the session in another time zone than the machine's, with each of Spark's two Parquet readers."""
    wanted = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.parquet.enableVectorizedReader": str(request.param == "vectorized").lower(),
    }
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def slice_of(source):
    return source.poll(PollSource(VertexId("in"), EWR, None, 1_000))


def rows(spark, source, slices, *columns):
    """Return the rows in the order of their positions. Moments are ISO texts in UTC, which no time zone changes."""
    read = source.read(spark, slices)
    assert read_schema(source).simpleString() == read.schema.simpleString()
    return [tuple(row) for row in read.orderBy("_position").selectExpr(*columns).collect()]


MICROS = ("unix_micros(at)", "date_format(`wall clock`, 'yyyy-MM-dd HH:mm:ss.SSSSSS')", "n", "_position")


def test_moments_that_spark_wrote_are_read_to_the_microsecond(session, split):
    """Spark and Hive write moments as INT96. Nothing converts them."""
    at = pa.array([1357016400123456, -1, None], pa.timestamp("us", "UTC"))
    table = pa.table({"at": at, "n": pa.array([0, 1, 2], pa.int64())})
    pq.write_table(table, split / "1.parquet", use_deprecated_int96_timestamps=True)
    source = FileSource(split.parent, StructType().add("at", TimestampType()).add("n", LongType()))
    expected = [(1357016400123456, 0), (-1, 1), (None, 2)]
    assert expected == rows(session, source, [slice_of(source)], "unix_micros(at)", "n")


def test_nanoseconds_that_pandas_wrote_are_read_as_microseconds(session, split):
    """They have a zone or none, and lie before or after 1970. They are cut to the microsecond, and null stays null."""
    at = pd.Series(pd.to_datetime([1357016400123456789, -1, -1_000, None], utc=True))
    naive = at.dt.tz_localize(None)
    frame = pd.DataFrame({"at": at, "wall clock": naive, "n": [0, 1, 2, 3]})
    frame.to_parquet(split / "1.parquet")
    stored = pq.read_schema(split / "1.parquet")
    assert (pa.timestamp("ns", "UTC"), pa.timestamp("ns")) == (stored.field("at").type, stored.field("wall clock").type)
    source = FileSource(split.parent, MOMENTS)
    assert [
        (1357016400123456, "2013-01-01 05:00:00.123456", 0, 0),
        (-1, "1969-12-31 23:59:59.999999", 1, 1),
        (-1, "1969-12-31 23:59:59.999999", 2, 2),
        (None, None, 3, 3),
    ] == rows(session, source, [slice_of(source)], *MICROS)


def test_files_of_different_writers_are_one_source(spark, split):
    """One slice has nanoseconds, microseconds, milliseconds, and a column without values. Ordinals go on."""
    moment = dt.datetime(2013, 1, 1, 5, tzinfo=UTC)
    naive = moment.replace(tzinfo=None)
    pd.DataFrame({"at": [moment], "wall clock": [naive], "n": [0]}).astype(
        {"at": "datetime64[ns, UTC]", "wall clock": "datetime64[ns]"}
    ).to_parquet(split / "1.parquet")
    pl.DataFrame({"n": [1], "wall clock": [naive], "at": [moment]}).write_parquet(split / "2.parquet")
    coarse = {"at": pa.array([moment], pa.timestamp("ms", "Europe/Zurich")), "wall clock": pa.nulls(1), "n": [2]}
    pq.write_table(pa.table(coarse), split / "3.parquet")
    pl.DataFrame({"at": [None], "wall clock": [naive], "n": [3]}).write_parquet(split / "4.parquet")
    source = FileSource(split.parent, MOMENTS)
    micros, wall = 1_357_016_400_000_000, "2013-01-01 05:00:00.000000"
    assert [(micros, wall, 0, 0), (micros, wall, 1, 1), (micros, None, 2, 2), (None, wall, 3, 3)] == rows(
        spark, source, [slice_of(source)], *MICROS
    )


def test_further_types_that_polars_and_pandas_write_are_read(session, split):
    """Categories, enums, large types, fixed lists, unsigned integers, and a column with only nulls."""
    schema = StructType().add("word", StringType()).add("kind", StringType()).add("raw", BinaryType())
    schema = schema.add("list", ArrayType(LongType())).add("pair", ArrayType(LongType())).add("byte", ShortType())
    schema = schema.add("count", LongType()).add("huge", DecimalType(20, 0)).add("never", StringType())
    pl.DataFrame(
        {
            "word": pl.Series(["a"], dtype=pl.Categorical),
            "kind": pl.Series(["x"], dtype=pl.Enum(["x", "y"])),
            "raw": [b"r"],
            "list": [[1, 2]],
            "pair": pl.Series([[3, 4]], dtype=pl.Array(pl.Int64, 2)),
            "byte": pl.Series([255], dtype=pl.UInt8),
            "count": pl.Series([2**32 - 1], dtype=pl.UInt32),
            "huge": pl.Series([2**64 - 1], dtype=pl.UInt64),
            "never": [None],
        }
    ).write_parquet(split / "1.parquet")
    frame = pd.DataFrame({"word": pd.Categorical(["b"]), "kind": pd.array(["y"], dtype="string"), "raw": [b"s"]})
    frame = frame.assign(list=[[5]], pair=[[6, 7]], byte=pd.array([1], "uint8"), count=pd.array([2], "uint32"))
    frame.assign(huge=pd.array([3], "uint64"), never=[None]).to_parquet(split / "2.parquet")
    source = FileSource(split.parent, schema)
    first = ("a", "x", bytearray(b"r"), [1, 2], [3, 4], 255, 2**32 - 1, Decimal(2**64 - 1), None)
    second = ("b", "y", bytearray(b"s"), [5], [6, 7], 1, 2, Decimal(3), None)
    assert [first, second] == rows(session, source, [slice_of(source)], *schema.names)


@pytest.mark.parametrize(
    ("kind", "exact", "lossy", "wanted"),
    [
        (pa.int64(), 2**53, 2**53 + 1, DoubleType()),
        (pa.int64(), -(2**62), 2**63 - 1, DoubleType()),
        (pa.int64(), 2**24, 2**24 + 1, FloatType()),
        (pa.float64(), 0.5, 0.1, FloatType()),
        (pa.float64(), 3.0, 3.5, LongType()),
        (pa.decimal128(20, 4), Decimal("1.5000"), Decimal("1.2345"), DecimalType(10, 2)),
        (pa.decimal128(20, 4), Decimal("0.5"), Decimal("1234567890123456.7891"), DoubleType()),
        (
            pa.timestamp("us", "UTC"),
            dt.datetime(2024, 5, 1, tzinfo=UTC),
            dt.datetime(2024, 5, 1, 12, tzinfo=UTC),
            DateType(),
        ),
        (pa.struct([("a", pa.int64())]), {"a": 1}, {"a": 2**53 + 1}, StructType().add("a", DoubleType())),
    ],
)
def test_a_cast_keeps_every_digit_or_says_that_it_cannot(spark, tmp_path, kind, exact, lossy, wanted):
    """`ignore` casts another type. A value that is another one afterwards is told, with its file and column."""
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"v": pa.array([exact, None], kind)}), tmp_path / "a" / "1.parquet")
    schema = StructType().add("v", wanted)

    def read(**more):
        source = FileSource(tmp_path, schema, columns="ignore", **more)
        piece = source.poll(PollSource(VertexId("in"), SplitId("a"), None, 100))
        return source.read(spark, [piece]).orderBy("_position").select("v", *more.values()).collect()

    assert [False, True] == [row.v is None for row in read()]
    pq.write_table(pa.table({"v": pa.array([lossy, exact], kind)}), tmp_path / "a" / "1.parquet")
    with pytest.raises(SparkRuntimeException, match=r"a/1\.parquet.*column 'v'"):
        read()
    assert [(True, False), (False, True)] == [(row.v is None, row.bad is None) for row in read(corrupt_column="bad")]
