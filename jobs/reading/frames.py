"""Reads a table of a cut as a frame of Polars, pandas, Arrow or Spark."""

import sys
from typing import Final

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame as SparkFrame

from jobs.reading.cut import Cut
from jobs.spark.jars import delta_jars
from jobs.spark.session import SparkConfig, open_session

_KINDS: Final = "polars.LazyFrame, polars.DataFrame, pandas.DataFrame, pyarrow.Table or pyspark.sql.DataFrame"


class UnknownFrameError(TypeError):
    """A table cannot be read as this type. The message lists the possible types."""


def read_as(cut: Cut, table: str, kind: object) -> object:
    """Return a table at a cut as a frame of that class.

    For Spark, this uses the session of this process, or opens a session. Raises UnknownFrameError, and what `Cut`
    raises.
    """
    if kind is pl.LazyFrame:
        return cut.polars(table)
    if kind is pl.DataFrame:
        return cut.polars(table).collect()
    if kind is pa.Table:
        return cut.arrow(table)
    pandas = sys.modules.get("pandas")  # a caller who has its class has imported it
    if pandas is not None and kind is pandas.DataFrame:
        return cut.arrow(table).to_pandas()
    if isinstance(kind, type) and issubclass(kind, SparkFrame):
        return cut.spark(open_session(SparkConfig(jars=delta_jars())), table)
    name = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)
    raise UnknownFrameError(f"table {table} cannot be read as {name}: ask for {_KINDS}")
