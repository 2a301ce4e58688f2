"""The topic of a sink, and the place where Kafka keeps the number of the newest checkpoint.

The number is the note of an offset that a consumer group of the sink's own has committed in the topic. No consumer is
in this group, and the offset itself means nothing. Kafka commits offset and rows in one transaction.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, job_name, table_name
from jobs.kafka_sink.records import Record
from jobs.kafka_sink.shown import has_records, keys_shown
from jobs.sinks.port import SinkError
from jobs.sources.kafka.cluster import QUICK, Cluster
from jobs.sources.kafka.failures import SINK, BrokerAwayError, failure
from jobs.sources.kafka.position import TopicPartition
from jobs.sources.kafka.settings import ClientSettings
from jobs.sources.port import SourceError
from jobs.sources.withheld import WithheldSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

TIMEOUT: Final = "transaction.timeout.ms"
_TIMEOUT_MS: Final = 900_000
"""How long a transaction may take. A broker allows no more, unless somebody has changed its settings."""
_UNDELIVERED_MS: Final = 60_000
"""How long the producer tries to send a record."""
_UNDELIVERED: Final = "_MSG_TIMED_OUT"
"""The error of a record that could not be sent for so long."""
_LED_S: Final = 10.0
"""How long a partition may be without a leader. A cluster chooses one within seconds."""
_CLIENT_BYTES: Final = 1_000_000
"""What the client takes for a record, and sends at once, unless its user says otherwise."""
_BATCH_BYTES: Final = 61
"""What comes before the records of a batch."""
_NOTE: Final = re.compile(r"checkpoint (\d+)")


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """What Kafka takes as a record: how large it may be, and whether it needs a key."""

    client: int
    """The most bytes of key and value that the client takes."""
    topic: int | None
    """The most bytes that the brokers take at once, compressed. None: the user may not read the topic's settings."""
    codec: str | None
    is_compacted: bool

    @property
    def batches(self) -> Mapping[str, str]:
        """The producer's setting with which it sends no more records at once than the topic takes."""
        return {} if self.topic is None or self.topic >= _CLIENT_BYTES else {"batch.size": str(self.topic)}

    def why_not(self, record: Record) -> str | None:
        """Return why Kafka does not take a record, or None if it does."""
        key, value = record.get("key"), encoded(record["value"])
        if key is None and self.is_compacted:
            return (
                "a row has no key, and a topic with cleanup.policy=compact takes no record without one: filter it out"
            )
        size = len(encoded(key)) + len(value)
        if size <= self.client and (self.topic is None or self._sent_bytes(encoded(key), value) <= self.topic):
            return None
        return too_large(key, size)

    def _sent_bytes(self, key: bytes, value: bytes) -> int:
        frame = _frame_bytes(len(key), len(value))
        if self.codec is None or len(key) + len(value) + frame <= (self.topic or 0):
            return len(key) + len(value) + frame
        return frame + len(pa.compress(key + value, codec=self.codec, asbytes=True))


def encoded(value: bytes | str | None) -> bytes:
    """Return a key or value as bytes."""
    return value.encode() if isinstance(value, str) else value or b""


def too_large(key: bytes | str | None, size: int) -> str:
    """Return the message for a record that Kafka does not take."""
    shown = key.decode(errors="replace") if isinstance(key, bytes) else key
    named = "a row" if shown is None else f"the row with the key {shown[:100]!r}"
    return (
        f"{named} becomes a record of {size:,} bytes, more than Kafka takes: raise 'message.max.bytes' in the sink's "
        "options, and max.message.bytes of the topic"
    )


def _frame_bytes(key: int, value: int) -> int:
    """Return how many bytes a batch of one record has besides key and value (Kafka's record format 2)."""
    inside = 3 + _varint_bytes(key or -1) + _varint_bytes(value) + 1
    return _BATCH_BYTES + _varint_bytes(inside + key + value) + inside


