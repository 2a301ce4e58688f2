"""Makes topics, writes to them and reads them with Kafka's own client. Spark reads them too."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

WAIT_S = 20
COMMITTED, ALL = "read_committed", "read_uncommitted"

Answer = TypeVar("Answer")


def done(admin: AdminClient, ask: Callable[[AdminClient], Mapping[object, Future]]) -> list:
    """Return the answers to a request of the admin client, once they are there. The client must live until then."""
    return [future.result(WAIT_S) for future in ask(admin).values()]


def eventually(ask: Callable[[], Answer | None]) -> Answer:
    """Return the first answer that is not None. A broker does some things only a moment after it confirmed them."""
    limit = time.monotonic() + WAIT_S
    while (answer := ask()) is None:
        assert time.monotonic() < limit
        time.sleep(0.1)
    return answer


def answer_of(ask: Callable[[], Answer]) -> Answer | None:
    """Return a client's answer, or None while the broker still creates its internal topic of consumer groups."""
    try:
        return ask()
    except KafkaException as error:
        if "COORDINATOR" not in error.args[0].name():
            raise
        return None


@dataclass(frozen=True)
class Topic:
    servers: str
    name: str

    def write(self, values: Iterable[str | bytes | None], partition: int = 0, **more: object) -> None:
        producer = self._producer()
        for value in values:
            producer.produce(self.name, value, partition=partition, **more)
            producer.poll(0)
        assert 0 == producer.flush(WAIT_S)

    @contextmanager
    def transaction(self, values: Iterable[str], partition: int = 0, *, commit: bool):
        producer = self._producer(**{"transactional.id": f"{self.name}-{time.monotonic_ns()}"})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, partition=partition)
        producer.flush(WAIT_S)
        yield
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)

    def delete_records(self, before: int, partition: int = 0) -> None:
        asked = [TopicPartition(self.name, partition, before)]
        done(self.admin(), lambda admin: admin.delete_records(asked))

    def add_partitions(self, total: int) -> None:
        done(self.admin(), lambda admin: admin.create_partitions([NewPartitions(self.name, total)]))

    def delete(self) -> None:
        admin = self.admin()
        done(admin, lambda admin: admin.delete_topics([self.name]))
        limit = time.monotonic() + WAIT_S
        while self.name in admin.list_topics(timeout=WAIT_S).topics:
            assert time.monotonic() < limit
            time.sleep(0.05)

    def committed(self, group: str, partitions: int) -> dict[int, int]:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
        try:
            asked = [TopicPartition(self.name, partition) for partition in range(partitions)]
            found = eventually(lambda: answer_of(lambda: consumer.committed(asked, timeout=WAIT_S)))
            return {each.partition: each.offset for each in found}
        finally:
            consumer.close()

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers})

    def _producer(self, **more: str) -> Producer:
        return Producer({"bootstrap.servers": self.servers, "linger.ms": "5"} | more)


@dataclass(frozen=True)
class TopicMaker:
    servers: str

    def made(self, name: str, partitions: int, config: Mapping[str, str]) -> Topic:
        admin = AdminClient({"bootstrap.servers": self.servers})
        asked = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        admin.create_topics([asked])[name].result(WAIT_S)
        limit = time.monotonic() + WAIT_S
        while len(admin.list_topics(name, timeout=WAIT_S).topics[name].partitions) < partitions:
            assert time.monotonic() < limit
            time.sleep(0.05)
        return Topic(self.servers, name)


def read(topic, level=COMMITTED):
    settings = {"bootstrap.servers": topic.servers, "group.id": "reader", "isolation.level": level}
    consumer = Consumer(settings | {"enable.partition.eof": True, "auto.offset.reset": "earliest"})
    try:
        places = consumer.list_topics(topic.name, timeout=10).topics[topic.name].partitions
        consumer.assign([TopicPartition(topic.name, place, 0) for place in places])
        found, ended = [], set()
        while len(ended) < len(places):
            message = consumer.poll(10)
            assert message is not None, "a reader waits for an open transaction"
            if message.error() is None:
                found.append((message.partition(), message.offset(), message.key(), message.value()))
            else:
                ended.add(message.partition())
        return sorted(found, key=lambda each: each[:2])
    finally:
        consumer.close()


def read_by_spark(spark, topic):
    options = {"kafka.bootstrap.servers": topic.servers, "subscribe": topic.name, "kafka.isolation.level": COMMITTED}
    frame = spark.read.format("kafka").options(**options).load().select("partition", "offset", "key", "value")
    bytes_of = [(place, offset, *(each and bytes(each) for each in rest)) for place, offset, *rest in frame.collect()]
    return sorted(bytes_of, key=lambda each: each[:2])


def table_of(records):
    shown, places = {}, {}
    for place, _, key, value in records:
        assert place == places.setdefault(key, place), "the records of a key have no order"
        assert shown.get(key) != value, f"{key} is written twice as {value}"
        shown[key] = value
    return {key.decode(): json.loads(value) for key, value in shown.items() if value is not None}
