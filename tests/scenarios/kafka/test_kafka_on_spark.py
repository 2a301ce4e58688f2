"""Tests KafkaSource from end to end: a real broker, real ticks, real tables, and killed processes."""

import json
import subprocess
import sys
import time

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    FloatType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
)

from checkpointing.identifiers import SplitId
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.operators.spec import arrow_schema
from jobs.sources.kafka import kafka_source, readers
from jobs.sources.kafka.client_settings import ClientSettings
from jobs.sources.kafka.kafka_source import KafkaSource
from jobs.sources.kafka.position import OffsetRange, PlacedRange, TopicPartition
from jobs.sources.kafka.readers import VALUE, records
from jobs.sources.kafka.records import PlainJson, RecordForm, can_be_plain
from jobs.sources.port import UNDECODED_COLUMN, SourceError, read_schema
from jobs.sources.slice_reading import LeftToSparkError
from jobs.spark.connect_server import connect_server
from jobs.spark.session import SparkConfig
from tests.avro_types import encoded
from tests.kafka_broker import LOGIN, PASSWORD, Broker
from tests.scenarios.kafka.orders_job import SCHEMA
from tests.scenarios.kafka.test_kafka_without_spark import ask
from tests.scenarios.kafka.topics import TopicMaker
from tidemark.testing import TickFailedError, Trial

pytestmark = pytest.mark.spark

JOB = "tests.scenarios.kafka.orders_job:build"


@pytest.fixture
def trial(tmp_path, spark):
    """Return a function that makes a trial of the pipeline, and passes its arguments to the source."""

    def made(build="build", **told) -> Trial:
        made = Trial(f"tests.scenarios.kafka.orders_job:{build}", tmp_path)
        made.data.mkdir(exist_ok=True)
        (made.data / "kafka.json").write_text(json.dumps(told))
        return made

    return made


def order(number):
    return json.dumps({"customer": f"c{number % 7}", "amount": number}).encode()


def orders(first, end):
    return [*map(order, range(first, end))]


def amounts(cut):
    return sorted(cut.arrow("bronze/orders").to_pandas()["amount"].dropna().astype(int))


def sums(cut):
    frame = cut.arrow("gold/customers").to_pandas()
    return {row.customer: (row.orders, row.spent) for row in frame.itertuples()}


def expected_sums(numbers):
    found = {}
    for number in numbers:
        orders, spent = found.get(f"c{number % 7}", (0, 0))
        found[f"c{number % 7}"] = (orders + 1, spent + number)
    return found


def test_ticks_read_every_record_once(make_topic, trial):
    """This holds with new records, a new Kafka partition, a second topic and an idle tick.

    The offsets of the consumer group follow.
    """
    one, two = make_topic(2), make_topic(1, name="_late.orders")
    job = trial(servers=one.servers, topics=[one.name, two.name])
    one.write(orders(0, 500), 0)
    one.write(orders(500, 1_200), 1)
    assert list(range(1_200)) == amounts(job.run())
    assert {0: 500, 1: 700, 2: -1001} == one.committed("tidemark-shop-orders", 3)
    one.add_partitions(3)
    one.write(orders(1_200, 1_300), 2)
    two.write(orders(1_300, 1_400))
    cut = job.run()
    assert list(range(1_400)) == amounts(cut)
    assert expected_sums(range(1_400)) == sums(cut)
    frame = cut.arrow("bronze/orders").to_pandas()
    assert not frame.duplicated(["_split", "_position"]).any()
    assert {f"{one.name}-0": 500, f"{one.name}-1": 700, f"{one.name}-2": 100, f"t={two.name}-0": 100} == dict(
        frame["_split"].value_counts()
    )
    assert cut.checkpoint == job.run().checkpoint
    assert {0: 500, 1: 700, 2: 100} == one.committed("tidemark-shop-orders", 3)


