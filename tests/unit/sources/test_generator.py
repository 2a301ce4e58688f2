"""Tests a source of made-up rows without Spark: how many rows come, and when."""

import pytest

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources import generator
from jobs.sources.generator import GeneratorSource
from jobs.sources.port import Lag


def polled(source, split="0", position=None, rows=1_000):
    """Return how many rows a poll offers."""
    found = source.poll(PollSource(VertexId("made"), SplitId(split), position, rows))
    return 0 if found is None else found.rows


def test_the_splits_share_the_rows():
    """Each has its share, and ends. Without a number of rows, no split ends."""
    source = GeneratorSource(rows=10, splits=3)
    assert [4, 3, 3] == [polled(source, split) for split in source.splits()]
    assert {SplitId("0"): Lag(2), SplitId("1"): Lag(3), SplitId("2"): Lag(3)} == source.lag({SplitId("0"): "2"})
    assert 1_000 == polled(GeneratorSource(), position="123456789")


def test_rows_come_at_their_rate_from_the_first_poll_on(monkeypatch):
    """Rows come after the position that the first poll names, and only as many as exist. Going back costs no time."""
    now_s = 50.0
    monkeypatch.setattr(generator.time, "monotonic", lambda: now_s)
    source = GeneratorSource(rows=200, rate=20, splits=2)
    assert 0 == polled(source, position="40")
    now_s += 1.55
    assert 15 == polled(source, position="40")
    assert 25 == polled(source, position="30")
    assert 3 == polled(source, position="40", rows=3)
    assert 0 == polled(source, "1")
    now_s += 100
    assert 60 == polled(source, position="40")


@pytest.mark.parametrize("wrong", [{"splits": 0}, {"rate": 0}, {"rows": -1}])
def test_a_number_that_makes_no_rows_is_refused(wrong):
    """The message names the number."""
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} of a generator must be positive"):
        GeneratorSource(**wrong)


def test_the_source_describes_what_it_makes():
    """The description has the seed and the rate."""
    assert "made up from seed 7, 20 rows a second" == GeneratorSource(rate=20, seed=7, splits=4).described().place
