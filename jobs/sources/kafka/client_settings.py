"""Turns an error of Kafka's client into one sentence that names the topic or group and the way out."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from jobs.sources.port import SourceAwayError, SourceError
from jobs.sources.secrets import (
    Secrets,
    WithheldSettings,
    looked_up,
    refuse_open_secrets,
    without,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


_PASSING: Final = frozenset(
    {
        "_TIMED_OUT",
        "_TRANSPORT",
        "_ALL_BROKERS_DOWN",
        "_RESOLVE",
        "_WAIT_COORD",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "BROKER_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
    }
)
"""Errors of a broker that starts, stops or hands over a Kafka partition. The same request can soon succeed."""

_OTHER_RIGHTS: Final = {
    "GROUP_AUTHORIZATION_FAILED": "READ on the group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "WRITE and DESCRIBE on the transactional id",
    "CLUSTER_AUTHORIZATION_FAILED": "IDEMPOTENT_WRITE on the cluster",
}
"""The missing right, for authorization errors that are not about a topic."""

_LOGIN: Final = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"})


class Asker(NamedTuple):
    """The source or sink that asks a broker, what it does there, and the rights on a topic that it needs."""

    name: str
    does: str
    rights: str


SOURCE: Final = Asker("KafkaSource", "read", "DESCRIBE and READ")
SINK: Final = Asker("KafkaSink", "write to", "DESCRIBE, READ and WRITE")
"""Kafka also requires READ, because the offset with the checkpoint's number is committed in a transaction."""


class BrokerAwayError(SourceAwayError):
    """No broker answers. A broker can answer later."""


class NoSuchTopicError(SourceError):
    """The cluster has no topic of this name."""


def is_refused_login(error: "KafkaError") -> bool:
    """Return True if a broker refused name, password or certificate."""
    return error.name() in _LOGIN


def failure(error: "KafkaError", servers: str, what: str, said: str, asker: Asker = SOURCE) -> SourceError:
    """Return the error to raise for a client's error in a request for `what`. `said` is the text of that error."""
    name = error.name()
    if is_refused_login(error):
        return SourceError(
            f"Kafka at {servers} refused the log-in: correct security.protocol, sasl.mechanism and the secrets of the "
            f"{asker.name}. The client said: {said}"
        )
    if name in _PASSING or error.retriable():
        return BrokerAwayError(
            f"Kafka at {servers} does not answer: start the broker, or correct the servers of the {asker.name}. A "
            f"broker whose disk is full stops by itself, so make room first. The client said: {said}"
        )
    if name in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID"}:
        return NoSuchTopicError(f"Kafka at {servers} has no {what}: create the topic, or correct its name")
    if name.endswith("AUTHORIZATION_FAILED"):
        right = _OTHER_RIGHTS.get(name, f"{asker.rights} on the topic")
        return SourceError(f"Kafka at {servers} does not let this user {asker.does} {what}: give it {right}")
    if name == "_INVALID_ARG":
        return SourceError(f"Kafka's client does not take a setting of the {asker.name}: {said}; correct its options")
    return SourceError(f"Kafka at {servers} could not be asked for {what}: {name}, {said}")


# ------------------------------------------------------------------
# Prepares the settings of Kafka's clients. librdkafka asks for offsets, and Kafka's Java client reads records in Spark.
#
# A user gives settings by librdkafka's names (`sasl.username`, `ssl.ca.location`). This module translates the names for
# Java's client. Secrets are looked up when a client is made, from environment variables or by the user's function. No
# entry, message or description contains a secret.


_OURS: Final = ("bootstrap.servers", "group.id", "isolation.level", "enable.auto.commit", "auto.offset.reset")
_OURS_OF_SINKS: Final = (
    *_OURS,
    "transactional.id",
    "enable.idempotence",
    "acks",
    "request.required.acks",
    "delivery.report.only.error",
)
_FOR_SPARK: Final = "kafka."


