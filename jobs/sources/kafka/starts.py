"""Decides where a KafkaSource begins in a Kafka partition, and which places there a user can name."""

from datetime import datetime
from typing import Final

from jobs.sources.kafka.cluster import Cluster, Extent
from jobs.sources.kafka.position import TopicPartition
from jobs.sources.port import NoSuchPositionError, SourceError
from jobs.sources.position_words import END, moment_named

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_NONE_SO_NEW: Final = -1

_WORDS: Final = f"'{EARLIEST}', '{LATEST}'"
_MOMENT: Final = "a moment such as 2026-01-31T12:00:00Z"


def start_of(words: str | datetime) -> str | datetime:
    """Return a start as the source uses it. A moment without a time zone is in UTC.

    Raise SourceError for other words.
    """
    found = words if words in {EARLIEST, LATEST} else moment_named(words)
    if found is None:
        raise SourceError(f"a KafkaSource cannot start at {words!r}: write {_WORDS} or {_MOMENT}")
    return found


def offset_of(cluster: Cluster, place: TopicPartition, extent: Extent, start: str | datetime) -> int:
    """Return the offset of a start in a Kafka partition. A moment after the last record means the end."""
    if isinstance(start, datetime):
        found = cluster.offsets_at([place], round(start.timestamp() * 1000))[place]
        return extent.end if found == _NONE_SO_NEW else min(found, extent.end)
    return extent.end if start == LATEST else extent.first


def offset_named(cluster: Cluster, place: TopicPartition, extent: Extent, words: str) -> int:
    """Return the offset that a user's words name. Raise NoSuchPositionError with the words that are allowed."""
    if words.isdecimal() and extent.first <= int(words) <= extent.end:
        return int(words)
    start = {EARLIEST: EARLIEST, LATEST: LATEST, END: LATEST}.get(words) or moment_named(words)
    if words.isdecimal() or start is None:
        raise NoSuchPositionError(
            f"write 'start', 'end', {_WORDS}, an offset from {extent.first} to {extent.end}, or {_MOMENT}"
        )
    return offset_of(cluster, place, extent, start)
