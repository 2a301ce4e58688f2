"""Tests a KafkaSource's arguments: settings of clients, secrets, schemas, names of splits, immediate refusals."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType
from rich.pretty import pretty_repr

from checkpointing.identifiers import SplitId
from jobs.sources.avro.schemas import AvroTypeError, column_types, written_out
from jobs.sources.debezium.columns import Encodings
from jobs.sources.kafka.client_settings import ClientSettings
from jobs.sources.kafka.kafka_source import KafkaSource
from jobs.sources.kafka.position import (
    KafkaPosition,
    OffsetRange,
    PlacedRange,
    TopicPartition,
    joined,
    place_of,
    split_of,
)
from jobs.sources.kafka.readers import _timestamps
from jobs.sources.kafka.records import record_form
from jobs.sources.kafka.transactions import DebeziumTransactions
from jobs.sources.port import UNDECODED_COLUMN, SourceError
from jobs.sources.protobuf.schemas import compiled
from jobs.sources.registry.client import SchemaRegistry
from jobs.sources.registry.known_schema import KnownSchema
from tests.avro_types import FIELDS, READ, RECORD, encoded
from tests.avro_types import SCHEMA as SCHEMA_OF_AVRO

SCHEMA = StructType().add("customer", StringType()).add("amount", LongType())


def test_both_clients_get_the_same_log_in_under_their_own_names():
    """Java's client takes user and password as one text, with quotation marks escaped."""
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "me"}
    settings = ClientSettings("k:1", given, lambda: {"sasl.password": 'a"b\\c'})
    assert given | {"bootstrap.servers": "k:1", "sasl.password": 'a"b\\c'} == dict(settings.for_librdkafka())
    spark = settings.for_spark()
    login = 'required username="me" password="a\\"b\\\\c";'
    assert f"org.apache.kafka.common.security.scram.ScramLoginModule {login}" == spark["kafka.sasl.jaas.config"]
    assert {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512"}.items() <= spark.items()
    assert not {"kafka.sasl.username", "kafka.sasl.password"} & set(spark)


def test_certificates_become_what_javas_client_reads(tmp_path):
    """Java's client takes PEM as text. A setting that begins with `kafka.` is only for Spark."""
    (tmp_path / "ca.pem").write_text("the authority")
    given = {"ssl.ca.location": str(tmp_path / "ca.pem"), "kafka.max.poll.records": "5", "client.id": "shop"}
    settings = ClientSettings("k:1", given, None)
    assert {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "the authority",
        "kafka.max.poll.records": "5",
        "kafka.client.id": "shop",
        "kafka.bootstrap.servers": "k:1",
    } == dict(settings.for_spark())
    assert "kafka.max.poll.records" not in settings.for_librdkafka()
    with pytest.raises(SourceError, match=r"nowhere\.pem, which 'ssl\.ca\.location' names, cannot be read"):
        ClientSettings("k:1", {"ssl.ca.location": "nowhere.pem"}, None).for_spark()


def test_a_traceback_that_shows_variables_shows_no_secret():
    """Logs print tracebacks with Rich, which shows the content of dicts."""
    settings = ClientSettings("k:1", {"sasl.username": "me"}, lambda: {"sasl.password": "abcdef"})
    for given in (settings.for_spark(), settings.for_librdkafka(), settings):
        assert "abcdef" not in pretty_repr(given) + str(given)


@pytest.mark.parametrize("name", ["sasl.password", "kafka.sasl.jaas.config", "ssl.key.pem", "ssl.key.password"])
def test_a_plain_text_secret_is_refused(name):
    """The secret would be in the pipeline's code. The message says where the secret belongs."""
    with pytest.raises(SourceError, match=r"its value would be in the open: name an environment variable"):
        ClientSettings("k:1", {name: "x"}, None)


@pytest.mark.parametrize("name", ["group.id", "kafka.isolation.level", "bootstrap.servers"])
def test_settings_that_the_source_makes_itself_are_refused(name):
    """With another isolation level, the source would read aborted records."""
    with pytest.raises(SourceError, match="the source sets it itself"):
        ClientSettings("k:1", {name: "x"}, None)


def test_a_message_never_repeats_a_secret():
    """The longest secret is replaced first, so that no part of a secret is left."""
    settings = ClientSettings("k:1", {}, lambda: {"sasl.password": "abc", "ssl.key.password": "abcdef"})
    assert "bad *** and ***" == settings.without_secrets("bad abcdef and abc")


@pytest.mark.parametrize(
    ("place", "split"),
    [
        (("orders", 3), "orders-3"),
        (("eu.orders-v2", 0), "eu.orders-v2-0"),
        (("_odd", 1), "t=_odd-1"),
        ((".dot-7", 12), "t=.dot-7-12"),
    ],
)
def test_a_split_names_its_kafka_partition(place, split):
    """The partition can be read back from the split's name, for every topic name that Kafka allows."""
    assert split == split_of(TopicPartition(*place))
    assert place == place_of(SplitId(split))


def test_a_topic_name_that_is_too_long_and_a_foreign_split_are_refused():
    with pytest.raises(SourceError, match="its name has 200 characters"):
        split_of(TopicPartition("x" * 200, 0))
    with pytest.raises(SourceError, match="no partition of a topic"):
        place_of(SplitId("berlin"))
    with pytest.raises(SourceError, match="no position of Kafka: give the new source an id of its own"):
        KafkaPosition.parse("17")


def test_adjoining_ranges_are_joined_and_empty_ones_dropped():
    """So one micro-batch reads a Kafka partition once."""
    made = [
        PlacedRange(TopicPartition(topic, 0), OffsetRange(topic_id="i", first=first, end=end))
        for topic, first, end in [("b", 5, 9), ("a", 3, 4), ("a", 0, 3), ("a", 7, 8), ("c", 2, 2)]
    ]
    shown = [(one.place.topic, one.range.first, one.range.end) for one in joined(made)]
    assert [("a", 0, 4), ("a", 7, 8), ("b", 5, 9)] == shown


BANK = DebeziumTransactions("bank.transaction")
EVENTS = {"topics": "bank.public.giro", "schema": "id int", "format": "debezium-json"}
MAPS = StructType().add("m", ArrayType(MapType(LongType(), LongType())))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "either topics or the topics of a pattern"),
        ({"topics": "a", "pattern": "b"}, "either topics or the topics of a pattern"),
        ({"topics": "a"}, "format='json' needs schema="),
        ({"topics": "a", "format": "raw", "schema": SCHEMA}, "has the column 'value' alone"),
        ({"topics": "a", "format": "xml", "schema": SCHEMA}, "no format 'xml': write one of json, avro, raw"),
        ({"topics": "a", "schema": SCHEMA, "metadata": ["offset"]}, "no metadata 'offset': write some of key"),
        ({"topics": "a", "schema": StructType().add("_key", LongType())}, "a column '_key', a name that is taken"),
        ({"topics": "a", "schema": MAPS}, "column 'm' of a KafkaSource has a map whose keys are no texts"),
        ({"topics": "a", "schema": SCHEMA, "transactions": BANK}, "format='json' has no transactions="),
        (
            {**EVENTS, "transactions": BANK, "bounded": True},
            "it is bounded: where its partitions end now, a transaction",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_refused_when_they_are_written(given, said):
    """The error is raised without a request to a broker."""
    with pytest.raises(SourceError, match=said):
        KafkaSource("k:1", **given)


def test_a_pipeline_without_kafka_imports_nothing_of_it():
    """With Kafka, the error for a missing library names the extra that installs it."""
    program = (
        "import sys; sys.modules['confluent_kafka'] = None; import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'confluent_kafka' else real(name, *more)\n"
        "from tidemark import FileSource, Pipeline, SequenceSource\n"
        "assert not any(name.startswith('jobs.sources.kafka') for name in sys.modules)\n"
        "try: from tidemark import KafkaSource\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "confluent_kafka is not installed: pip install 'tidemark-spark[kafka]'" in done.stdout, done.stderr


# ------------------------------------------------------------------
# The times of Kafka's records, as tasks read them.


@dataclass
class Record:
    """A record with a time."""

    ms: int

    def timestamp(self):
        return 1, self.ms

    def topic(self):
        return "orders"

    def partition(self):
        return 3

    def offset(self):
        return 17


def test_a_time_in_microseconds_is_far_away_and_one_in_nanoseconds_names_its_record():
    """Spark's type can hold the time in microseconds. It cannot hold the other one, and the error names the record."""
    assert [1721054790123456 * 1000] == _timestamps([Record(1721054790123456)]).view("int64").to_pylist()
    for ms in (1721054790123456789, -(2**63)):
        with pytest.raises(SourceError, match=re.escape("topic orders, partition 3, offset 17: the record's time")):
            _timestamps([Record(0), Record(ms)])


# ------------------------------------------------------------------
# Tests Avro's types, and the decoding of single records without Spark.


ORDER = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}, {"name": "who", "type": "string"}]}
ORDER_2 = {**ORDER, "fields": [*ORDER["fields"], {"name": "tag", "type": ["null", "string"], "default": None}]}


