"""Asks a Kafka cluster for topics and offsets, and commits offsets, without Spark.

After a broker has answered once in this process, further requests wait while the brokers restart. The first request
succeeds or fails within seconds, so that a wrong address is reported before the job is claimed. If no broker answers
the first request, further requests within `_REFUSED_S` seconds fail immediately with the same error. So a user with a
wrong address waits only once.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as Asked
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from jobs.sources.kafka.client_settings import (
    BrokerAwayError,
    ClientSettings,
    NoSuchTopicError,
    failure,
    is_refused_login,
)
from jobs.sources.kafka.position import TopicPartition
from jobs.sources.port import SourceError

if TYPE_CHECKING:
    from concurrent.futures import Future

FIRST_ANSWER_S: Final = 5.0
PATIENCE_S: Final = 60.0
"""How many seconds a request waits for a broker, if a broker has answered before."""

_AGAIN_S: Final = 0.5
_REFUSED_S: Final = 5.0
"""For how many seconds further requests fail immediately after no broker has answered."""
_RECORD_S: Final = 5.0

QUICK: Final = {"reconnect.backoff.max.ms": "1000", "socket.connection.setup.timeout.ms": "5000"}
"""Settings with which a returning broker is found soon. By default, librdkafka waits up to ten seconds."""

_LOOKING: Final = {
    "group.id": "tidemark-lag",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
}

SILENT: Final = logging.getLogger("tidemark.kafka")
"""The logger for librdkafka. It drops all messages, because errors are also raised as exceptions."""
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Extent:
    """The content of a Kafka partition: the offsets from `first` to before `end`, in the topic with this id.

    Records of open transactions come after `end`.
    """

    topic_id: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """The content of the Kafka partitions of some topics at one moment, by `time.monotonic`."""

    topics: frozenset[str]
    partitions: Mapping[TopicPartition, Extent]
    at: float
    told_idle: set[TopicPartition] = field(default_factory=set)
    """The Kafka partitions for which a poll has found nothing to read in this look."""


class Cluster:
    """One Kafka cluster, as one user sees it. Its methods may be called from any thread."""

    def __init__(self, settings: ClientSettings) -> None:
        """Connect to nothing yet."""
        self._settings = settings
        self._client: AdminClient | None = None
        self._last: KafkaError | None = None
        self._answered = False
        self._refused: tuple[str, float] | None = None
        """The error when no broker answered, and until when requests fail with it immediately (`time.monotonic`)."""

    def topics(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches, sorted, without Kafka's own."""
        found = self._asked(f"topics {pattern!r}", lambda client, s: client.list_topics(timeout=s))
        return sorted(name for name in found.topics if re.fullmatch(pattern, name) and not name.startswith("__"))

    def partitions(
        self, topics: Iterable[str], *, missing_ok: bool = False, patience_s: float = PATIENCE_S
    ) -> dict[TopicPartition, str]:
        """Return the Kafka partitions of these topics, with the id of each topic.

        With `missing_ok`, a missing topic has no Kafka partitions. Otherwise a missing topic raises NoSuchTopicError.
        """
        found = {}
        for topic in topics:  # one by one, so that an error names its topic
            try:
                described = self._asked(f"topic {topic}", partial(_described, topic), patience_s)
            except NoSuchTopicError:
                if not missing_ok:
                    raise
                continue
            for each in described.partitions:
                found[TopicPartition(topic, each.id)] = str(described.topic_id)
        return found

    def look(self, topics: Iterable[str], *, missing_ok: bool = False) -> ClusterLook:
        """Return the content of the Kafka partitions of these topics. With `missing_ok`, leave missing topics out."""
        asked = tuple(topics)
        ids = self.partitions(asked, missing_ok=missing_ok)
        at = time.monotonic()
        first, end = (self.offsets(dict.fromkeys(ids, spec)) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return ClusterLook(frozenset(asked), {place: Extent(ids[place], first[place], end[place]) for place in ids}, at)

    def offsets_at(self, places: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Return the first offsets with a record of that time or later, -1 for a Kafka partition without one."""
        return self.offsets(dict.fromkeys(places, OffsetSpec.for_timestamp(timestamp_ms)))

    def offsets(self, wanted: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
        """Return for each Kafka partition the offset that its OffsetSpec asks for."""
        if not wanted:
            return {}
        asked = {Asked(*place): spec for place, spec in wanted.items()}
        names = ", ".join(sorted({place.topic for place in wanted}))
        answers: dict[Any, int] = self._asked(f"topic {names}", lambda client, s: _offsets(client, asked, s))
        return {TopicPartition(each.topic, each.partition): offset for each, offset in answers.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], note: str) -> None:
        """Commit the offsets of a group, with a note. Raise SourceError, also if no broker answers within seconds."""
        listed = [Asked(*place, offset, note) for place, offset in offsets.items()]
        asked = [ConsumerGroupTopicPartitions(group, listed)]
        self._asked(f"group {group}", lambda client, s: _committed(client, asked, s), FIRST_ANSWER_S)

    def note(self, group: str, place: TopicPartition, *, settled: bool) -> str | None:
        """Return the note with which a group's offset was committed, or None if it has no offset.

        With `settled`, the call waits until no open transaction can change the offset. The request is made by a
        consumer, because librdkafka's admin client ends the process if a broker goes away while the admin client looks
        for a group's coordinator.
        """
        asking = {"group.id": group, "isolation.level": "read_committed" if settled else "read_uncommitted"}
        consumer = Consumer({**QUICK, **self._settings.for_librdkafka(), **_LOOKING, **asking}, logger=SILENT)
        try:
            (found,) = self._asked(f"group {group}", lambda _, s: consumer.committed([Asked(*place)], timeout=s))
        finally:
            consumer.close()
        if found.error is not None:
            raise self._failure(KafkaException(found.error), f"group {group}")
        return None if found.offset < 0 else found.metadata or ""

    def rights(self, topic: str) -> frozenset[str]:
        """Return the names of the operations that the user may do on a topic.

        Raises NoSuchTopicError if the topic does not exist.
        """
        described = self._asked(f"topic {topic}", partial(_described, topic, rights=True))
        return frozenset(each.name for each in described.authorized_operations or ())

    def settings(self, topic: str) -> Mapping[str, str]:
        """Return the brokers' settings of a topic, or an empty mapping if the user may not read them."""
        try:
            found = self._asked(f"topic {topic}", partial(_settings_of, topic), FIRST_ANSWER_S)
        except SourceError:
            return {}
        return {name: str(each.value) for name, each in found.items()}

    def leaderless(self, topic: str, patience_s: float) -> tuple[int, ...]:
        """Return the Kafka partitions of a topic that still have no leader after `patience_s` seconds.

        Nobody can write to such Kafka partitions. The disk of their broker is full or broken, or the broker has
        stopped.
        """
        limit = time.monotonic() + patience_s
        while True:
            described = self._asked(f"topic {topic}", partial(_described, topic), FIRST_ANSWER_S)
            found = tuple(sorted(each.id for each in described.partitions if not _has_leader(each)))
            if not found or time.monotonic() + _AGAIN_S > limit:
                return found
            time.sleep(_AGAIN_S)

    def timestamp_at(self, place: TopicPartition, offset: int) -> int | None:
        """Return the time of the next record from this offset on, in ms, or None if there is no record."""
        consumer = Consumer({**self._settings.for_librdkafka(), **_LOOKING}, logger=SILENT)
        try:
            consumer.assign([Asked(*place, offset)])
            message = consumer.poll(_RECORD_S)
            if message is None or message.error() is not None:
                return None
            when: int = message.timestamp()[1]
            return when
        finally:
            consumer.close()

    def close(self) -> None:
        """Close the connection. The next request opens it again."""
        self._client = None

    def _asked(
        self, what: str, question: Callable[[AdminClient, float], _Answer], patience_s: float = PATIENCE_S
    ) -> _Answer:
        """Return the answer to a request, repeated for `patience_s` seconds if a broker has answered before."""
        if self._refused is not None and time.monotonic() < self._refused[1]:
            raise BrokerAwayError(self._refused[0])
        limit = time.monotonic() + (patience_s if self._answered else FIRST_ANSWER_S)
        while True:
            try:
                answer = question(self._opened(), FIRST_ANSWER_S)
            except KafkaException as error:
                said = self._failure(error, what)
                if not isinstance(said, BrokerAwayError):
                    raise said from None
                if time.monotonic() + _AGAIN_S > limit:
                    self._refused = None if self._answered else (str(said), time.monotonic() + _REFUSED_S)
                    raise said from None
                time.sleep(_AGAIN_S)
            else:
                self._answered, self._refused = True, None
                return answer

    def _failure(self, error: KafkaException, what: str) -> Exception:
        said: KafkaError = error.args[0]
        if self._client is not None and said.name() in {"_TIMED_OUT", "_TRANSPORT"}:
            self._client.poll(0)  # only `_hear` gets the reason
            said = self._last or said
        text = self._settings.without_secrets(said.str())
        return failure(said, self._settings.servers, what, text, self._settings.asker)

    def _hear(self, error: KafkaError) -> None:
        """Record an error of the connection.

        A broker that refuses a log-in is also reported as down. That error has less information, so it does not replace
        the refusal.
        """
        if self._last is None or not is_refused_login(self._last):
            self._last = error

    def _opened(self) -> AdminClient:
        if self._client is None:
            heard = {"error_cb": self._hear}
            self._client = AdminClient({**QUICK, **self._settings.for_librdkafka(), **heard}, logger=SILENT)
        self._last = None
        return self._client


def _has_leader(partition: Any) -> bool:  # noqa: ANN401 - a TopicPartitionInfo
    return partition.leader is not None and partition.leader.id >= 0


def _described(topic: str, client: AdminClient, seconds: float, *, rights: bool = False) -> Any:  # noqa: ANN401 - a TopicDescription
    asked = {"request_timeout": seconds, "include_authorized_operations": rights}
    return client.describe_topics(TopicCollection([topic]), **asked)[topic].result()


def _settings_of(topic: str, client: AdminClient, seconds: float) -> Mapping[str, Any]:
    asked = ConfigResource(ResourceType.TOPIC, topic)
    settings: Mapping[str, Any] = client.describe_configs([asked], request_timeout=seconds)[asked].result()
    return settings


def _offsets(client: AdminClient, asked: Mapping[Any, OffsetSpec], seconds: float) -> dict[Any, int]:
    level = IsolationLevel.READ_COMMITTED
    found = client.list_offsets(dict(asked), isolation_level=level, request_timeout=seconds)
    return {place: future.result().offset for place, future in found.items()}


def _committed(client: AdminClient, asked: list[Any], seconds: float) -> None:
    futures: Iterable[Future[Any]] = client.alter_consumer_group_offsets(asked, request_timeout=seconds).values()
    for future in futures:
        for each in future.result().topic_partitions:
            if each.error is not None:
                raise KafkaException(each.error)
