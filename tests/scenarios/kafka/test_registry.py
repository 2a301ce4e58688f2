"""Reads topics whose records have their schemas in a registry: a real broker, a real registry, and no Spark.

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
from jobs.sources.registry.client import SchemaRegistry
from tests.registry_server import Registry, guarded
from tests.scenarios.kafka import producers
from tests.scenarios.kafka.test_kafka_without_spark import ask, offsets


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
    """Return the rows of slices as a task reads them, by their columns."""
    schema = arrow_schema(read_schema(source))
    found = [batch for scan in source.scans(pieces) for batch in scan.batches(schema)]
    return pa.Table.from_batches(found, schema).drop_columns(["_split", "_position"]).to_pylist()


def read(source, split, position=None):
    piece = ask(source, split, position)
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
    """The registry gives only the names of the other schemas. One of them refers to a third."""
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
    """Its records and older ones are then read together."""
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
    """The state of a checkpoint, and a folder that keeps the schemas, let the next tick poll and build without it."""
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
    """A source that has seen it reads on."""
    topic, split = place
    producers.avro(registry, topic, FIRST, [{"customer": topic.name, "amount": 1}])
    source = source_of(topic, registry, schema=FIRST)
    expected, _ = read(source, split)
    topic.write([b"\0\xee\xee\xee\xee\x02a\x02"])
    with pytest.raises(SourceError, match=rf"no schema 4008636142, which .*offset 1 has.*--split {split} --to 2"):
        ask(source, split)
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
