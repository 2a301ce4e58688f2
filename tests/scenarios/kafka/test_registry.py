"""Reads topics whose records have their schemas in a registry. Broker and registry are real. There is no Spark.

Confluent's own serializers write the records.
"""

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference

from jobs.operators.spec import arrow_schema
from jobs.sources.kafka.kafka_source import KafkaSource
from jobs.sources.port import SourceAwayError, SourceError, read_schema
from jobs.sources.protobuf.schemas import compiled, file_of
from jobs.sources.registry.client import SchemaRegistry
from jobs.sources.registry.json_schema import json_columns
from jobs.sources.registry.known_schema import KnownSchema
from tests.registry_server import Registry, guarded
from tests.scenarios.kafka import producers
from tests.scenarios.kafka.test_kafka_without_spark import ask, offsets
from tests.scenarios.kafka.topics import eventually
from tidemark import KafkaSink, SinkAwayError


def record(*fields, name="Order", space="shop"):
    return json.dumps({"type": "record", "name": name, "namespace": space, "fields": list(fields)})


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


FIRST = record(field("customer", "string"), field("amount", "int"))
SECOND = record(
    field("customer", "string"), field("amount", "int"), field("note", ["null", "string"], default=None)
)  # fmt: skip


def source_of(topic, registry, **more):
    given = registry if isinstance(registry, SchemaRegistry) else registry.url
    return KafkaSource(topic.servers, topic.name, registry=given, **{"format": "avro"} | more)


def rows(source, *pieces):
    """Return the rows of slices as a task reads them, each as a dictionary of its columns."""
    schema = arrow_schema(read_schema(source))
    found = [batch for scan in source.scans(pieces) for batch in scan.batches(schema)]
    return pa.Table.from_batches(found, schema).drop_columns(["_split", "_position"]).to_pylist()


def read(source, split, position=None):
    piece = eventually(lambda: ask(source, split, position))
    return rows(source, piece), piece


@pytest.fixture
def place(make_topic):
    topic = make_topic()
    return topic, f"{topic.name}-0"


LOGICAL = record(
    field("id", {"type": "string", "logicalType": "uuid"}),
    field("price", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]),
    field("day", {"type": "int", "logicalType": "date"}),
    field("ms", {"type": "long", "logicalType": "timestamp-millis"}),
    field("us", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    field("tags", {"type": "array", "items": "string"}),
    field("state", {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}),
)


def test_logical_types_of_avro_become_columns(place, registry):
    topic, split = place
    moment = datetime(2026, 1, 31, 12, 0, 0, 123_000, UTC)
    row = {"id": "7d0c8a4a-3f0e-4f6e-9a3c-2b6b3f1f6a55", "price": Decimal("12.50"), "day": date(2026, 1, 31)}
    row |= {"ms": moment, "us": moment, "tags": ["a", "b"], "state": "DONE"}
    producers.avro(registry, topic, LOGICAL, [row])
    source = source_of(topic, registry)
    assert source.schema().simpleString() == (
        "struct<id:string,price:decimal(9,2),day:date,ms:timestamp,us:timestamp,tags:array<string>,state:string,"
        "_undecoded:binary>"
    )
    assert read(source, split)[0] == [{**row, "_undecoded": None}]


def test_a_schema_that_refers_to_others_is_read_whole(place, registry):
    """The registry returns only the names of the other schemas. One of these refers to a third schema."""
    topic, split = place
    client = producers.client(registry)
    money = record(field("cents", "long"), name=f"Money{topic.name.replace('-', '')}")
    name = json.loads(money)["name"]
    client.register_schema(f"{topic.name}-money", Schema(money, "AVRO"))
    line = record(field("price", f"shop.{name}"), field("again", ["null", f"shop.{name}"]), name="Line")
    of_money = SchemaReference(f"shop.{name}", f"{topic.name}-money", 1)
    client.register_schema(f"{topic.name}-line", Schema(line, "AVRO", [of_money]))
    order = record(field("line", "Line"), field("id", "int"))
    producers.avro(
        registry, topic, order, [{"line": {"price": {"cents": 5}, "again": {"cents": 6}}, "id": 1}],
        references=[of_money, SchemaReference("shop.Line", f"{topic.name}-line", 1)],
    )  # fmt: skip
    found, _ = read(source_of(topic, registry), split)
    assert found == [{"line": {"price": {"cents": 5}, "again": {"cents": 6}}, "id": 1, "_undecoded": None}]


