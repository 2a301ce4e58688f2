"""Spark's schemas as Arrow's: made once on the driver, so that tasks write exactly the declared types."""

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of these columns; timestamps are microseconds in UTC, all columns nullable."""
    return pa.schema([pa.field(field.name, field.type) for field in to_arrow_schema(schema, timezone="UTC")])
