"""Compares operators over odd values with Spark SQL over all rows at once, on a fixed share of the long runs' cases."""

from decimal import Decimal
from typing import Final

import pyarrow as pa
import pytest
from pyspark.sql.types import BooleanType, DecimalType, DoubleType, LongType, StringType, StructType

from jobs.operators.spec import arrow_schema
from tests.values import __main__ as nights
from tests.values.cases import NANS, Case
from tests.values.judge import Judge
from tests.values.operators import OPERATORS
from tests.values.ways import WAYS

SEED = 3
HELD = [name for name in OPERATORS if "sink" not in name]
READ = [name for name in WAYS if "Kafka" not in name]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def case_of(kinds, names, rows, operators, way="one task reads"):
    columns = StructType().add("id", LongType())
    for name, kind in zip(names, kinds, strict=True):
        columns.add(name, kind)
    columns.add("gone", BooleanType())
    schema = arrow_schema(columns)
    listed = [[number, *row, False] for number, row in enumerate(rows)]
    arrays = [pa.array(each, field.type) for each, field in zip(zip(*listed, strict=True), schema, strict=True)]
    return Case(columns, pa.table(arrays, schema), way, operators, 1, every_rows=2, slice_rows_max=1, parallelism=2)


AMOUNTS = [Decimal(text) for text in ("12345678901234567.89", "9999999999999999.99", "-12345678901234567.89", "5.00")]
KNOWN = {
    "a decimal with more digits than a double": case_of(
        (StringType(), DecimalType(20, 2), LongType()),
        ("k", "v", "n"),
        [("a", amount, 1) for amount in AMOUNTS],
        ("readers of an append table",),
    ),
    "a dot and a back quote in a name": case_of(
        (StringType(), StringType(), LongType()),
        ("a.b", "a`b", "n"),
        [("a", "x", 1), ("b", None, 2)],
        ("append", "deduplicate", "sum"),
        "Spark reads",
    ),
    "names of the query of a state": case_of(
        (StringType(), StringType(), LongType()),
        ("_file", "_path", "_nth"),
        [("a", "x", 1), ("b", None, 2), ("a", "y", 3)],
        ("readers of an upsert table", "function", "broadcast"),
    ),
    "an operator that no row has reached": case_of(
        (DecimalType(9, 2), LongType(), LongType()), ("k", "v", "n"), [(Decimal(1), 1, 1)], ("broadcast",)
    ),
    "NaN and zeros as keys": case_of(
        (DoubleType(), DoubleType(), LongType()),
        ("k", "v", "n"),
        [(key, value, 1) for key in (0.0, -0.0, *NANS, None, 1.5) for value in (0.0, NANS[1])][::3],
        ("count", "deduplicate", "top", "inner join", "apply_changes", "enrich", "function", "broadcast"),
    ),
}
PARTITIONED: Final = ("partitioned append", "partitioned upsert")


@pytest.mark.parametrize("case", KNOWN.values(), ids=KNOWN)
def test_what_users_met_is_as_spark_sql_has_it(spark, tmp_path, case):
    """With these values, tables of older builds differed, or their micro-batches failed."""
    judge = Judge(spark, tmp_path, tries=0)
    judge.judge(case)
    assert [] == [each.written() for each in judge.judgement.differences]
    assert set(case.operators) == {operator for operator, _, _ in judge.judgement.crossed}


def test_an_empty_text_that_lays_out_a_table_is_null_or_as_a_key_refused(spark, tmp_path):
    """Delta cannot distinguish such a value from null.

    Spark writes null. Tidemark refuses the key, which would change.
    """
    judge = Judge(spark, tmp_path, tries=0)
    rows = [("", "x", 1), ("a", "y", 2), (None, "z", 3)]
    judge.judge(case_of((StringType(), StringType(), LongType()), ("k", "v", "n"), rows, PARTITIONED))
    assert [] == [each.written() for each in judge.judgement.differences]
    (refused,) = judge.judgement.refused
    assert "PartitionError: table ...: key k is ..., which a partition ... of Delta cannot tell" in refused
    assert {"partitioned append"} == {operator for operator, _, _ in judge.judgement.crossed}


def test_tables_show_what_spark_sql_shows_of_all_rows_at_once(spark, tmp_path):
    """Each operator agrees with one query, over odd values of each type, read in each way and divided anywhere."""
    judge = Judge(spark, tmp_path)
    nights.drawn(SEED, judge.judge, READ, HELD, examples=12)
    said = nights.report(judge.judgement)
    assert [] == [each.written() for each in judge.judgement.differences], said
    assert judge.judgement.cases >= 10, said