@pytest.mark.parametrize("strategy", ["record", "topic-record"])
def test_one_record_is_read_from_a_topic_of_several_kinds(place, registry, strategy):
    topic, split = place
    space = topic.name.replace("-", "_")
    order, refund = (record(field(name, "int"), name=name.title(), space=space) for name in ("order", "refund"))
    producers.avro(registry, topic, order, [{"order": 1}], strategy)
    producers.avro(registry, topic, refund, [{"refund": 2}], strategy)
    topic.write([b"no avro"])
    producers.avro(registry, topic, order, [{"order": 3}], strategy)
    source = source_of(topic, registry, subject=strategy, record=f"{space}.Order")
    assert read(source, split)[0] == [
        {"order": 1, "_undecoded": None}, {"order": None, "_undecoded": b"no avro"}, {"order": 3, "_undecoded": None},
    ]  # fmt: skip


def test_a_later_version_waits_for_the_tick_that_has_its_columns(place, registry):
    """That tick reads records of both versions together."""
    topic, split = place
    producers.avro(registry, topic, FIRST, [{"customer": "a", "amount": 1}])
    source = source_of(topic, registry)
    assert ["customer", "amount", "_undecoded"] == source.schema().names
    producers.avro(registry, topic, SECOND, [{"customer": "b", "amount": 2, "note": "gift"}])
    piece = ask(source, split)
    assert (0, 1) == offsets(piece)
    assert None is ask(source, split, piece.end)
    later = source_of(topic, registry)
    assert ["customer", "amount", "note", "_undecoded"] == later.schema().names
    found, _ = read(later, split)
    assert [(each["amount"], each["note"]) for each in found] == [(1, None), (2, "gift")]


def test_with_declared_columns_another_field_is_refused_or_not_read(place, registry):
    topic, split = place
    producers.avro(registry, topic, FIRST, [{"customer": "a", "amount": 1}])
    producers.avro(registry, topic, SECOND, [{"customer": "b", "amount": 2, "note": "gift"}])
    declared = record(field("customer", "string"), field("amount", "long"), field("rate", "double", default=0.5))
    with pytest.raises(SourceError, match=r"offset 1 has schema \d+ of the registry, with the field 'note'.*ignore"):
        ask(source_of(topic, registry, schema=declared), split)
    found, _ = read(source_of(topic, registry, schema=declared, columns="ignore"), split)
    assert [(each["amount"], each["rate"]) for each in found] == [(1, 0.5), (2, 0.5)]
    other = record(field("customer", "string"), field("amount", {"type": "long", "logicalType": "timestamp-millis"}))
    with pytest.raises(SourceError, match="field 'amount' is int, and the column is timestamp"):
        ask(source_of(topic, registry, schema=other), split)
    found, _ = read(source_of(topic, registry, schema=other, columns="ignore"), split)
    assert [True, True] == [each["_undecoded"] is not None for each in found]


def test_what_a_slice_holds_can_be_read_without_the_registry(place, tmp_path):
    """The next tick polls and builds from the schemas in the checkpoint's state and in the folder that keeps them."""
    topic, split = place
    registry = Registry(tmp_path / "registry")
    registry.start()
    try:
        producers.avro(registry, topic, FIRST, [{"customer": "a", "amount": 1}])
        source = source_of(topic, registry)
        expected, piece = read(source, split)
        state = source.snapshot_state()
        kept = SchemaRegistry(registry.url, kept=tmp_path / "kept")
        assert expected == read(source_of(topic, kept), split)[0]
        topic.write([producers.avro(registry, topic, SECOND, [{"customer": "b", "amount": 2, "note": "x"}])[0]])
    finally:
        registry.kill()
    assert expected == rows(source, piece)
    declared = source_of(topic, registry, schema=FIRST)
    declared.restore_state(1, state)
    one = declared.poll(ask_of(split, 1))
    assert expected == rows(declared, one)
    kept = SchemaRegistry(registry.url, kept=tmp_path / "kept")
    again = source_of(topic, kept)
    assert expected == rows(again, again.poll(ask_of(split, 1)))
    with pytest.raises(SourceAwayError, match=r"does not answer, and schema .* is not known yet: start it"):
        ask(again, split)
    with pytest.raises(SourceAwayError, match="does not answer, and subject"):
        source_of(topic, registry).schema()


def ask_of(split, rows):
    from checkpointing.identifiers import SplitId, VertexId
    from checkpointing.messages import PollSource

    return PollSource(VertexId("orders"), SplitId(split), None, rows)


def test_a_schema_that_was_deleted_is_an_error_that_says_how_to_go_on(place, registry):
    """A source that has read the schema before reads on."""
    topic, split = place
    producers.avro(registry, topic, FIRST, [{"customer": topic.name, "amount": 1}])
    source = source_of(topic, registry, schema=FIRST)
    expected, piece = read(source, split)
    topic.write([b"\0\xee\xee\xee\xee\x02a\x02"])
    way_out = rf"no schema 4008636142, which .*offset 1 has.*reset PIPELINE orders --split {split} --to 2"
    with pytest.raises(SourceError, match=way_out):
        eventually(lambda: ask(source, split, piece.end))
    client = producers.client(registry)
    client.delete_subject(f"{topic.name}-value")
    client.delete_subject(f"{topic.name}-value", permanent=True)
    assert expected == rows(source, source.poll(ask_of(split, 1)))
    with pytest.raises(SourceError, match=f"no subject {topic.name}-value: let the producer register"):
        source_of(topic, registry).schema()


