"""Handles what differs between the versions of Spark that Tidemark runs on. No other module checks a version.

| Spark     | difference                                                                                           |
|-----------|------------------------------------------------------------------------------------------------------|
| 4.0       | There is no `DatetimeType` above the types of dates and times, and no `TimeType`                      |
| 4.0       | There is no `repartitionById`: each partition's number becomes one whose hash lands there             |
| 4.0, 4.1  | `to_arrow_schema` takes no time zone: Spark's timestamps are UTC in Arrow anyway                      |
| 4.0, 4.1  | A Python data source is asked for its newest offset without a limit: there are no read limits         |
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from inspect import signature
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, functions, types
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas import functions as pandas_functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, DateType, StructType, TimestampNTZType, TimestampType

DATETIMES: Final[tuple[type[DataType], ...]] = (
    (types.DatetimeType,) if hasattr(types, "DatetimeType") else (DateType, TimestampType, TimestampNTZType)
)
"""The types of dates, moments and times of day."""

_ZONE: Final[Mapping[str, Any]] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def to_arrow(columns: StructType) -> pa.Schema:
    """Return the Arrow schema of these columns. Spark's timestamps are microseconds in UTC."""
    return to_arrow_schema(columns, **_ZONE)


def repartition_by_id(rows: DataFrame, count: int, column: str, landing: Callable[[int], Sequence[int]]) -> DataFrame:
    """Return the rows in `count` partitions. This column has the number of each row's partition.

    `landing` has a number for each partition that Spark's hash maps to this partition. Only Spark 4.0 needs it.
    """
    if hasattr(DataFrame, "repartitionById"):
        return rows.repartitionById(count, functions.col(column))
    sent = functions.array(*(functions.lit(number) for number in landing(count)))
    return rows.repartition(count, functions.get(sent, functions.col(column)))


def do_without_pandas() -> None:
    """Make `DataFrame.mapInArrow` work where pandas is not installed.

    In each of these versions, PySpark requires pandas when it wraps the function, but does not use it.
    """
    if find_spec("pandas") is None:
        vars(pandas_functions)["require_minimum_pandas_version"] = lambda: None


def read_limit(reader: DataSourceStreamReader, *, all_rows: bool) -> object:
    """Return the read limit with which a reader of a Python data source is asked for its newest offset.

    This is the reader's own limit, or no limit with `all_rows`. Before Spark 4.2 there are no limits, and this returns
    None.
    """
    if find_spec("pyspark.sql.streaming.datasource") is None:
        return None
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415 - Spark 4.2 or newer

    return ReadAllAvailable() if all_rows else reader.getDefaultReadLimit()
