"""Turns Kafka's records into a source's columns: as raw bytes, or decoded from JSON, Avro and other formats.

A record that does not decode becomes a row too. Its columns are null, and `_undecoded` holds its bytes, so that a row
rule can send it to a quarantine. In all other rows `_undecoded` is null. A record without a value, which a compacted
topic has for a deleted key, decodes to nulls.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jobs.quality.expectation import Expectation
from jobs.sources.arrow_types import ColumnType
from jobs.sources.avro.schemas import (
    Avro,
    AvroTypeError,
    as_json,
    column_types,
    without_logical_types,
    written_out,
)
from jobs.sources.change_rows import HEAD
from jobs.sources.debezium.columns import Encodings
from jobs.sources.debezium.decoding import DebeziumDecoding
from jobs.sources.exact_values import CORRUPT, KEYS_ARE_TEXTS, JsonRecords, map_without_texts
from jobs.sources.kafka.position import OffsetRange
from jobs.sources.kafka.readers import VALUE, Decoding
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, UNDECODED_COLUMN, SourceError
from jobs.sources.python.ddl import schema_of_text
from jobs.sources.registry.known_schema import HEAD_BYTES, KnownSchema, head_of, number_of
from jobs.sources.registry.registered_columns import OnOther, RegisteredColumns
from jobs.sources.slice_reading import LeftToSparkError
from jobs.spark.versions import to_arrow

if TYPE_CHECKING:
    from jobs.sources.avro.decoding import AvroDecoding


# ------------------------------------------------------------------
# Makes the columns and the decoder of Avro records from a user's schemas.


_SCHEMA: Final = "the schema of a KafkaSource"


def avro_form(schema: Avro, writers: Mapping[int, Avro] | None, undecoded: str) -> "tuple[StructType, AvroDecoding]":
    """Return the columns of a schema, and the decoding of records into these columns.

    `writers` are the schemas by the number in front of each record, or None if records have no number. `undecoded` is
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
        columns=to_arrow(columns),
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


# ------------------------------------------------------------------
# Decodes JSON records in a task by columns, if it is certain that Spark's `from_json` returns the same values.
#
# A record is *plain* if it is one JSON object, exactly as in the standard, and if the value of each column has the
# column's JSON type. Arrow's reader refuses most other records, and this module finds the rest of them. Spark reads
# some records that are not plain, and puts others into `_undecoded`. Only Spark can decide which ones.


_ARROW: Final[dict[DataType, pa.DataType]] = {
    BooleanType(): pa.bool_(),
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    DoubleType(): pa.float64(),
    StringType(): pa.string(),
    DateType(): pa.date32(),
    TimestampType(): pa.timestamp("us", tz="UTC"),
}
_DAY: Final = r"(?:19|20)\d\d-\d\d-\d\d"
_ZONE: Final = r"(?:Z|[+-](?:0\d|1[0-3]):[0-5]\d)"
_PATTERNS: Final = {
    pa.date32(): rf"^{_DAY}$",
    pa.timestamp("us", tz="UTC"): rf"^{_DAY}[T ]\d\d:\d\d:\d\d(?:\.\d{{1,6}})?{_ZONE}?$",
}
"""The texts of dates and times that Arrow and Spark read alike.

A time without a zone is in UTC, which is also the zone of each Spark session (`jobs.spark.session.session_settings`).
"""

_NOT_FINITE: Final = re.compile(rb"[:,\[]\s*-?(?:NaN|Inf)")
_LONG_NUMBER: Final = re.compile(rb"[0-9.eE+-]{1000}")
"""Matches a number that is too long for Spark's reader, even in a column that is not read."""
_DEEP: Final = 500
"""The most opening brackets of a plain record. Spark's reader accepts objects that are nested up to 1,000 deep."""
_LONG: Final = 1000


def can_be_plain(schema: StructType) -> bool:
    """Return whether this module can decode columns of these types."""
    return all(field.dataType in _ARROW for field in schema.fields)