def record(avro):
    return {"type": "record", "name": "One", "fields": [{"name": "f", "type": avro}]}


def decoded(values, schema, **given):
    form = record_form("avro", schema, (), **given)
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "_position": list(range(len(values)))})
    (found,) = form.decoder.run(iter([batch]))
    return found.to_pylist()


def test_each_type_becomes_one_of_spark():
    """The table in the module's docstring lists these types."""
    types = {name: each.spark.simpleString() for name, each in column_types(written_out(SCHEMA_OF_AVRO, "it")).items()}
    assert {name: spark for name, _, _, spark, _ in FIELDS} == types
    assert list(types) == record_form("avro", json.dumps(SCHEMA_OF_AVRO), ()).value.names


def test_each_value_is_decoded():
    """Logical types may be at any depth."""
    (row,) = decoded([encoded(SCHEMA_OF_AVRO, RECORD)], SCHEMA_OF_AVRO)
    assert row.pop("map") == [("a", 1)]
    assert {name: value for name, value in READ.items() if name != "map"} == {
        name: row[name] for name in row if name in READ
    }
    assert (0, None) == (row["_position"], row[UNDECODED_COLUMN])


@pytest.mark.parametrize(
    ("avro", "said"),
    [
        ("null", "field f is always null"),
        (["int", "string"], "field f is a union of 2 types besides null"),
        (["null"], "field f is a union of 0 types besides null"),
        ({"type": "array", "items": ["int", "long"]}, r"field f\[\] is a union"),
        ({"type": "record", "name": "Empty", "fields": []}, "field f is a record without fields"),
        (
            {"type": "record", "name": "Tree", "fields": [{"name": "up", "type": ["null", "Tree"]}]},
            "field f.up is a Tree",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0}, r"field f is a decimal\(39, 0\)"),
    ],
)
def test_a_type_that_spark_does_not_have_is_refused_by_name(avro, said):
    """The message names the field, before any record is read."""
    (found,) = column_types(written_out(record(avro), "it")).values()
    assert isinstance(found, AvroTypeError)
    with pytest.raises(SourceError, match=f"cannot be read into columns: {said}.*format='raw'"):
        record_form("avro", record(avro), ())


