"""Measures the time from the write of a record to Kafka until a reader of the tables sees it.

`python -m bench.freshness SERVERS SECONDS` writes a record every 10 ms. Kafka's client stamps each record with its time
of writing. Each of the two programs, ours and the peer's, records when a commit was complete, and up to which offset
the commit goes. Each program starts together with its writer, and both run for the same time. The records of the first
commits do not count, because Spark starts and the JVM compiles during them.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import DeltaTable

from bench.workload import WrongTotalsError

TOPIC: Final = "ticks"
EVERY_S: Final = 0.01
KEYS: Final = 100
WARM_UP_S: Final = 45.0
"""How much longer a program runs than it is measured."""
WARM_UP_COMMITS: Final = 5
"""The number of commits of the warm-up. Records that were written before the last of them do not count."""

_WAIT_S: Final = 10.0
_AT_ONCE: Final = 10_000
_LEAST_RECORDS: Final = 1_000
"""The least number of records for a useful 99th percentile."""


class TooFewRecordsError(RuntimeError):
    """A program took so long to warm up, or committed so rarely, that its figures are useless."""


def writing(servers: str, seconds: float) -> "Popen[bytes]":
    """Start the writer in a process of its own."""
    return Popen([sys.executable, "-m", "bench.freshness", servers, str(seconds)])  # noqa: S603 - this module


def latencies(servers: str, commits: Sequence[tuple[int, int]]) -> list[int]:
    """Return how long each record after the warm-up took until a commit had it, in ms.

    `commits` are pairs in order: the offset up to which the tables have the records, and the time of completion in ms.
    Records after the last commit do not count. Raises TooFewRecordsError.
    """
    if len(commits) <= WARM_UP_COMMITS:
        raise TooFewRecordsError(f"{len(commits)} commits are no more than the {WARM_UP_COMMITS} of the warm-up")
    warm_ms = commits[WARM_UP_COMMITS - 1][1]
    written = written_times(servers, TopicPartition(TOPIC, 0, 0), commits[-1][0])
    found, place = [], 0
    for offset, at in enumerate(written):
        while commits[place][0] <= offset:
            place += 1
        if at >= warm_ms:
            found.append(commits[place][1] - at)
    if len(found) < _LEAST_RECORDS:
        raise TooFewRecordsError(f"only {len(found)} records came after {WARM_UP_COMMITS} commits: measure for longer")
    return found


def require_rows(table: Path, rows: int) -> None:
    """Raise WrongTotalsError unless a table has exactly the records up to its last commit."""
    found = DeltaTable(str(table)).count()
    if found != rows:
        raise WrongTotalsError(f"{table.name} has {found} rows, and its last commit goes up to record {rows}")


def percentile(series: Sequence[int], share: float) -> float:
    """Return the percentile of the series for this share, in seconds."""
    ordered = sorted(series)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1000


def written_times(servers: str, place: TopicPartition, count: int) -> list[int]:
    """Return the time at which each of the first records of a Kafka partition was written, in ms."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "freshness", "enable.auto.commit": "false"})
    consumer.assign([place])
    times: list[int] = []
    while len(times) < count:
        messages = consumer.consume(_AT_ONCE, _WAIT_S)
        if not messages:
            raise TimeoutError(f"{place.topic}-{place.partition} has {len(times)} records, and the tables {count}")
        times += [message.timestamp()[1] for message in messages]
    consumer.close()
    return times[:count]


def main() -> None:
    """Write records until the time is over."""
    servers, seconds = sys.argv[1], float(sys.argv[2])
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    begin = time.monotonic()
    for number in range(round(seconds / EVERY_S)):
        time.sleep(max(0.0, begin + number * EVERY_S - time.monotonic()))
        producer.produce(TOPIC, b'{"key":%d,"value":%d}' % (number % KEYS, number), partition=0)
        producer.poll(0)
    producer.flush(_WAIT_S)


if __name__ == "__main__":
    main()
