"""Starts the servers into which P24 writes, and computes the totals of the rows that they have.

A server is a child of the program that is measured, so its CPU seconds count as the program's.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl
import psycopg
from confluent_kafka import Consumer, TopicPartition

from bench.kafka_workload import PARTITIONS, make_topic
from bench.workload import Totals
from tests.kafka_broker import running_broker
from tests.postgres_server import PostgresServer

NAME: Final = "events"
"""The name of the table or the topic."""
KINDS: Final = ("postgres", "kafka")
_CHUNK: Final = 100_000
_WAIT_S: Final = 30.0


class Target(ABC):
    """A server, and the rows that it has."""

    address: str

    @abstractmethod
    def totals(self) -> Totals:
        """Return the totals of the rows that a reader sees."""
        ...


class Table(Target):
    """A table of a PostgreSQL server."""

    def __init__(self, server: PostgresServer) -> None:
        """Use a server that already runs."""
        self.address = server.url()

    def totals(self) -> Totals:
        """Return the totals of the table."""
        with psycopg.connect(self.address) as connection:
            query = f"SELECT count(*), count(DISTINCT key), sum(value) FROM {NAME}"  # noqa: S608 - our own name
            rows, keys, total = connection.execute(query.encode()).fetchall()[0]
        return Totals(rows, keys, int(total))


class Topic(Target):
    """A topic of a Kafka broker."""

    def __init__(self, servers: str) -> None:
        """Create the topic."""
        self.address = servers
        make_topic(servers, NAME, PARTITIONS)

    def totals(self) -> Totals:
        """Return the totals of all committed records."""
        read = [pl.read_ndjson(b"\n".join(values)).select("key", "value") for values in self._values()]
        rows = pl.concat(read)
        return Totals(rows.height, rows["key"].n_unique(), int(rows["value"].sum()))

    def _values(self) -> Iterator[list[bytes]]:
        asked = {"bootstrap.servers": self.address, "group.id": "totals", "isolation.level": "read_committed"}
        consumer = Consumer({**asked, "enable.partition.eof": "true", "enable.auto.commit": "false"})
        consumer.assign([TopicPartition(NAME, place, 0) for place in range(PARTITIONS)])
        ended, values = 0, []
        while ended < PARTITIONS:
            message = consumer.poll(_WAIT_S)
            if message is None:
                raise RuntimeError("a transaction is open, or the broker is gone")
            if message.error() is None:
                values.append(message.value())
            else:
                ended += 1
            if values and (len(values) == _CHUNK or ended == PARTITIONS):
                yield values
                values = []
        consumer.close()


@contextmanager
def serving(kind: str, folder: Path) -> Iterator[Target]:
    """Start a server of this kind, and stop it afterwards."""
    if kind == "kafka":
        with running_broker(folder / "broker") as broker:
            yield Topic(broker.servers)
        return
    server = PostgresServer()
    try:
        yield Table(server)
    finally:
        server.close()