def test_a_topic_that_comes_later_is_read_from_its_start_whatever_its_name(make_topic, trial):
    """The job began at `latest`. The topic that comes later is polled first, and none of its records is skipped."""
    old = make_topic(name="z-orders")
    prefix = old.name.removeprefix("z-orders")
    job = trial(servers=old.servers, pattern=f".-orders-{prefix.split('-')[1]}-.*", start="latest")
    old.write(orders(0, 10))
    assert [] == amounts(job.run())
    old.write(orders(10, 20))
    assert list(range(10, 20)) == amounts(job.run())
    make_topic(name="a-orders").write(orders(20, 30))
    old.write(orders(30, 40))
    assert list(range(10, 40)) == amounts(job.run())


def test_records_that_do_not_decode_go_to_the_quarantine(make_topic, trial):
    """The quarantine has the bytes of these records.

    The table has all rows, and the sums have only the good ones. A record without value is good.
    """
    topic = make_topic()
    job = trial(servers=topic.servers, topics=topic.name, metadata=["key", "timestamp", "headers", "topic"])
    bad = [b"no json", b'{"customer": "c1", "amount": "many"}', b"\xff\xfe{}", b"", b"[1]", b'{"customer": "c1"']
    topic.write([*orders(0, 3), *bad], headers={"from": b"test"})
    topic.write([None], key="gone")
    topic.write(['{"customer": "c9"}'])
    cut = job.run()
    quarantined = cut.arrow("quarantine/orders").to_pandas()
    assert sorted(bad) == sorted(map(bytes, quarantined["_undecoded"]))
    assert quarantined["customer"].isna().all()
    bronze = cut.arrow("bronze/orders").to_pandas().sort_values("_position")
    assert 11 == len(bronze)
    assert b"gone" == bronze["_key"].iloc[9]
    assert {topic.name} == set(bronze["_topic"])
    assert [{"key": "from", "value": b"test"}] == list(bronze["_headers"].iloc[0])
    assert 5 == sums(cut)["c0"][0] + sums(cut)["c1"][0] + sums(cut)["c2"][0] + sums(cut)["c9"][0] + 1


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": ["null", "string"]}, {"name": "amount", "type": "long"}],
}


def test_avro_records_are_decoded_and_others_go_to_the_quarantine(make_topic, trial):
    """The quarantine has the bytes of the others. A record without value is no error. Metadata comes as with JSON."""
    topic = make_topic()
    job = trial(servers=topic.servers, topics=topic.name, format="avro", schema=ORDER, metadata=["key"])
    good = [encoded(ORDER, {"customer": f"c{number % 7}", "amount": number}) for number in range(20)]
    bad = [b"no avro", good[0] + b"\0"]
    topic.write([*good, *bad])
    topic.write([None], key="gone")
    cut = job.run()
    assert list(range(20)) == amounts(cut)
    assert expected_sums(range(20)).items() <= sums(cut).items()
    assert sorted(bad) == sorted(map(bytes, cut.arrow("quarantine/orders").to_pandas()["_undecoded"]))
    bronze = cut.arrow("bronze/orders").to_pandas().sort_values("_position")
    assert [None] * 22 + [b"gone"] == bronze["_key"].tolist()
    assert list(range(23)) == bronze["_position"].tolist()


@pytest.mark.dear
def test_aborted_records_are_never_read(make_topic, trial):
    """Records of an open transaction are not read before its commit. A slice of only aborted records is skipped."""
    topic = make_topic()
    job = trial(servers=topic.servers, topics=topic.name, every_rows=25)
    topic.write(orders(0, 10))
    with topic.transaction(orders(100, 150), commit=False):
        pass
    with topic.transaction(orders(10, 20), commit=True):
        pass
    with topic.transaction(orders(20, 30), commit=True):
        topic.write(orders(30, 40))
        assert list(range(20)) == amounts(job.run())
    cut = job.run()
    assert list(range(40)) == amounts(cut)
    assert expected_sums(range(40)) == sums(cut)


