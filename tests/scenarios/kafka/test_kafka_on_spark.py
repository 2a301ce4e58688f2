"""Tests KafkaSource from end to end: a real broker, real ticks, real tables, and killed processes."""

import json
import subprocess
import sys
import threading
import time

import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.sources.kafka.client_settings import ClientSettings
from jobs.sources.kafka.kafka_source import KafkaSource
from jobs.sources.kafka.position import OffsetRange, PlacedRange, TopicPartition
from jobs.sources.kafka.readers import records
from jobs.sources.port import SourceError
from jobs.spark.connect_server import connect_server
from jobs.spark.session import SparkConfig
from tests.avro_types import encoded
from tests.kafka_broker import PASSWORD, Broker
from tests.scenarios.kafka.test_kafka_without_spark import LOGIN, ask
from tests.scenarios.kafka.topics import TopicMaker
from tidemark import NoSuchCutError
from tidemark.testing import TickFailedError, Trial

pytestmark = pytest.mark.spark

JOB = "tests.scenarios.kafka.orders_job:build"


@pytest.fixture
def trial(tmp_path, spark):
    """Return a function that makes a trial of the pipeline with these arguments for its source."""

    def made(**told) -> Trial:
        made = Trial(JOB, tmp_path)
        made.data.mkdir(exist_ok=True)
        (made.data / "kafka.json").write_text(json.dumps(told))
        return made

    return made


def orders(first, end):
    return [json.dumps({"customer": f"c{number % 7}", "amount": number}) for number in range(first, end)]


def amounts(cut):
    """Return the amounts of bronze, sorted. Each order has an amount of its own."""
    return sorted(cut.arrow("bronze/orders").to_pandas()["amount"].dropna().astype(int))


def rows_shown(job):
    """Return how many orders the newest cut has. A job that was killed early has no cut."""
    try:
        return len(amounts(job.cuts.latest()))
    except NoSuchCutError:
        return 0


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

    The group's offsets follow.
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
    """A job began at `latest`. The later topic is polled first, and none of its records is skipped."""
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
    """Quarantine has their bytes. The table has all rows, and the sums only the good ones.

    A record without value is good.
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
    """With their bytes. A record without value is no error, and metadata comes as with JSON."""
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
    """Records of an open transaction are not read before its commit. A slice without records is skipped."""
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
    """Wait until the broker has compacted, and return the amounts that it kept."""
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
@pytest.mark.kill
@pytest.mark.parametrize("boundary", ["after:RunMicroBatch#3", "after:AppendRow#2", "before:NotifyComplete#2"])
def test_a_killed_tick_loses_and_doubles_nothing(make_topic, trial, boundary):
    """It commits no offset of records that no completed checkpoint holds."""
    topic = make_topic(2)
    job = trial(servers=topic.servers, topics=topic.name, every_rows=100)
    topic.write(orders(0, 250), 0)
    topic.write(orders(250, 500), 1)
    job.kill(boundary)
    committed = topic.committed("tidemark-shop-orders", 2)
    assert sum(max(offset, 0) for offset in committed.values()) <= rows_shown(job)
    cut = job.run()
    assert list(range(500)) == amounts(cut)
    assert expected_sums(range(500)) == sums(cut)
    assert {0: 250, 1: 250} == topic.committed("tidemark-shop-orders", 2)


@pytest.mark.dear
def test_a_broker_that_is_killed_during_a_tick_costs_no_record(tmp_path, trial):
    """The broker comes back. The tick waits for it, or the next tick reads on."""
    broker = Broker(tmp_path / "broker")
    broker.start()
    try:
        topic = TopicMaker(broker.servers).made("orders", 2, {})
        topic.write(orders(0, 3_000), 0)
        topic.write(orders(3_000, 6_000), 1)
        job = trial(servers=broker.servers, topics="orders", every_rows=300)
        job.run(checkpoints=1)

        def strike():
            time.sleep(1)
            broker.kill()
            time.sleep(3)
            broker.start()

        striker = threading.Thread(target=strike)
        striker.start()
        try:
            job.run(restart_strategy="fixed_delay")
        finally:
            striker.join()
        cut = job.run()
        assert list(range(6_000)) == amounts(cut)
        assert expected_sums(range(6_000)) == sums(cut)
    finally:
        broker.kill()


def test_records_that_vanish_after_the_poll_are_an_error(make_topic, spark):
    """The source looks again before it reads. If records vanish after that, Spark's connector fails."""
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
    """The tick fails and names the lost records.

    The command in its message moves the split and changes nothing else.
    """
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
    """The message names a server without the jars as the cause, and says what to do.

    Tasks need no connector, so the pipeline asks for one by an option.
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
    """It is not in the warehouse with its entries and traces, nor in the plan that Spark shows."""
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
