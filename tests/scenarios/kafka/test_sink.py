"""Tests the Kafka sink on a real broker: readers of committed records see each row once, whichever process dies."""

import json
import random
import threading
import time
from collections import Counter

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from jobs.outside_sinks.kafka import transaction
from tests.kafka_broker import LOGIN, PASSWORD, Broker
from tests.scenarios.kafka.sink_job import METHODS, batches, dies_publishing
from tests.scenarios.kafka.topics import TopicMaker, done, read
from tests.scenarios.postgres.test_upsert_sink import Known
from tests.scenarios.processes import killed
from tidemark import KafkaSink, SinkError

OUT = "out/numbers"
SCHEMA = pa.schema({"n": pa.string()})


def sink_of(topic, **more):
    return KafkaSink(topic.servers, topic.name, "n", **more)


def publish(sink, checkpoint, rows=None):
    sink.publish("job", OUT, checkpoint, batches(checkpoint, 10) if rows is None else rows)


def shown(topic):
    """Return the keys and values that a reader of committed records sees in all Kafka partitions."""
    return [(key.decode(), value) for _, _, key, value in read(topic)]


def assert_exact(topic, checkpoints, rows=10):
    """Assert that a reader sees each row of these checkpoints once, and the topic has the last checkpoint's number."""
    expected = [f"{checkpoint}/{n}" for checkpoint in range(1, checkpoints + 1) for n in range(rows)]
    assert Counter(expected) == Counter(key for key, _ in shown(topic))
    assert checkpoints == sink_of(topic).prepare("job", OUT, SCHEMA)


def test_a_checkpoint_is_published_once(make_topic):
    """Publishing it again, or an older one, changes nothing and reads no rows. Another job has a number of its own."""
    topic = make_topic(2)
    sink = sink_of(topic)
    assert 0 == sink.prepare("job", OUT, SCHEMA)
    publish(sink, 3)

    def unread():
        raise AssertionError("the rows are read")
        yield

    for checkpoint in (3, 2):
        publish(sink, checkpoint, unread())
    assert (3, 0) == (sink.prepare("job", OUT, SCHEMA), sink.prepare("other", OUT, SCHEMA))
    found = shown(topic)
    assert [f"3/{n}" for n in range(10)] == sorted(key for key, _ in found)
    assert all({"n": key} == json.loads(value) for key, value in found)


def test_a_topic_belongs_to_the_warehouse_that_writes_it(make_topic):
    """Another warehouse with the same job is refused, unless it takes the topic over.

    A topic that an older version has written names no warehouse.
    """
    topic = make_topic(1)
    older, mine, other = (sink_of(topic) for _ in range(3))
    publish(older, 1)
    assert not mine.take("job", OUT, "a1")
    publish(mine, 2)
    assert_exact(topic, 2)
    assert not mine.take("job", OUT, "a1")
    publish(sink_of(topic), 3)  # a process that takes no topic, such as one that only rolls forward, leaves the owner
    with pytest.raises(SinkError, match=r"has records of another warehouse, up to checkpoint 3: name that warehouse"):
        other.take("job", OUT, "b2")
    assert not other.take("job", OUT, "b2", over=True)
    publish(other, 4)
    with pytest.raises(SinkError, match="another warehouse"):
        mine.take("job", OUT, "a1")


def test_a_zombie_that_goes_on_after_its_successor_writes_nothing(make_topic):
    """The zombie is in its transaction when another process publishes the same checkpoint and the next one."""
    topic = make_topic(1)
    zombie, successor = sink_of(topic), sink_of(topic)

    def overtaken():
        first, second = batches(1, 10)
        yield first
        if not shown(topic):
            publish(successor, 1)
            publish(successor, 2)
        yield second

    publish(zombie, 1, overtaken())
    assert_exact(topic, 2)


def test_a_lost_reply_of_the_commit_changes_nothing(make_topic, monkeypatch):
    """If the commit is in, the stored number shows it, although the client got no reply. A lost commit is repeated."""
    topic, lost = make_topic(1), []

    class Losing(confluent_kafka.Producer):
        def commit_transaction(self, *arguments):
            lost.append(len(lost))
            if lost[-1] % 2:
                super().commit_transaction(*arguments)
            if lost[-1] < 2:
                raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))

    monkeypatch.setattr(transaction, "Producer", Losing)
    publish(sink_of(topic), 1)
    monkeypatch.undo()
    assert [0, 1] == lost
    assert_exact(topic, 1)


