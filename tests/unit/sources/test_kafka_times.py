"""The times of Kafka's records, as tasks read them."""

import re
from dataclasses import dataclass

import pytest

from jobs.sources.kafka.readers import _timestamps
from jobs.sources.port import SourceError


@dataclass
class Record:
    """A record with a time."""

    ms: int

    def timestamp(self):
        """Return the kind of time, and the time."""
        return 1, self.ms

    def topic(self):
        """Return the topic."""
        return "orders"

    def partition(self):
        """Return the partition."""
        return 3

    def offset(self):
        """Return the offset."""
        return 17


def test_a_time_in_microseconds_is_far_away_and_one_in_nanoseconds_names_its_record():
    """The first is a moment of Spark's type. The second is none, and the user learns where it lies."""
    assert [1721054790123456 * 1000] == _timestamps([Record(1721054790123456)]).view("int64").to_pylist()
    for ms in (1721054790123456789, -(2**63)):
        with pytest.raises(SourceError, match=re.escape("topic orders, partition 3, offset 17: the record's time")):
            _timestamps([Record(0), Record(ms)])
