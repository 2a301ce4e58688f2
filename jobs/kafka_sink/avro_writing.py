"""Writes rows as Avro records of a user's schema, with the library of the extra `avro`.

Each field of the schema is a column of the same name and type (`jobs.sources.avro.types`), and each column is a field.
"""

from collections.abc import Mapping
from functools import cached_property
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from jobs.sinks.port import SinkError
from jobs.sources.avro.schemas import as_json, written_out
from jobs.sources.avro.types import Avro, AvroTypeError, ColumnType, column_types
from jobs.sources.port import SourceError

_WHAT: Final = "the schema of a KafkaSink"
_MAGIC: Final = b"\0"
_NUMBER_MAX: Final = 2**32


class AvroWriting:
    """How rows become Avro records. With a `number`, each begins as in Confluent's wire format."""

    def __init__(self, schema: Avro, number: int | None) -> None:
        """Raise SinkError for a schema that describes no columns, and for a number that has no four bytes."""
        if schema is None:
            raise SinkError("a KafkaSink with format='avro' needs schema=, the text of an .avsc file or its JSON")
        if number is not None and not 0 <= number < _NUMBER_MAX:
            raise SinkError(f"the schema_number of a KafkaSink is {number}: write a number from 0 to {_NUMBER_MAX - 1}")
        try:
            types = column_types(written_out(schema, _WHAT))
            self._schema = as_json(schema, _WHAT)
            fields = [StructField(name, _sound(each).spark) for name, each in types.items()]
        except SourceError as error:
            raise SinkError(str(error)) from None
        except AvroTypeError as error:
            raise SinkError(f"{_WHAT} cannot be written from columns: {error}") from None
        self._columns: pa.Schema = to_arrow_schema(StructType(fields), timezone="UTC")
        self._head = b"" if number is None else _MAGIC + number.to_bytes(4)

    def must_hold(self, schema: pa.Schema) -> None:
        """Raise SinkError, naming the column, if the table's columns are not the fields of the schema."""
        for name in dict.fromkeys([*self._columns.names, *schema.names]):
            if name not in schema.names:
                raise SinkError(f"{_WHAT} has a field {name}, and the table has no such column: add one of them")
            if name not in self._columns.names:
                raise SinkError(f"{_WHAT} has no field {name}, and the table has this column: add or drop one of them")
            wanted, found = self._columns.field(name).type, schema.field(name).type
            if not found.equals(wanted):
                raise SinkError(f"column {name} is {found}, and its field in {_WHAT} is {wanted}: change one of them")

    def of(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the records of these rows. Raise SinkError with the first row that the schema does not allow."""
        return [self._record(row) for row in batch.to_pylist(maps_as_pydicts="strict")]

    def _record(self, row: Mapping[str, Any]) -> bytes:
        from fastavro import schemaless_writer  # noqa: PLC0415 - an extra

        file = BytesIO()
        file.write(self._head)
        try:
            schemaless_writer(file, self._parsed, row, strict=True)
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise SinkError(f"{_WHAT} does not allow the row {row} ({error}): correct one of them") from None
        return file.getvalue()

    @cached_property
    def _parsed(self) -> Avro:
        from fastavro import parse_schema  # noqa: PLC0415 - an extra

        return parse_schema(self._schema)


def _sound(found: ColumnType | AvroTypeError) -> ColumnType:
    if isinstance(found, AvroTypeError):
        raise found
    return found
