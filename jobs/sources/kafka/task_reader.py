"""Reads ranges of offsets in a task, with librdkafka. Of transactions it reads the committed ones.

A Python worker keeps its clients from one task to the next, because a new one first asks for brokers and partitions.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from jobs.sources.kafka.failures import BrokerAwayError, failure, is_refused_login
from jobs.sources.kafka.position import TopicPartition
from jobs.sources.kafka.settings import ClientSettings
from jobs.sources.port import SourceError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_PATIENCE_S: Final = 60.0
"""How long a task waits for the next record."""
_WAIT_S: Final = 1.0
_RECORDS: Final = 32 * 1024
_BYTES: Final = 16 * 1024 * 1024
"""So many records, or records of so many bytes, are handed on at once."""
_READING: Final = {
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "queued.max.messages.kbytes": "16384",
}

_IDLE: Final[dict[tuple[object, str], "_Client"]] = {}
"""The clients of this process that no task uses, by settings and group."""


def messages(
    settings: ClientSettings, group: str, place: TopicPartition, first: int, end: int
) -> Iterator[list["Message"]]:
    """Yield the records from offset `first` to before `end`, in lists. Offsets without a record are skipped.

    Raises SourceError if records cannot be read or are gone.
    """
    key = (settings.open_part, group)
    client = _IDLE.pop(key, None) or _Client(settings, group)
    try:
        yield from client.read(place, first, end)
    except BaseException:
        client.close()
        raise
    _IDLE[key] = client


class _Client:
    """A consumer of librdkafka that reads one range after the other."""

    def __init__(self, settings: ClientSettings, group: str) -> None:
        """Connect in the background. Raises SourceError for a setting that the client does not take."""
        from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 - an extra, which a worker may lack

        from jobs.sources.kafka.cluster import QUICK, SILENT  # noqa: PLC0415 - needs the extra too

        self._settings = settings
        self._last: KafkaError | None = None
        given = {**QUICK, **settings.for_librdkafka(), **_READING, "group.id": group, "error_cb": self._note}
        try:
            self._consumer = Consumer(given, logger=SILENT)
        except KafkaException as error:
            raise self._failure(error.args[0], f"group {group}") from None

    def read(self, place: TopicPartition, first: int, end: int) -> Iterator[list["Message"]]:
        """Yield the records of a range, and leave the Kafka partition. Raises SourceError."""
        from confluent_kafka import TopicPartition as Asked  # noqa: PLC0415 - an extra

        self._last = None
        self._consumer.assign([Asked(*place, first)])
        gathered: list[Message] = []
        size, at, limit = 0, first, time.monotonic() + _PATIENCE_S
        while at < end:
            records, now_at = self._next(place, at, end)
            if now_at > at:
                at, limit = now_at, time.monotonic() + _PATIENCE_S
            elif time.monotonic() > limit:
                raise self._stuck(place, at, end)
            gathered += records
            size += sum(map(len, records))
            if len(gathered) >= _RECORDS or size >= _BYTES:
                yield gathered
                gathered, size = [], 0
        if gathered:
            yield gathered
        self._consumer.unassign()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _next(self, place: TopicPartition, at: int, end: int) -> tuple[list["Message"], int]:
        """Return the records before `end` that have come, and the offset to read from then."""
        first = self._consumer.poll(_WAIT_S)
        if first is None:
            if self._last is not None and is_refused_login(self._last):
                raise self._failure(self._last, f"topic {place.topic}")
            return [], at
        records = []
        # More is not waited for: the broker sends what it has.
        for message in (first, *self._consumer.consume(min(end - at, _RECORDS), 0)):
            error = message.error()
            if error is None:
                records.append(message)
                at = message.offset() + 1
            elif error.name() == "_PARTITION_EOF":
                at = max(at, message.offset())
            else:
                self._heed(error, place)
        if at > end:
            records = [record for record in records if record.offset() < end]
        return records, at

    def _heed(self, error: "KafkaError", place: TopicPartition) -> None:
        """Note an error of a broker that may come back. Raise SourceError for any other."""
        if error.name() in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
            raise SourceError(
                f"partition {place} has lost records while they were read: run the pipeline again, which says which "
                "records, and how to go on without them"
            )
        said = self._failure(error, f"topic {place.topic}")
        if not isinstance(said, BrokerAwayError):
            raise said
        self._last = error

    def _stuck(self, place: TopicPartition, at: int, end: int) -> SourceError:
        if self._last is not None:
            return self._failure(self._last, f"topic {place.topic}")
        return SourceError(
            f"partition {place} gave no record from offset {at:,} on for {_PATIENCE_S:.0f} s, though it ended at "
            f"{end:,} before: look whether the broker works, and run again"
        )

    def _failure(self, error: "KafkaError", what: str) -> SourceError:
        said = self._settings.without_secrets(error.str())
        return failure(error, self._settings.servers, what, said, self._settings.asker)

    def _note(self, error: "KafkaError") -> None:
        self._last = error