@dataclass(frozen=True, slots=True)
class PlainJson:
    """Decodes the column `value` of JSON records into these columns, followed by a column `undecoded` of nulls."""

    value: str
    columns: tuple[tuple[str, pa.DataType], ...]
    undecoded: str

    @classmethod
    def of(cls, schema: StructType, value: str, undecoded: str) -> "PlainJson":
        """Return the decoding into the columns of a schema that `can_be_plain`."""
        return cls(value, tuple((field.name, _ARROW[field.dataType]) for field in schema.fields), undecoded)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with the decoded columns before its other columns. Raises LeftToSparkError."""
        for batch in batches:
            values = batch.column(self.value)
            others = [name for name in batch.schema.names if name != self.value]
            decoded = self._decoded(values)
            yield pa.RecordBatch.from_arrays(
                [*decoded, pa.nulls(len(values), pa.binary()), *(batch.column(name) for name in others)],
                names=[*(name for name, _ in self.columns), self.undecoded, *others],
            )

    def _decoded(self, values: pa.BinaryArray) -> list[pa.Array]:
        """Return the columns. A record without a value has nulls."""
        present = values.drop_null()
        if len(present) == 0:
            return [pa.nulls(len(values), kind) for _, kind in self.columns]
        found = self._parsed(_lines(present))
        if found.num_rows != len(present):
            raise LeftToSparkError("a record has several JSON objects")
        columns = [_typed(found.column(name), kind) for name, kind in self.columns]
        return columns if len(present) == len(values) else [_spread(column, values) for column in columns]

    def _parsed(self, lines: pa.Buffer) -> pa.Table:
        schema = pa.schema([(name, pa.string() if kind in _PATTERNS else kind) for name, kind in self.columns])
        try:
            found = pj.read_json(
                pa.BufferReader(lines),
                read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
            found.validate(full=True)  # the texts, too
        except pa.ArrowInvalid as error:
            raise LeftToSparkError(f"a record is no plain JSON of its schema: {error}") from error
        return found.combine_chunks()


def _lines(values: pa.BinaryArray) -> pa.Buffer:
    """Return the records as lines. Raise LeftToSparkError for a record that is not plain or may be several objects."""
    all_values = pa.ListArray.from_arrays([0, len(values)], values)
    lines = pc.binary_join(all_values, b"\n")[0].as_buffer()
    text = lines.to_pybytes()
    breaks = len(values) - 1
    if not (text.startswith(b"{") and text.endswith(b"}") and text.count(b"}\n{") == text.count(b"\n") == breaks):
        raise LeftToSparkError("a record is no JSON object in one line")
    if b"\r" in text or _NOT_FINITE.search(text):
        raise LeftToSparkError("a record has a value that JSON does not know, or a line break")
    if not text.isascii():
        _require_utf8(text)
    if pc.max(pc.binary_length(values)).as_py() > _LONG:
        _require_modest(text)
    return lines


def _require_utf8(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise LeftToSparkError("a record is no UTF-8") from error


def _require_modest(text: bytes) -> None:
    deep = any(line.count(b"{") + line.count(b"[") > _DEEP for line in text.split(b"\n") if len(line) > _LONG)
    if deep or _LONG_NUMBER.search(text):
        raise LeftToSparkError("a record has a longer number, or more objects in objects, than Spark reads")


def _typed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return a column in its type. Raise LeftToSparkError for a value that Spark might read differently."""
    (values,) = column.chunks
    if kind in _PATTERNS:
        return _moments(values, kind)
    if kind == pa.float64() and not _is_certain(values):
        raise LeftToSparkError("a record has a number that is not finite, or a zero with a sign")
    return values


def _moments(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    if pc.all(pc.match_substring_regex(texts, _PATTERNS[kind])).as_py() is False:
        raise LeftToSparkError("a record has a date or a time in another form")
    zoned = pc.match_substring_regex(texts, f"{_ZONE}$") if pa.types.is_timestamp(kind) else None
    try:
        if zoned is None or pc.all(zoned).as_py() is not False:
            return texts.cast(kind)
        own = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))
        return own.cast(kind)
    except pa.ArrowInvalid as error:
        raise LeftToSparkError("a record has a date or a time that does not exist") from error


