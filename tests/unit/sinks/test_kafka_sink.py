"""Tests that a KafkaSink writes Avro records that a KafkaSource decodes to the same values, and what it refuses."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest

from jobs.outside_sinks.kafka.kafka_records import RECORDS_MAX, Records, deleted, tombstones
from jobs.outside_sinks.kafka.kafka_sink import KafkaSink, UpsertedRecords
from jobs.outside_sinks.kafka.transaction import KafkaTarget, RecordLimits, Sorting
from jobs.sinks.port import Difference, SinkError, TableChanges
from jobs.sources.kafka.client_settings import SINK, ClientSettings
from jobs.sources.kafka.records import avro_form
from jobs.spark.versions import to_arrow
from tests.avro_types import READ, SCHEMA

NULLABLE = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "long"]}]}
PLAIN = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}


def messages(schema, batch, **more):
    records = Records("avro", None, schema, **more)
    records.must_hold(batch.schema)
    return [message for part in records.of(batch) for message in part]


@pytest.mark.parametrize(("number", "writers"), [(None, None), (7, {7: SCHEMA})])
def test_every_type_is_decoded_to_its_value(number, writers):
    """This also holds for Confluent's wire format, which has the number of the schema in front."""
    columns, decoding = avro_form(SCHEMA, writers, "_undecoded")
    batch = pa.RecordBatch.from_pylist([READ], to_arrow(columns))
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
    """The sink refuses such columns before the tick begins."""
    with pytest.raises(SinkError, match=said):
        Records("avro", None, schema).must_hold(pa.schema(columns))


def test_a_row_that_the_schema_does_not_allow_is_named():
    """A null in a field that allows none is found when the row is written."""
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
    """The error is raised without a request to a broker."""
    with pytest.raises(SinkError, match=said):
        KafkaSink("k:1", "orders", **given)


def test_milliseconds_are_cut_off():
    """A field of milliseconds cannot hold microseconds."""
    moment = {"type": "long", "logicalType": "timestamp-millis"}
    schema = {"type": "record", "name": "N", "fields": [{"name": "at", "type": moment}]}
    at = datetime(2026, 1, 1, microsecond=1_234, tzinfo=UTC)
    (message,) = messages(schema, pa.record_batch({"at": pa.array([at], pa.timestamp("us", "UTC"))}))
    (exact,) = messages(
        schema, pa.record_batch({"at": pa.array([at.replace(microsecond=1_000)], pa.timestamp("us", "UTC"))})
    )
    assert exact == message


# ------------------------------------------------------------------
# Tests which records a KafkaSink makes from rows, and what it refuses without a request to a broker.


ODD = pa.struct([("a", pa.int64()), ("b", pa.binary()), ("f", pa.float32())])
COLUMNS = {
    "n": (pa.int64(), [2**62 + 1, None], [2**62 + 1, None]),
    'odd "name': (pa.float64(), [1.5, math.inf], [1.5, "Infinity"]),
    "^n.*$": (pa.string(), ["a\tb\n\u2028é\0", None], ["a\tb\n\u2028é\0", None]),
    "paid": (pa.decimal128(10, 2), [Decimal("1.20"), None], ["1.20", None]),
    "at": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 2, 3, tzinfo=UTC), None], ["2026-01-02T03:00:00+00:00", None]),
    "local": (pa.timestamp("us"), [datetime(2026, 1, 2, 3, 4, 5, 6), None], ["2026-01-02 03:04:05.000006", None]),  # noqa: DTZ001
    "day": (pa.date32(), [date(2026, 1, 2), None], ["2026-01-02", None]),
    "raw": (pa.binary(), [b"\x00\xff", None], ["AP8=", None]),
    "tags": (pa.list_(pa.string()), [["x", None], []], [["x", None], []]),
    "shares": (
        pa.list_(pa.float64()),
        [[1.0, None], [-math.inf, math.nan, None]],
        [[1, None], ["-Infinity", "NaN", None]],
    ),
    "inner": (ODD, [{"a": 1, "b": b"x", "f": math.nan}, None], [{"a": 1, "b": "eA==", "f": "NaN"}, None]),
    "yes": (pa.bool_(), [True, None], [True, None]),
}


def made(columns, records):
    batch = pa.record_batch({name: pa.array(values, of) for name, (of, values, *_) in columns.items()})
    return [message for messages in records.of(batch) for message in messages]


def test_a_row_of_each_type_becomes_an_object():
    """Names and texts are escaped.

    Values for which JSON has no form become text: bytes, decimals, moments, NaN and infinities.
    """
    texts = [json.loads(message["value"]) for message in made(COLUMNS, Records("json", None))]
    expected = {name: said for name, (_, _, said) in COLUMNS.items()}
    assert expected == {name: [row[name] for row in texts] for name in COLUMNS}


