"""Flink's counter of checkpoint ids, which its test cases drive."""

import pytest

from spec.flink.id_counter import CheckpointIdCounter


def test_ids_rise_from_any_start():
    """The counter begins at 1 and never repeats an id. It refuses an id below the first (A6)."""
    counter = CheckpointIdCounter()
    assert [1, 2] == [counter.fetch(), counter.fetch()]
    counter.go_on_at(10)
    assert (10, 11) == (counter.fetch(), counter.next_id)
    with pytest.raises(ValueError, match="ids begin at 1"):
        counter.go_on_at(0)
