"""Reads the keys of a topic's committed records."""

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Asked

from checkpointing.commit.outside_transaction import (
    ReadNewest,
    TakeOverTarget,
    TargetAnswer,
    TargetDone,
    TargetHas,
    TargetLost,
    TargetRefused,
    TargetStep,
    WriteInTransaction,
)
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, job_name, table_name
from jobs.outside_sinks.kafka.kafka_records import RECORDS_MAX, Record
from jobs.sinks.port import SinkError
from jobs.sources.kafka.client_settings import SINK, BrokerAwayError, ClientSettings, failure
from jobs.sources.kafka.cluster import PATIENCE_S, QUICK, SILENT, Cluster, Extent
from jobs.sources.kafka.position import TopicPartition
from jobs.sources.port import SourceError
from jobs.sources.secrets import WithheldSettings

_SHOWN_POLL_S: Final = 1.0
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
            message = consumer.poll(_SHOWN_POLL_S)
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


# ------------------------------------------------------------------
# The topic of a sink, and the place where Kafka keeps the number of the newest checkpoint.
#
# The number is in the metadata (here called the note) of an offset. A consumer group of the sink's own has committed
# this offset in the topic. The group has no consumer, and the offset itself has no meaning. Kafka commits offset and
# rows in one transaction.


TIMEOUT: Final = "transaction.timeout.ms"
_TIMEOUT_MS: Final = 900_000
"""How long a transaction may take. By default, no broker allows more."""
_UNDELIVERED_MS: Final = 60_000
"""How long the producer tries to send a record."""
_UNDELIVERED: Final = "_MSG_TIMED_OUT"
"""The error of a record that the producer could not send in this time."""
_LED_S: Final = 10.0
"""How long a partition may be without a leader. A cluster elects a leader within seconds."""
_CLIENT_BYTES: Final = 1_000_000
"""The client's default limit for the bytes of one record, and of the records that it sends at once."""
_BATCH_BYTES: Final = 61
"""The bytes before the first record of a batch."""
_NOTE: Final = re.compile(r"checkpoint (\d+)(?: of warehouse (\S+))?")


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Kafka's limits for a record: how large it may be, and whether it needs a key."""

    client: int
    """The client's limit for the bytes of key and value."""
    topic: int | None
    """The brokers' limit for the compressed bytes of one batch. None: the user may not read the topic's settings."""
    codec: str | None
    is_compacted: bool

    @property
    def batches(self) -> Mapping[str, str]:
        """The producer's setting that limits its batches to what the topic accepts."""
        return {} if self.topic is None or self.topic >= _CLIENT_BYTES else {"batch.size": str(self.topic)}

    def why_not(self, record: Record) -> str | None:
        """Return why Kafka would refuse a record, or None if Kafka would accept it."""
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
    """Return the message for a record that is too large for Kafka."""
    shown = key.decode(errors="replace") if isinstance(key, bytes) else key
    named = "a row" if shown is None else f"the row with the key {shown[:100]!r}"
    return (
        f"{named} becomes a record of {size:,} bytes, more than Kafka takes: raise 'message.max.bytes' in the sink's "
        "options, and max.message.bytes of the topic"
    )


def _frame_bytes(key: int, value: int) -> int:
    """Return the number of bytes that a batch of one record adds to key and value (Kafka's record format 2)."""
    inside = 3 + _varint_bytes(key or -1) + _varint_bytes(value) + 1
    return _BATCH_BYTES + _varint_bytes(inside + key + value) + inside


