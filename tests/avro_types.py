"""Lists every Avro type in a record: for each field its Avro type, a value, Spark's type, and the value in Spark."""

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

from fastavro import schemaless_writer, writer

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
LOCAL = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC).replace(tzinfo=None)
POINT = {"type": "record", "name": "Point", "namespace": "shop", "fields": [{"name": "x", "type": "int"}]}
SIZE = {"type": "enum", "name": "Size", "symbols": ["S", "L"]}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
SMALL = {"type": "fixed", "name": "Small", "size": 4, "logicalType": "decimal", "precision": 6, "scale": 1}


def long_of(logical):
    return {"type": "long", "logicalType": logical}


FIELDS = [
    ("yes", "boolean", True, "boolean", True),
    ("little", "int", -7, "int", -7),
    ("big", "long", 2**40, "bigint", 2**40),
    ("half", "float", 0.5, "float", 0.5),
    ("tenth", "double", 0.1, "double", 0.1),
    ("text", "string", "ünï", "string", "ünï"),
    ("raw", "bytes", b"\x00\xff", "binary", b"\x00\xff"),
    ("four", {"type": "fixed", "name": "Four", "size": 4}, b"abcd", "binary", b"abcd"),
    ("size", SIZE, "L", "string", "L"),
    ("id", {"type": "string", "logicalType": "uuid"}, UUID(int=7), "string", str(UUID(int=7))),
    ("day", {"type": "int", "logicalType": "date"}, date(1999, 12, 31), "date", date(1999, 12, 31)),
    ("at_ms", long_of("timestamp-millis"), MOMENT, "timestamp", MOMENT),
    ("at_us", long_of("timestamp-micros"), MOMENT, "timestamp", MOMENT),
    ("local_ms", long_of("local-timestamp-millis"), LOCAL, "timestamp_ntz", LOCAL),
    ("local_us", long_of("local-timestamp-micros"), LOCAL, "timestamp_ntz", LOCAL),
    ("money", MONEY, Decimal("-12.30"), "decimal(10,2)", Decimal("-12.30")),
    ("small", SMALL, Decimal("1.5"), "decimal(6,1)", Decimal("1.5")),
    ("maybe", ["null", "string"], None, "string", None),
    ("surely", [SIZE["name"], "null"], "S", "string", "S"),
    ("list", {"type": "array", "items": ["null", "long"]}, [1, None], "array<bigint>", [1, None]),
    ("map", {"type": "map", "values": MONEY}, {"a": Decimal("1.00")}, "map<string,decimal(10,2)>", {"a": 1}),
    ("point", POINT, {"x": 1}, "struct<x:int>", {"x": 1}),
    ("points", {"type": "array", "items": "shop.Point"}, [{"x": 2}], "array<struct<x:int>>", [{"x": 2}]),
    ("times", {"type": "array", "items": long_of("timestamp-millis")}, [MOMENT], "array<timestamp>", [MOMENT]),
]
SCHEMA = {"type": "record", "name": "All", "fields": [{"name": name, "type": avro} for name, avro, *_ in FIELDS]}
RECORD = {name: value for name, _, value, *_ in FIELDS}
READ = {name: value for name, *_, value in FIELDS}


def encoded(schema, record):
    file = io.BytesIO()
    schemaless_writer(file, schema, record)
    return file.getvalue()


def write_file(path, schema, records, codec="null"):
    with path.open("wb") as file:
        writer(file, schema, records, codec=codec)