def _varint_bytes(number: int) -> int:
    """Return the length of a number as Kafka writes it: signed, in groups of seven bits."""
    return max(1, -(-(2 * abs(number)).bit_length() // 7))


class KafkaTarget:
    """A topic as one job and one of its tables write to it."""

    def __init__(self, settings: ClientSettings, cluster: Cluster, topic: str, job: str, table: str) -> None:
        """Connect to nothing yet. Raises InvalidNameError for a job or a table that cannot have this name."""
        self.topic, self.job, self.table = topic, job, table
        self.place = TopicPartition(topic, 0)
        self.name = f"tidemark/{job_name(job)}/{table_name(table)}/{topic}"
        """The transactional id, and the name of the group. None of its parts has more slashes than it shows here."""
        self._settings = settings
        self._cluster = cluster

    def must_be_writable(self) -> None:
        """Raise SourceError if no broker answers or the topic does not exist.

        Raise SinkError if a right is missing, or if a partition has no leader, so that nobody can write to it.
        """
        rights = self._cluster.rights(self.topic)
        missing = [right for right in ("READ", "WRITE") if rights and right not in rights]
        if missing:
            raise SinkError(
                f"Kafka at {self._settings.servers} does not let this user {SINK.does} topic {self.topic}: give it "
                f"{SINK.rights} on the topic"
            )
        leaderless = self._cluster.leaderless(self.topic, _LED_S)
        if leaderless:
            raise SinkError(self._says(leaderless))

    @cached_property
    def limits(self) -> RecordLimits:
        """What Kafka takes as a record of this topic."""
        return self._limits_of(self.topic)

    def _limits_of(self, topic: str) -> RecordLimits:
        given, there = self._settings.for_librdkafka(), self._cluster.settings(topic)
        codec = str(given.get("compression.codec", given.get("compression.type", "none")))
        most = there.get("max.message.bytes")
        return RecordLimits(
            client=int(given.get("message.max.bytes", _CLIENT_BYTES)),
            topic=None if most is None else int(most),
            codec=None if codec == "none" else codec,
            is_compacted="compact" in there.get("cleanup.policy", ""),
        )

    def newest(self, *, settled: bool) -> CheckpointId:
        """Return the newest checkpoint that the topic has; `settled`: after all transactions that are being committed.

        Raises SinkError if another program has changed the group's offset.
        """
        note = self._cluster.note(self.name, self.place, settled=settled)
        if note is None:
            return NO_CHECKPOINT
        found = _NOTE.fullmatch(note)
        if found is None:
            raise SinkError(
                f"another program has changed the offset of group {self.name}, and its note {note!r} names no "
                "checkpoint: write to another topic, or delete the group if the topic is to get all rows once more"
            )
        return CheckpointId(int(found[1]))

    def must_be_empty(self) -> None:
        """Raise SinkError if the topic of an upsert table that shows no checkpoint yet has records."""
        if has_records(self.for_group(), self._cluster.look([self.topic]).partitions):
            raise SinkError(
                f"topic {self.topic} has records, and this job has written none of them: name an empty topic"
            )

    def keys_shown(self) -> set[bytes]:
        """Return the keys whose last record has a value, as a reader of committed records sees them."""
        return keys_shown(self.for_group(), self._cluster.look([self.topic]).partitions)

    @staticmethod
    def note_of(checkpoint: CheckpointId) -> str:
        """Return the note that says that the topic has a checkpoint."""
        return f"checkpoint {checkpoint}"

    def for_producer(self) -> WithheldSettings:
        """Return the settings of a producer. Those that a user gave win, as far as they may be given."""
        given = self._settings.for_librdkafka()
        undelivered_ms = min(_UNDELIVERED_MS, _timeout_ms(given))
        own = {
            **QUICK,
            TIMEOUT: str(_TIMEOUT_MS),
            "message.timeout.ms": str(undelivered_ms),
            "queue.buffering.max.kbytes": "65536",
            **self.limits.batches,
            "linger.ms": "20",
            "partitioner": "murmur2_random",  # as Kafka's Java clients choose it
        }
        return WithheldSettings(own, given, {"transactional.id": self.name})

    def for_group(self) -> WithheldSettings:
        """Return the settings of a consumer that stands for the group."""
        known = ("bootstrap.servers", "client.id")
        given = {
            name: value
            for name, value in self._settings.for_librdkafka().items()
            if name in known or name.startswith(("security.", "sasl.", "ssl.", "enable.ssl."))
        }
        return WithheldSettings(QUICK, given, {"group.id": self.name, "enable.auto.commit": "false"})

    def told(self, error: "KafkaError") -> str:
        """Return the client's error as a sentence with the way out, without secrets."""
        said = self._settings.without_secrets(error.str())
        failed = failure(error, self._settings.servers, f"topic {self.topic}", said, SINK)
        if isinstance(failed, BrokerAwayError) or error.name() == _UNDELIVERED:
            with suppress(SourceError):
                leaderless = self._cluster.leaderless(self.topic, 0)
                return self._says(leaderless) if leaderless else str(failed)
        return str(failed)

    def _says(self, leaderless: Sequence[int]) -> str:
        """Return the message for partitions without a leader."""
        places = ", ".join(map(str, leaderless))
        return (
            f"Kafka at {self._settings.servers} has no leader for partition {places} of topic {self.topic}: a broker "
            "has stopped, or its disk is full or broken. Look into the broker's log, make room where its log.dirs are, "
            "and start it again"
        )

    @property
    def transaction_timeout_s(self) -> float:
        """How long a transaction may take."""
        return _timeout_ms(self._settings.for_librdkafka()) / 1000


def _timeout_ms(given: WithheldSettings) -> int:
    return int(given.get(TIMEOUT, _TIMEOUT_MS))
