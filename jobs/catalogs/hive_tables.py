"""Describes a Delta table as a Hive metastore and AWS Glue do, so that Spark and Trino find the table.

Spark and Trino use `spark.sql.sources.provider` and the parameter `path` of the serde, and read the columns from the
Delta log. Other programs read the columns from the entry, in which they have Hive's types.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from jobs.catalogs.port import CatalogEntry, CatalogTable
from jobs.engine_paths import spark_address

PATH: Final = "path"
SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
INPUT_FORMAT: Final = "org.apache.hadoop.mapred.SequenceFileInputFormat"
OUTPUT_FORMAT: Final = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
EXTERNAL: Final = "EXTERNAL_TABLE"
_SCHEMA: Final = "spark.sql.sources.schema"
_VALUE_MAX: Final = 4_000
"""The greatest length of a parameter's value, and of a column's type, that a Hive metastore stores."""
_COMMENT_MAX: Final = 255
_NAMES: Final = {
    "boolean": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
}
"""Hive's names of Delta's types. Hive has only one timestamp, without a time zone. A type that it lacks is left out."""
_DECIMAL: Final = re.compile(r"decimal\(\d+,\d+\)")
_FIELD: Final = re.compile(r"[A-Za-z0-9_]+")


def hive_type(kind: str) -> str:
    """Return Hive's type for a type of a Delta log, which is JSON if it is nested. Return `string` if Hive has none."""
    found = _type(json.loads(kind) if kind.startswith("{") else kind)
    return "string" if found is None or len(found) > _VALUE_MAX else found


def _type(kind: Any) -> str | None:  # noqa: ANN401 - JSON
    match kind:
        case str():
            plain = kind.replace(" ", "")
            return plain if _DECIMAL.fullmatch(plain) else _NAMES.get(kind)
        case {"type": "array", "elementType": element}:
            return _nested("array<{}>", _type(element))
        case {"type": "map", "keyType": key, "valueType": value}:
            return _nested("map<{},{}>", _type(key), _type(value))
        case {"type": "struct", "fields": fields}:
            if not fields or not all(_FIELD.fullmatch(each["name"]) for each in fields):
                return None
            names = ",".join(f"{each['name'].lower()}:{{}}" for each in fields)
            return _nested(f"struct<{names}>", *(_type(each["type"]) for each in fields))
        case _:
            return None


def _nested(form: str, *parts: str | None) -> str | None:
    return None if None in parts else form.format(*parts)


def hive_entry(table: CatalogTable, location: str) -> CatalogEntry:
    """Return the entry of a table. Column names are in lower case there, as in Hive."""
    columns = tuple(
        (each.name.lower(), hive_type(each.type), table.comments.get(each.name, "")[:_COMMENT_MAX])
        for each in table.columns
    )
    said = {name: value for name, value in table.properties.items() if len(value) <= _VALUE_MAX}
    own = {
        "EXTERNAL": "TRUE",
        "spark.sql.sources.provider": "delta",
        "spark.sql.partitionProvider": "catalog",
        "table_type": "DELTA",
        **dict(_schema(table.schema)),
    }
    comment = {"comment": table.comment[:_VALUE_MAX]} if table.comment else {}
    return CatalogEntry(location, columns, {**said, **own, **comment})


def hive_location(table: CatalogTable) -> str:
    """Return the address of a table's folder as Spark and Hive write it."""
    return spark_address(table.location) if "://" in table.location else f"file:{table.location}"


def _schema(schema: str) -> Iterator[tuple[str, str]]:
    """Yield the properties from which Spark reads the columns, in parts that are short enough for a metastore."""
    parts = [schema[at : at + _VALUE_MAX] for at in range(0, len(schema), _VALUE_MAX)]
    yield f"{_SCHEMA}.numParts", str(len(parts))
    for number, part in enumerate(parts):
        yield f"{_SCHEMA}.part.{number}", part
