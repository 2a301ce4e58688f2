"""Tests polling of sequences, without Spark."""

import time

import pytest

from checkpointing.identifiers import InvalidNameError, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.hybrid import SequenceSource, SequenceSplit
from jobs.sources.port import SourceError


def poll(source, split, position=None, rows_max=10):
    return source.poll(PollSource(VertexId("numbers"), SplitId(split), position, rows_max))


def test_a_split_ends_after_its_last_row():
    """Slices follow each other up to the last row. Then there is no slice."""
    source = SequenceSource({"a": 12})
    first = poll(source, "a")
    second = poll(source, "a", first.end)
    assert ("0", "10", 10) == (first.start, first.end, first.rows)
    assert ("10", "12", 2) == (second.start, second.end, second.rows)
    assert poll(source, "a", second.end) is None


def test_an_open_ended_split_goes_on():
    """A split without a number of rows always has rows."""
    assert 7 == poll(SequenceSource({"a": None}), "a", "1000000", 7).rows


def test_only_the_slow_split_is_slow():
    """Each split has its own delay."""
    source = SequenceSource({"slow": SequenceSplit(5, poll_delay_ms=50), "fast": 5})
    started = time.monotonic()
    poll(source, "slow")
    waited = time.monotonic() - started
    assert waited >= 0.05
    assert ("fast", "slow") == source.splits()


def test_a_split_gives_no_more_rows_at_a_time_than_declared():
    """The smaller one of the poll's bound and the split's bound counts. No slice goes beyond the end."""
    source = SequenceSource({"a": SequenceSplit(5, poll_rows_max=3)})
    assert [3, 2, 2] == [poll(source, "a").rows, poll(source, "a", rows_max=2).rows, poll(source, "a", "3").rows]


@pytest.mark.parametrize("position", ["", "-1", '{"format":1}'])
def test_a_foreign_position_is_refused(position):
    """A position of another source is an error. The source does not begin from the start."""
    with pytest.raises(SourceError, match="is not a position of a sequence"):
        poll(SequenceSource({"a": 1}), "a", position)


def test_an_unknown_split_is_named():
    """The error lists the splits."""
    with pytest.raises(SourceError, match="no split 'b', only a"):
        poll(SequenceSource({"a": 1}), "b")


def test_bad_declarations_are_refused():
    """A split's name becomes a key, and a modulus must be positive."""
    with pytest.raises(InvalidNameError):
        SequenceSource({"a b": 1})
    with pytest.raises(ValueError, match="keys is 0"):
        SequenceSource({"a": 1}, keys=0)
