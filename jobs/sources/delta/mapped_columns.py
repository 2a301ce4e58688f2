"""Identifies the columns of a Delta table by names and ids that a rename does not change (Delta's column mapping).

A mapped column has a physical name. The table's files and the partition values in the log use this name. A rename
changes only the name in the table's schema. A column that is dropped and added again gets another physical name, so
older files have no values of the new column. In mode `id`, a file's column is found by its field id in the file's
footer, whatever the column's name.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
)

_PHYSICAL: Final = "delta.columnMapping.physicalName"
_ID: Final = "delta.columnMapping.id"
_OF_DELTA: Final = ("delta.", "parquet.field.")
_DIGITS: Final[Mapping[type[DataType], int]] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 20}
"""The digits before the point of a decimal to which Delta may widen an integer, as Delta's protocol says."""


def key_of(field: StructField) -> str:
    """Return the name in files of a field of the table's schema: its physical name, or its name if it has none."""
    return str((field.metadata or {}).get(_PHYSICAL, field.name))


def plain(schema: StructType) -> StructType:
    """Return the columns without Delta's own metadata, which must not be copied to another table."""

    def field_of(field: StructField) -> StructField:
        metadata = {name: value for name, value in (field.metadata or {}).items() if not name.startswith(_OF_DELTA)}
        return StructField(field.name, type_of(field.dataType), field.nullable, metadata)

    def type_of(kind: DataType) -> DataType:
        match kind:
            case StructType():
                return StructType([field_of(field) for field in kind.fields])
            case ArrayType():
                return ArrayType(type_of(kind.elementType), kind.containsNull)
            case MapType():
                return MapType(type_of(kind.keyType), type_of(kind.valueType), kind.valueContainsNull)
            case _:
                return kind

    return StructType([field_of(field) for field in schema.fields])


def nullable(kind: DataType, name_of: Callable[[StructField], str] = lambda field: field.name) -> DataType:
    """Return the type with all fields nullable, as Spark reads it from files. `name_of` returns a field's name."""
    match kind:
        case StructType():
            return StructType([StructField(name_of(each), nullable(each.dataType, name_of)) for each in kind.fields])
        case ArrayType():
            return ArrayType(nullable(kind.elementType, name_of))
        case MapType():
            return MapType(nullable(kind.keyType, name_of), nullable(kind.valueType, name_of))
        case _:
            return kind


def name_by(ids: Mapping[int, str] | None) -> Callable[[StructField], str]:
    """Return the function that returns a field's name in a file. `ids` are the field ids of the file's footer.

    If `ids` is None, the function returns the field's physical name. For a field whose id the file lacks, it returns a
    name that the file lacks.
    """
    if ids is None:
        return key_of

    def name_of(field: StructField) -> str:
        number = (field.metadata or {}).get(_ID)
        return key_of(field) if number is None else ids.get(int(number), f"no field {number}")

    return name_of


def named_as(then: StructType, now: StructType) -> StructType:
    """Return the columns of another version under the names that they have in `now`.

    A column that `now` lacks keeps its name. If another column of `now` has that name, "(another column)" is added to
    it.
    """
    fields = []
    present = {key_of(field): field for field in now.fields}
    for field in then.fields:
        same = present.get(key_of(field))
        if same is not None:
            fields.append(StructField(same.name, _type_as(field.dataType, same.dataType), field.nullable))
        else:
            name = f"{field.name} (another column)" if field.name in now.names else field.name
            fields.append(StructField(name, field.dataType, field.nullable))
    return StructType(fields)


def _type_as(then: DataType, now: DataType) -> DataType:
    match then, now:
        case StructType(), StructType():
            return named_as(then, now)
        case ArrayType(), ArrayType():
            return ArrayType(_type_as(then.elementType, now.elementType), then.containsNull)
        case MapType(), MapType():
            key, value = _type_as(then.keyType, now.keyType), _type_as(then.valueType, now.valueType)
            return MapType(key, value, then.valueContainsNull)
        case _:
            return then


def reads_as(stored: DataType, read: DataType) -> bool:
    """Return True if files of type `stored` can be read as `read`: both are equal, or Delta allows the widening."""
    match stored, read:
        case StructType(), StructType():
            pairs = zip(stored.fields, read.fields, strict=False)
            return stored.names == read.names and all(reads_as(a.dataType, b.dataType) for a, b in pairs)
        case ArrayType(), ArrayType():
            return reads_as(stored.elementType, read.elementType)
        case MapType(), MapType():
            return reads_as(stored.keyType, read.keyType) and reads_as(stored.valueType, read.valueType)
        case _:
            return stored.simpleString() == read.simpleString() or _widens(stored, read)


def _widens(stored: DataType, read: DataType) -> bool:
    match stored, read:
        case DecimalType(), DecimalType():
            more = read.scale - stored.scale
            return more >= 0 and read.precision - stored.precision >= more
        case ByteType() | ShortType() | IntegerType() | LongType(), DecimalType():
            return read.precision - read.scale >= _DIGITS[type(stored)]
        case (ByteType(), ShortType() | IntegerType() | LongType() | DoubleType()):
            return True
        case (ShortType(), IntegerType() | LongType() | DoubleType()):
            return True
        case (
            (IntegerType(), LongType() | DoubleType()) | (FloatType(), DoubleType()) | (DateType(), TimestampNTZType())
        ):
            return True
        case _:
            return False
