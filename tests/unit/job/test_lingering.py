"""Shortly before a periodic barrier, a few rows wait for it, and idle splits are asked more often (A2)."""

import pytest

from checkpointing.job.door import FEW_ROWS, POLLS
from checkpointing.job.setup import TickLimits
from checkpointing.messages import PollSource, RunMicroBatch

INTERVAL_MS = 200
FAR_MS = 600_000
IDLE_MS = 500


@pytest.fixture
def expecting(job):
    """Return what begins a job with an interval."""

    def begun(interval_ms=INTERVAL_MS, **setup):
        config = {"interval_ms": interval_ms, "micro_batch_rows_max": 10 * FEW_ROWS}
        limits = TickLimits(until_caught_up=False)
        return job.story(job.two_sources(), config, **{"limits": limits, **setup})

    return begun


def begun(story):
    """Return how many micro-batches have begun."""
    return len(story.all_told(RunMicroBatch))


def reads(story, rows):
    """Let one source offer rows, and both be idle then."""
    story.offers("left", rows)
    story.is_idle("left", "right")


def test_a_few_rows_wait_for_the_barrier_that_is_near(expecting):
    """It brings them into one micro-batch."""
    story = expecting()
    reads(story, 3)
    assert begun(story) == 0
    story.passes(INTERVAL_MS)
    assert begun(story) == 1


@pytest.mark.parametrize(
    ("rows", "setup"),
    [(FEW_ROWS, {}), (3, {"interval_ms": FAR_MS}), (3, {"interval_ms": None})],
)
def test_other_rows_run_at_once(expecting, rows, setup):
    """Many rows are work that need not wait. A barrier that is far would make a few rows wait for nothing."""
    story = expecting(**setup)
    reads(story, rows)
    assert begun(story) == 1


@pytest.fixture
def waiting(expecting):
    """Return a job with a few rows, a checkpoint that waits for its tables, and a request for the next one."""
    story = expecting()
    story.is_idle("left", "right")
    story.passes(INTERVAL_MS)
    story.passes(IDLE_MS)
    reads(story, 3)
    assert begun(story) == 0
    return story


def test_a_few_rows_wait_for_the_checkpoint_before_theirs(waiting):
    """The next barrier is sent once that checkpoint is complete."""
    waiting.commits()
    assert begun(waiting) == 1


def test_a_few_rows_wait_no_longer_than_others(waiting):
    """The checkpoint before theirs may take long."""
    waiting.passes(999)
    assert begun(waiting) == 0
    waiting.passes(1)
    assert begun(waiting) == 1


@pytest.mark.parametrize(("setup", "pause_ms"), [({}, IDLE_MS // POLLS), ({"interval_ms": FAR_MS}, IDLE_MS)])
def test_an_idle_split_is_asked_more_often_before_a_barrier(expecting, setup, pause_ms):
    """So the barrier takes newer rows with it."""
    story = expecting(**setup)
    story.is_idle("left", "right")
    story.passes(pause_ms - 1)
    assert story.all(PollSource) == []
    story.passes(1)
    assert {"left", "right"} == {poll.source for poll in story.all(PollSource)}