@pytest.mark.dear
def test_compacted_records_are_skipped(make_topic, trial):
    """The offsets have gaps, and a checkpoint may lie in a gap."""
    topic = make_topic(cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001")
    job = trial(servers=topic.servers, topics=topic.name, every_rows=50)
    for number in range(300):
        topic.write(orders(number, number + 1), key=f"k{number % 3}")
    time.sleep(0.3)
    topic.write(orders(300, 301), key="k9")
    kept = wait_for_compaction(topic)
    cut = job.run()
    assert kept == amounts(cut)
    assert len(kept) < 300


def wait_for_compaction(topic):
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    limit = time.monotonic() + 60
    before = None
    while time.monotonic() < limit:
        consumer = Consumer({"bootstrap.servers": topic.servers, "group.id": "look", "enable.partition.eof": "true"})
        consumer.assign([Place(topic.name, 0, 0)])
        kept = []
        while (message := consumer.poll(5)) is not None and message.error() is None:
            kept.append(json.loads(message.value())["amount"])
        consumer.close()
        if len(kept) < 300 and kept == before:
            return sorted(kept)
        before = kept
        time.sleep(1)
    raise AssertionError("the broker did not compact")


@pytest.mark.dear
@pytest.mark.timeout(590)
def test_files_are_read_first_and_then_a_topic(make_topic, trial):
    """A tick that dies at its first checkpoint after the switch to the topic loses and doubles nothing."""
    topic = make_topic(2)
    job = trial("files_first", servers=topic.servers, topics=topic.name)
    for folder, numbers in (("berlin", range(40)), ("paris", range(40, 70))):
        job.deliver(f"orders/{folder}", pl.DataFrame({"customer": [f"c{n}" for n in numbers], "amount": numbers}))
    topic.write(orders(70, 90), 0)
    topic.write([*orders(90, 100), "no order"], 1)
    settings = {"every_rows": 25, "slice_rows_max": 10, "spark_cores": 1}
    job.kill("after:AppendRow#3", **settings)
    cut = job.run(**settings)
    bronze = cut.polars("bronze/orders").collect()
    assert list(range(100)) == sorted(bronze["amount"].drop_nulls())
    assert {"1.berlin": 40, "1.paris": 30, f"2.{topic.name}-0": 20, f"2.{topic.name}-1": 11} == dict(
        bronze["_split"].value_counts().iter_rows()
    )
    assert [b"no order"] == cut.polars("quarantine/orders").collect()["_undecoded"].to_list()
    assert 100 == cut.polars("gold/customers").collect()["orders"].sum()
    assert {0: 20, 1: 11} == topic.committed("tidemark-hybrid-orders", 2)
    topic.write(orders(100, 101), 0)
    assert 102 == job.run(**settings).polars("bronze/orders").collect().height


def test_records_that_vanish_after_the_poll_are_an_error(make_topic, spark):
    """The source checks again before it reads. If records vanish after this check, Spark's connector fails."""
    topic = make_topic()
    topic.write(["a", "b", "c"])
    source = KafkaSource(topic.servers, topic.name, format="raw")
    piece = ask(source, f"{topic.name}-0")
    topic.delete_records(2)
    with pytest.raises(SourceError, match="has lost records that were not read: offsets 0 to 1"):
        source.read(spark, [piece])
    gone = PlacedRange(TopicPartition(topic.name, 0), OffsetRange(topic_id="any", first=0, end=3))
    with pytest.raises(Exception, match=r"(?i)data.*(loss|lost|missed)|OffsetOutOfRange"):
        records(spark, [gone], ClientSettings(topic.servers, {}, None).for_spark()).collect()


@pytest.mark.dear
def test_a_reset_goes_on_after_records_were_lost(make_topic, trial):
    """The tick fails and names the lost records. The command in its message moves the split, and nothing else."""
    topic = make_topic()
    job = trial(servers=topic.servers, topics=topic.name)
    topic.write(orders(0, 30))
    job.run()
    topic.write(orders(30, 60))
    topic.delete_records(45)
    with pytest.raises(TickFailedError, match=f"{topic.name}-0 has lost .* offsets 30 to 44 were deleted"):
        job.run()
    assert list(range(30)) == amounts(job.cuts.latest())
    folders = ["--data", str(job.data), "--warehouse", str(job.warehouse)]
    assert ExitCode.DONE == execute(
        ["reset", JOB, "orders", "--split", f"{topic.name}-0", "--to", "earliest", *folders]
    )
    expected = [*range(30), *range(45, 60)]
    cut = job.run()
    assert expected == amounts(cut)
    assert expected_sums(expected) == sums(cut)


@pytest.mark.dear
def test_a_connect_server_reads_kafka_if_it_has_the_jars(make_topic, trial, connect_url, tmp_path):
    """If the server has no jars, the message says so, and says what to do.

    Tasks need no connector, so the pipeline sets an option that only the connector has.
    """
    topic = make_topic(2)
    topic.write(orders(0, 40), 1)
    job = trial(servers=topic.servers, topics=topic.name, spark_options={"minPartitions": "2"})
    folders = ["--data", str(job.data), "--warehouse", str(job.warehouse)]

    def run(url):
        command = [sys.executable, "-m", "tidemark", "run", JOB, *folders, "--set", f"spark_connect_url={url}"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)

    refused = run(connect_url)
    assert "this Spark session has no Kafka connector" in refused.stderr + refused.stdout
    with connect_server(SparkConfig(cores=1, memory="1g", jar_sets=("kafka",)), tmp_path / "server.log") as server:
        done = run(server.url)
    assert 0 == done.returncode, done.stderr
    assert list(range(40)) == amounts(job.cuts.latest())


def test_a_password_is_written_nowhere(make_topic, broker, trial, monkeypatch, tmp_path, spark):
    topic = make_topic()
    topic.write(orders(0, 10))
    monkeypatch.setenv("ORDERS_PASSWORD", PASSWORD)
    told = {"options": LOGIN, "secrets": {"sasl.password": "ORDERS_PASSWORD"}}
    job = trial(servers=broker.login_servers, topics=topic.name, **told)
    assert list(range(10)) == amounts(job.run())
    files = [path for path in job.warehouse.rglob("*") if path.is_file()]
    assert files
    assert [] == [path for path in files if PASSWORD.encode() in path.read_bytes()]
    source = KafkaSource(broker.login_servers, topic.name, format="raw", **told)
    frame = source.read(spark, [ask(source, f"{topic.name}-0")])
    plan = frame._jdf.queryExecution().toString() + repr(source) + str(vars(source))
    assert PASSWORD not in plan


# ------------------------------------------------------------------
# Tests that tasks read Kafka themselves, get the same rows as Spark's connector, and leave the rest to the connector.


METADATA = ["key", "timestamp", "headers", "topic"]


def avro(number):
    return encoded(ORDER, {"customer": f"c{number % 7}", "amount": number})


def by_tasks(source, pieces):
    schema = arrow_schema(read_schema(source))
    return pa.Table.from_batches([batch for scan in source.scans(pieces) for batch in scan.batches(schema)], schema)


def sorted_rows(table):
    return sorted(map(str, table.select(sorted(table.schema.names)).to_pylist()))


@pytest.mark.parametrize(
    ("form", "schema", "record"), [("json", SCHEMA, order), ("raw", None, order), ("avro", ORDER, avro)]
)
def test_rows_are_those_of_the_connector(make_topic, spark, form, schema, record):
    """Topics have aborted records, tombstones and headers. Slices begin and end anywhere."""
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


def test_a_tick_over_plain_records_needs_no_connector(make_topic, trial, monkeypatch):
    def refused(*_):
        raise AssertionError("the connector was asked")

    topic = make_topic(2)
    topic.write(map(order, range(40)), 0)
    topic.write(map(order, range(40, 60)), 1)
    monkeypatch.setattr(kafka_source, "records", refused)
    job = trial(servers=topic.servers, topics=topic.name, metadata=METADATA)
    assert list(range(60)) == amounts(job.run())


def test_records_that_only_spark_can_judge_are_left_to_it(make_topic, trial, monkeypatch):
    """The micro-batch runs again on Spark. Later ones of the tick start on Spark. Nothing is lost or doubled."""
    left = []
    monkeypatch.setattr(KafkaSource, "leave_to_spark", lambda self: left.append(setattr(self, "_is_sparks", True)))
    topic = make_topic()
    job = trial(servers=topic.servers, topics=topic.name, every_rows=20)
    topic.write(map(order, range(30)))
    assert 30 == job.run().arrow("bronze/orders").num_rows
    assert [] == left
    topic.write([b'{"customer": 7, "amount": 30}', b"no json", *map(order, range(31, 90))])
    cut = job.run()
    rows = cut.arrow("bronze/orders").to_pandas().sort_values("_position")
    assert list(range(91)) == rows["_position"].tolist()
    assert [*range(31), *range(31, 90)] == rows["amount"].dropna().astype(int).tolist()
    assert "7" == rows["customer"].iloc[30]
    assert [b"no json"] == [bytes(each) for each in cut.arrow("quarantine/orders").to_pandas()["_undecoded"]]
    assert 1 == len(left)


def test_columns_and_settings_that_tasks_cannot_have_are_sparks(make_topic):
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
    """A scan contains the name of a variable, not its value. If tasks lack the variable, Spark reads instead."""
    topic = make_topic()
    topic.write(map(order, range(5)))
    monkeypatch.setenv("ORDERS_PASSWORD", PASSWORD)
    login = {"options": LOGIN, "secrets": {"sasl.password": "ORDERS_PASSWORD"}}
    source = KafkaSource(broker.login_servers, topic.name, SCHEMA, **login)
    (scan,) = source.scans([ask(source, f"{topic.name}-0")])
    sends = CloudPickleSerializer()  # Spark sends tasks with it
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
    """When a process reads a second range, it uses the client of the first range again."""
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


# ------------------------------------------------------------------
# Tests that tasks decode JSON records as Spark's `from_json` does, or leave them to Spark.


PLAIN_SCHEMA = (
    StructType()
    .add("l", "long")
    .add("i", "integer")
    .add("d", "double")
    .add("b", "boolean")
    .add("s", "string")
    .add("day", "date")
    .add("at", "timestamp")
)
PLAIN = PlainJson.of(PLAIN_SCHEMA, VALUE, UNDECODED_COLUMN)
ODD = rb"""
{"l":1.0} {"l":1e3} {"l":"7"} {"l":-0} {"l":01} {"l":+1} {"l":9223372036854775807} {"l":9223372036854775808}
{"i":2147483648} {"i":-2147483648} {"d":1} {"d":-0} {"d":-0.0} {"d":NaN} {"d":"NaN"} {"d":Infinity} {"d":-Inf}
{"d":1e400} {"d":1e-400} {"d":123456789012345678901234567890} {"d":0.1} {"d":1.} {"d":.5} {"d":0x1} {"d":5e-324}
{"d":9007199254740993} {"b":1} {"b":"true"} {"b":True} {"b":true} {"s":1} {"s":null} {"s":{"a":1}} {"s":[1]}
{"s":""} {"s":"\u0000"} {"s":"\ud83d\ude00"} {"s":"\ud83d"} {"s":"\udc00"} {"s":"\x"} {'s':'a'} {s:"a"}
{"s":"a","s":"b"} {"x":1,"x":2} {"S":"a"} {"s":"a"}} {"s":"a"}{"s":"b"} {} [] [{"l":1}] null 1 "a" {"x":NaN}
{"x":1e999} {"x":INF} {"x":[{"y":null},[]],"l":2} {"x":/*c*/1} {"l":1,} {,} {"day":"2026-02-30"}
{"day":"2026-02-28"} {"day":"2026-2-8"} {"day":20000} {"day":"2026-02-28T00:00:00Z"} {"day":"1582-10-10"}
{"day":"0000-01-01"} {"at":"2026-02-28T23:59:59Z"} {"at":"2026-02-28T23:59:59.1234567Z"}
{"at":"2026-02-28T23:59:59.12+05:30"} {"at":"2026-02-28T24:00:00Z"} {"at":"2026-02-28T23:59:60Z"}
{"at":"2026-02-28T23:59:59"} {"at":"2026-02-28"} {"at":1772323199} {"at":"2026-02-28T23:59:59+19:00"}
{"at":"2026-02-28T23:59:59-00:00"} {"at":"1999-12-31T23:59:59.999999Z"} {"at":"2026-02-28t23:59:59z"} {"at":""}
{"\u006c":5}
""".split()
ODD += [
    b'{"at":"2026-02-28 23:59:59.5"}',
    b'{"at":"1999-12-31T23:59:59."}',
    b'{"at":"2026-03-29T02:30:00.123456"}',
    b'{"at":"2026-02-28 23:59:59 Z"}',
    b'{"at":"2026-02-28 24:00:00"}',
    b'{"s":"\xff"}',
    b'{"x":"\xff"}',
    b'{"\xff":1}',
    b'{"s":"\xc3\xa4"}',
    b'{"s":"\xed\xa0\x80"}',
    b'\xef\xbb\xbf{"l":1}',
    b' {"l":1}',
    b'{"l":1} ',
    b'{"l":1}\n',
    b'{"l":\n1}',
    b'{"l":\r1}',
    b'{"l":\t1}',
    b'{"s":"\t"}',
    b'{"s":"a\x00b"}',
    b'{"l":1}\x00',
    b"",
    b" ",
    b'{"x":' + b"1" * 1001 + b"}",
    b'{"x":0.' + b"1" * 1200 + b"}",
    b'{"x":' + b"[" * 1100 + b"]" * 1100 + b"}",
    b'{"x":' + b"[" * 400 + b"]" * 400 + b"}",
    b'{"s":"' + b"long " * 500 + b'"}',
]

MOMENTS = st.builds(
    lambda at, between, zone: at.isoformat(sep=between) + zone,
    st.datetimes(),
    st.sampled_from("T "),
    st.sampled_from(["Z", "", "-03:30"]),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.integers(-100, 100),
    st.floats(),
    st.text(max_size=8),
    st.dates().map(str),
    MOMENTS,
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from("ls"), st.integers(), max_size=1),
)
FITTING = {
    "l": st.integers(-(2**63), 2**63 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "d": st.floats(),
    "b": st.booleans(),
    "s": st.text(max_size=8),
    "day": st.dates().map(str),
    "at": MOMENTS,
}
OBJECTS = st.one_of(
    st.dictionaries(st.sampled_from([*PLAIN_SCHEMA.names, "x", "L"]), VALUES, max_size=4),
    st.fixed_dictionaries({}, optional=FITTING),
)
RECORDS = st.builds(
    lambda found, ascii_only, spaces: json.dumps(found, ensure_ascii=ascii_only, separators=spaces).encode(
        errors="surrogatepass"
    ),
    OBJECTS,
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", " : ")]),
)


def decoded(values):
    batch = pa.RecordBatch.from_pydict({VALUE: pa.array(values, pa.binary())})
    (found,) = PLAIN.run(iter([batch]))
    return found


def taken(value):
    try:
        decoded([value])
    except LeftToSparkError:
        return False
    return True


def judged(spark, values):
    in_order = [(number, None if value is None else bytearray(value)) for number, value in enumerate(values)]
    records = spark.createDataFrame(in_order, "offset long, value binary")
    form = RecordForm(format="json", value=PLAIN_SCHEMA)
    by_spark = form.rows(records, F.lit("a")).orderBy("_position").toArrow()
    names = [*PLAIN_SCHEMA.names, UNDECODED_COLUMN]
    by_task = pa.Table.from_batches([decoded(values)])
    for name in names:
        theirs, own = by_spark.column(name).combine_chunks(), by_task.column(name).combine_chunks()
        found = zip(values, theirs.to_pylist(), own.cast(theirs.type).to_pylist(), strict=True)
        assert [] == [each for each in found if str(each[1]) != str(each[2])], name


def test_odd_records_are_left_to_spark_or_decoded_as_spark_does(spark):
    """The test lists some records that tasks must decode, and some that they must leave to Spark."""
    kept = [value for value in ODD if taken(value)]
    assert {b'{"d":0.1}', b'{"s":"\xc3\xa4"}', b'{"at":"2026-02-28T23:59:59.12+05:30"}', b'{"d":1}'} <= set(kept)
    assert {b'{"at":"2026-02-28T23:59:59"}', b'{"at":"2026-02-28 23:59:59.5"}'} <= set(kept)
    assert {b'{"s":1}', b'{"d":NaN}', b'{"at":"2026-02-28"}', b'{"s":"\xff"}', b""} <= {*ODD} - {*kept}
    judged(spark, [None, *kept, None])


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(RECORDS, min_size=150, max_size=400))
def test_records_that_a_task_decodes_are_those_of_spark(spark, records):
    """Whatever the records are, Spark's `from_json` finds the same columns, and none of them undecoded."""
    kept = [value for value in records if taken(value)]
    if kept:
        judged(spark, kept)


