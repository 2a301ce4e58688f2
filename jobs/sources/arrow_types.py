"""Says how Spark reads a column that pandas, Polars or pyarrow wrote, and how a source converts it.

The table says which of these types Spark reads by itself. A source converts the other types, or raises an error that
names the column.

| in the file                                   | in the source's schema  | how it is read                   |
|-----------------------------------------------|-------------------------|----------------------------------|
| large or view types, dictionaries             | the plain type          | by Spark                         |
| unsigned integers                             | the next wider type     | by Spark; uint64 is decimal(20,0)|
| timestamp[ns, UTC], what pandas writes        | timestamp               | converted to microseconds        |
| timestamp[ns]                                 | timestamp_ntz           | converted to microseconds        |
| null: a column that never had a value         | any                     | as null                          |
| nanoseconds inside a struct, list or map      | none                    | refused                          |
| duration and time in nanoseconds, half floats | none                    | refused                          |

Spark's times have microseconds. Nanoseconds are rounded down to a microsecond, also in times before 1970. Without the
conversion, Spark refuses a file with nanoseconds, or reads them as a bigint (`spark.sql.legacy.parquet.nanosAsLong`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_Test = Callable[[pa.DataType], bool]
_LISTS: tuple[_Test, ...] = (pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type in Spark, and its type in Arrow.

    The Arrow type has the unit that a record stores: milliseconds stay milliseconds.
    """

    spark: DataType
    stored: pa.DataType


class Conversion(Enum):
    """How a source converts a column that Spark cannot read as the source's schema requires."""

    NANOSECONDS = "nanoseconds"
    NANOSECONDS_WITHOUT_ZONE = "nanoseconds without zone"
    NOTHING = "nothing"
    """The column has no values."""


def conversion_of(arrow: pa.DataType) -> Conversion | None:
    """Return how a source converts a column of this type, or None if no conversion is needed."""
    if pa.types.is_null(arrow):
        return Conversion.NOTHING
    plain = arrow.value_type if pa.types.is_dictionary(arrow) else arrow
    if not _in_nanoseconds(plain):
        return None
    return Conversion.NANOSECONDS_WITHOUT_ZONE if plain.tz is None else Conversion.NANOSECONDS


def spark_type(arrow: pa.DataType) -> DataType | None:
    """Return the Spark type that a source reads the column as, or None if neither Spark nor a conversion reads it."""
    plain = arrow.value_type if pa.types.is_dictionary(arrow) else arrow
    if _in_nanoseconds(plain):
        plain = pa.timestamp("us", plain.tz)
    try:
        return from_arrow_type(_plain(plain), prefer_timestamp_ntz=True)
    except (PySparkTypeError, _NotReadableError):
        return None


class _NotReadableError(Exception):
    """A type that Spark would misread or refuse."""


def _plain(arrow: pa.DataType) -> pa.DataType:
    """Return the type that Spark gives to a Parquet column of this type. Raise _NotReadableError if Spark has none."""
    if pa.types.is_dictionary(arrow):
        return _plain(arrow.value_type)
    if arrow in _UNSIGNED or arrow in _VIEWS:
        return (_UNSIGNED | _VIEWS)[arrow]
    if any(is_kind(arrow) for is_kind in _LISTS):
        return pa.list_(_plain(arrow.value_type))
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in arrow])
    if pa.types.is_map(arrow):
        return pa.map_(_plain(arrow.key_type), _plain(arrow.item_type))
    if _in_nanoseconds(arrow) or arrow == pa.time64("ns") or (pa.types.is_duration(arrow) and arrow.unit != "us"):
        raise _NotReadableError
    return arrow


def _in_nanoseconds(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(arrow) and arrow.unit == "ns")
