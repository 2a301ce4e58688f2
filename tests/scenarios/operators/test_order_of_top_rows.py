"""Compares the order of first rows with Spark SQL's `row_number`, for each type that an order may have."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pytest
from pyspark.sql.types import StructType

from jobs.operators.spec import arrow_schema
from jobs.operators.top_rows import Order, TopRows, top_state
from jobs.state.files import arrow_of, empty_frame

pytestmark = pytest.mark.spark

VALUES = {
    "d": [None, float("nan"), float("inf"), float("-inf"), 0.5, -3.0],
    "f": [None, float("nan"), 1.5, -2.0],
    "s": [None, "", "a", "B", "ä", "Z", "\U0001f600", "\uffee"],
    "m": [None, Decimal("1.10"), Decimal("-7.00"), Decimal("99999.99")],
    "t": [None, date(1969, 12, 31), date(2024, 2, 29)],
    "at": [None, datetime(1969, 12, 31, tzinfo=UTC), datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)],
    "i": [None, -128, 0, 127],
    "b": [None, True, False],
    "raw": [None, b"", b"\x80", b"a"],
}
TYPES = {
    "k": "long",
    "d": "double",
    "f": "float",
    "s": "string",
    "m": "decimal(9,2)",
    "t": "date",
    "at": "timestamp",
    "i": "byte",
    "b": "boolean",
    "raw": "binary",
}
SCHEMA = StructType()
for _name, _type in TYPES.items():
    SCHEMA.add(_name, _type)


@pytest.mark.parametrize("column", ["d", "f", "s", "m", "t", "at", "i"])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_of_each_type_are_in_sparks_order(spark, column, descending):
    """Null, NaN, infinities and texts beyond ASCII too. The other columns, of any type, tell equal ones apart."""
    chance = random.Random(f"{column}{descending}")  # noqa: S311 - test data
    rows = [(chance.choice([None, 1, 2]), *map(chance.choice, VALUES.values())) for _ in range(120)]
    given = pl.DataFrame(rows, schema=empty_frame(arrow_schema(SCHEMA)).schema, orient="row")
    others = tuple(name for name in SCHEMA.names if name != "k")
    function = TopRows(("k",), others, (Order(column, descending),), 25, "nth", changelog=False)
    done = function.process([given], empty_frame(arrow_schema(top_state(SCHEMA, ("k",)))))
    spark.createDataFrame(arrow_of(given, arrow_schema(SCHEMA))).createOrReplaceTempView("given")
    by = ", ".join([column + " desc" * descending, *(name for name in others if name != column)])
    query = f"select *, row_number() over (partition by k order by {by}) as nth from given"
    wanted = spark.sql(f"select * from ({query}) where nth <= 25").toArrow()
    expected = pl.from_arrow(wanted).select(pl.exclude("at"), pl.col("at").cast(pl.Int64))
    found = done.output.select(*SCHEMA.names, "nth").select(pl.exclude("at"), pl.col("at").cast(pl.Int64))
    assert sorted(map(repr, expected.rows())) == sorted(map(repr, found.rows()))
    assert found.height == 75
