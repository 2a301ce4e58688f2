"""A tick looks for another claim after a failed checkpoint, and ends as fenced if there is one (G5)."""

import pytest

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    LookForRival,
    RivalSeen,
    RowRefused,
    TableCheckFailed,
    TickOutcome,
)


@pytest.fixture
def story(job):
    """Return a job whose last checkpoint waits for the check of its tables."""
    story = job.story(job.two_sources(), {"tolerable_failures": 100}, linger_ms=0)
    story.offers("left", 3)
    story.finishes()
    story.is_idle("left", "right")
    return story


def fail(story):
    """Fail the check of the tables."""
    story.tell(TableCheckFailed(story.take(CheckTables).checkpoint, "the log cannot be read"))


def later(job):
    """Return the claim of another process."""
    return job.claim.model_copy(update={"generation": 2, "nonce": "another"})


def test_a_tick_that_was_taken_over_ends_after_its_next_failed_checkpoint(story, job):
    """It does not wait for the pause, and tries no further checkpoint. The message names the holder."""
    fail(story)
    assert [LookForRival(1)] == story.all_told(LookForRival)
    story.tell(RivalSeen(later(job)))
    assert (TickOutcome.FAILED, Reason.FENCED) == (story.end.outcome, story.end.reason)
    assert f"the job was claimed by {job.claim.holder}, generation 2" == story.end.message


def test_a_tick_that_holds_its_job_goes_on_and_looks_after_each_failure(story):
    """The next checkpoint is tried after the pause. While a look is in progress, no second one begins."""
    fail(story)
    story.passes(1_000)
    fail(story)
    assert [LookForRival(1)] == story.all_told(LookForRival)
    story.tell(RivalSeen(None))
    assert story.end is None
    story.passes(2_000)
    fail(story)
    assert [LookForRival(1)] * 2 == story.all_told(LookForRival)


def test_a_tick_whose_entry_is_being_appended_ends_when_the_outcome_is_known(story, job):
    """The answer to the look may come while the next checkpoint is being committed."""
    fail(story)
    story.passes(1_000)
    story.checks()
    story.tell(RivalSeen(later(job)))
    assert story.end is None
    story.tell(RowRefused(story.take(AppendRow).row.nonce, "another"))
    assert (TickOutcome.FAILED, Reason.FENCED) == (story.end.outcome, story.end.reason)


def test_a_normal_end_of_a_checkpoint_needs_no_look(story):
    """A rejected epoch ends the tick, and its cause is known."""
    story.checks("table out/joined has lost column v")
    assert Reason.TABLE_CHANGED is story.end.reason
    assert [] == story.all_told(LookForRival)
