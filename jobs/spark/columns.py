"""Quotes columns' names for Spark, which takes a dot for a struct's field and a back quote for the end of a name.

PySpark does the same where it passes the columns of a frame to a function of Tidemark's (`DataFrame.mapInArrow`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import StructType

OWN_NAMES: Final = "_tidemark_"
"""The beginning of the names of columns that Tidemark adds to a frame. No column of a user has such a name."""

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that `DataFrame.mapInArrow` takes."""


def quoted(name: str) -> str:
    """Return the name of a column in Spark SQL's quotes."""
    return "`" + name.replace("`", "``") + "`"


def named(name: str) -> Column:
    """Return the column of exactly that name, which is not taken for a path into a struct."""
    return F.col(quoted(name))


def map_in_arrow(rows: DataFrame, run: ArrowFunction, schema: StructType) -> DataFrame:
    """Return the rows that `run` makes of the rows, lazily. `run` gets the columns with their own names."""
    names = rows.columns
    if all(name.isidentifier() for name in names):
        return rows.mapInArrow(run, schema)
    return rows.toDF(*(f"column_{place}" for place in range(len(names)))).mapInArrow(_Renamed(names, run).run, schema)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """Restores the own names of the columns of each batch."""

    names: list[str]
    function: ArrowFunction

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(self.names) for batch in batches)
