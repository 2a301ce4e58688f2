"""Rows trigger checkpoints (A11): how many at a time, and which rows an entry counts."""

import pytest

from checkpointing.messages import RunMicroBatch, SavepointKind, SavepointRequested
from checkpointing.metadata.record import RowKind
from tests.unit.job.test_door import THREE, unequal


@pytest.mark.parametrize(("concurrent", "pending"), [(1, 1), (2, 2)])
def test_rows_trigger_as_many_checkpoints_as_may_be_pending(job, concurrent, pending):
    """The configuration may allow a second epoch's barrier while the first checkpoint is pending."""
    story = job.story(unequal(), {**THREE, "max_concurrent": concurrent}, linger_ms=0)
    story.offers("left", 3)
    assert 2 == story.door.next_id
    story.offers("left", 3)
    story.passes(5_000)
    assert pending + 1 == story.door.next_id


def test_a_row_counts_from_its_parents_barrier(job):
    """Rows of a plain savepoint's epoch count in it, and again in the next checkpoint, which shows them."""
    story = job.story(unequal(), THREE, linger_ms=0)
    story.is_idle("right")
    story.offers("left", 2)
    story.tell(SavepointRequested("mine", SavepointKind.PLAIN))
    story.passes(5_000)
    story.finishes("bronze")
    story.passes(5_000)
    story.finishes("joined")
    saved = story.appends()
    assert (RowKind.SAVEPOINT, 2) == (saved.kind, saved.statistics.rows)
    story.offers("left", 3)
    story.passes(5_000)
    story.finishes("bronze")
    story.passes(5_000)
    story.finishes("joined")
    row = story.commits()
    assert (RowKind.CHECKPOINT, 5) == (row.kind, row.statistics.rows)


def test_estimated_rows_pace_like_others_and_are_marked(job):
    """Three estimated rows of a slice fill the epoch, although it may have none.

    The entry says how many were estimated.
    """
    story = job.story(job.two_sources(), {"every_rows": 5, "slice_rows_max": 3}, linger_ms=0)
    for estimated in (3, 0):
        story.offers("left", 3, estimated=estimated > 0)
        story.offers("right", 2)
        while story.all(RunMicroBatch):
            story.finishes()
        row = story.commits()
        assert (5, estimated) == (row.statistics.rows, row.statistics.rows_estimated)