def test_bytes_that_are_no_record_are_kept():
    """Such bytes are too short or too long, or have invalid or too large values. A null value is no error."""
    good = encoded(ORDER, {"n": 1, "who": "a"})
    wide = encoded({**ORDER, "fields": [{"name": "n", "type": "long"}, ORDER["fields"][1]]}, {"n": 2**40, "who": "a"})
    bad = [b"", good[:-1], good + b"\0", b"\x02\x02\xff", wide, b"\xff" * 12]
    rows = decoded([good, None, *bad, good], ORDER)
    assert [1, None, *[None] * len(bad), 1] == [row["n"] for row in rows]
    assert [None, None, *bad, None] == [row[UNDECODED_COLUMN] for row in rows]


def test_confluents_wire_format_names_the_schema_of_each_record():
    """A record is decoded with the schema with which it was written. If the number is unknown, the bytes are kept."""
    first = b"\0\0\0\0\x07" + encoded(ORDER, {"n": 1, "who": "a"})
    second = b"\0\0\0\0\x09" + encoded(ORDER_2, {"n": 2, "who": "b", "tag": "t"})
    bad = [b"\0\0\0\0\x08" + first[5:], b"\x01" + first[1:], b"\0\0\0", first[5:]]
    rows = decoded([first, second, *bad], ORDER_2, writers={7: ORDER, 9: ORDER_2})
    assert [(1, "a", None), (2, "b", "t")] == [(row["n"], row["who"], row["tag"]) for row in rows[:2]]
    assert [None, None, *bad] == [row[UNDECODED_COLUMN] for row in rows]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("avro", None, ()), "needs schema=, the Avro schema"),
        (("avro", "{", ()), "is no JSON"),
        (("avro", {"type": "record"}, ()), "is no Avro schema"),
        (("avro", "string", ()), "is no JSON"),
        (("avro", '"string"', ()), "it describes no record"),
        (("avro", {**ORDER, "fields": []}, ()), "its record has no fields"),
        (("avro", ORDER, (), {1: "x"}), "schema 1 of a KafkaSource is no JSON"),
        (("raw", None, (), {1: ORDER}), "has no writer_schemas: they are for format='avro'"),
    ],
)
def test_unusable_schemas_are_refused_in_the_pipeline_code(given, said):
    with pytest.raises(SourceError, match=said):
        record_form(*given)