def test_many_records_are_taken_only_if_each_is():
    """Wherever an odd record is among plain ones, the task leaves all of them to Spark."""
    good = [b'{"l":%d}' % number for number in range(50)]
    assert 50 == decoded(good).num_rows
    for odd in (value for value in ODD if not taken(value)):
        for place in (0, 25, 50):
            assert not all_taken([*good[:place], odd, *good[place:]]), odd


def all_taken(values):
    try:
        decoded(values)
    except LeftToSparkError:
        return False
    return True


def test_other_types_are_left_to_spark():
    numbers = ArrayType(LongType())
    for kind in (
        FloatType(),
        DecimalType(10, 2),
        numbers,
        StructType().add("a", "long"),
        TimestampNTZType(),
        BinaryType(),
    ):
        assert not can_be_plain(StructType().add("l", "long").add("x", kind)), kind
    assert not can_be_plain(StructType().add("x", StringType("UNICODE_CI")))
    assert can_be_plain(PLAIN_SCHEMA)


def test_a_record_that_only_seems_to_be_one_is_undecoded(spark):
    """Spark would read such records as their first object, today's date, the number 15 or a rounded number."""
    schema = StructType().add("l", LongType()).add("at", "timestamp").add("n", DecimalType(5, 2))
    good = [
        b'{"l":1}',
        b'{"l":1,"x":{"y":"}{"}}',
        b'{"at":"2024-05-01"}',
        b'{"n":"1.5"}',
        b'{"n":-1.25}',
        b'{"n":"1e1"}',
    ]
    bad = [b'{"l":1}{"l":2}', b'{"l":1} 2', b'{"x":{}}]', b'[{"l":1}]', b'{"at":"12:00"}', b'{"at":"T1"}']
    bad += [b'{"at":"\\u0031:00"}', b'{"n":"1,5"}', b'{"n":1.239}', b'{"l":1']
    form = RecordForm(format="json", value=schema)
    records = spark.createDataFrame(
        [(value, place) for place, value in enumerate([*good, *bad])],
        StructType().add(VALUE, "binary").add("offset", "long"),
    )
    rows = form.rows(records, F.lit("t-0")).orderBy("_position").collect()
    assert [None] * len(good) + bad == [row[UNDECODED_COLUMN] and bytes(row[UNDECODED_COLUMN]) for row in rows]
    assert all(row.l is row["at"] is row.n is None for row in rows[len(good) :])
