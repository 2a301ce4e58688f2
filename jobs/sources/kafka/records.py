"""Turns Kafka's records into a source's columns: as they are, from JSON, or from Avro.

A record that does not decode becomes a row too. Its columns are null, and `_undecoded` holds its bytes, so that a row
rule can send it to a quarantine. In all other rows `_undecoded` is null. A record without a value, which a compacted
topic has for a deleted key, decodes to nulls.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType, TimestampType

from jobs.quality.expectation import Expectation
from jobs.sources.exact_values import CORRUPT, KEYS_ARE_TEXTS, JsonRecords, map_without_texts
from jobs.sources.kafka.avro_form import avro_form
from jobs.sources.kafka.plain_json import PlainJson, can_be_plain
from jobs.sources.kafka.scan import VALUE, Decoding
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, SourceError

if TYPE_CHECKING:
    from jobs.sources.avro.decoding import AvroDecoding

UNDECODED_COLUMN: Final = "_undecoded"
"""The bytes of a record's value that did not decode. It is null in all other rows."""

DECODED: Final = Expectation("expect_column_values_to_be_null", {"column": UNDECODED_COLUMN})
"""The row rule for decoded records: `check_rows(DECODED, quarantine="quarantine/orders")`."""

Format = Literal["json", "avro", "raw"]
AvroSchema = str | Mapping[str, object]
"""An Avro schema: the text of an .avsc file, or what JSON makes of it."""

_HEADERS: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
METADATA: Final = {
    "key": StructField("_key", BinaryType()),
    "timestamp": StructField("_timestamp", TimestampType()),
    "headers": StructField("_headers", _HEADERS),
    "topic": StructField("_topic", StringType()),
}
"""The fields that a user can ask for besides the value, and the column of each."""

_POSITION: Final = StructField(POSITION_COLUMN, LongType())
_PARSED: Final = "_parsed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordForm:
    """Says how a record becomes a row: the columns of its value, then the requested fields."""

    format: Format
    value: StructType
    """The value's columns. With `raw`, this is the value itself."""
    metadata: tuple[str, ...] = ()
    avro: "AvroDecoding | None" = None
    """How Avro is decoded."""

    def schema(self) -> StructType:
        """Return the source's own columns. All may be null."""
        fields = [StructField(field.name, field.dataType) for field in self.value.fields]
        undecoded = [] if self.format == "raw" else [StructField(UNDECODED_COLUMN, BinaryType())]
        return StructType([*fields, *undecoded, *(METADATA[name] for name in self.metadata)])

    @property
    def reads_headers(self) -> bool:
        """Return True if the connector must bring the headers."""
        return "headers" in self.metadata

    @property
    def decodes_in_tasks(self) -> bool:
        """Return whether a task can decode values without Spark."""
        return self.format != "json" or can_be_plain(self.value)

    def decoding(self) -> Decoding | None:
        """Return how a task decodes values, if it does; None leaves them as they are."""
        if self.format == "raw":
            return None
        if self.avro is not None:
            return self.avro.run
        return PlainJson.of(self.value, VALUE, UNDECODED_COLUMN).run

    def rows(self, records: DataFrame, split: Column) -> DataFrame:
        """Return the rows of the connector's records, with split and position."""
        own = [F.col(name).alias(METADATA[name].name) for name in self.metadata]
        place = [split.alias(SPLIT_COLUMN), F.col("offset").alias(POSITION_COLUMN)]
        if self.format == "raw":
            return records.select(VALUE, *own, *place)
        if self.avro is not None:
            schema = StructType([*self.schema(), StructField(SPLIT_COLUMN, StringType()), _POSITION])
            return records.select(VALUE, *own, *place).mapInArrow(self.avro.run, schema)
        text, decoded = F.col(VALUE).cast("string"), JsonRecords(self.value, {})
        parsed = records.withColumn(_PARSED, decoded.parsed(text))
        bad = F.col(VALUE).isNotNull() & decoded.is_bad(text, F.col(_PARSED))
        fields = [F.when(~bad, F.col(_PARSED).getField(field.name)).alias(field.name) for field in self.value.fields]
        return parsed.select(*fields, F.when(bad, F.col(VALUE)).alias(UNDECODED_COLUMN), *own, *place)


def record_form(
    form: Format,
    schema: StructType | AvroSchema | None,
    metadata: tuple[str, ...],
    writers: Mapping[int, AvroSchema] | None = None,
) -> RecordForm:
    """Return how records become rows. Raise SourceError for arguments that contradict each other."""
    if writers is not None and form != "avro":
        raise SourceError(f"a KafkaSource with format={form!r} has no writer_schemas: they are for format='avro'")
    unknown = [name for name in metadata if name not in METADATA]
    if unknown:
        raise SourceError(f"a KafkaSource has no metadata {unknown[0]!r}: write some of {', '.join(METADATA)}")
    avro = None
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
            value, avro = avro_form(schema, writers, UNDECODED_COLUMN)
        case _:
            raise SourceError(f"a KafkaSource has no format {form!r}: write 'json', 'avro' or 'raw'")
    made = RecordForm(format=form, value=value, metadata=metadata, avro=avro)
    taken = {SPLIT_COLUMN, POSITION_COLUMN, UNDECODED_COLUMN, CORRUPT, *(field.name for field in METADATA.values())}
    clash = [name for name in value.names if name in taken]
    if clash:
        raise SourceError(f"the schema of a KafkaSource has a column {clash[0]!r}, a name that is taken: rename it")
    return made
