"""Converts schemas between Spark, Arrow and SQL text.

Each is made once on the driver, so that tasks write exactly the declared types.
"""

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from checkpointing.columns import TableColumn
from jobs.operators.changes import KIND
from jobs.spark import columns


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of these columns; timestamps are microseconds in UTC, all columns nullable."""
    return pa.schema([pa.field(field.name, field.type) for field in to_arrow_schema(schema, timezone="UTC")])


def nullable_schema(schema: StructType) -> StructType:
    """Return the same columns, nullable at every depth: stored rows may hold nulls."""
    return StructType([StructField(field.name, _nullable(field.dataType)) for field in schema.fields])


def schema_with_kind(schema: StructType) -> StructType:
    """Return the columns of a changelog of rows of this schema."""
    return StructType([*schema.fields, StructField(KIND, StringType())])


def delta_columns(schema: pa.Schema) -> tuple[TableColumn, ...]:
    """Return the columns as an entry of `checkpoints` lists them, with a Delta log's types (`stores.table_columns`).

    It uses Spark's names of types, so that a pipeline can be planned without a Delta library.
    """
    fields = from_arrow_schema(schema, prefer_timestamp_ntz=True).jsonValue()["fields"]
    return tuple(TableColumn(field["name"], _persisted(field["type"])) for field in fields)


def _persisted(kind: str | dict[str, Any]) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind, sort_keys=True)


def quoted(names: Iterable[str]) -> str:
    """Return column names as a list in Spark SQL, each quoted."""
    return ", ".join(map(columns.quoted, names))


def _nullable(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return nullable_schema(kind)
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
        case _:
            return kind
