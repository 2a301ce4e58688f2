"""Writes the keyed workload into a Kafka topic: JSON records in four partitions, once, in a broker's folder."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.workload import Totals
from tests.kafka_broker import Broker

TOPIC: Final = "events"
PARTITIONS: Final = 4
SCHEMA: Final = "key long, value long"

_KEYS: Final = 1_000_000
_VALUES: Final = 1_000
_CHUNK: Final = 100_000
_SEED: Final = 1
_FLUSH_S: Final = 120
_DONE: Final = "totals.json"


def lay_out_topic(rows: int, root: Path) -> Path:
    """Return a broker's folder with a topic of this many records. Write the records if they are missing."""
    folder = root / f"kafka-{rows}-{PARTITIONS}"
    if not (folder / _DONE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        broker = Broker(folder)
        broker.start()
        try:
            totals = _write(broker.servers, rows)
        finally:
            broker.stop()
        (folder / _DONE).write_text(json.dumps(asdict(totals)))
    return folder


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Start the broker of a folder. Return its address."""
    broker = Broker(folder)
    broker.start()
    try:
        yield broker.servers
    finally:
        broker.stop()


def make_topic(servers: str, name: str, partitions: int) -> None:
    """Create a topic that keeps its records for ever, because later runs read them again."""
    admin = AdminClient({"bootstrap.servers": servers})  # the client must live until it has the answer
    admin.create_topics([NewTopic(name, partitions, 1, config={"retention.ms": "-1"})])[name].result()


def _write(servers: str, rows: int) -> Totals:
    make_topic(servers, TOPIC, PARTITIONS)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 2 * _CHUNK})
    chance, total = np.random.default_rng(_SEED), 0
    seen = np.zeros(_KEYS, dtype=bool)
    for start in range(0, rows, _CHUNK):
        size = min(_CHUNK, rows - start)
        keys, values = chance.integers(0, _KEYS, size), chance.integers(0, _VALUES, size)
        seen[keys] = True
        total += int(values.sum())
        for place, (key, value) in enumerate(zip(keys.tolist(), values.tolist(), strict=True)):
            producer.produce(TOPIC, b'{"key":%d,"value":%d}' % (key, value), partition=place % PARTITIONS)
        producer.flush(_FLUSH_S)
    return Totals(rows, int(seen.sum()), total)
