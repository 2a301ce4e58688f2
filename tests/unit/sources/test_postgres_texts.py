"""Tests that texts of PostgreSQL's values become Arrow arrays. A text that does not fit is named, or becomes null."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from jobs.sources.postgres.catalog import arrow_type, spark_type
from jobs.sources.postgres.pgoutput import UnfitValueError, converted

FITTING = [
    ("boolean", [b"t", None, b"f"], [True, None, False]),
    ("bigint", [b"-9223372036854775808", None], [-(2**63), None]),
    ("decimal(10,2)", [b"12.50", b"-0.01"], [Decimal("12.50"), Decimal("-0.01")]),
    ("double", [b"Infinity", b"-Infinity", b"1e-5"], [float("inf"), float("-inf"), 1e-5]),
    ("timestamp", [b"2026-01-02 03:04:05.12+00"], [datetime(2026, 1, 2, 3, 4, 5, 120_000, UTC)]),
    ("timestamp_ntz", [b"0001-01-01 00:00:00"], [datetime(1, 1, 1)]),  # noqa: DTZ001 - it has no zone
    ("date", [b"2026-02-28", None], [date(2026, 2, 28), None]),
    ("binary", [b"\\x00ff", b"\\x", None], [b"\0\xff", b"", None]),
    ("string", ["é".encode(), "", None], ["é", "", None]),
    ("array<int>", [b"{1,NULL,3}", b"{}", None], [[1, None, 3], [], None]),
    ("array<string>", [b'{a,"b,\\"c\\\\",NULL,"NULL",""}'], [["a", 'b,"c\\', None, "NULL", ""]]),
    ("array<decimal(6,2)>", [b"{1.50}"], [[Decimal("1.50")]]),
]
UNFIT = [
    ("timestamp", b"infinity"),
    ("date", b"0044-03-15 BC"),
    ("date", b"12026-01-01"),
    ("decimal(10,2)", b"NaN"),
    ("array<int>", b"{{1},{2}}"),
    ("array<int>", b"[0:1]={1,2}"),
    ("boolean", b"yes"),
]


@pytest.mark.parametrize(("name", "texts", "values"), FITTING)
def test_values_that_fit_become_arrow_values(name, texts, values):
    """They have the column's Arrow type, and nulls stay nulls."""
    found = converted(pa.array(texts, pa.large_binary()), name, nulls_for_unfit=False)
    assert (arrow_type(name), values) == (found.type, found.to_pylist())


@pytest.mark.parametrize(("name", "text"), UNFIT)
def test_values_that_do_not_fit_are_named_or_null(name, text):
    """The message names the value. On request it becomes null, and the other values stay."""
    with pytest.raises(UnfitValueError) as found:
        converted(pa.array([None, text]), name, nulls_for_unfit=False)
    assert text.decode() == found.value.text
    assert [None, None] == converted(pa.array([text, None]), name, nulls_for_unfit=True).to_pylist()


@pytest.mark.parametrize(
    ("base", "typmod", "element", "name"),
    [
        (1700, (10 << 16 | 2) + 4, 0, "decimal(10,2)"),
        (1700, -1, 0, "string"),
        (1700, (50 << 16 | 2) + 4, 0, "string"),
        (1700, (3 << 16 | 5) + 4, 0, "string"),
        (1700, (3 << 16 | 0x7FE) + 4, 0, "string"),
        (1184, -1, 0, "timestamp"),
        (1007, -1, 23, "array<int>"),
        (99_999, -1, 0, "string"),
    ],
)
def test_columns_get_the_types_of_the_catalog(base, typmod, element, name):
    """A number stays text if it has no precision, or a scale that Spark does not have."""
    assert name == spark_type(base, typmod, element)
