"""Describes the types of Kafka Connect's values, with Debezium's names for them, and their Spark types.

A record contains its types in one of two ways: in the block `schema` of JsonConverter, or in the Avro schema of
AvroConverter, which stores the names as `connect.name`.

| Debezium                                                                | Spark                                    |
|-------------------------------------------------------------------------|------------------------------------------|
| boolean, string, bytes                                                  | boolean, string, binary                  |
| int8 and int16, int32, int64, float32, float64                          | smallint, int, bigint, float, double     |
| `Decimal` with at most 38 digits                                        | decimal                                  |
| other `Decimal`, `VariableScaleDecimal`                                 | string, with all digits                  |
| `Date`, `IsoDate`                                                       | date                                     |
| `Timestamp`, `MicroTimestamp`, `NanoTimestamp`, `IsoTimestamp`          | timestamp_ntz: they have no zone         |
| `ZonedTimestamp`                                                        | timestamp                                |
| `Time`, `MicroTime`, `NanoTime`, `IsoTime`, `ZonedTime`                 | string, as in `12:30:00.5`               |
| arrays, maps, other structs                                             | array, map with keys of text, struct     |
| all other names (`Json`, `Uuid`, `Enum`, `Year`, `Bits`, ...)           | as without the name                      |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
DATES: Final = frozenset({"io.debezium.time.Date", "org.apache.kafka.connect.data.Date", "io.debezium.time.IsoDate"})
UNITS: Final[Mapping[str, int]] = {
    "io.debezium.time.Timestamp": 1_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1_000_000,
    "io.debezium.time.NanoTimestamp": 1_000_000_000,
}
"""The number of units in a second, for moments without a zone."""
TIMES: Final[Mapping[str, int]] = {
    "io.debezium.time.Time": 1_000,
    "org.apache.kafka.connect.data.Time": 1_000,
    "io.debezium.time.MicroTime": 1_000_000,
    "io.debezium.time.NanoTime": 1_000_000_000,
}
"""The number of units in a second, for times of day."""
_ZONED: Final = "io.debezium.time.ZonedTimestamp"
_ISO: Final = "io.debezium.time.IsoTimestamp"
_DIGITS_MAX: Final = 38

_PLAIN: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "int8": ShortType(),
    "int16": ShortType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "float32": FloatType(),
    "float": FloatType(),
    "float64": DoubleType(),
    "double": DoubleType(),
    "string": StringType(),
    "bytes": BinaryType(),
}
_AVRO: Final[Mapping[str, str]] = {
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "enum": "string",
    "fixed": "bytes",
    "record": "struct",
}
Values = Mapping[str, Any]
"""From columns to the values of a row, as Debezium sent them."""


class NoEventError(ValueError):
    """The record is no change event of Debezium. The message says what is missing or wrong, and the way out."""


@dataclass(frozen=True, slots=True)
class ConnectType:
    """The type of a value: its kind, such as `int64`, and the name that says what the value means.

    `fields` are those of a struct, and `element` is the type of an array's elements or of a map's values.
    """

    kind: str
    name: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, "ConnectType"] = field(default_factory=dict)
    element: "ConnectType | None" = None

    def field(self, name: str) -> "ConnectType | None":
        """Return the type of a struct's field, or None if it has no such field."""
        return self.fields.get(name)

    @property
    def scale(self) -> int:
        """Return the number of digits after the decimal point of a `Decimal`."""
        return int(self.parameters.get("scale", 0))


def of_json_block(block: Any) -> ConnectType:  # noqa: ANN401
    """Return the type that a block `schema` of JsonConverter describes. Raises ValueError."""
    match block:
        case {"type": "struct", "fields": [*listed]}:
            fields = {str(each["field"]): of_json_block(each) for each in listed}
            return ConnectType("struct", block.get("name"), fields=fields)
        case {"type": "array", "items": items}:
            return ConnectType("array", block.get("name"), element=of_json_block(items))
        case {"type": "map", "values": values}:
            return ConnectType("map", block.get("name"), element=of_json_block(values))
        case {"type": str(kind)} if kind in _PLAIN:
            return ConnectType(kind, block.get("name"), _texts(block.get("parameters")))
        case _:
            raise ValueError("it is no schema of Kafka Connect")


def of_avro(schema: Any) -> ConnectType:  # noqa: ANN401
    """Return the type that an Avro schema of AvroConverter describes. Its named types are written out.

    Raises ValueError for a union of several types besides null.
    """
    match schema:
        case [*branches]:
            others = [branch for branch in branches if branch not in ("null", {"type": "null"})]
            if len(others) != 1:
                raise ValueError(f"it has a union of {len(others)} types besides null")
            return of_avro(others[0])
        case {"type": "record", "fields": [*listed]}:
            fields = {str(each["name"]): of_avro(each["type"]) for each in listed}
            return ConnectType("struct", schema.get("connect.name"), fields=fields)
        case {"type": "array", "items": items}:
            return ConnectType("array", schema.get("connect.name"), element=of_avro(items))
        case {"type": "map", "values": values}:
            return ConnectType("map", schema.get("connect.name"), element=of_avro(values))
        case {"type": "bytes" | "fixed", "logicalType": "decimal"}:
            said = {"scale": schema.get("scale", 0), "connect.decimal.precision": schema.get("precision", 0)}
            return ConnectType("bytes", DECIMAL, _texts(said | (schema.get("connect.parameters") or {})))
        case {"type": str(kind)}:
            known = schema.get("connect.type") or _AVRO.get(kind, kind)
            return ConnectType(known, schema.get("connect.name"), _texts(schema.get("connect.parameters")))
        case {"type": inner}:
            return of_avro(inner)
        case str():
            return ConnectType(_AVRO.get(schema, schema))
        case _:
            raise ValueError("it is no Avro schema of Kafka Connect")


def spark_columns(row: ConnectType) -> StructType:
    """Return the columns of a table whose rows have this type."""
    return StructType([StructField(name, spark_type(each)) for name, each in row.fields.items()])


def spark_type(of: ConnectType) -> DataType:
    """Return the Spark type of a column with values of this type."""
    if of.name == DECIMAL:
        precision = int(of.parameters.get("connect.decimal.precision", 0))
        fits = 0 < precision <= _DIGITS_MAX and 0 <= of.scale <= precision
        return DecimalType(precision, of.scale) if fits else StringType()
    if of.name in DATES:
        return DateType()
    if of.name in UNITS or of.name == _ISO:
        return TimestampNTZType()
    if of.name == _ZONED:
        return TimestampType()
    if of.name in TIMES or of.name == VARIABLE_DECIMAL:
        return StringType()
    match of.kind:
        case "struct":
            return spark_columns(of) if of.fields else StringType()
        case "array" | "map" if of.element is not None:
            inner = spark_type(of.element)
            return ArrayType(inner) if of.kind == "array" else MapType(StringType(), inner)
        case _:
            return _PLAIN.get(of.kind, StringType())


def _texts(said: Mapping[str, object] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (said or {}).items()}
