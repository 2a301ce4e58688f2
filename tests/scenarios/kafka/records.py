"""Reads the records of a topic: by Kafka's client, and by Spark."""

import json

import confluent_kafka

COMMITTED, ALL = "read_committed", "read_uncommitted"


def read(topic, level=COMMITTED):
    settings = {"bootstrap.servers": topic.servers, "group.id": "reader", "isolation.level": level}
    consumer = confluent_kafka.Consumer(settings | {"enable.partition.eof": True, "auto.offset.reset": "earliest"})
    try:
        places = consumer.list_topics(topic.name, timeout=10).topics[topic.name].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic.name, place, 0) for place in places])
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
