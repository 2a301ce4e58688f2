"""Describes the tables whose changes a source reads: their columns, with Spark's and Arrow's types."""

import re
from collections.abc import Sequence
from typing import Final, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from jobs.sources.port import SourceError

SnapshotMode = Literal["whole", "parts", "none"]
"""Whether the first rows of the tables come in one cut, in parts, or not at all."""
NewColumns = Literal["fail", "ignore", "evolve"]
"""What happens to a column that was added to a table after the table was first read."""

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_ARRAY: Final = re.compile(r"array<(.+)>")

_SPARK: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "boolean": (BooleanType(), pa.bool_()),
    "binary": (BinaryType(), pa.binary()),
    "bigint": (LongType(), pa.int64()),
    "smallint": (ShortType(), pa.int16()),
    "int": (IntegerType(), pa.int32()),
    "float": (FloatType(), pa.float32()),
    "double": (DoubleType(), pa.float64()),
    "date": (DateType(), pa.date32()),
    "timestamp_ntz": (TimestampNTZType(), pa.timestamp("us")),
    "timestamp": (TimestampType(), pa.timestamp("us", "UTC")),
    "string": (StringType(), pa.string()),
}


class TrackedColumn(BaseModel):
    """A column, with the name of its Spark type.

    A `later` column was added to the table after the table was first read. It is null in rows from before.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    type: str
    later: bool = False


class TrackedTable(BaseModel):
    """A table as a source reads it. `keys` are the columns that identify a row."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: str
    name: str
    columns: tuple[TrackedColumn, ...]
    keys: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Return the table's name with its schema, such as `public.accounts`."""
        return f"{self.schema_}.{self.name}"

    @property
    def column(self) -> str:
        """Return the source's column for this table's rows, such as `public_accounts`."""
        return f"{self.schema_}_{self.name}"

    @property
    def first(self) -> tuple[TrackedColumn, ...]:
        """Return the columns that the table had when it was first read. They come before all later columns."""
        return tuple(each for each in self.columns if not each.later)

    def fields(self) -> StructType:
        """Return the first columns with their Spark types: the fields of the table's column."""
        return StructType([StructField(each.name, _types(each.type)[0]) for each in self.first])

    def arrow(self) -> pa.StructType:
        """Return the first columns with their Arrow types."""
        return pa.struct([pa.field(each.name, arrow_type(each.type)) for each in self.first])

    def later_fields(self) -> StructType:
        """Return the later columns with their Spark types. Each is a column of the source: `public_accounts__note`.

        They are separate columns because a downstream table can get a new column, but not a new field in a struct
        column.
        """
        later = self.columns[len(self.first) :]
        return StructType([StructField(f"{self.column}__{each.name}", _types(each.type)[0]) for each in later])

    def later_arrow(self) -> list[pa.Field]:
        """Return the later columns with their Arrow types."""
        later = self.columns[len(self.first) :]
        return [pa.field(f"{self.column}__{each.name}", arrow_type(each.type)) for each in later]


def must_be_declared(tables: Sequence[TrackedTable], declared: Sequence[TrackedTable]) -> None:
    """Raise SourceError if the tables have other columns than the user declares. Later columns need not be declared."""
    known = {table.full_name: table for table in declared}
    for table in tables:
        said = [(each.name, each.type) for each in known[table.full_name].columns]
        real = [(each.name, each.type) for each in table.columns]
        if len(said) < len(table.first) or said != real[: len(said)]:
            text = ", ".join(f"{name} {kind}" for name, kind in real)
            raise SourceError(
                f"schema= gives table {table.full_name} other columns than it has: write {{{table.full_name!r}: "
                f"{text!r}}}, or correct the table"
            )


def is_type(name: str) -> bool:
    """Return whether a column of a staged table may have the Spark type of this name."""
    base = element_of(name) or name
    return base in _SPARK or _DECIMAL.fullmatch(base) is not None


def spark_type(name: str) -> DataType:
    """Return the Spark type of this name."""
    return _types(name)[0]


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type for the name of a Spark type."""
    return _types(name)[1]


def element_of(name: str) -> str | None:
    """Return the type of an array's elements, or None for a type that is no array."""
    array = _ARRAY.fullmatch(name)
    return None if array is None else array[1]


def _types(name: str) -> tuple[DataType, pa.DataType]:
    element = element_of(name)
    if element is not None:
        spark, arrow = _types(element)
        return ArrayType(spark), pa.list_(pa.field("element", arrow))
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        digits = int(decimal[1]), int(decimal[2])
        return DecimalType(*digits), pa.decimal128(*digits)
    return _SPARK[name]