# ------------------------------------------------------------------
# What a source refuses about a schema registry, without a request to one.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "json", "schema": SCHEMA}, "format='json' has no registry"),
        ({"format": "avro", "columns": "fail"}, "columns='fail' needs schema="),
        ({"format": "avro", "schema": ORDER, "columns": "evolve"}, "columns='evolve' has no schema="),
        ({"format": "avro", "subject": "record"}, "needs record=, as in record='shop.Order'"),
        ({"format": "avro", "subject": "name"}, "write one of 'topic', 'record', 'topic-record'"),
        ({"format": "avro", "writer_schemas": {}}, "a registry, or writer_schemas"),
        ({"format": "avro", "encodings": Encodings()}, "has no encodings="),
        ({"format": "avro", "metadata": ["offset"]}, "no metadata 'offset'"),
    ],
)
def test_arguments_of_a_registry_that_do_not_fit_are_refused_when_they_are_written(given, said):
    with pytest.raises(SourceError, match=said):
        KafkaSource("k:1", "a", registry="http://r:1", **given)


@pytest.mark.parametrize(
    ("url", "given", "said"),
    [
        ("registry:8081", {}, "is no URL of a schema registry"),
        ("http://me:s3cret@r:1", {}, "password in the open: take it out"),
        ("http://r:1", {"options": {"basic.auth.user.info": "me:s3cret"}}, "its value would be in the open"),
        ("http://r:1", {"options": {"url": "http://other"}}, "cannot set 'url'"),
    ],
)
def test_a_registry_is_refused_without_showing_its_secret(url, given, said):
    with pytest.raises(SourceError, match=said) as refused:
        SchemaRegistry(url, **given)
    assert "s3cret" not in str(refused.value)


def test_a_missing_library_is_named_by_its_extra(monkeypatch):
    monkeypatch.setattr("jobs.sources.registry.client.find_spec", lambda name: None if name == "authlib" else name)
    with pytest.raises(SourceError, match=r"pip install 'tidemark-spark\[registry\]'"):
        KafkaSource("k:1", "a", format="avro", registry="http://r:1").schema()
    monkeypatch.setattr("jobs.sources.protobuf.schemas.find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"pip install 'tidemark-spark\[protobuf\]'"):
        compiled(KnownSchema(number=1, kind="PROTOBUF", text="message A {}"))


def test_sources_of_two_kafkas_have_no_common_transactions():
    """The refusal names both Kafkas."""
    bank = DebeziumTransactions("bank.transaction")
    KafkaSource("k:1", **EVENTS, transactions=bank)
    with pytest.raises(SourceError, match="read Kafka at k:2 and at k:1"):
        KafkaSource("k:2", **EVENTS, transactions=bank)
