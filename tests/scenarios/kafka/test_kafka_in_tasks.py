"""Tests that tasks read Kafka themselves, with the rows of Spark's connector, and leave to it what they cannot read."""

import json

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StringType, StructType

from checkpointing.identifiers import SplitId
from jobs.operators.spec import arrow_schema
from jobs.sources.kafka import kafka_source, readers
from jobs.sources.kafka.kafka_source import KafkaSource
from jobs.sources.port import SourceError, read_schema
from jobs.sources.slice_reading import LeftToSparkError
from tests.avro_types import encoded
from tests.kafka_broker import PASSWORD, Broker
from tests.scenarios.kafka.orders_job import SCHEMA
from tests.scenarios.kafka.test_kafka_without_spark import LOGIN, ask
from tests.scenarios.kafka.topics import TopicMaker
from tidemark.testing import Trial

pytestmark = pytest.mark.spark

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": ["null", "string"]}, {"name": "amount", "type": "long"}],
}
METADATA = ["key", "timestamp", "headers", "topic"]


@pytest.fixture
def job(tmp_path, spark):
    """Return a function that makes a trial of the pipeline with these arguments for its source."""

    def made(**told) -> Trial:
        made = Trial("tests.scenarios.kafka.orders_job:build", tmp_path)
        made.data.mkdir(exist_ok=True)
        (made.data / "kafka.json").write_text(json.dumps(told))
        return made

    return made


def order(number):
    return json.dumps({"customer": f"c{number % 7}", "amount": number}).encode()


def avro(number):
    return encoded(ORDER, {"customer": f"c{number % 7}", "amount": number})


def by_tasks(source, pieces):
    """Return the rows that tasks read, in the source's own columns."""
    schema = arrow_schema(read_schema(source))
    return pa.Table.from_batches([batch for scan in source.scans(pieces) for batch in scan.batches(schema)], schema)


def sorted_rows(table):
    return sorted(map(str, table.select(sorted(table.schema.names)).to_pylist()))


@pytest.mark.parametrize(
    ("form", "schema", "record"), [("json", SCHEMA, order), ("raw", None, order), ("avro", ORDER, avro)]
)
def test_rows_are_those_of_the_connector(make_topic, spark, form, schema, record):
    """They are so in topics with aborted records, tombstones, headers, and slices that begin and end anywhere."""
    topic = make_topic(2, retention_ms="-1")
    source = KafkaSource(topic.servers, topic.name, schema, format=form, metadata=METADATA)
    topic.write(map(record, range(20)), 0, headers={"from": b"test", "again": b""})
    topic.write([None, None], 0, key="gone")
    with topic.transaction(map(record, range(100, 120)), 0, commit=False):
        pass
    with topic.transaction(map(record, range(20, 30)), 0, commit=True):
        pass
    topic.write(map(record, range(40, 50)), 1, timestamp=1)
    whole = [ask(source, f"{topic.name}-{number}") for number in range(2)]
    first = ask(source, f"{topic.name}-0", rows=7)
    second = ask(source, f"{topic.name}-0", first.end, rows=20)
    for pieces in (whole, [first], [second], [second, first]):
        expected = source.read(spark, pieces).toArrow()
        found = by_tasks(source, pieces)
        assert sorted_rows(expected) == sorted_rows(found.cast(arrow_schema(read_schema(source)))), pieces
    assert 42 == by_tasks(source, whole).num_rows


def test_a_tick_over_plain_records_needs_no_connector(make_topic, job, monkeypatch):
    """The connector fails here, and the tables have all records."""

    def refused(*_):
        raise AssertionError("the connector was asked")

    topic = make_topic(2)
    topic.write(map(order, range(40)), 0)
    topic.write(map(order, range(40, 60)), 1)
    monkeypatch.setattr(kafka_source, "records", refused)
    trial = job(servers=topic.servers, topics=topic.name, metadata=METADATA)
    assert list(range(60)) == sorted(trial.run().arrow("bronze/orders").column("amount").to_pylist())


def test_records_that_only_spark_can_judge_are_left_to_it(make_topic, job, monkeypatch):
    """The micro-batch runs again, and later ones of the tick begin with Spark. Nothing is lost or doubled."""
    left = []
    monkeypatch.setattr(KafkaSource, "leave_to_spark", lambda self: left.append(setattr(self, "_is_sparks", True)))
    topic = make_topic()
    trial = job(servers=topic.servers, topics=topic.name, every_rows=20)
    topic.write(map(order, range(30)))
    assert 30 == trial.run().arrow("bronze/orders").num_rows
    assert [] == left
    topic.write([b'{"customer": 7, "amount": 30}', b"no json", *map(order, range(31, 90))])
    cut = trial.run()
    rows = cut.arrow("bronze/orders").to_pandas().sort_values("_position")
    assert list(range(91)) == rows["_position"].tolist()
    assert [*range(31), *range(31, 90)] == rows["amount"].dropna().astype(int).tolist()
    assert "7" == rows["customer"].iloc[30]
    assert [b"no json"] == [bytes(each) for each in cut.arrow("quarantine/orders").to_pandas()["_undecoded"]]
    assert 1 == len(left)


