"""Reads Debezium's events from topics into tables, with a real broker, a real registry, real tables, killed ticks."""

import json

import pyarrow as pa
import pytest
from confluent_kafka.serialization import MessageField, SerializationContext

from jobs.operators.spec import arrow_schema
from jobs.sources.port import read_schema
from jobs.sources.slice_reading import LeftToSparkError
from tests.scenarios.kafka import producers
from tests.scenarios.kafka.test_kafka_without_spark import ask
from tidemark import Encodings, KafkaSource
from tidemark.testing import Trial

pytestmark = pytest.mark.spark

SOURCE = {"connector": "mysql", "db": "bank", "table": "giro", "ts_ms": 5, "file": "bin.000001", "snapshot": "false"}


@pytest.fixture
def trial(tmp_path, spark):
    def made(**told) -> Trial:
        made = Trial("tests.scenarios.kafka.bank_job:build", tmp_path)
        made.data.mkdir(exist_ok=True)
        (made.data / "kafka.json").write_text(json.dumps(told))
        return made

    return made


def change(op, pos, before=None, after=None):
    return {"before": before, "after": after, "source": SOURCE | {"pos": pos}, "op": op, "ts_ms": 1}


def row(number, balance):
    return {"id": number, "balance": f"{balance}.00"}


def script():
    """Yield the changes of five accounts: a snapshot, updates, a delete with its tombstone, and a key that changes."""
    yield from (change("r", 1, after=row(number, 100)) for number in range(5))
    for step in range(20):
        number = step % 4
        yield change("u", 10 + step, row(number, 100 + step // 4), row(number, 101 + step // 4))
    yield change("d", 40, row(0, 105))
    yield None
    yield change("d", 41, row(4, 100))
    yield None
    yield change("c", 41, after=row(9, 100))


ACCOUNTS = [(1, 105), (2, 105), (3, 105), (9, 100)]


def accounts(cut):
    found = cut.polars("silver/accounts").collect()
    assert found.columns == ["id", "balance"]
    return sorted((number, int(balance)) for number, balance in found.rows())


def test_json_events_make_the_table_and_its_versions_though_a_tick_is_killed(make_topic, trial):
    """A truncate empties the table. A record that is not an event goes to the quarantine."""
    topic = make_topic()
    told = {"format": "debezium-json", "schema": "id int, balance decimal(12,2)", "every_rows": 10}
    job = trial(servers=topic.servers, topics=topic.name, **told)
    values = [event and json.dumps({"schema": BLOCK, "payload": event}) for event in script()]
    topic.write(values[:12])
    job.kill("after:AppendRow#1", slice_rows_max=5)
    topic.write(values[12:])
    topic.write(["no event"])
    cut = job.run(slice_rows_max=5)
    assert ACCOUNTS == accounts(cut)
    bronze = cut.polars("bronze/giro").collect().sort("_position")
    kinds = dict(bronze["_kind"].value_counts().iter_rows())
    assert {"snapshot": 5, "update_before": 20, "update_after": 20, "delete": 2, "insert": 1, None: 1} == kinds
    assert bronze.height == bronze["_position"].n_unique()
    assert [(1 << 32) + 41] * 2 == bronze.filter(bronze["_lsn"] == (1 << 32) + 41)["_lsn"].to_list()
    assert [b"no event"] == cut.polars("quarantine/giro").collect()["_undecoded"].to_list()
    versions = cut.polars("silver/versions").collect()
    assert 5 + 20 + 1 == versions.height
    assert [number for number, _ in ACCOUNTS] == sorted(versions.filter(versions["current"])["id"])
    topic.write([json.dumps(change("t", 50)), json.dumps(change("c", 51, after={"id": 7, "balance": 1.5}))])
    assert [(7, 1)] == accounts(job.run())


BLOCK = {
    "type": "struct",
    "fields": [
        {"field": part, "type": "struct", "fields": [
            {"field": "id", "type": "int32"}, {"field": "balance", "type": "string"},
        ]}
        for part in ("before", "after")
    ],
}  # fmt: skip

VALUE = {"type": "record", "name": "Value", "fields": [
    {"name": "id", "type": "int"},
    {"name": "balance", "type": ["null", {
        "type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2, "connect.version": 1,
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
    }], "default": None},
]}  # fmt: skip


def envelope(*more):
    value = {**VALUE, "fields": [*VALUE["fields"], *more]}
    source = {"type": "record", "name": "Source", "fields": [
        {"name": name, "type": kind}
        for name, kind in (("connector", "string"), ("db", "string"), ("table", "string"), ("ts_ms", "long"),
                           ("file", "string"), ("pos", "long"), ("snapshot", "string"))
    ]}  # fmt: skip
    fields = [
        {"name": "before", "type": ["null", value], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return json.dumps({"type": "record", "name": "Envelope", "namespace": "bank.giro", "fields": fields})


def in_avro(event):
    from decimal import Decimal

    def values(found):
        return found and {**found, "balance": Decimal(found["balance"])}

    return event and event | {"before": values(event["before"]), "after": values(event["after"])}


def test_avro_events_bring_their_columns_and_a_later_one(make_topic, registry, trial):
    """Nobody declares a column. A column that is added in the database comes with a later tick."""
    topic = make_topic()
    job = trial(servers=topic.servers, topics=topic.name, format="debezium-avro", registry=registry.url)
    keys = producers.serializer(registry, json.dumps({"type": "record", "name": "Key", "fields": VALUE["fields"][:1]}))
    key = keys({"id": 1}, SerializationContext(topic.name, MessageField.KEY))
    values = producers.serializer(registry, envelope())
    where = SerializationContext(topic.name, MessageField.VALUE)
    topic.write([event and values(in_avro(event), where) for event in script()], key=key)
    assert ACCOUNTS == accounts(job.run())
    later = producers.serializer(registry, envelope({"name": "note", "type": ["null", "string"], "default": None}))
    topic.write([later(in_avro(change("c", 60, after=row(8, 1) | {"note": "new"})), where)])
    assert ACCOUNTS == accounts(job.run()), "the folder with the schemas had no such column when the tick began"
    cut = job.run()
    assert [*ACCOUNTS[:3], (8, 1), ACCOUNTS[3]] == accounts(cut)
    bronze = cut.polars("bronze/giro").collect()
    assert [(8, "new")] == bronze.filter(bronze["note"].is_not_null()).select("id", "note").rows()


@pytest.mark.parametrize("kind", ["debezium-json", "debezium-avro", "avro", "json-schema"])
def test_sparks_connector_reads_the_rows_that_tasks_read(make_topic, registry, spark, kind):
    """The connector reads if the user sets its options. It passes over other records of the topic, as tasks do."""
    topic = make_topic()
    where = SerializationContext(topic.name, MessageField.VALUE)
    given = {"registry": registry.url}
    match kind:
        case "debezium-json":
            given = {"schema": "id int, balance decimal(12,2)", "encodings": Encodings(decimals="string")}
            topic.write([event and json.dumps(event) for event in script()], key=b'{"id": 1}')
        case "debezium-avro":
            values = producers.serializer(registry, envelope())
            topic.write([event and values(in_avro(event), where) for event in script()])
        case _:
            space = topic.name.replace("-", "_")
            given |= {"subject": "topic-record", "record": f"{space}.A"}
            write = producers.avro if kind == "avro" else producers.in_json
            for name in ("A", "B", "A"):
                fields = [{"name": name, "type": "int"}]
                schema = {"type": "record", "name": name, "namespace": space, "fields": fields}
                if kind == "json-schema":
                    schema = {"title": f"{space}.{name}", "type": "object", "properties": {name: {"type": "integer"}}}
                write(registry, topic, json.dumps(schema), [{name: 1}], "topic-record")
    topic.write([b"neither", None])
    source = KafkaSource(topic.servers, topic.name, format=kind, metadata=["key"], **given)
    piece = ask(source, f"{topic.name}-0")
    whole = arrow_schema(read_schema(source))
    by_spark = source.read(spark, [piece]).toArrow().select(whole.names).cast(whole).sort_by("_position").to_pylist()
    try:
        by_tasks = pa.Table.from_batches([batch for scan in source.scans([piece]) for batch in scan.batches(whole)])
    except LeftToSparkError:
        assert kind == "json-schema"
        by_tasks = pa.Table.from_pylist(by_spark, whole)
    assert by_spark == by_tasks.sort_by("_position").to_pylist()
    expected = {"debezium-json": 49, "debezium-avro": 49}.get(kind, 4)
    assert expected == len(by_spark)
    assert [b"neither"] == [row["_undecoded"] for row in by_spark if row["_undecoded"]]
