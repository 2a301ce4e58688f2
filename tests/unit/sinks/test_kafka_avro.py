"""Tests that a KafkaSink writes Avro records that a KafkaSource decodes to the same values, and what it refuses."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from jobs.outside_sinks.kafka.kafka_records import Records
from jobs.outside_sinks.kafka.kafka_sink import KafkaSink
from jobs.sinks.port import SinkError
from jobs.sources.kafka.records import avro_form
from tests.avro_types import READ, SCHEMA

NULLABLE = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "long"]}]}
PLAIN = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}


def messages(schema, batch, **more):
    records = Records("avro", None, schema, **more)
    records.must_hold(batch.schema)
    return [message for part in records.of(batch) for message in part]


@pytest.mark.parametrize(("number", "writers"), [(None, None), (7, {7: SCHEMA})])
def test_every_type_is_decoded_to_its_value(number, writers):
    """Also in Confluent's wire format, with the number of the schema in front."""
    columns, decoding = avro_form(SCHEMA, writers, "_undecoded")
    batch = pa.RecordBatch.from_pylist([READ], to_arrow_schema(columns, timezone="UTC"))
    (message,) = messages(SCHEMA, batch, number=number)
    records = pa.record_batch({"value": pa.array([message["value"]], pa.binary())})
    (decoded,) = decoding.run(iter([records]))
    assert None is decoded.column("_undecoded")[0].as_py()
    assert batch.to_pylist() == decoded.drop_columns("_undecoded").to_pylist()
    assert number is None or message["value"].startswith(b"\0\0\0\0\7")


@pytest.mark.parametrize(
    ("schema", "columns", "said"),
    [
        (NULLABLE, {"m": pa.int64()}, "has a field n, and the table has no such column"),
        (NULLABLE, {"n": pa.int64(), "m": pa.int64()}, "has no field m, and the table has this column"),
        (NULLABLE, {"n": pa.int32()}, "column n is int32, and its field in the schema of a KafkaSink is int64"),
    ],
)
def test_columns_that_are_not_the_fields_are_named(schema, columns, said):
    """The sink refuses them before the tick begins."""
    with pytest.raises(SinkError, match=said):
        Records("avro", None, schema).must_hold(pa.schema(columns))


def test_a_row_that_the_schema_does_not_allow_is_named():
    """A null in a field that has none is found when the row is written."""
    rows = pa.record_batch({"n": pa.array([1, None], pa.int64())})
    assert 2 == len(messages(NULLABLE, rows))
    with pytest.raises(SinkError, match=r"does not allow the row {'n': None}"):
        messages(PLAIN, rows)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "avro"}, "with format='avro' needs schema="),
        ({"schema": PLAIN}, "with format='json' has no schema and no number"),
        ({"format": "avro", "schema": PLAIN, "schema_number": 2**32}, "schema_number of a KafkaSink is 4294967296"),
        ({"format": "avro", "schema": "{"}, "the schema of a KafkaSink is no JSON"),
        ({"format": "avro", "schema": '"lang"'}, "the schema of a KafkaSink is no Avro schema"),
        ({"format": "avro", "schema": '"long"'}, "it describes no record"),
        (
            {
                "format": "avro",
                "schema": {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["int", "string"]}]},
            },
            "cannot be written from columns: field n is a union of 2 types",
        ),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_when_it_is_written(given, said):
    """The refusal asks no broker."""
    with pytest.raises(SinkError, match=said):
        KafkaSink("k:1", "orders", **given)


def test_milliseconds_are_cut_off():
    """A field of milliseconds cannot hold more."""
    moment = {"type": "long", "logicalType": "timestamp-millis"}
    schema = {"type": "record", "name": "N", "fields": [{"name": "at", "type": moment}]}
    at = datetime(2026, 1, 1, microsecond=1_234, tzinfo=UTC)
    (message,) = messages(schema, pa.record_batch({"at": pa.array([at], pa.timestamp("us", "UTC"))}))
    (exact,) = messages(
        schema, pa.record_batch({"at": pa.array([at.replace(microsecond=1_000)], pa.timestamp("us", "UTC"))})
    )
    assert exact == message
