"""Makes the columns of Avro records from a user's schemas, and says how records are decoded."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from jobs.sources.avro.schemas import as_json, written_out
from jobs.sources.avro.types import Avro, AvroTypeError, ColumnType, column_types, without_logical_types
from jobs.sources.port import SourceError

if TYPE_CHECKING:
    from jobs.sources.avro.decoding import AvroDecoding

_SCHEMA: Final = "the schema of a KafkaSource"


def avro_form(schema: Avro, writers: Mapping[int, Avro] | None, undecoded: str) -> "tuple[StructType, AvroDecoding]":
    """Return the columns of a schema, and how records become them.

    `writers` are the schemas by their number in front of each record; None if records have no number. `undecoded` is
    the column for the bytes of records that do not decode. Raises SourceError.
    """
    if schema is None or isinstance(schema, StructType):
        raise SourceError(
            "a KafkaSource with format='avro' needs schema=, the Avro schema of its records: the text of an .avsc "
            "file, or what JSON makes of it"
        )
    types = _types(schema)
    columns = StructType([StructField(name, each.spark) for name, each in types.items()])
    from jobs.sources.avro.decoding import AvroDecoding  # noqa: PLC0415 - an extra

    numbered = {number: _plain(each, f"schema {number} of a KafkaSource") for number, each in (writers or {}).items()}
    return columns, AvroDecoding(
        value="value",
        undecoded=undecoded,
        reader=_plain(schema, _SCHEMA),
        writers=None if writers is None else numbered,
        stored=pa.struct([pa.field(name, each.stored) for name, each in types.items()]),
        columns=to_arrow_schema(columns, timezone="UTC"),
    )


def _types(schema: Avro) -> dict[str, ColumnType]:
    """Return the type of each column.

    Raise SourceError for a schema without columns, or with a type that Spark lacks.
    """
    try:
        found = column_types(written_out(schema, _SCHEMA))
    except AvroTypeError as error:
        raise _without_columns(error) from error
    types = {}
    for name, each in found.items():
        if isinstance(each, AvroTypeError):
            raise _without_columns(each)
        types[name] = each
    return types


def _without_columns(error: AvroTypeError) -> SourceError:
    return SourceError(
        f"{_SCHEMA} cannot be read into columns: {error}. Change the schema, or read the bytes with format='raw'"
    )


def _plain(schema: Avro, what: str) -> Avro:
    written_out(schema, what)
    return without_logical_types(as_json(schema, what))