def test_a_record_that_kafka_never_takes_is_found_before_it_is_sent(make_topic):
    """The limit is exact to the byte. Topics with smaller batches or with compression take every record that fits."""
    for size, is_fit in ((1_922, True), (1_923, False)):
        topic = make_topic(1, max_message_bytes="2000")
        rows = [pa.record_batch({"n": ["x" * size]})]
        sink = KafkaSink(topic.servers, topic.name)
        if is_fit:
            sink.check("job", OUT, 1, rows)
            publish(sink, 1, rows)
        for refuses in () if is_fit else (sink.check, sink.publish):
            with pytest.raises(SinkError, match=r"a row becomes a record of 1,9\d\d bytes.*With refused=, "):
                refuses("job", OUT, 1, rows)
        assert is_fit == bool(read(topic))
    small, packed = make_topic(1, max_message_bytes="2000"), make_topic(1, max_message_bytes="2000")
    publish(KafkaSink(small.servers, small.name), 1, [pa.record_batch({"n": ["x" * 500] * 100})])
    large = [pa.record_batch({"n": ["x" * 90_000]})]
    sink = KafkaSink(packed.servers, packed.name, options={"compression.codec": "zstd"})
    sink.check("job", OUT, 1, large)
    publish(sink, 1, large)
    assert (100, 1) == (len(read(small)), len(read(packed)))
    compacted = make_topic(1, cleanup_policy="compact")
    with pytest.raises(SinkError, match="takes no record without one"):
        sink_of(compacted).check("job", OUT, 1, [pa.record_batch({"n": pa.array(["a", None])})])


def test_refused_rows_lie_in_a_topic_of_their_own(make_topic):
    """The other rows go on in the same transaction. A key whose new row is refused gets a tombstone."""
    topic, refused = make_topic(1, max_message_bytes="2000"), make_topic(1)
    sink = KafkaSink(topic.servers, topic.name, refused=refused.name)
    schema = pa.schema({"id": pa.string(), "name": pa.string()})

    def table(*rows):
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)

    assert 0 == sink.prepare_upsert("job", OUT, schema, ("id",))
    good = [(f"g{n}", "x") for n in range(100)]
    sink.apply("job", OUT, 1, Known(table(("a", "x"), (None, "y"), ("b", "x" * 3_000), *good)))
    assert sorted(["a", *(key for key, _ in good)]) == sorted(key for key, _ in shown(topic))
    sink.apply("job", OUT, 2, Known(None, since=1, changed=table(("a", "x" * 3_000), ("c", "x")), deleted=()))
    assert [("a", None), ("c", {"id": "c", "name": "x"})] == [
        (key, value and json.loads(value)) for key, value in shown(topic)[-2:]
    ]
    kept = [json.loads(value) for _, _, _, value in read(refused)]
    assert [(1, None), (1, "b"), (2, "a")] == [(each["checkpoint"], each["row"].get("id")) for each in kept]
    assert all(each["reason"] and (OUT, "job") == (each["table"], each["job"]) for each in kept)


@pytest.mark.dear
def test_what_the_broker_refuses_is_one_sentence(make_topic, broker):
    """A missing topic or right is found before the claim. A row that is too large is found before it is sent."""
    topic = make_topic(1, max_message_bytes="2000")
    with pytest.raises(SinkError, match=f"Kafka at {topic.servers} has no topic nowhere: create the topic"):
        KafkaSink(topic.servers, "nowhere").prepare("job", OUT, SCHEMA)
    rule = (topic.name, ResourcePatternType.LITERAL, "User:reader", "*", AclOperation.WRITE, AclPermissionType.DENY)
    done(topic.admin(), lambda admin: admin.create_acls([AclBinding(ResourceType.TOPIC, *rule)]))
    reader = KafkaSink(broker.login_servers, topic.name, options=LOGIN, secrets=lambda: {"sasl.password": PASSWORD})
    with pytest.raises(SinkError, match=f"not let this user write to topic {topic.name}: give it DESCRIBE, READ and W"):
        reader.prepare("job", OUT, SCHEMA)
    large = [pa.record_batch({"n": ["small", "x" * 5_000]})]
    for limit, said in (("1000000", r"key 'xxx"), ("3000", r"key 'x+' becomes a record of 10,008 bytes, more than")):
        with pytest.raises(SinkError, match=rf"KafkaSink\({topic.name} at .*: the row with the {said}"):
            publish(sink_of(topic, options={"message.max.bytes": limit}), 1, large)
    assert ([], 0) == (shown(topic), sink_of(topic).prepare("job", OUT, SCHEMA))


