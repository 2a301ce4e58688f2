"""Flink's counter of checkpoint ids, which its test cases drive."""

import pytest

from spec.flink.id_counter import CheckpointIdCounter


def test_ids_rise_and_go_on_where_they_are_told():
    """The counter begins at 1, never repeats, and refuses an id below the first (A6)."""
    counter = CheckpointIdCounter()
    assert [1, 2] == [counter.fetch(), counter.fetch()]
    counter.go_on_at(10)
    assert (10, 11) == (counter.fetch(), counter.next_id)
    with pytest.raises(ValueError, match="ids begin at 1"):
        counter.go_on_at(0)