def _varint_bytes(number: int) -> int:
    """Return the length of a number as Kafka writes it: signed, in groups of seven bits."""
    return max(1, -(-(2 * abs(number)).bit_length() // 7))


class KafkaTarget:
    """A topic as one job and one of its tables write to it."""

    def __init__(
        self,
        settings: ClientSettings,
        cluster: Cluster,
        topic: str,
        job: str,
        table: str,
        warehouse: str | None = None,
    ) -> None:
        """Open no connection yet. Raises InvalidNameError for an invalid name of a job or a table.

        Without a `warehouse`, the topic keeps belonging to the warehouse that has published into it last.
        """
        self.topic, self.job, self.table = topic, job, table
        self.place = TopicPartition(topic, 0)
        self.name = f"tidemark/{job_name(job)}/{table_name(table)}/{topic}"
        """The transactional id, and the name of the group. Each part has only the slashes that are shown here."""
        self._settings = settings
        self._cluster = cluster
        self._warehouse = warehouse
        self._owner: str | None = None
        """The warehouse that the newest note names."""

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
        """Kafka's limits for a record of this topic."""
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
        """Return the newest checkpoint that the topic has.

        With `settled`, wait first for all transactions that are being committed. Raises SinkError if another program
        has changed the group's offset.
        """
        return self.noted(settled=settled)[0]

    def noted(self, *, settled: bool) -> tuple[CheckpointId, str | None]:
        """Return the newest checkpoint that the topic has, and which warehouse has published it; see `newest`.

        The warehouse is None if nobody has published, or only an older release of Tidemark that did not name its
        warehouse.
        """
        note = self._cluster.note(self.name, self.place, settled=settled)
        if note is None:
            return NO_CHECKPOINT, None
        found = _NOTE.fullmatch(note)
        if found is None:
            raise SinkError(
                f"another program has changed the offset of group {self.name}, and its note {note!r} names no "
                "checkpoint: write to another topic, or delete the group if the topic is to get all rows once more"
            )
        self._owner = found[2]
        return CheckpointId(int(found[1])), self._owner

    def must_be_empty(self) -> None:
        """Raise SinkError if the topic of an upsert table that shows no checkpoint yet has records."""
        if has_records(self.for_group(), self._cluster.look([self.topic]).partitions):
            raise SinkError(
                f"topic {self.topic} has records, and this job has written none of them: name an empty topic"
            )

    def keys_shown(self) -> set[bytes]:
        """Return the keys whose last record has a value, as a reader of committed records sees them."""
        return keys_shown(self.for_group(), self._cluster.look([self.topic]).partitions)

    def note_of(self, checkpoint: CheckpointId) -> str:
        """Return the note for a checkpoint that the topic has. It also names the warehouse, if that is known."""
        owner = self._warehouse or self._owner
        return f"checkpoint {checkpoint}" if owner is None else f"checkpoint {checkpoint} of warehouse {owner}"

    def for_producer(self) -> WithheldSettings:
        """Return the settings of a producer. A user's settings win, if a user may give them."""
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
        """Return the settings of a consumer that acts for the group."""
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


# ------------------------------------------------------------------
# Finds the rows whose records Kafka would refuse, before they are sent.
#
# Without a topic for refused rows, the first such row raises an error. With such a topic, it gets a record with the row
# and the reason, in the transaction of the other rows. To find the rows, a batch is halved until it has one row.


Sent = tuple[str, list[Record]]
"""A topic, and records for it, as `Producer.produce_batch` takes them."""
Made = Callable[[pa.RecordBatch], Iterator[list[Record]]]
"""Makes the records of rows. Raises SinkError for a row that cannot become a record."""
_SHOWN_MAX: Final = 200
"""The length to which each value is cut in the record of a refused row."""
_REASON_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Sorting:
    """The records of one checkpoint for a topic. `refused` is the topic of rows that Kafka refuses.

    `said` are the fields of each record of a refused row besides the row and the reason.
    """

    topic: str
    limits: RecordLimits
    refused: str | None
    said: Mapping[str, object]

    def of(self, batch: pa.RecordBatch, made: Made, leaves: Made | None = None) -> Iterator[Sent]:
        """Yield the records of rows. `leaves` makes the records that delete the key of a refused row."""
        for start in range(0, batch.num_rows, RECORDS_MAX):
            yield from self._sorted(batch.slice(start, RECORDS_MAX), made, leaves)

    def _sorted(self, part: pa.RecordBatch, made: Made, leaves: Made | None) -> Iterator[Sent]:
        found, why = self._judged(part, made)
        if why is None:
            yield from ((self.topic, records) for records in found)
        elif self.refused is None:
            raise SinkError(f"{why}. With refused=, such rows go to a topic of their own")
        elif part.num_rows > 1:
            half = part.num_rows // 2
            yield from self._sorted(part.slice(0, half), made, leaves)
            yield from self._sorted(part.slice(half), made, leaves)
        else:
            yield self.refused, [self._kept(part, why)]
            gone, keyless = self._judged(part, leaves) if leaves is not None else ([], None)
            yield from ((self.topic, records) for records in gone if keyless is None)

    def _judged(self, part: pa.RecordBatch, made: Made) -> tuple[list[list[Record]], str | None]:
        """Return the records of rows, and why Kafka would refuse one of them. None: it would accept all."""
        try:
            found = list(made(part))
        except SinkError as error:
            return [], str(error)
        said = (self.limits.why_not(record) for records in found for record in records)
        return found, next((why for why in said if why is not None), None)

    def _kept(self, row: pa.RecordBatch, why: str) -> Record:
        """Return the record of a refused row: a JSON object."""
        values = {name: str(value)[:_SHOWN_MAX] for name, value in row.to_pylist()[0].items() if value is not None}
        return {"value": json.dumps({**self.said, "reason": why[:_REASON_MAX], "row": values})}


# ------------------------------------------------------------------
# Carries out the publication of one checkpoint on Kafka's producer; `published_once` decides the order of the steps.
#
# A new producer takes the sink over: Kafka then refuses every older producer of the same `transactional.id`. It aborts
# a transaction that such a producer has left open, and completes a transaction whose commit was decided.


_ABORT_S: Final = 5.0
_GRACE_S: Final = 5.0
"""How long after its timeout a call of the client can return."""
_POLL_S: Final = 0.1
_FULL: Final = "_QUEUE_FULL"
_PURGED: Final = "_PURGE_"
"""The beginning of the error names of records that an abort has discarded."""
_TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
_FINAL: Final = frozenset(
    {
        "INVALID_RECORD",
        "POLICY_VIOLATION",
        "UNKNOWN_TOPIC_OR_PART",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "_INVALID_ARG",
        "_UNKNOWN_TOPIC",
    }
)
"""Errors that stay the same however often the producer tries. So do errors about a missing right."""


class KafkaTransaction:
    """Publishes the rows of one checkpoint, step by step."""

    def __init__(
        self,
        target: KafkaTarget,
        checkpoint: CheckpointId,
        records_since: Callable[[CheckpointId], Iterable[Sent]],
    ) -> None:
        """Open no connection yet.

        `records_since` returns the records for a topic that has the given older checkpoint.
        """
        self._target = target
        self._checkpoint = checkpoint
        self._records_since = records_since
        self._producer: Producer | None = None
        self._began_s: float | None = None
        self._undelivered: KafkaError | None = None
        self._too_large: str | None = None
        self._largest = 0

    def done(self, step: TargetStep) -> TargetAnswer:
        """Do a step, and return the answer. Raises what reading the rows raises."""
        try:
            match step:
                case ReadNewest(settled):
                    return TargetHas(self._target.newest(settled=settled))
                case TakeOverTarget():
                    self._take_over()
                case WriteInTransaction(since):
                    self._write(since)
        except KafkaException as error:
            return self._failed(error.args[0])
        except BrokerAwayError as error:
            return TargetLost(str(error))
        except (SinkError, SourceError) as error:
            return TargetRefused(str(error))
        return TargetDone()

    def _take_over(self) -> None:
        self._began_s = self._undelivered = None
        heard = {"on_delivery": self._hear_delivery, "delivery.report.only.error": True, "error_cb": _pass_over}
        self._producer = Producer({**self._target.for_producer(), **heard}, logger=SILENT)
        self._producer.init_transactions(PATIENCE_S)

    def _write(self, since: CheckpointId) -> None:
        """Send the rows and the checkpoint's number, and commit."""
        assert self._producer is not None, "the target is taken over first"  # noqa: S101 - the core's order
        producer, self._began_s = self._producer, time.monotonic()
        with self._ending(producer):
            producer.begin_transaction()
            for topic, messages in self._records_since(since):
                self._send(producer, topic, messages)
            self._note(producer)
            self._commit(producer)

    def _send(self, producer: Producer, topic: str, messages: list[Record]) -> None:
        """Put records into the producer's queue. Wait while it is full."""
        while messages:
            producer.produce_batch(topic, messages)
            producer.poll(0)
            messages = [message for message in messages if "_error" in message]
            for message in messages:
                error = message.pop("_error")
                if error.name() in _TOO_LARGE:
                    raise SinkError(too_large(message.get("key"), len(encoded(message["value"]))))
                if error.name() != _FULL:
                    raise KafkaException(error)
            if messages:
                producer.poll(_POLL_S)

    def _note(self, producer: Producer) -> None:
        """Add the checkpoint's number to the transaction, as the note of an offset."""
        consumer = Consumer({**self._target.for_group()}, logger=SILENT)
        try:
            noted = Asked(*self._target.place, 0, self._target.note_of(self._checkpoint))
            group = consumer.consumer_group_metadata()
            _in_time(lambda: producer.send_offsets_to_transaction([noted], group, PATIENCE_S))
        finally:
            consumer.close()

    @staticmethod
    def _commit(producer: Producer) -> None:
        """Commit, after all records are sent. Each is sent, or fails after `message.timeout.ms`.

        A commit itself waits for the records too. But it counts errors that nobody has polled yet as records, and would
        wait for ever.
        """
        while producer.flush(PATIENCE_S):
            pass
        producer.commit_transaction(PATIENCE_S)

    @contextmanager
    def _ending(self, producer: Producer) -> Iterator[None]:
        """Abort the transaction if the block fails, so that readers need not wait until Kafka aborts it."""
        try:
            yield
        except BaseException:
            with suppress(KafkaException):
                producer.abort_transaction(_ABORT_S)
            raise

    def _hear_delivery(self, error: KafkaError | None, message: Any) -> None:  # noqa: ANN401 - the client's message
        """Keep why the first record was not delivered. The error of the transaction does not tell.

        If a record is too large, other records that were sent with it fail too. So the message is about the largest
        one.
        """
        if error is None or error.name().startswith(_PURGED):
            return
        self._undelivered = self._undelivered or error
        if error.name() in _TOO_LARGE and len(message) > self._largest:
            self._largest = len(message)
            self._too_large = too_large(message.key(), len(message))

    def _failed(self, error: KafkaError) -> TargetLost | TargetRefused:
        """Return whether another try can help. For an unknown error it may, since nobody knows what the target has."""
        target = self._target
        if self._too_large is not None:
            return TargetRefused(self._too_large)
        if self._began_s is not None and time.monotonic() - self._began_s >= target.transaction_timeout_s:
            return TargetRefused(
                f"the transaction took longer than it may, which is {target.transaction_timeout_s:.0f} s: take smaller "
                f"checkpoints, or raise {TIMEOUT!r} in the sink's options, up to the broker's "
                "transaction.max.timeout.ms"
            )
        if error.name() == "INVALID_TRANSACTION_TIMEOUT":
            return TargetRefused(
                f"the broker allows no transaction of {target.transaction_timeout_s:.0f} s: set {TIMEOUT!r} in the "
                "sink's options to its transaction.max.timeout.ms at most"
            )
        cause = self._undelivered or error
        told = target.told(cause)
        if cause.name() in _FINAL or cause.name().endswith("AUTHORIZATION_FAILED"):
            return TargetRefused(told)
        return TargetLost(told)


def _in_time(call: Callable[[], None]) -> None:
    """Make a call of the client. Raise a KafkaException if it does not return in time.

    librdkafka ignores the timeout while the broker of the consumer group is away (its issue 5456), so the call might
    never return. Then the call is left behind in a thread. Its producer sends nothing more, and the next producer
    fences it.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=run, name="tidemark-kafka-note", daemon=True)
    thread.start()
    thread.join(PATIENCE_S + _GRACE_S)
    if thread.is_alive():
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - the client's name for it
    if raised:
        raise raised[0]


def _pass_over(error: KafkaError) -> None:
    """Do nothing. The call that fails raises the error.

    Without this function, other calls would raise the error too.
    """
    del error