def test_a_log_in_comes_from_the_environment_and_is_shown_nowhere(place, registry, monkeypatch):
    topic, split = place
    producers.avro(registry, topic, FIRST, [{"customer": "a", "amount": 1}])
    login = "reader:s3cret-of-a-registry"
    with guarded(registry.url, "Basic " + base64.b64encode(login.encode()).decode()) as (url, tried):
        monkeypatch.setenv("REGISTRY_LOGIN", login)
        given = SchemaRegistry(url, secrets={"basic.auth.user.info": "REGISTRY_LOGIN"})
        source = source_of(topic, given)
        found, piece = read(source, split)
        assert [1] == [each["amount"] for each in found]
        assert tried
        assert "s3cret" not in piece.detail + source.snapshot_state() + repr(given)
        monkeypatch.setenv("REGISTRY_LOGIN", "reader:wr0ng")
        with pytest.raises(SourceError, match="refused the log-in: correct the secrets") as refused:
            source_of(topic, given_anew(url)).schema()
        assert "wr0ng" not in str(refused.value)


def given_anew(url):
    return SchemaRegistry(url, secrets={"basic.auth.user.info": "REGISTRY_LOGIN"})


JSON = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "price": {"type": ["null", "number"]},
    },
}


def test_records_of_a_json_schema_are_read_by_tasks_without_their_heads(place, registry):
    """A task leaves records of which it is not sure to Spark. A scenario on Spark reads these."""
    topic, split = place
    producers.in_json(registry, topic, json.dumps(JSON), [{"id": 1, "at": "2026-01-31T12:00:00Z", "note": None}])
    source = source_of(topic, registry, format="json-schema")
    assert "struct<id:bigint,at:timestamp,note:string,price:double,_undecoded:binary>" == source.schema().simpleString()
    moment = datetime(2026, 1, 31, 12, 0, 0, 0, UTC)
    assert read(source, split)[0] == [{"id": 1, "at": moment, "note": None, "price": None, "_undecoded": None}]
    with pytest.raises(SourceError, match=r"is JSON, and the source reads avro: write another format="):
        source_of(topic, registry).schema()


def test_parts_of_a_json_schema_become_types():
    def columns(schema, *others):
        known = KnownSchema(number=1, kind="JSON", text=json.dumps(schema), references=others)
        return json_columns(known)[1].simpleString()

    price = ("price.json", json.dumps({"$defs": {"p": {"type": "number", "connect.type": "float32"}}}))
    inner = {"type": "object", "properties": {"n": {"$ref": "#/definitions/n"}, "p": {"$ref": "price.json#/$defs/p"}}}
    schema = {"type": "object", "definitions": {"n": {"type": "integer", "connect.type": "int32"}}}
    schema["properties"] = {
        "inner": inner, "tags": {"type": "array", "items": {"type": "string"}}, "free": {},
        "rates": {"type": "object", "additionalProperties": {"type": "number"}},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    }  # fmt: skip
    assert columns(schema, price) == (
        "struct<inner:struct<n:int,p:float>,tags:array<string>,free:string,rates:map<string,double>,either:string>"
    )
    itself = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    with pytest.raises(SourceError, match="lies inside itself"):
        columns(itself)


OUT = pa.table({"customer": ["a", "b"], "amount": pa.array([1, 2], pa.int32())})


@pytest.mark.parametrize(
    ("subject", "named"),
    [("topic", "{}-value"), ("record", "shop.Order"), ("topic-record", "{}-shop.Order")],
)
def test_a_sink_registers_its_schema_and_writes_each_row_once(place, registry, subject, named):
    """A source reads the rows back, and so does every reader of Confluent's wire format."""
    topic, split = place
    sink = KafkaSink(topic.servers, topic.name, schema=FIRST, format="avro", registry=registry.url, subject=subject)
    assert 0 == sink.prepare("job", "out/orders", OUT.schema)
    for _ in range(2):
        sink.publish("job", "out/orders", 1, OUT.to_batches())
    assert named.format(topic.name) in producers.client(registry).get_subjects()
    found, _ = read(source_of(topic, registry, schema=FIRST), split)
    assert [("a", 1), ("b", 2)] == [(row["customer"], row["amount"]) for row in found]
    other = KafkaSink(topic.servers, topic.name, schema=FIRST, format="avro", registry=registry.url, subject=subject)
    assert 1 == other.prepare("job", "out/orders", OUT.schema)
    other.publish("job", "out/orders", 1, OUT.to_batches())
    assert 2 == len(read(source_of(topic, registry, schema=FIRST), split)[0])