class ClientSettings:
    """The settings of both Kafka clients."""

    def __init__(
        self, servers: str, options: Mapping[str, str], secrets: Secrets | None, asker: Asker = SOURCE
    ) -> None:
        """Raise SourceError for a setting that the source or sink itself sets, and for a secret in plain text."""
        is_source = asker is SOURCE
        for name in options:
            if name.removeprefix(_FOR_SPARK) in (_OURS if is_source else _OURS_OF_SINKS):
                what = "source" if is_source else "sink"
                raise SourceError(f"options of a {asker.name} cannot set {name!r}: the {what} sets it itself")
            if not is_source and name.startswith(_FOR_SPARK):
                raise SourceError(f"options of a {asker.name} cannot set {name!r}: Spark does not write the records")
        refuse_open_secrets(options, asker.name)
        self.servers = servers
        self.asker = asker
        self._options = dict(options)
        self._secrets = secrets

    @property
    def open_part(self) -> tuple[object, ...]:
        """Return the settings that are not secret, and where secrets are found. Equal results mean the same client."""
        secrets = () if self._secrets is None or callable(self._secrets) else tuple(sorted(self._secrets.items()))
        return self.servers, tuple(sorted(self._options.items())), secrets

    @property
    def reach_tasks(self) -> bool:
        """Return whether a task can make the client.

        It cannot if a setting is only for Spark's connector, or if a function returns the secrets.
        """
        return not callable(self._secrets) and not any(name.startswith(_FOR_SPARK) for name in self._options)

    def for_librdkafka(self) -> WithheldSettings:
        """Return librdkafka's configuration, with secrets. Raise SourceError if a secret is missing."""
        given = self._options | looked_up(self._secrets)
        own = {name: value for name, value in given.items() if not name.startswith(_FOR_SPARK)}
        return WithheldSettings(own, {"bootstrap.servers": self.servers})

    def for_spark(self) -> WithheldSettings:
        """Return the settings as options of Spark's connector, with secrets. Raise SourceError if a secret is missing.

        A setting whose name begins with `kafka.` is only for Spark's connector.
        """
        given = self._options | looked_up(self._secrets)
        own = {name: value for name, value in given.items() if name.startswith(_FOR_SPARK)}
        shared = {name: value for name, value in given.items() if name not in own}
        java = {f"{_FOR_SPARK}{name}": value for name, value in _for_java(shared)}
        return WithheldSettings(java, own, {f"{_FOR_SPARK}bootstrap.servers": self.servers})

    def without_secrets(self, text: str) -> str:
        """Return a client's message without the secrets that it can repeat."""
        return without(text, looked_up(self._secrets).values())


def _for_java(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield librdkafka's settings under the names of Kafka's Java client."""
    yield from _jaas(given)
    yield from _stores(given)
    for name, value in given.items():
        match name:
            case "sasl.mechanism" | "sasl.mechanisms":
                yield "sasl.mechanism", value
            case "ssl.endpoint.identification.algorithm":
                yield name, "" if value == "none" else value
            case "sasl.username" | "sasl.password":
                pass
            case _ if name.startswith(("ssl.ca.", "ssl.certificate.")) or name in {"ssl.key.location", "ssl.key.pem"}:
                pass
            case _:
                yield name, value


def _jaas(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the setting for a log-in with name and password. Java's client expects both in one text."""
    user, password = given.get("sasl.username"), given.get("sasl.password")
    if user is None or password is None:
        return
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "PLAIN"))
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    named = f"username={_quoted(user)} password={_quoted(password)}"
    yield "sasl.jaas.config", f"org.apache.kafka.common.security.{module} required {named};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _stores(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the settings for certificates and keys. Java's client gets them as PEM texts."""
    names = {
        "ssl.ca": ("truststore", "ssl.truststore.certificates"),
        "ssl.certificate": ("keystore", "ssl.keystore.certificate.chain"),
        "ssl.key": ("keystore", "ssl.keystore.key"),
    }
    for name, (store, java) in names.items():
        text = given.get(f"{name}.pem") or _read(f"{name}.location", given.get(f"{name}.location"))
        if text is not None:
            yield f"ssl.{store}.type", "PEM"
            yield java, text


def _read(name: str, path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(
            f"{path}, which {name!r} names, cannot be read ({error.strerror}): correct the path"
        ) from error
