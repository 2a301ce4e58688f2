"""Carries out the publication of one checkpoint on Kafka's producer; `published_once` decides the order of the steps.

A new producer takes the sink over: Kafka then refuses every older producer of the same `transactional.id`, aborts the
transaction that one has left open, and completes one whose commit was decided.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

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
from checkpointing.identifiers import CheckpointId
from jobs.kafka_sink.records import Record
from jobs.kafka_sink.refusing import Sent
from jobs.kafka_sink.target import TIMEOUT, KafkaTarget, encoded, too_large
from jobs.sinks.port import SinkError
from jobs.sources.kafka.cluster import PATIENCE_S, SILENT
from jobs.sources.kafka.failures import BrokerAwayError
from jobs.sources.port import SourceError

_ABORT_S: Final = 5.0
_GRACE_S: Final = 5.0
"""How much later than it was told a call of the client may return."""
_POLL_S: Final = 0.1
_FULL: Final = "_QUEUE_FULL"
_PURGED: Final = "_PURGE_"
"""Begins the errors of records that an abort has thrown away."""
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
"""Answers that stay the same however often the producer tries. So do those that say that a right is missing."""


class KafkaTransaction:
    """Publishes the rows of one checkpoint, step by step."""

    def __init__(
        self,
        target: KafkaTarget,
        checkpoint: CheckpointId,
        records_since: Callable[[CheckpointId], Iterable[Sent]],
    ) -> None:
        """Connect to nothing yet. `records_since` returns the records for a topic that has an older checkpoint."""
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

        A commit itself waits for the records too, but takes errors that nobody has heard yet for records, without end.
        """
        while producer.flush(PATIENCE_S):
            pass
        producer.commit_transaction(PATIENCE_S)

    @contextmanager
    def _ending(self, producer: Producer) -> Iterator[None]:
        """Abort the transaction if it fails, so that readers do not wait until Kafka does it."""
        try:
            yield
        except BaseException:
            with suppress(KafkaException):
                producer.abort_transaction(_ABORT_S)
            raise

    def _hear_delivery(self, error: KafkaError | None, message: Any) -> None:  # noqa: ANN401 - the client's message
        """Keep why the first record was not delivered. The error of the transaction does not say it.

        A record that is too large takes others with it, which were sent together with it. So the largest one counts.
        """
        if error is None or error.name().startswith(_PURGED):
            return
        self._undelivered = self._undelivered or error
        if error.name() in _TOO_LARGE and len(message) > self._largest:
            self._largest = len(message)
            self._too_large = too_large(message.key(), len(message))

    def _failed(self, error: KafkaError) -> TargetLost | TargetRefused:
        """Return whether another try may help. By default it may, since nobody knows what the target has."""
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

    librdkafka overlooks the time while the broker of the consumer group is away (its issue 5456), so the call might
    never return. It then stays behind in a thread. Its producer sends nothing more, and the next one shuts it out.
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
    """Do nothing. The call that fails raises the error, and without this function others would raise it too."""
    del error
