"""Reads the keys of a topic's committed records."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Asked

from jobs.sources.kafka.cluster import PATIENCE_S, SILENT, Extent
from jobs.sources.kafka.failures import BrokerAwayError
from jobs.sources.kafka.position import TopicPartition
from jobs.sources.withheld import WithheldSettings

_POLL_S: Final = 1.0
_READING: Final = {"isolation.level": "read_committed", "enable.partition.eof": "true"}


def keys_shown(settings: WithheldSettings, extents: Mapping[TopicPartition, Extent]) -> set[bytes]:
    """Return the keys whose last record has a value."""
    shown: dict[TopicPartition, set[bytes]] = defaultdict(set)
    for place, key, has_value in _records(settings, extents):
        if key is not None:
            (shown[place].add if has_value else shown[place].discard)(key)
    return set().union(*shown.values())


def has_records(settings: WithheldSettings, extents: Mapping[TopicPartition, Extent]) -> bool:
    """Return whether there is a committed record."""
    return any(True for _ in _records(settings, extents))


def _records(
    settings: WithheldSettings, extents: Mapping[TopicPartition, Extent]
) -> Iterator[tuple[TopicPartition, bytes | None, bool]]:
    """Yield where each record is, its key, and whether it has a value."""
    unread = {place for place, extent in extents.items() if extent.first < extent.end}
    consumer = Consumer({**settings, **_READING}, logger=SILENT)
    try:
        consumer.assign([Asked(*place, extents[place].first) for place in unread])
        limit = time.monotonic() + PATIENCE_S
        while unread:
            message = consumer.poll(_POLL_S)
            if message is None:
                if time.monotonic() > limit:
                    raise BrokerAwayError("Kafka sends no records of the topic: look after its brokers")
                continue
            limit = time.monotonic() + PATIENCE_S
            place, error = TopicPartition(message.topic(), message.partition()), message.error()
            if error is None:
                yield place, message.key(), message.value() is not None
            elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's name for it
                raise KafkaException(error)
            elif message.offset() >= extents[place].end:
                unread.discard(place)
    finally:
        consumer.close()
