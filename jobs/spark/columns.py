"""Names columns to Spark. Spark reads a dot in a name as the field of a struct, and a back quote as a mark.

PySpark does so too where it passes the columns of a frame to a function of ours (`DataFrame.mapInArrow`).
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
"""What `DataFrame.mapInArrow` takes."""


def quoted(name: str) -> str:
    """Return the name of a column as Spark SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def named(name: str) -> Column:
    """Return the column of that name, which is no path into a struct."""
    return F.col(quoted(name))


def map_in_arrow(rows: DataFrame, run: ArrowFunction, schema: StructType) -> DataFrame:
    """Return what `run` makes of the rows, lazily. It sees the columns under their own names, whatever these are."""
    names = rows.columns
    if all(name.isidentifier() for name in names):
        return rows.mapInArrow(run, schema)
    return rows.toDF(*(f"column_{place}" for place in range(len(names)))).mapInArrow(_Renamed(names, run).run, schema)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """Gives the columns of each batch their own names back."""

    names: list[str]
    function: ArrowFunction

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(self.names) for batch in batches)
