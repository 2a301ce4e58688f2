"""Tests the Kafka sink while the disk of a real broker is full: readers of committed records see each row once.

The kernel refuses the broker's writes (`Broker.fill_disk`). The broker then stops by itself, or goes on without this
disk.
"""

import threading
from collections import Counter
from contextlib import suppress

import confluent_kafka
import pytest

from jobs.outside_sinks.kafka import transaction
from jobs.sources.kafka.cluster import Cluster
from jobs.warehouse.refusals import TickRefusedError
from tests.kafka_broker import Broker
from tests.scenarios.kafka.sink_job import ORDERS, batches, crossing
from tests.scenarios.kafka.test_sink import OUT, SCHEMA, sink_of
from tests.scenarios.kafka.test_sink_in_ticks import ONE_CORE, Shop, assert_exact
from tests.scenarios.kafka.topics import TopicMaker, eventually, read
from tidemark import SinkError
from tidemark.testing import TickFailedError

pytestmark = [pytest.mark.dear, pytest.mark.timeout(590)]

ROWS = 2_000
"""With this number of rows, the topic's file is larger than the broker's own files."""
TORN = 100
"""How many bytes of a batch the disk still takes."""


class DiedTooError(BaseException):
    """Stands for the death of a process that publishes, right after its broker has died."""


@pytest.fixture
def own_broker(tmp_path):
    broker = Broker(tmp_path / "broker")
    broker.start()
    yield broker
    broker.kill()


def counted(topic):
    """Return how often readers of committed records see each row."""
    return Counter(key.decode() for _, _, key, _ in read(topic))


def rows_of(*checkpoints):
    return Counter(f"{checkpoint}/{n}" for checkpoint in checkpoints for n in range(ROWS))


@pytest.mark.parametrize(
    ("method", "taken"), [("produce_batch", TORN), ("send_offsets_to_transaction", None), ("commit_transaction", None)]
)
def test_rows_of_an_undecided_transaction_are_not_visible_and_come_once(own_broker, monkeypatch, method, taken):
    """The disk is full when rows are sent, when the checkpoint's number is sent, or when the commit is requested."""
    topic = TopicMaker(own_broker.servers).made("numbers", 1, {})
    sink = sink_of(topic)
    sink.prepare("job", OUT, SCHEMA)
    sink.publish("job", OUT, 1, batches(1, ROWS))
    size = 1 if taken is None else own_broker.size_of(topic.name) + taken
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "Producer", struck(own_broker, method, size))
        with pytest.raises(DiedTooError):
            sink.publish("job", OUT, 2, batches(2, ROWS))
    own_broker.start()
    assert rows_of(1) == counted(topic)
    assert 1 == sink_of(topic).prepare("job", OUT, SCHEMA)
    sink_of(topic).publish("job", OUT, 2, batches(2, ROWS))
    assert rows_of(1, 2) == counted(topic)
    assert 2 == sink_of(topic).prepare("job", OUT, SCHEMA)


def test_a_commit_that_was_decided_before_the_disk_was_full_is_completed_once(own_broker, monkeypatch):
    """The disk had room for Kafka's decision, and none for the markers behind the rows. A new start writes them."""
    topic = TopicMaker(own_broker.servers).made("numbers", 1, {})
    sink = sink_of(topic)
    sink.prepare("job", OUT, SCHEMA)
    sink.publish("job", OUT, 1, batches(1, ROWS))
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "Producer", struck(own_broker, "commit_transaction", None, topic.name))
        with pytest.raises(DiedTooError):
            sink.publish("job", OUT, 2, batches(2, ROWS))
    own_broker.start()
    assert eventually(lambda: rows_of(1, 2) == counted(topic) or None)
    sink_of(topic).publish("job", OUT, 2, batches(2, ROWS))
    assert rows_of(1, 2) == counted(topic)
    assert 2 == sink_of(topic).prepare("job", OUT, SCHEMA)


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the sink's waiting from a minute to seconds."""
    monkeypatch.setattr(transaction, "PATIENCE_S", 3.0)
    monkeypatch.setattr(Cluster._asked, "__defaults__", (3.0,))
    return {"message.timeout.ms": "3000"}


