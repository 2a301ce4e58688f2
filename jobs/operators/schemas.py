"""Schemas as the different readers of the same columns want them: Spark, Arrow, SQL text.

Each is made once on the driver, so that tasks write exactly the declared types.
"""

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of these columns; timestamps are microseconds in UTC, all columns nullable."""
    return pa.schema([pa.field(field.name, field.type) for field in to_arrow_schema(schema, timezone="UTC")])


def nullable_schema(schema: StructType) -> StructType:
    """Return the same columns with every null allowed, at every depth: what was stored may hold them."""
    return StructType([StructField(field.name, _nullable(field.dataType)) for field in schema.fields])


def quoted(names: Iterable[str]) -> str:
    """Return column names as a list in Spark SQL, each quoted."""
    return ", ".join("`" + name.replace("`", "``") + "`" for name in names)


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