def _is_certain(numbers: pa.DoubleArray) -> bool:
    negative_zero = pc.and_(pc.equal(numbers, 0.0), pc.less(pc.divide(1.0, numbers), 0.0))
    return pc.all(pc.is_finite(numbers)).as_py() is not False and pc.any(negative_zero).as_py() is not True


def _spread(column: pa.Array, values: pa.BinaryArray) -> pa.Array:
    """Return the column, with a null inserted for each record whose value is null."""
    present = pc.cast(pc.is_valid(values), pa.int64())
    places = pc.if_else(pc.is_valid(values), pc.subtract(pc.cumulative_sum(present), 1), pa.scalar(None, pa.int64()))
    return column.take(places)


DECODED: Final = Expectation("expect_column_values_to_be_null", {"column": UNDECODED_COLUMN})
"""The row rule for decoded records: `check_rows(DECODED, quarantine="quarantine/orders")`."""

Format = Literal["json", "avro", "raw", "json-schema", "protobuf", "debezium-json", "debezium-avro"]
"""The format of the bytes of a record's value."""

AvroSchema = str | Mapping[str, object]
"""An Avro schema: the text of an .avsc file, or its parsed JSON."""

_HEADERS: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
METADATA: Final = {
    "key": StructField("_key", BinaryType()),
    "timestamp": StructField("_timestamp", TimestampType()),
    "headers": StructField("_headers", _HEADERS),
    "topic": StructField("_topic", StringType()),
}
"""The fields of a record that a user can request besides the value, and the column of each field."""

RECORD_KEY: Final = "_record_key"
"""The column of a record's key, for a decoder that needs the key. A source's rows do not have this column."""
_POSITION: Final = StructField(POSITION_COLUMN, LongType())
_PARSED: Final = "_parsed"


class Decoder(Protocol):
    """Decodes the column `value` in tasks, into the records' columns and a column with the bytes of bad records."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch decoded."""
        ...

    def with_schemas(self, known: Mapping[int, KnownSchema]) -> "Decoder":
        """Return the decoder for records with these schemas of a registry."""
        ...


