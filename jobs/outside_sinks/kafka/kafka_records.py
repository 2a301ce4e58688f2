"""Writes rows as Avro records of a user's schema, with the library of the extra `avro`.

Each field of the schema is a column of the same name and type (`jobs.sources.avro.schemas`), and each column is a
field.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from io import BytesIO
from typing import Any, Final, Literal, get_args

import polars as pl
import pyarrow as pa
from polars.datatypes import DataTypeClass
from pyarrow import types
from pyspark.sql.types import StructField, StructType

from jobs.sinks.port import SinkError
from jobs.sources.arrow_types import ColumnType
from jobs.sources.avro.schemas import Avro, AvroTypeError, column_types, written_out
from jobs.sources.avro.schemas import as_json as schema_as_json
from jobs.sources.port import SourceError
from jobs.sources.registry.known_schema import head_of
from jobs.spark.versions import to_arrow

_WHAT: Final = "the schema of a KafkaSink"
_NUMBER_MAX: Final = 2**32


class AvroWriting:
    """How rows become Avro records. With a `number`, each begins as in Confluent's wire format."""

    def __init__(self, schema: Avro, number: int | None) -> None:
        """Raise SinkError for a schema that describes no columns, and for a number that needs more than four bytes."""
        if schema is None:
            raise SinkError("a KafkaSink with format='avro' needs schema=, the text of an .avsc file or its JSON")
        if number is not None and not 0 <= number < _NUMBER_MAX:
            raise SinkError(f"the schema_number of a KafkaSink is {number}: write a number from 0 to {_NUMBER_MAX - 1}")
        try:
            types = column_types(written_out(schema, _WHAT))
            self._schema = schema_as_json(schema, _WHAT)
            fields = [StructField(name, _sound(each).spark) for name, each in types.items()]
        except SourceError as error:
            raise SinkError(str(error)) from None
        except AvroTypeError as error:
            raise SinkError(f"{_WHAT} cannot be written from columns: {error}") from None
        self._columns: pa.Schema = to_arrow(StructType(fields))
        self._head = b"" if number is None else head_of(number)

    def must_hold(self, schema: pa.Schema) -> None:
        """Raise SinkError, which names the column, if the table's columns are not the fields of the schema."""
        for name in dict.fromkeys([*self._columns.names, *schema.names]):
            if name not in schema.names:
                raise SinkError(f"{_WHAT} has a field {name}, and the table has no such column: add one of them")
            if name not in self._columns.names:
                raise SinkError(f"{_WHAT} has no field {name}, and the table has this column: add or drop one of them")
            wanted, found = self._columns.field(name).type, schema.field(name).type
            if not found.equals(wanted):
                raise SinkError(f"column {name} is {found}, and its field in {_WHAT} is {wanted}: change one of them")

    def of(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the records of these rows.

        Raise SinkError, which shows the first row that the schema does not allow.
        """
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


# ------------------------------------------------------------------
# Turns rows into Kafka records that a KafkaSource can read back: a JSON object, an Avro record, or bytes.
#
# | in the table            | in JSON                                                              |
# |-------------------------|----------------------------------------------------------------------|
# | a date, a moment        | text as in `2026-01-31`, `2026-01-31T12:00:00.000001+00:00`          |
# | a decimal               | text with its digits                                                 |
# | bytes                   | text in base64                                                       |
# | NaN, infinity           | the texts `NaN`, `Infinity`, `-Infinity`                             |
# | a struct, an array      | an object, an array                                                  |
# | null                    | null                                                                 |


RecordFormat = Literal["json", "avro", "json-schema", "raw"]
RECORDS_MAX: Final = 10_000
"""How many records are made at a time."""
VALUE: Final = "value"
"""The column that `raw` writes."""
Value = str | bytes | None
Record = dict[str, Any]
"""A record as `Producer.produce_batch` takes it."""
_TEXTS: Final = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
_PLAIN: Final = (*_TEXTS, types.is_integer)


class Records:
    """Decides how value and key of a record are made from a row."""

    def __init__(self, form: RecordFormat, key: str | None, schema: Avro = None, number: int | None = None) -> None:
        """Raise SinkError for an unknown format, and for a schema that is missing or that the format does not use."""
        if form not in get_args(RecordFormat):
            raise SinkError(f"a KafkaSink has no format {form!r}: write one of {', '.join(get_args(RecordFormat))}")
        if form in ("json", "raw") and (schema is not None or number is not None):
            raise SinkError(f"a KafkaSink with format={form!r} has no schema and no number: they are for format='avro'")
        if form == "json-schema" and schema is None:
            raise SinkError("a KafkaSink with format='json-schema' needs schema=, a JSON Schema as text or JSON")
        self._form = form
        self._key = key
        self._head = None if form != "json-schema" or number is None else head_of(number)
        self._avro = AvroWriting(schema, number) if form == "avro" else None

    def must_hold(self, schema: pa.Schema) -> None:
        """Raise SinkError, which names the column, if rows with this schema cannot become records."""
        if self._key is not None:
            _must_be(schema, self._key, "the key of a KafkaSink", "text, bytes or an integer", *_PLAIN)
        if self._form == "raw":
            _must_be(schema, VALUE, "the value of a KafkaSink with format='raw'", "text or bytes", *_TEXTS)
        elif self._avro is not None:
            self._avro.must_hold(schema)
        else:
            for field in schema:
                _must_be_json(field.name, field.type)

    def must_hold_keys(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        """Raise SinkError if rows of an upsert table with this schema and these keys cannot become records."""
        if self._form == "raw":
            raise SinkError("a KafkaSink of an upsert table has no format 'raw': write format='json' or 'avro'")
        if self._key is not None and (self._key,) != tuple(keys):
            raise SinkError(
                f"the key of a KafkaSink is {self._key}, and those of the upsert table are {', '.join(keys)}: leave "
                "out key=, and the table's keys are the record's key"
            )
        for name in keys:
            _must_be_json(name, schema.field(name).type)
        self.must_hold(schema)

    def of(self, batch: pa.RecordBatch) -> Iterator[list[Record]]:
        """Yield the records of a batch, as lists that `Producer.produce_batch` takes."""
        for part in self._parts(batch):
            values = self._values(part)
            if self._key is None:
                yield [{"value": value} for value in values]
            else:
                keys = _plain_key(part.column(self._key))
                yield [{"value": value, "key": key} for value, key in zip(values, keys, strict=True)]

    def upserted(self, batch: pa.RecordBatch, by: Sequence[str]) -> Iterator[list[Record]]:
        """Yield the records of rows of an upsert table with these keys."""
        for part in self._parts(batch):
            keys = _whole_key(part, by)
            yield [{"value": value, "key": key} for value, key in zip(self._values(part), keys, strict=True)]

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self.must_hold(batch.schema)
        for start in range(0, batch.num_rows, RECORDS_MAX):
            yield batch.slice(start, RECORDS_MAX)

    def _values(self, batch: pa.RecordBatch) -> Sequence[Value]:
        if self._form == "raw":
            return batch.column(VALUE).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types
        if self._avro is not None:
            return self._avro.of(batch)
        texts = as_json(pl.DataFrame(pl.from_arrow(batch)))
        return texts if self._head is None else [self._head + str(text).encode() for text in texts]


def tombstones(keys: Sequence[Value]) -> Iterator[list[Record]]:
    """Yield records without a value, each of which deletes a key."""
    for start in range(0, len(keys), RECORDS_MAX):
        yield [{"value": None, "key": key} for key in keys[start : start + RECORDS_MAX]]


def deleted(rows: pa.Table, by: Sequence[str]) -> Iterator[list[Record]]:
    """Yield the records that delete the keys of these rows."""
    for batch in rows.to_batches():
        yield from tombstones(_whole_key(batch, by))


def _plain_key(column: pa.Array) -> list[Value]:
    """Return a column as keys of records: text and bytes as they are, an integer as its digits."""
    return (column.cast(pa.string()) if types.is_integer(column.type) else column).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


def _whole_key(batch: pa.RecordBatch, by: Sequence[str]) -> list[Value]:
    """Return the keys of an upsert table's records. Raise SinkError for a row without one.

    Several columns become a JSON object. So does a single one that is no text, no bytes and no integer.
    """
    first = batch.column(by[0])
    if len(by) > 1 or not any(fit(first.type) for fit in _PLAIN):
        return as_json(pl.DataFrame(pl.from_arrow(batch.select(list(by)))))
    if first.null_count:
        row = batch.slice(first.is_null().to_pylist().index(True), 1).to_pylist()[0]
        raise SinkError(
            f"the row {row} of an upsert table has no {by[0]}, which is its key, and Kafka cannot replace a record "
            f"without a key: filter out such rows, or give {by[0]} another value"
        )
    return _plain_key(first)


def as_json(frame: pl.DataFrame) -> list[Value]:
    """Return each row as one JSON object."""
    ready = pl.DataFrame([_without_bytes(column) for column in frame])
    texts: list[Value] = ready.to_struct("row").struct.json_encode().to_list()
    for index in _with_odd_numbers(frame):  # JSON has no such number, and Polars writes null
        row = frame.row(index, named=True)
        texts[index] = json.dumps(
            _with_names(row, json.loads(str(texts[index]))), ensure_ascii=False, separators=(",", ":")
        )
    return texts


def _must_be(schema: pa.Schema, name: str, use: str, kind: str, *fits: Callable[[pa.DataType], bool]) -> None:
    if name not in schema.names:
        raise SinkError(f"the table has no column {name!r}, {use}: name one of {', '.join(schema.names)}")
    found = schema.field(name).type
    if not any(fit(found) for fit in fits):
        raise SinkError(f"column {name} is {found}, and {use} must be {kind}: cast it")


def _must_be_json(name: str, of: pa.DataType) -> None:
    if types.is_struct(of):
        for field in of:
            _must_be_json(f"{name}.{field.name}", field.type)
    elif types.is_list(of) or types.is_large_list(of):
        _must_be_json(name, of.value_type)
    elif types.is_map(of) or types.is_nested(of) or types.is_time(of) or types.is_duration(of) or types.is_interval(of):
        raise SinkError(
            f"column {name} has type {of}, which a KafkaSink cannot write as JSON: leave it out, or cast it"
        )


def _leaves(dtype: pl.DataType) -> Iterator[pl.DataType]:
    """Yield the types of the values inside a type."""
    if isinstance(dtype, pl.List):
        yield from _leaves(_instance(dtype.inner))
    elif isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            yield from _leaves(_instance(field.dtype))
    else:
        yield dtype


def _instance(dtype: DataTypeClass | pl.DataType) -> pl.DataType:
    return dtype if isinstance(dtype, pl.DataType) else dtype()


def _of(column: pl.Series, made: Callable[[pl.Expr, pl.DataType], pl.Expr]) -> pl.Series:
    """Return the result of an expression on a column, whatever the column's name is."""
    return column.rename("c").to_frame().select(made(pl.col("c"), column.dtype)).to_series().rename(column.name)


def _without_bytes(column: pl.Series) -> pl.Series:
    """Return the column with base64 instead of bytes."""
    return _of(column, _encoded) if any(leaf == pl.Binary for leaf in _leaves(column.dtype)) else column


def _encoded(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.List):
        return value.list.eval(_encoded(pl.element(), _instance(dtype.inner)))
    if isinstance(dtype, pl.Struct):
        fields = [
            _encoded(value.struct.field(each.name), _instance(each.dtype)).alias(each.name) for each in dtype.fields
        ]
        return pl.when(value.is_not_null()).then(pl.struct(fields))
    return value.bin.encode("base64") if dtype == pl.Binary else value


def _with_odd_numbers(frame: pl.DataFrame) -> list[int]:
    """Return the rows in which some number is NaN or infinite."""
    odd = [_of(column, _is_odd) for column in frame if _has_floats(column.dtype)]
    return sorted({index for each in odd for index in each.fill_null(value=False).arg_true()})


def _has_floats(dtype: pl.DataType) -> bool:
    return any(leaf.is_float() for leaf in _leaves(dtype))


def _is_odd(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return whether a value has a float that JSON cannot express. Its type has floats."""
    if isinstance(dtype, pl.List):
        return value.list.eval(_is_odd(pl.element(), _instance(dtype.inner))).list.any()
    if isinstance(dtype, pl.Struct):
        fields = ((each.name, _instance(each.dtype)) for each in dtype.fields)
        return pl.any_horizontal(_is_odd(value.struct.field(name), of) for name, of in fields if _has_floats(of))
    return ~value.is_finite()


def _with_names(value: object, parsed: object) -> object:
    """Return a value in JSON's terms. Numbers that JSON cannot express become their names."""
    match value, parsed:
        case dict(), dict():
            return {name: _with_names(value[name], each) for name, each in parsed.items()}
        case list(), list():
            return [_with_names(one, each) for one, each in zip(value, parsed, strict=True)]
        case float(), None:
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return parsed
