"""The tables and columns of a publication, with the type that Spark gets for each PostgreSQL type.

| PostgreSQL                                  | Spark                                                       |
|---------------------------------------------|-------------------------------------------------------------|
| boolean, smallint, integer, bigint, oid     | boolean, smallint, int, bigint, bigint                      |
| real, double precision                      | float, double                                               |
| numeric(p, s) with p <= 38 and 0 <= s <= p  | decimal(p, s)                                               |
| numeric without precision, or a larger one  | string, exactly as the server writes it                     |
| date, timestamp, timestamptz                | date, timestamp_ntz, timestamp                              |
| bytea                                       | binary                                                      |
| an array of one of these                    | array of it; arrays of several dimensions do not fit        |
| a domain                                    | as the type below it                                        |
| text, uuid, json, jsonb, enums, time, interval, all others | string, as the server writes it              |
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

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
from jobs.sources.python_data.ddl import schema_of_text

_BY_OID: Final[dict[int, str]] = {
    16: "boolean",
    17: "binary",
    20: "bigint",
    21: "smallint",
    23: "int",
    26: "bigint",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
}
"""The object ids of PostgreSQL's own types. They never change (`pg_type.dat`)."""
_NUMERIC: Final = 1700
_DECIMAL_DIGITS_MAX: Final = 38
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


class SourceColumn(BaseModel):
    """A published column: its type in PostgreSQL (object id and modifier), and in Spark.

    `later`: the table got it after it was first read. Its values are null where a row does not have it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    oid: int
    typmod: int
    type: str
    later: bool = False


class SourceTable(BaseModel):
    """A published table as this source reads it. `keys` are the columns of its replica identity.

    `oid` is the server's number of the table. A table that is dropped and created again gets another one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    oid: int
    schema_: str
    name: str
    columns: tuple[SourceColumn, ...]
    keys: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Return its name with its schema, such as `public.accounts`."""
        return f"{self.schema_}.{self.name}"

    @property
    def column(self) -> str:
        """Return the source's column for this table's rows, such as `public_accounts`."""
        return f"{self.schema_}_{self.name}"

    @property
    def first(self) -> tuple[SourceColumn, ...]:
        """Return the columns that the table had when it was first read. They come before all later ones."""
        return tuple(each for each in self.columns if not each.later)

    def fields(self) -> StructType:
        """Return the first columns with their Spark types: the fields of the table's column."""
        return StructType([StructField(each.name, _types(each.type)[0]) for each in self.first])

    def arrow(self) -> pa.StructType:
        """Return the first columns with their Arrow types."""
        return pa.struct([pa.field(each.name, arrow_type(each.type)) for each in self.first])

    def later_fields(self) -> StructType:
        """Return the later columns with their Spark types. Each is a column of the source: `public_accounts__note`.

        A table downstream can get a new column, but its struct columns keep their fields.
        """
        later = self.columns[len(self.first) :]
        return StructType([StructField(f"{self.column}__{each.name}", _types(each.type)[0]) for each in later])

    def later_arrow(self) -> list[pa.Field]:
        """Return the later columns with their Arrow types."""
        later = self.columns[len(self.first) :]
        return [pa.field(f"{self.column}__{each.name}", arrow_type(each.type)) for each in later]


def declared_tables(schema: Mapping[str, StructType | str]) -> tuple[SourceTable, ...]:
    """Return the tables that a user declares, by their names with schema. Only the server knows their numbers.

    Raises SourceError for a name without a schema, and for a type that no column of PostgreSQL gets.
    """
    return tuple(_declared(name, columns) for name, columns in schema.items())


def _declared(full_name: str, declared: StructType | str) -> SourceTable:
    schema, dot, name = full_name.partition(".")
    if not (schema and dot and name):
        raise SourceError(f"schema= names the table {full_name!r}: write its schema too, as in 'public.{full_name}'")
    columns = []
    for field in schema_of_text(declared) if isinstance(declared, str) else declared:
        text = field.dataType.simpleString()
        base = element_of(text) or text
        if base not in _SPARK and not _DECIMAL.fullmatch(base):
            raise SourceError(
                f"schema= gives column {field.name} of table {full_name} the type {text}, which no column of "
                f"PostgreSQL gets: leave schema= out once, and the source says the types itself"
            )
        columns.append(SourceColumn(name=field.name, oid=0, typmod=-1, type=text))
    return SourceTable(oid=0, schema_=schema, name=name, columns=tuple(columns))


def must_be_declared(tables: Sequence[SourceTable], declared: Sequence[SourceTable]) -> None:
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


def spark_type(base: int, typmod: int, element: int) -> str:
    """Return the name of the Spark type. `element` is the type of an array's elements, and 0 for other types."""
    if element:
        return f"array<{spark_type(element, typmod, 0)}>"
    if base == _NUMERIC and typmod >= 0:
        precision, scale = (typmod - 4) >> 16 & 0xFFFF, ((typmod - 4 & 0x7FF) ^ 0x400) - 0x400  # 11 bits, signed
        if precision <= _DECIMAL_DIGITS_MAX and 0 <= scale <= precision:
            return f"decimal({precision},{scale})"
    return _BY_OID.get(base, "string")


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