@pytest.mark.parametrize(
    ("of", "values", "keys"),
    [
        (pa.string(), ["é", None], ["é", None]),
        (pa.binary(), [b"\xff", None], [b"\xff", None]),
        (pa.int64(), [-7, None], ["-7", None]),
    ],
)
def test_a_column_becomes_the_key(of, values, keys):
    """Texts and bytes stay as they are, and an integer becomes its digits. A null gives no key.

    The value has the column, too.
    """
    messages = made({"k": (of, values)}, Records("json", "k"))
    assert keys == [message["key"] for message in messages]
    assert ["k", "k"] == [*json.loads(messages[0]["value"]), *json.loads(messages[1]["value"])]


def test_raw_writes_the_column_value_as_it_is():
    """Other columns are not written, but may be the key. A null is a tombstone."""
    columns = {"value": (pa.binary(), [b"\x00\xff", None]), "k": (pa.int32(), [1, 2])}
    assert [{"value": b"\x00\xff", "key": "1"}, {"value": None, "key": "2"}] == made(columns, Records("raw", "k"))


def test_many_rows_become_records_in_their_order():
    """The records are made in parts of bounded size."""
    batch = pa.record_batch({"n": pa.array(range(RECORDS_MAX + 1), pa.int64())})
    parts = list(Records("json", "n").of(batch))
    assert [RECORDS_MAX, 1] == [len(part) for part in parts]
    assert [str(n) for n in range(RECORDS_MAX + 1)] == [message["key"] for part in parts for message in part]


def upserted(columns, by):
    """Return the keys of the records of an upsert table's rows. The records of their deletions have the same keys."""
    batch = pa.record_batch({name: pa.array(values, of) for name, (of, values) in columns.items()})
    made = [record for some in Records("json", None).upserted(batch, by) for record in some]
    gone = [record for some in deleted(pa.Table.from_batches([batch]), by) for record in some]
    assert [{"value": None, "key": record["key"]} for record in made] == gone
    assert all(json.loads(record["value"]).keys() == columns.keys() for record in made)
    return [record["key"] for record in made]


def test_the_keys_of_an_upsert_table_are_the_records_key():
    """A single key column of text, bytes or integers is written plainly.

    Other keys become an object, which may have nulls.
    """
    columns = {"n": (pa.int64(), [7, 8]), "k": (pa.string(), ["é", None]), "f": (pa.float64(), [1.5, math.nan])}
    assert ["7", "8"] == upserted(columns, ("n",))
    assert ['{"k":"é","n":7}', '{"k":null,"n":8}'] == upserted(columns, ("k", "n"))
    assert ['{"f":1.5}', '{"f":"NaN"}'] == upserted(columns, ("f",))
    with pytest.raises(SinkError, match=r"has no k, which is its key, and Kafka cannot replace a record without a key"):
        upserted(columns, ("k",))


def test_many_keys_that_are_gone_become_records_in_parts():
    """Each part has a bounded number of records, as for rows."""
    assert [RECORDS_MAX, 1] == [len(part) for part in tombstones([str(n) for n in range(RECORDS_MAX + 1)])]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (Records("raw", None), "a KafkaSink of an upsert table has no format 'raw'"),
        (Records("json", "n"), "the key of a KafkaSink is n, and those of the upsert table are k: leave out key="),
        (Records("json", None), "column t has type time64.us., which a KafkaSink cannot write as JSON"),
    ],
)
def test_upsert_tables_that_become_no_records_are_refused(records, said):
    """The sink refuses such a table before the tick begins. A `key=` that names the table's own key is allowed."""
    schema = pa.schema({"k": pa.string(), "n": pa.int64(), "value": pa.string(), "t": pa.time64("us")})
    with pytest.raises(SinkError, match=said):
        records.must_hold_keys(schema, ["k"])
    Records("json", "k").must_hold_keys(schema.remove(3), ["k"])


class Changes(TableChanges):
    """An upsert table of one key and one value, and what has changed since checkpoint 3."""

    keys = ("k",)

    def since(self, checkpoint):
        rows, gone = pa.table({"k": ["a"], "v": [2]}), pa.table({"k": ["b"]})
        return Difference(rows, gone) if checkpoint == 3 else None

    def whole(self):
        return pa.table({"k": ["a", "é"], "v": [2, 5]}).to_batches(max_chunksize=1)