@dataclass(frozen=True, slots=True)
class PassingOver:
    """Decodes records, but skips records whose schema has one of these numbers."""

    decoder: Decoder
    passed: frozenset[int]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch decoded, without the skipped records."""
        yield from self.decoder.run(self._chosen(batch) for batch in batches)

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column(VALUE).to_pylist()
        return batch.filter(pa.array([number_of(value) not in self.passed for value in values], pa.bool_()))


@dataclass(frozen=True, slots=True)
class FramedJson:
    """Decodes JSON records that begin with a schema number.

    `known` are the beginnings of records that are read, and `passed` those of records that are skipped.
    """

    plain: PlainJson
    known: frozenset[bytes]
    passed: frozenset[bytes]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch decoded. Raises LeftToSparkError."""
        yield from self.plain.run(self._without_heads(batch) for batch in batches)

    def _without_heads(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column(VALUE).to_pylist()  # pyarrow 26's binary_slice fails on some batches
        heads = [value and value[:HEAD_BYTES] for value in values]
        if not {*heads} <= {None, *self.known, *self.passed}:
            raise LeftToSparkError("a record has no schema that is read")
        texts = pa.array([value and value[HEAD_BYTES:] for value in values], pa.binary())
        found = batch.set_column(batch.schema.get_field_index(VALUE), VALUE, texts)
        return found.filter(pa.array([head not in self.passed for head in heads])) if self.passed else found


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordForm:
    """How a record becomes a row: the columns of its value, then the requested fields."""

    format: Format
    value: StructType
    """The value's columns. With `raw`, this is the value itself."""
    metadata: tuple[str, ...] = ()
    decoder: Decoder | None = None
    """How tasks decode values that Spark has no reader for."""
    registered: RegisteredColumns | None = None
    """The columns of the records' schemas, if a registry has the schemas."""

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Return the fields of records that a decoder gets besides the value, each with the name of its column."""
        own = tuple((name, METADATA[name].name) for name in self.metadata)
        return (*own, ("key", RECORD_KEY)) if isinstance(self.decoder, DebeziumDecoding) else own

    def schema(self) -> StructType:
        """Return the source's own columns. All may be null."""
        fields = [StructField(field.name, field.dataType) for field in self.value.fields]
        undecoded = [] if self.format == "raw" else [StructField(UNDECODED_COLUMN, BinaryType())]
        return StructType([*fields, *undecoded, *(METADATA[name] for name in self.metadata)])

    @property
    def reads_headers(self) -> bool:
        """Return True if the connector must read the headers."""
        return "headers" in self.metadata

    @property
    def decodes_in_tasks(self) -> bool:
        """Return whether a task can decode values without Spark."""
        return self.format not in ("json", "json-schema") or can_be_plain(self.value)

    def decoding(self, ranges: Iterable[OffsetRange], unordered: str | None = None) -> Decoding | None:
        """Return how a task decodes the values of these ranges, or None if the values stay undecoded.

        `unordered` is the reason why a truncate of a table cannot be ordered among the table's other changes.
        """
        if self.format == "raw":
            return None
        if self.decoder is not None:
            return self._decoder_of(self.decoder, ranges, unordered).run
        plain = PlainJson.of(self.value, VALUE, UNDECODED_COLUMN)
        if self.registered is None:
            return plain.run
        known, passed = _numbers(ranges)
        return FramedJson(plain, frozenset(map(head_of, known)), frozenset(map(head_of, passed))).run

    def _decoder_of(
        self, decoder: Decoder, ranges: Iterable[OffsetRange], unordered: str | None
    ) -> Decoder | PassingOver:
        if isinstance(decoder, DebeziumDecoding):
            decoder = replace(decoder, unordered=unordered)
        if self.registered is None:
            return decoder
        known, passed = _numbers(ranges)
        return PassingOver(decoder.with_schemas(known), passed) if passed else decoder.with_schemas(known)

    def rows(
        self, records: DataFrame, split: Column, ranges: Iterable[OffsetRange] = (), unordered: str | None = None
    ) -> DataFrame:
        """Return the rows of the connector's records of these ranges, with split and position."""
        own = [F.col(name).alias(column) for name, column in self.fields]
        place = [split.alias(SPLIT_COLUMN), F.col("offset").alias(POSITION_COLUMN)]
        if self.format == "raw":
            return records.select(VALUE, *own, *place)
        if self.decoder is not None:
            schema = StructType([*self.schema(), StructField(SPLIT_COLUMN, StringType()), _POSITION])
            return records.select(VALUE, *own, *place).mapInArrow(
                self._decoder_of(self.decoder, ranges, unordered).run, schema
            )
        text, decoded = F.col(VALUE).cast("string"), JsonRecords(self.value, {})
        is_framed = F.lit(True)  # noqa: FBT003 - a value of Spark
        if self.registered is not None:
            known, passed = (list(map(head_of, each)) for each in _numbers(ranges))
            head, text = (
                F.substring(VALUE, 1, HEAD_BYTES),
                F.expr(f"substring({VALUE}, {HEAD_BYTES + 1})").cast("string"),
            )
            records = records.filter(F.col(VALUE).isNull() | ~head.isin(passed))
            is_framed = head.isin(known)
        parsed = records.withColumn(_PARSED, decoded.parsed(text))
        bad = F.col(VALUE).isNotNull() & (~is_framed | decoded.is_bad(text, F.col(_PARSED)))
        fields = [F.when(~bad, F.col(_PARSED).getField(field.name)).alias(field.name) for field in self.value.fields]
        return parsed.select(*fields, F.when(bad, F.col(VALUE)).alias(UNDECODED_COLUMN), *own, *place)


def _numbers(ranges: Iterable[OffsetRange]) -> tuple[Mapping[int, KnownSchema], frozenset[int]]:
    """Return the schemas of the records that are read, and the schema numbers of skipped records."""
    asked = tuple(ranges)
    known = {each.number: each for one in asked for each in one.schemas}
    return known, frozenset(number for one in asked for number in one.passed)


def require_metadata(metadata: Iterable[str]) -> None:
    """Raise SourceError for a name that is no field of Kafka's records."""
    unknown = [name for name in metadata if name not in METADATA]
    if unknown:
        raise SourceError(f"a KafkaSource has no metadata {unknown[0]!r}: write some of {', '.join(METADATA)}")


def record_form(
    form: Format,
    schema: StructType | AvroSchema | None,
    metadata: tuple[str, ...],
    writers: Mapping[int, AvroSchema] | None = None,
    encodings: Encodings | None = None,
    on_other: OnOther | None = None,
) -> RecordForm:
    """Return how records become rows. Raise SourceError for arguments that contradict each other."""
    if form != "debezium-json" and (encodings is not None or on_other is not None):
        what = "encodings" if encodings is not None else "columns"
        raise SourceError(f"a KafkaSource with format={form!r} has no {what}= without a registry: leave it out")
    if writers is not None and form != "avro":
        raise SourceError(f"a KafkaSource with format={form!r} has no writer_schemas: they are for format='avro'")
    require_metadata(metadata)
    decoder: Decoder | None = None
    match form:
        case "raw":
            if schema is not None:
                raise SourceError("a KafkaSource with format='raw' has the column 'value' alone: leave the schema out")
            value = StructType().add(VALUE, BinaryType())
        case "json":
            if not isinstance(schema, StructType):
                raise SourceError(
                    "a KafkaSource with format='json' needs schema=, a StructType of the value's columns; format='raw' "
                    "gives the bytes"
                )
            odd = map_without_texts(schema)
            if odd is not None:
                raise SourceError(f"column {odd!r} of a KafkaSource has a map {KEYS_ARE_TEXTS}")
            value = schema
        case "avro":
            value, decoder = avro_form(schema, writers, UNDECODED_COLUMN)
        case "debezium-json":
            table = table_declared(schema)
            value = StructType([*HEAD, *table])
            decoder = debezium_decoding(table, encodings, only_known=on_other != "ignore")
        case "debezium-avro" | "json-schema" | "protobuf":
            raise SourceError(f"a KafkaSource with format={form!r} needs registry=, which has its schemas")
        case _:
            raise SourceError(f"a KafkaSource has no format {form!r}: write one of {', '.join(get_args(Format))}")
    return checked(RecordForm(format=form, value=value, metadata=metadata, decoder=decoder))


def table_declared(schema: object) -> StructType:
    """Return the columns that a user has declared, as a StructType or as text. Raise SourceError without columns."""
    if isinstance(schema, str):
        return schema_of_text(schema)
    if not isinstance(schema, StructType):
        raise SourceError(
            "a KafkaSource with this format needs as schema= the columns of the table, as in 'id int, balance "
            "decimal(12,2)'; those of a MongoDB collection are 'id string, document string'"
        )
    return schema


def debezium_decoding(
    table: StructType, encodings: Encodings | None, *, only_known: bool, avro: bool = False
) -> DebeziumDecoding:
    """Return how Debezium's events become rows.

    Raises SourceError if a column of the table has the name of a column of `HEAD`.
    """
    clash = [name for name in table.names if name in HEAD.names]
    if clash:
        raise SourceError(
            f"the table has a column {clash[0]!r}, and each change has one of this name: rename it with a transform of "
            "the connector (ReplaceField)"
        )
    return DebeziumDecoding(
        value=VALUE,
        key=RECORD_KEY,
        position=POSITION_COLUMN,
        undecoded=UNDECODED_COLUMN,
        table=table,
        encodings=encodings or Encodings(),
        writers={} if avro else None,
        only_known=only_known,
    )


def checked(made: RecordForm) -> RecordForm:
    """Return the form. Raise SourceError if a column has the name of a column that the source adds."""
    taken = {
        RECORD_KEY,
        SPLIT_COLUMN,
        POSITION_COLUMN,
        UNDECODED_COLUMN,
        CORRUPT,
        *(field.name for field in METADATA.values()),
    }
    clash = [name for name in made.value.names if name in taken]
    if clash:
        raise SourceError(f"the schema of a KafkaSource has a column {clash[0]!r}, a name that is taken: rename it")
    return made
