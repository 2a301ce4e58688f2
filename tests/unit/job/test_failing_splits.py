"""Splits that cannot be read. The other splits go on, and in the end the tick fails with the split's name."""

import pytest

from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import EndTick, PollFailed, PollSource, TickOutcome


def fails(story, source):
    """Answer the source's poll with an error."""
    poll = story.take(PollSource, lambda poll: poll.source == source)
    story.tell(PollFailed(source, poll.split, f"a file of {source} is damaged"))


def test_a_split_that_cannot_be_read_does_not_stop_the_others(job):
    """The others are read and committed.

    The tick does not end before the failing split has answered that it has no rows.
    """
    story = job.story(job.two_sources(), {"tolerable_poll_failures": 2}, linger_ms=0)
    fails(story, "right")
    story.offers("left", 4)
    story.finishes()
    story.is_idle("left")
    assert "4" == story.commits().vertices[0].subtasks[0].position
    story.passes(500)
    story.is_idle("left")
    fails(story, "right")
    assert story.end is None
    story.passes(500)
    story.is_idle("left", "right")
    assert EndTick(TickOutcome.CAUGHT_UP) == story.end


@pytest.mark.parametrize("tolerated", [0, 2])
def test_a_split_that_fails_too_often_ends_the_tick_after_a_last_checkpoint(job, tolerated):
    """The rows of the other splits are committed first, so each tick makes progress. Then the tick fails."""
    story = job.story(job.two_sources(), {"tolerable_poll_failures": tolerated}, linger_ms=0)
    story.offers("left", 4)
    story.finishes()
    for _ in range(tolerated):
        fails(story, "right")
        story.passes(500)
    fails(story, "right")
    story.is_idle("left")
    assert story.end is None
    assert "4" == story.commits().vertices[0].subtasks[0].position
    assert (TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE) == (story.end.outcome, story.end.reason)
    assert "a file of right is damaged" == story.end.message