@pytest.mark.parametrize("method", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_publication_ends_if_the_broker_has_died_and_stays_away(own_broker, monkeypatch, impatient, method):
    """The sink fails and names the broker, though Kafka's client would wait without end. Later the rows come once."""
    topic = TopicMaker(own_broker.servers).made("numbers", 1, {})
    sink = sink_of(topic, options=impatient)
    sink.prepare("job", OUT, SCHEMA)

    def dead(self, *arguments):
        own_broker.kill()
        return getattr(confluent_kafka.Producer, method)(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "Producer", type("Dead", (confluent_kafka.Producer,), {method: dead}))
        with pytest.raises(SinkError, match=f"Kafka at {topic.servers} does not answer: start the .* disk is full"):
            sink.publish("job", OUT, 1, batches(1, 10 * ROWS))
    own_broker.start()
    assert not counted(topic)
    sink_of(topic).publish("job", OUT, 1, batches(1, ROWS))
    assert rows_of(1) == counted(topic)


def test_a_topic_whose_disk_is_full_while_others_have_room_is_named(tmp_path, impatient):
    """The broker goes on without that disk, so the topic's partition has no leader. The next tick is refused too."""
    broker = Broker(tmp_path / "broker", disks=3)
    broker.start()
    try:
        topic = TopicMaker(broker.servers).made("numbers", 1, {})
        sink = sink_of(topic, options=impatient)
        sink.prepare("job", OUT, SCHEMA)
        sink.publish("job", OUT, 1, batches(1, ROWS))
        broker.fill_disk(broker.size_of(topic.name) + TORN)
        said = "no leader for partition 0 of topic numbers: .* make room where its log.dirs are, and start it again"
        with pytest.raises(SinkError, match=said):
            sink.publish("job", OUT, 2, batches(2, ROWS))
        with pytest.raises(SinkError, match=said):
            sink_of(topic).prepare("job", OUT, SCHEMA)
        broker.kill()
        broker.start()
        assert 1 == sink_of(topic).prepare("job", OUT, SCHEMA)
        assert rows_of(1) == counted(topic)
        sink_of(topic).publish("job", OUT, 2, batches(2, ROWS))
        assert rows_of(1, 2) == counted(topic)
    finally:
        broker.kill()


@pytest.mark.spark
@pytest.mark.jars("kafka")
def test_a_full_disk_of_the_broker_stops_the_job_until_there_is_room(own_broker, tmp_path, spark, monkeypatch):
    """The broker stops by itself. The tick fails after its commit point, and the next tick is refused.

    Both errors name the broker. Only one table has a sink. With two, both are published at once, and the first error
    names either.
    """
    topic = TopicMaker(own_broker.servers).made("orders", 2, {})
    job = Shop(tmp_path / "shop", {ORDERS: topic})
    job.run(checkpoints=1, **ONE_CORE)
    shown = read(topic)
    away = f"Kafka at {own_broker.servers} does not answer: start the broker.* whose disk is full stops by itself"

    def fill(name):
        if name == f"before:commit_transaction:{ORDERS}":
            own_broker.fill_disk(1)

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "Producer", crossing(fill))
        with pytest.raises(TickFailedError, match=f"{ORDERS} does not have checkpoint [0-9]+ yet, .*{away}"):
            job.run(**ONE_CORE)
    own_broker.wait_until_dead()
    with pytest.raises(TickRefusedError, match=f"sink of table {ORDERS}: .*{away}"):
        job.run(**ONE_CORE)
    own_broker.start()
    assert shown == read(topic)
    job.run(**ONE_CORE)
    assert_exact(job, spark)


def struck(broker, method, size, topic=None):
    """Return a producer that fills the broker's disk before a call. The call raises once the broker has died.

    Without a size, no file of the broker may become larger than the topic's file is now. All rows produced before are
    already sent.
    """

    def call(self, *arguments):
        if method != "produce_batch":
            assert 0 == self.flush(20)
        broker.fill_disk(size or broker.size_of(topic))
        doomed = threading.Thread(target=asked, args=(method, self, *arguments), daemon=True)
        doomed.start()
        broker.wait_until_dead()
        raise DiedTooError

    return type("Struck", (confluent_kafka.Producer,), {method: call})


def asked(method, producer, *arguments):
    """Make a call that cannot succeed, or whose success the caller never learns of."""
    with suppress(confluent_kafka.KafkaException):
        getattr(confluent_kafka.Producer, method)(producer, *arguments)
        producer.flush(20)