@pytest.mark.dear
def test_another_password_and_another_address_are_refused_within_seconds(broker, make_topic):
    topic, began = make_topic(1), time.monotonic()
    wrong = KafkaSink(broker.login_servers, topic.name, options=LOGIN, secrets=lambda: {"sasl.password": "n0t-this"})
    for sink, said in (
        (wrong, "refused the log-in: .* secrets of the KafkaSink"),
        (KafkaSink("127.0.0.1:9", "t"), "do"),
    ):
        with pytest.raises(SinkError, match=said) as refused:
            sink.prepare("job", OUT, SCHEMA)
        assert "n0t-this" not in str(refused.value)
    assert time.monotonic() - began < 14


@pytest.mark.dear
def test_a_transaction_that_takes_too_long_is_refused_by_name(make_topic):
    """The broker ends the transaction. None of its rows is visible, and the message says what to change."""
    topic = make_topic(1)

    def slow():
        first, second = batches(1, 10)
        yield first
        time.sleep(12)  # the broker looks for such transactions every ten seconds
        yield second

    short = sink_of(topic, options={"transaction.timeout.ms": "1000"})
    with pytest.raises(SinkError, match="took longer than it may, which is 1 s: take smaller checkpoints, or raise"):
        publish(short, 1, slow())
    with pytest.raises(SinkError, match="the broker allows no transaction of 1000000 s: set"):
        publish(sink_of(topic, options={"transaction.timeout.ms": "1000000000"}), 1)
    assert [] == shown(topic)
    publish(sink_of(topic), 1)
    assert_exact(topic, 1)


@pytest.mark.dear
@pytest.mark.timeout(300)
def test_a_process_that_dies_at_any_call_leaves_each_row_once(make_topic):
    topic, moments = make_topic(2), [(when, method) for method in METHODS for when in ("before", "after")]
    for checkpoint, moment in enumerate(moments, start=1):
        killed(dies_publishing, topic.servers, topic.name, checkpoint, *moment)
        publish(sink_of(topic), checkpoint)
    assert_exact(topic, len(moments))


@pytest.mark.dear
@pytest.mark.timeout(300)
def test_processes_that_publish_at_the_same_time_leave_each_row_once(make_topic):
    """Four threads publish the same checkpoints. A thread that fails finds the checkpoint when it tries again."""
    topic, meet = make_topic(2), threading.Barrier(4)

    def run():
        sink = sink_of(topic)
        for checkpoint in range(1, 4):
            meet.wait()
            until = time.monotonic() + 60
            while time.monotonic() < until:  # each new try fences off the try under way
                try:
                    publish(sink, checkpoint)
                    break
                except SinkError:
                    time.sleep(random.uniform(0.1, 1))  # noqa: S311 - not for secrets

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_exact(topic, 3)


@pytest.mark.dear
@pytest.mark.timeout(300)
def test_a_broker_that_dies_in_the_middle_of_a_publication_has_the_rows_once(tmp_path, monkeypatch):
    broker = Broker(tmp_path)
    broker.start()
    back = []

    def strike():
        broker.kill()
        back.append(threading.Timer(2, broker.start))
        back[-1].start()

    class Struck(confluent_kafka.Producer):
        at = None

        def commit_transaction(self, *arguments):
            if Struck.at == "sent":
                Struck.at = None
                strike()
            super().commit_transaction(*arguments)
            if Struck.at == "committed":
                Struck.at = None
                strike()
                raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))

    def struck():
        first, second = batches(1, 10)
        yield first
        if not back:
            time.sleep(0.5)
            strike()
        yield second

    try:
        topic = TopicMaker(broker.servers).made("numbers", 2, {})
        sink = sink_of(topic)
        sink.prepare("job", OUT, SCHEMA)
        monkeypatch.setattr(transaction, "Producer", Struck)
        publish(sink, 1, type("Rows", (), {"__iter__": lambda self: struck()})())
        for checkpoint, Struck.at in ((2, "sent"), (3, "committed")):
            publish(sink, checkpoint)
        assert 3 == len(back)
        assert_exact(topic, 3)
    finally:
        for timer in back:
            timer.join()
        broker.kill()