def test_a_sink_writes_json_behind_the_number_of_its_schema(place, registry):
    topic, split = place
    schema = {"title": "Order", "type": "object", "properties": {
        "customer": {"type": "string"}, "amount": {"type": "integer"},
    }}  # fmt: skip
    sink = KafkaSink(topic.servers, topic.name, schema=schema, format="json-schema", registry=registry.url)
    sink.prepare("job", "out/orders", OUT.schema)
    sink.publish("job", "out/orders", 1, OUT.to_batches())
    found, _ = read(source_of(topic, registry, format="json-schema"), split)
    assert [("a", 1), ("b", 2)] == [(row["customer"], row["amount"]) for row in found]


def test_a_sink_without_its_registry_begins_nothing(place):
    topic, _ = place
    sink = KafkaSink(topic.servers, topic.name, schema=FIRST, format="avro", registry="http://127.0.0.1:9/none")
    with pytest.raises(SinkAwayError, match=r"the schema registry at .* does not answer"):
        sink.prepare("job", "out/orders", OUT.schema)


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum State { NEW = 0; DONE = 1; }
message Refund { int32 order = 1; }
message Order {
  message Line { string item = 1; uint64 count = 2; }
  string customer = 1;
  int64 amount = 2;
  google.protobuf.Timestamp at = 3;
  google.protobuf.StringValue note = 4;
  optional double rate = 5;
  repeated Line lines = 6;
  map<string, int32> sizes = 7;
  State state = 8;
  oneof paid { int32 cents = 9; bytes coupon = 10; }
  SUFFIX
}
"""


def message_classes(text):
    """Return a dict from the name of each message of a Protobuf schema to its class."""
    from google.protobuf.message_factory import GetMessageClass

    file = file_of(compiled(KnownSchema(number=abs(hash(text)) % 10_000, kind="PROTOBUF", text=text)), "the test's")
    return {name: GetMessageClass(each) for name, each in file.message_types_by_name.items()}


def test_messages_of_protobuf_are_read_by_name_and_get_later_fields(place, registry):
    """Messages of another kind stay undecoded here. A source that reads the other kind decodes them."""
    topic, split = place
    first, second = PROTO.replace("SUFFIX", ""), PROTO.replace("SUFFIX", "optional int32 late = 11;")
    moment = datetime(2026, 1, 31, 12, 0, 0, 5, UTC)
    order, refund = message_classes(first)["Order"], message_classes(first)["Refund"]
    one = order(customer="a", amount=7, lines=[{"item": "x", "count": 2**63}], sizes={"s": 3}, state=1, cents=5)
    one.at.FromDatetime(moment)
    one.note.value = "gift"
    subject = f"{topic.name}-value"
    number = producers.client(registry).register_schema(subject, Schema(first, "PROTOBUF"))
    later = producers.client(registry).register_schema(subject, Schema(second, "PROTOBUF"))

    def framed(schema, index, message):
        return b"\0" + schema.to_bytes(4) + bytes([2, index * 2]) + message.SerializeToString()

    topic.write([framed(number, 1, one), framed(number, 0, refund(order=1)), framed(number, 1, order()), b"\0\0"])
    source = source_of(topic, registry, format="protobuf", record="shop.Order")
    assert (
        "struct<customer:string,amount:bigint,at:timestamp,note:string,rate:double,"
        "lines:array<struct<item:string,count:decimal(20,0)>>,sizes:map<string,int>,state:string,cents:int,"
        "coupon:binary,late:int,_undecoded:binary>"
    ) == source.schema().simpleString()
    topic.write([framed(later, 1, message_classes(second)["Order"](customer="b", late=9))])
    found, _ = read(source, split)
    assert found[0] == {
        "customer": "a", "amount": 7, "at": moment, "note": "gift", "rate": None,
        "lines": [{"item": "x", "count": Decimal(2**63)}], "sizes": [("s", 3)], "state": "DONE", "cents": 5,
        "coupon": None, "late": None, "_undecoded": None,
    }  # fmt: skip
    assert [("a", None), (None, None), ("", None), (None, None), ("b", 9)] == [
        (row["customer"], row["late"]) for row in found
    ]
    assert [False, True, False, True, False] == [row["_undecoded"] is not None for row in found]
    refunds, _ = read(source_of(topic, registry, format="protobuf"), split)
    assert 1 == refunds[1]["order"]
    producers.messages(registry, topic, one)
    assert "a" == read(source_of(topic, registry, format="protobuf", record="shop.Order"), split)[0][5]["customer"]
