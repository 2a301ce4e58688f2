"""A tick that must stop, or cannot go on, only waits until no entry is in doubt."""

import pytest

from checkpointing.messages import (
    MicroBatchFailed,
    PollSource,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    StopKind,
    StopRequested,
)

CONFIG = {"every_rows": 3, "rows_of": ("left",), "slice_rows_max": 3, "interval_ms": 200, "max_concurrent": 1_000}


@pytest.mark.parametrize("asked", [StopRequested(StopKind.NOW), MicroBatchFailed("joined", 9, "a task died")])
def test_a_tick_that_waits_for_its_end_begins_nothing(job, asked):
    """It reads no more, and takes no checkpoint. Another entry in doubt would keep it from its end."""
    story = job.story(job.two_sources(), CONFIG)
    story.offers("left", 3)
    story.passes(2_000)
    story.finishes()
    story.checks()
    story.is_idle("right")
    story.tell(asked)
    polls, next_id = len(story.all_told(PollSource)), story.door.next_id
    story.passes(5_000)
    assert (polls, next_id) == (len(story.all_told(PollSource)), story.door.next_id)
    story.appends()
    story.publishes()
    story.records()
    assert story.end is not None


@pytest.mark.parametrize("kind", [SavepointKind.PLAIN, SavepointKind.SUSPEND])
def test_a_user_hears_why_a_savepoint_is_given_up(job, kind):
    """The savepoint waits for its turn. The tick must stop, so it is not taken any more."""
    story = job.story(job.two_sources(), CONFIG)
    story.offers("left", 3)
    story.passes(2_000)
    story.finishes()
    story.checks()
    story.tell(SavepointRequested("mine", kind))
    assert story.all_told(SavepointFailed) == []
    story.tell(StopRequested(StopKind.NOW))
    assert ["the tick is about to end: ask again when it has"] == [
        each.message for each in story.all_told(SavepointFailed)
    ]
