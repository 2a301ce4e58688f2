"""Words an error of Kafka's client as one sentence that names the thing and the way out."""

from typing import TYPE_CHECKING, Final, NamedTuple

from jobs.sources.port import SourceAwayError, SourceError

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
"""Errors of a broker that starts, stops or hands over a Kafka partition. It may soon answer the same question."""

_OTHER_RIGHTS: Final = {
    "GROUP_AUTHORIZATION_FAILED": "READ on the group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "WRITE and DESCRIBE on the transactional id",
    "CLUSTER_AUTHORIZATION_FAILED": "IDEMPOTENT_WRITE on the cluster",
}
"""The right that a user lacks, for errors that do not speak of a topic."""

_LOGIN: Final = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"})


class Asker(NamedTuple):
    """The thing of a pipeline that asks a broker, what it does there, and the rights on a topic that it needs."""

    name: str
    does: str
    rights: str


SOURCE: Final = Asker("KafkaSource", "read", "DESCRIBE and READ")
SINK: Final = Asker("KafkaSink", "write to", "DESCRIBE, READ and WRITE")
"""Kafka asks for READ too if the offset that carries the checkpoint's number is committed in a transaction."""


class BrokerAwayError(SourceAwayError):
    """No broker answers. It may answer later."""


class NoSuchTopicError(SourceError):
    """The cluster has no topic of this name."""


def is_refused_login(error: "KafkaError") -> bool:
    """Return True if a broker refused name, password or certificate."""
    return error.name() in _LOGIN


def failure(error: "KafkaError", servers: str, what: str, said: str, asker: Asker = SOURCE) -> SourceError:
    """Return the error for a client's answer to the question for `what`. `said` is the text of the answer."""
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
