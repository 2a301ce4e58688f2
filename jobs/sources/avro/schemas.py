"""Loads `fastavro`, and parses schemas with it."""

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from jobs.distribution import DISTRIBUTION
from jobs.sources.arrow_types import ColumnType
from jobs.sources.port import SourceError

# ------------------------------------------------------------------
# The Spark type of each Avro type. The types are the same as in Spark's own reader of Avro files.
#
# | Avro                                                     | Spark                                      |
# |----------------------------------------------------------|--------------------------------------------|
# | boolean, int, long, float, double                        | boolean, int, bigint, float, double        |
# | string, enum, string with `uuid`                         | string                                     |
# | bytes, fixed                                             | binary                                     |
# | int with `date`                                          | date                                       |
# | long with `timestamp-millis` or `timestamp-micros`       | timestamp                                  |
# | long with `local-timestamp-millis` or `-micros`          | timestamp_ntz                              |
# | bytes or fixed with `decimal`, at most 38 digits         | decimal                                    |
# | array, map, record                                       | array, map with keys of text, struct       |
# | a union of null and one type                             | that type                                  |
# | a type with any other `logicalType`                      | as without it                              |
# | null alone, another union, a record in itself, no fields | none: the error names it |


Avro = Any
"""A schema, or a part of one, as JSON: a text, a list or a dict."""

_DIGITS_MAX: Final = 38


class AvroTypeError(ValueError):
    """Spark has no type for this Avro type. The message says where it is, and what it is."""


_BINARY: Final = ColumnType(BinaryType(), pa.binary())
_STRING: Final = ColumnType(StringType(), pa.string())
_PLAIN: Final = {
    "boolean": ColumnType(BooleanType(), pa.bool_()),
    "int": ColumnType(IntegerType(), pa.int32()),
    "long": ColumnType(LongType(), pa.int64()),
    "float": ColumnType(FloatType(), pa.float32()),
    "double": ColumnType(DoubleType(), pa.float64()),
    "string": _STRING,
    "enum": _STRING,
    "bytes": _BINARY,
    "fixed": _BINARY,
}
_LOGICAL: Final = {
    ("int", "date"): ColumnType(DateType(), pa.date32()),
    ("long", "timestamp-millis"): ColumnType(TimestampType(), pa.timestamp("ms", "UTC")),
    ("long", "timestamp-micros"): ColumnType(TimestampType(), pa.timestamp("us", "UTC")),
    ("long", "local-timestamp-millis"): ColumnType(TimestampNTZType(), pa.timestamp("ms")),
    ("long", "local-timestamp-micros"): ColumnType(TimestampNTZType(), pa.timestamp("us")),
}


def column_types(schema: Avro) -> dict[str, ColumnType | AvroTypeError]:
    """Return the Spark type of each field of a record, or the reason why a field has none.

    In the schema, every named type is written out where it is used. Raises AvroTypeError if the schema is not a record.
    """
    if not (isinstance(schema, Mapping) and schema.get("type") == "record"):
        raise AvroTypeError("it describes no record")
    if not schema["fields"]:
        raise AvroTypeError("its record has no fields")
    found: dict[str, ColumnType | AvroTypeError] = {}
    for field in schema["fields"]:
        try:
            found[field["name"]] = _type(field["type"], field["name"])
        except AvroTypeError as error:
            found[field["name"]] = error
    return found


def without_logical_types(schema: Avro) -> Avro:
    """Return the schema without logical types, so that records decode to stored values. Decimals stay decimals."""
    match schema:
        case [*parts]:
            return [without_logical_types(part) for part in parts]
        case {**about}:
            kept = about.get("logicalType") == "decimal"
            return {
                key: value if key == "default" else without_logical_types(value)
                for key, value in about.items()
                if key != "logicalType" or kept
            }
        case _:
            return schema


def _type(avro: Avro, where: str) -> ColumnType:
    match avro:
        case [*branches]:
            return _union(branches, where)
        case {"type": "record"}:
            return _record(avro, where)
        case {"type": "array", "items": items}:
            element = _type(items, f"{where}[]")
            return ColumnType(ArrayType(element.spark), pa.list_(pa.field("element", element.stored)))
        case {"type": "map", "values": values}:
            value = _type(values, f"{where}{{}}")
            return ColumnType(MapType(StringType(), value.spark), pa.map_(pa.string(), value.stored))
        case {"type": "bytes" | "fixed", "logicalType": "decimal", "precision": int(precision)}:
            return _decimal(precision, int(avro.get("scale", 0)), where)
        case {"type": str(kind)} if (kind, avro.get("logicalType")) in _LOGICAL:
            return _LOGICAL[kind, avro["logicalType"]]
        case {"type": kind}:
            return _type(kind, where)
        case str() if avro in _PLAIN:
            return _PLAIN[avro]
        case "null":
            raise AvroTypeError(f"field {where} is always null")
        case _:
            raise AvroTypeError(f"field {where} is a {avro}, which lies inside itself")


def _union(branches: Sequence[Avro], where: str) -> ColumnType:
    others = [branch for branch in branches if branch not in ("null", {"type": "null"})]
    if len(others) != 1:
        raise AvroTypeError(f"field {where} is a union of {len(others)} types besides null")
    return _type(others[0], where)


def _record(schema: Mapping[str, Avro], where: str) -> ColumnType:
    if not schema["fields"]:
        raise AvroTypeError(f"field {where} is a record without fields")
    types = {field["name"]: _type(field["type"], f"{where}.{field['name']}") for field in schema["fields"]}
    return ColumnType(
        StructType([StructField(name, each.spark) for name, each in types.items()]),
        pa.struct([pa.field(name, each.stored) for name, each in types.items()]),
    )


def _decimal(precision: int, scale: int, where: str) -> ColumnType:
    if not 0 <= scale <= precision <= _DIGITS_MAX:
        raise AvroTypeError(f"field {where} is a decimal({precision}, {scale}), and Spark's have {_DIGITS_MAX} digits")
    return ColumnType(DecimalType(precision, scale), pa.decimal128(precision, scale))


def must_be_installed() -> None:
    """Raise SourceError if the library of the extra `avro` is not installed."""
    if find_spec("fastavro") is None:
        raise SourceError(f"fastavro is not installed: pip install '{DISTRIBUTION}[avro]'")


def as_json(schema: Avro, what: str) -> Avro:
    """Return a schema from its text or its JSON value. Raise SourceError for a text that is not JSON."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise SourceError(f"{what} is no JSON ({error}): pass the text of an .avsc file") from error


def written_out(schema: Avro, what: str) -> Avro:
    """Return a schema in which every named type is written out where it is used.

    Raise SourceError for an invalid schema.
    """
    must_be_installed()
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema  # noqa: PLC0415 - an extra

    try:
        return parse_schema(as_json(schema, what), expand=True, _write_hint=False)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(f"{what} is no Avro schema ({type(error).__name__}: {error}): correct it") from error


def schema_of_file(beginning: bytes, shown: str) -> Avro:
    """Return the schema in the header of an Avro file, with every named type written out; `shown` is the file's name.

    Raises OSError, EOFError or ValueError for a file that is not an Avro file or cannot be read.
    """
    must_be_installed()
    from fastavro import reader  # noqa: PLC0415 - an extra

    return written_out(reader(BytesIO(beginning)).writer_schema, shown)