def test_columns_and_settings_that_tasks_cannot_have_are_sparks(make_topic):
    """The source offers no scan for them, nor after a task has left one to Spark."""
    topic = make_topic()
    topic.write([b"{}"])
    floats = StructType().add("customer", StringType()).add("price", "float")
    told = {"schema": floats}, {"schema": SCHEMA, "spark_options": {"minPartitions": "2"}}
    told += ({"schema": SCHEMA, "options": {"kafka.fetch.max.bytes": "1000"}}, {"schema": SCHEMA, "secrets": dict})
    for more in told:
        source = KafkaSource(topic.servers, topic.name, **more)
        assert source.scans([ask(source, f"{topic.name}-0")]) is None, more
    plain = KafkaSource(topic.servers, topic.name, SCHEMA)
    piece = ask(plain, f"{topic.name}-0")
    assert 1 == len(plain.scans([piece]))
    plain.leave_to_spark()
    assert plain.scans([piece]) is None


def test_tasks_find_secrets_in_their_own_environment(make_topic, broker, monkeypatch):
    """A scan carries the name of a variable, not its value. Without the variable, Spark reads."""
    topic = make_topic()
    topic.write(map(order, range(5)))
    monkeypatch.setenv("ORDERS_PASSWORD", PASSWORD)
    login = {"options": LOGIN, "secrets": {"sasl.password": "ORDERS_PASSWORD"}}
    source = KafkaSource(broker.login_servers, topic.name, SCHEMA, **login)
    (scan,) = source.scans([ask(source, f"{topic.name}-0")])
    sends = CloudPickleSerializer()  # Spark's own, for what tasks get
    sent = sends.dumps(scan)
    assert PASSWORD.encode() not in sent
    schema = pa.schema([("amount", pa.int64())])
    assert list(range(5)) == [
        amount for batch in sends.loads(sent).batches(schema) for amount in batch["amount"].to_pylist()
    ]
    monkeypatch.delenv("ORDERS_PASSWORD")
    with pytest.raises(LeftToSparkError, match="secret"):
        list(scan.batches(schema))
    monkeypatch.setenv("ORDERS_PASSWORD", "another")
    readers._IDLE.clear()
    with pytest.raises(SourceError, match="refused the log-in") as caught:
        list(scan.batches(schema))
    assert "another" not in str(caught.value)


def test_records_that_vanish_before_a_task_reads_them_are_an_error(make_topic):
    """The next look names the lost records."""
    topic = make_topic()
    topic.write(map(order, range(5)))
    source = KafkaSource(topic.servers, topic.name, SCHEMA)
    piece = ask(source, f"{topic.name}-0")
    (scan,) = source.scans([piece])
    topic.delete_records(3)
    with pytest.raises(SourceError, match="has lost records while they were read"):
        list(scan.batches(pa.schema([("amount", pa.int64())])))
    with pytest.raises(SourceError, match="has lost records that were not read: offsets 0 to 2"):
        source.scans([piece])


def test_a_task_waits_for_a_broker_and_then_names_it(tmp_path, monkeypatch):
    """When the broker is back, the same scan reads the records."""
    broker = Broker(tmp_path / "broker")
    broker.start()
    try:
        topic = TopicMaker(broker.servers).made("orders", 1, {})
        topic.write(map(order, range(5)))
        source = KafkaSource(broker.servers, "orders", SCHEMA)
        (scan,) = source.scans([ask(source, "orders-0")])
        broker.kill()
        monkeypatch.setattr(readers, "_PATIENCE_S", 2.0)
        schema = pa.schema([("amount", pa.int64())])
        with pytest.raises(SourceError, match=f"Kafka at {broker.servers} does not answer: start the broker"):
            list(scan.batches(schema))
        broker.start()
        monkeypatch.setattr(readers, "_PATIENCE_S", 60.0)
        assert 5 == sum(batch.num_rows for batch in scan.batches(schema))
    finally:
        broker.kill()


def test_a_client_is_used_again(make_topic):
    """A second range of the same process is read by the client of the first one."""
    topic = make_topic()
    topic.write(map(order, range(10)))
    source = KafkaSource(topic.servers, topic.name, SCHEMA, group="again")
    scans = [source.scans([ask(source, SplitId(f"{topic.name}-0"), rows=rows)])[0] for rows in (3, 10)]
    readers._IDLE.clear()
    schema = pa.schema([("amount", pa.int64())])
    assert 3 == sum(batch.num_rows for batch in scans[0].batches(schema))
    (client,) = readers._IDLE.values()
    assert list(range(10)) == [each for batch in scans[1].batches(schema) for each in batch["amount"].to_pylist()]
    assert [client] == list(readers._IDLE.values())