@pytest.mark.parametrize(
    ("since", "there", "expected"),
    [
        (3, None, [("b", None), ("a", 2)]),
        (2, {"é", "b", "d"}, [("a", 2), ("é", 5), ("b", None), ("d", None)]),
        (0, set(), [("a", 2), ("é", 5)]),
    ],
)
def test_a_topic_gets_the_changes_or_the_whole_table(since, there, expected):
    """With changes, the topic is not read. With the whole table, all other keys in the topic are deleted."""

    def shown():
        return {key.encode() for key in there}

    limits = RecordLimits(client=1_000, topic=1_000, codec=None, is_compacted=True)
    upserted = UpsertedRecords(Records("json", None), Changes(), shown, Sorting("orders", limits, None, {}))
    found = [each for topic, some in upserted.since(since) for each in some if topic == "orders"]
    plain = [(each["key"], each["value"] and json.loads(each["value"])["v"]) for each in found]
    assert expected == [(key.decode() if isinstance(key, bytes) else key, value) for key, value in plain]


@pytest.mark.parametrize(
    ("records", "schema", "said"),
    [
        (Records("json", "k"), {"n": pa.int64()}, "no column 'k', the key of a KafkaSink: name one of n"),
        (Records("json", "k"), {"k": pa.float64()}, "column k is double, and the key of a KafkaSink must be text, by"),
        (Records("raw", None), {"n": pa.int64()}, "no column 'value', the value of a KafkaSink with format='raw'"),
        (Records("raw", None), {"value": pa.int64()}, "column value is int64, and .* must be text or bytes: cast"),
        (
            Records("json", None),
            {"m": pa.map_(pa.string(), pa.int64())},
            "column m has type map<.*cannot write as JSON",
        ),
        (Records("json", None), {"s": pa.struct({"t": pa.time64("us")})}, r"column s.t has type time64\[us\]"),
    ],
)
def test_columns_that_become_no_records_are_named(records, schema, said):
    """The sink refuses such columns before the tick begins."""
    with pytest.raises(SinkError, match=said):
        records.must_hold(pa.schema(schema))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "a/b"}, "'a/b' is no name of a Kafka topic"),
        ({"topic": ".."}, "is no name of a Kafka topic"),
        ({"topic": "t", "format": "xml"}, "has no format 'xml': write one of json, avro, json-schema, raw"),
        (
            {"topic": "t", "options": {"transactional.id": "x"}},
            "KafkaSink cannot set 'transactional.id': the sink sets",
        ),
        ({"topic": "t", "options": {"acks": "0"}}, "KafkaSink cannot set 'acks': the sink sets it itself"),
        ({"topic": "t", "options": {"kafka.acks": "0"}}, "KafkaSink cannot set 'kafka.acks': the sink sets it itself"),
        (
            {"topic": "t", "options": {"kafka.x": "0"}},
            "KafkaSink cannot set 'kafka.x': Spark does not write the record",
        ),
        (
            {"topic": "t", "options": {"sasl.password": "x"}},
            "options of a KafkaSink name 'sasl.password', and its value",
        ),
        (
            {"topic": "t", "options": {"transaction.timeout.ms": "1 h"}},
            "have 'transaction.timeout.ms'='1 h': write mill",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_refused_when_they_are_written(given, said):
    """The error is raised without a request to a broker."""
    with pytest.raises(SinkError, match=said):
        KafkaSink("k:1", **given)


def target(options=None, job="shop", table="out/orders", topic="orders"):
    settings = ClientSettings("k:1", options or {}, lambda: {"sasl.password": "s3cret"}, SINK)
    cluster = SimpleNamespace(settings=lambda topic: {"max.message.bytes": "5000"})
    return KafkaTarget(settings, cluster, topic, job, table)


def test_jobs_tables_and_topics_have_names_of_their_own():
    """The name is the transactional id and the consumer group.

    So two sinks neither shut each other out nor share a number.
    """
    targets = [target(), target(job="shop2"), target(table="out/orders2"), target(topic="orders2")]
    assert 4 == len({each.name for each in targets})
    assert "tidemark/shop/out/orders/orders" == target().name
    with pytest.raises(ValueError, match="does not match"):
        target(job="shop/out")


def test_the_producer_has_the_users_settings_but_for_what_makes_it_exact():
    """A record is given up before its transaction times out. The group's consumer gets the log-in.

    No secret is shown.
    """
    given = {"transaction.timeout.ms": "5000", "linger.ms": "1", "sasl.username": "me", "compression.type": "lz4"}
    producer, group = target(given).for_producer(), target(given).for_group()
    assert given.items() <= producer.items()
    assert ("5000", "s3cret") == (producer["message.timeout.ms"], producer["sasl.password"])
    assert "5000" == producer["batch.size"]
    assert ("900000", "60000") == tuple(
        target().for_producer()[name] for name in ("transaction.timeout.ms", "message.timeout.ms")
    )
    assert {"sasl.username", "sasl.password", "group.id"} <= set(group)
    assert not {"linger.ms", "transaction.timeout.ms"} & set(group)
    assert "s3cret" not in f"{producer} {group} {KafkaSink('k:1', 't', options=given)!r}"
