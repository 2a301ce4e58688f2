"""Columns declared in Spark and columns in a Delta log are described in the same words."""

import pyarrow as pa
from deltalake import Schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
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

from checkpointing.columns import TableColumn, is_delta_type
from checkpointing.identifiers import CheckpointId
from jobs.operators.spec import arrow_schema, delta_columns
from jobs.warehouse.table_columns import columns_of_schema, declared_columns, field_of

_INNER = StructType([StructField("x", IntegerType()), StructField("y", MapType(StringType(), DoubleType()))])
_PLAIN = [LongType(), DecimalType(10, 2), TimestampType(), TimestampNTZType(), DateType(), ByteType(), ShortType()]
_TYPES = [*_PLAIN, FloatType(), DoubleType(), BinaryType(), BooleanType(), StringType(), ArrayType(_INNER), _INNER]
EVERY = StructType([StructField(f"c{place}", kind) for place, kind in enumerate(_TYPES)])


def test_spark_and_delta_name_every_type_alike() -> None:
    """A pipeline's types are compared with a log's, so each type must have one name."""
    assert delta_columns(arrow_schema(EVERY)) == declared_columns(arrow_schema(EVERY))


def test_a_column_survives_its_way_into_a_log() -> None:
    """Name and type of every kind of column are kept, nested ones too."""
    columns = declared_columns(arrow_schema(EVERY))
    assert columns == columns_of_schema(Schema([field_of(column) for column in columns]))


def test_a_column_that_came_late_says_so_in_its_comment() -> None:
    """Every engine shows the comment: the column has been valid since then, not since the table began."""
    field = field_of(TableColumn("m", "long", CheckpointId(7)))
    assert {"comment": "holds only what came after checkpoint 7"} == field.metadata
    assert {} == field_of(TableColumn("m", "long")).metadata
    assert pa.int64() == pa.schema(Schema([field]).to_arrow()).field("m").type


def test_every_type_of_a_pipeline_is_valid_in_an_entry() -> None:
    """Types in an entry from outside are compared with Delta's. Tidemark's own types must all pass."""
    assert all(is_delta_type(column.type) for column in declared_columns(arrow_schema(EVERY)))
    wrong = ["", "varchar", "decimal(39,0)", "{", '{"type":"struct","fields":7}', '{"type":"struct","fields":[{}]}']
    assert not any(is_delta_type(text) for text in wrong)
