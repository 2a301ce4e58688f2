"""Tests sources of another job's cuts in a whole job: which barrier waits, and a cut that is never reached."""

from checkpointing.channel_items import SourceSlice
from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import (
    AppendRow,
    PollFailed,
    PollSource,
    RunMicroBatch,
    SavepointKind,
    SavepointRequested,
    SliceOffered,
    TickOutcome,
)
from checkpointing.metadata.record import RowKind

TWO_JOBS = {"left": "shop", "right": "bank"}
ONE_JOB = {"left": "shop", "right": "shop"}


def reads(story, source, end, *, at_cut=True):
    """Answer the source's poll with the rows up to a position. The position is a cut, or lies on the way to one."""
    poll = story.take(PollSource, lambda poll: poll.source == source)
    start = int(poll.position or 0)
    rows = end - start
    cut = poll.cut or f"cut of {source}"
    story.tell(
        SliceOffered(SourceSlice(source, poll.split, str(start), str(end), "", rows, rows, cut=cut, at_cut=at_cut))
    )


def is_polled(story, source):
    return any(poll.source == source for poll in story.all(PollSource))


def positions(entry):
    return [vertex.subtasks[0].position for vertex in entry.vertices if vertex.splits]


def test_a_cut_of_one_job_waits_for_a_cut_of_the_other(job):
    """The first job requests its checkpoint at once. The barrier is sent when both jobs' tables are at a cut."""
    story = job.story(job.two_sources(), linger_ms=0, cut_groups=TWO_JOBS)
    reads(story, "right", 3, at_cut=False)
    reads(story, "left", 4)
    assert 2 == story.door.next_id
    assert (False, True) == (is_polled(story, "left"), is_polled(story, "right"))
    reads(story, "right", 6)
    assert (True, True) == (is_polled(story, "left"), is_polled(story, "right"))
    story.finishes()
    story.finishes()
    assert ["4", "6"] == positions(story.commits())


def test_a_cut_requests_its_checkpoint_again_after_a_failure(job):
    """It requests it after the pause that follows a failure, although another source still reads rows."""
    story = job.story(
        job.two_sources(), {"timeout_ms": 1_000, "tolerable_failures": 1}, linger_ms=0, cut_groups=TWO_JOBS
    )
    reads(story, "right", 3, at_cut=False)
    reads(story, "left", 4)
    story.passes(1_000)
    assert () == story.door.pending
    story.passes(1_000)
    assert (2,) == story.door.pending
    reads(story, "right", 6)
    story.finishes()
    story.finishes()
    assert ["4", "6"] == positions(story.commits())


def test_the_barrier_of_a_savepoint_outlives_a_checkpoint_that_expires(job):
    """Both barriers wait for a cut. The checkpoint expires meanwhile, and the savepoint is taken at the cut."""
    story = job.story(
        job.two_sources(), {"timeout_ms": 1_000, "tolerable_failures": 1}, linger_ms=0, cut_groups=TWO_JOBS
    )
    reads(story, "right", 3, at_cut=False)
    reads(story, "left", 4)
    story.passes(500)
    story.tell(SavepointRequested("mine", SavepointKind.PLAIN))
    assert (1, 2) == story.door.pending
    story.passes(500)
    assert (2,) == story.door.pending
    reads(story, "right", 6)
    story.finishes()
    story.finishes()
    saved = story.take(AppendRow)
    assert (2, RowKind.SAVEPOINT) == (saved.row.checkpoint, saved.row.kind)
    assert ["4", "6"] == positions(saved.row)


def test_a_drain_that_expires_before_the_cut_does_not_end_the_inputs(job):
    """Its barrier waits for a cut, and is never sent. The next checkpoint is taken at the cut, and the job goes on."""
    story = job.story(
        job.two_sources(), {"timeout_ms": 1_000, "tolerable_failures": 1}, linger_ms=0, cut_groups=TWO_JOBS
    )
    reads(story, "right", 3, at_cut=False)
    reads(story, "left", 4)
    story.tell(SavepointRequested("mine", SavepointKind.DRAIN))
    assert (2,) == story.door.pending
    story.passes(1_000)
    assert (3,) == story.door.pending
    reads(story, "right", 6)
    story.finishes()
    story.finishes()
    entry = story.commits()
    assert (3, ["4", "6"]) == (entry.checkpoint, positions(entry))
    assert (True, True) == (is_polled(story, "left"), is_polled(story, "right"))
    assert not any(run.end_of_input for run in story.all_told(RunMicroBatch))


def test_a_table_that_cannot_be_read_up_to_the_cut_fails_the_tick_at_once(job):
    """No barrier can be sent before the cut, so there is no last checkpoint to wait for."""
    story = job.story(job.two_sources(), {"tolerable_poll_failures": 0}, linger_ms=0, cut_groups=ONE_JOB)
    reads(story, "left", 4)
    story.tell(PollFailed("right", story.take(PollSource).split, "a file of right is damaged"))
    assert (TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE) == (story.end.outcome, story.end.reason)
    assert "a file of right is damaged" == story.end.message
