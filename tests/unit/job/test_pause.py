"""After a failed checkpoint of the tick's own, the tick pauses, so that the problem may pass (E5)."""

import pytest

from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.job.tick_end import FIRST_MS, LONGEST_MS, Pause
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    NotifyAborted,
    SavepointKind,
    TableCheckFailed,
    TickOutcome,
)


def fails(pause, reason, now_ms, kind=None):
    """Let the checkpoint of a request fail."""
    pause.answered(RequestFailed("tick", reason, ""), kind, now_ms)


def test_a_pause_doubles_with_each_failure_in_a_row():
    """It begins with a second and stays below a minute. One success resets it."""
    pause, now_ms, lengths = Pause(), 5_000, []
    for _ in range(8):
        fails(pause, Reason.CHECKPOINT_ASYNC_EXCEPTION, now_ms)
        lengths.append(pause.until_ms - now_ms)
        assert not pause.is_over(pause.until_ms - 1)
        assert pause.is_over(pause.until_ms)
        now_ms = pause.until_ms
    assert [FIRST_MS * 2**power for power in range(6)] + [LONGEST_MS] * 2 == lengths
    pause.answered(RequestSucceeded("tick", 9), None, now_ms)
    assert pause.is_over(now_ms)
    fails(pause, Reason.CHECKPOINT_EXPIRED, now_ms)
    assert FIRST_MS == pause.until_ms - now_ms


@pytest.mark.parametrize("reason", [Reason.CHECKPOINT_SUBSUMED, Reason.CHECKPOINT_DECLINED_SUBSUMED])
def test_a_failure_that_does_not_count_causes_no_pause(reason):
    """It belongs to the normal life of a job."""
    pause = Pause()
    fails(pause, reason, 1)
    assert pause.is_over(1)


def test_a_failed_savepoint_causes_no_pause():
    """A user asked for it."""
    pause = Pause()
    fails(pause, Reason.CHECKPOINT_EXPIRED, 1, SavepointKind.PLAIN)
    assert pause.is_over(1)


@pytest.fixture
def caught_up(job):
    """Return a job whose last checkpoint waits for the check of its tables."""

    def begun(tolerable):
        story = job.story(job.two_sources(), {"tolerable_failures": tolerable}, linger_ms=0)
        story.offers("left", 3)
        story.finishes()
        story.is_idle("left", "right")
        return story

    return begun


def fail(story, checkpoint):
    """Fail the check of the tables."""
    assert checkpoint == story.take(CheckTables).checkpoint
    story.tell(TableCheckFailed(checkpoint, "the log cannot be read"))


def test_a_check_that_failed_declines_and_the_next_checkpoint_commits_the_same_rows(caught_up):
    """A tick that is caught up does not try again at once. The timer is set, and nothing is lost."""
    story = caught_up(1)
    fail(story, 1)
    (aborted,) = story.all_told(NotifyAborted)
    assert (1, Reason.FINALIZE_CHECKPOINT_FAILURE, "the log cannot be read") == (
        aborted.checkpoint,
        aborted.reason,
        aborted.message,
    )
    assert [] == story.all(CheckTables)
    assert story.wake_ms <= story.now_ms + FIRST_MS
    story.passes(FIRST_MS - 1)
    assert [] == story.all(CheckTables)
    story.passes(1)
    row = story.commits()
    assert (2, ["out-1"]) == (row.checkpoint, [file.path for file in row.tables[0].adds])
    assert TickOutcome.CAUGHT_UP is story.end.outcome


def test_checks_that_failed_are_counted(caught_up):
    """One failure too many fails the job, with the cause and the way out. Nothing was appended."""
    story = caught_up(1)
    fail(story, 1)
    story.passes(FIRST_MS)
    fail(story, 2)
    assert (TickOutcome.FAILED, Reason.FINALIZE_CHECKPOINT_FAILURE) == (story.end.outcome, story.end.reason)
    assert "the log cannot be read" in story.end.message
    assert "--set tolerable_failures=4" in story.end.message
    assert [] == story.all_told(AppendRow)
