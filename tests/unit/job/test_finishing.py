"""Bounded sources end, and the job finishes. The door is driven fact by fact."""

from dataclasses import replace

import pytest

from checkpointing.graph import JobGraph
from checkpointing.messages import (
    AppendRow,
    EndTick,
    PollSource,
    RunMicroBatch,
    SavepointKind,
    SavepointRequested,
    SourceEnded,
    TickOutcome,
)


def bounded(graph, *sources):
    return JobGraph(tuple(replace(each, bounded=each.id in sources) for each in graph.vertices), graph.edges)


def ends(story, *sources):
    """Answer these sources' polls with the end of the split."""
    for source in sources:
        poll = story.take(PollSource, lambda poll, source=source: poll.source == source)
        story.tell(SourceEnded(poll.source, poll.split))


def next_claim(job):
    return job.claim.model_copy(update={"generation": 2, "first_id": 1001, "last_id": 2000})


@pytest.fixture
def graph(job):
    return bounded(job.two_sources(), "left", "right")


def test_after_all_splits_end_keys_end_and_a_last_checkpoint_finishes_the_job(job, graph):
    """The keyed vertex runs its last micro-batch. In the entry, every subtask is marked as finished."""
    story = job.story(graph)
    story.offers("left", 3)
    ends(story, "left", "right")
    assert story.all(RunMicroBatch)[0].end_of_input
    story.finishes()
    row = story.commits()
    assert row.finished
    assert EndTick(TickOutcome.FINISHED) == story.end


def test_a_job_without_a_row_finishes_too(job, graph):
    """The job reads no row, and its entry says that it has finished."""
    story = job.story(graph)
    ends(story, "left", "right")
    story.finishes()
    assert story.commits().finished
    assert TickOutcome.FINISHED is story.end.outcome


def test_a_split_that_has_ended_is_idle_for_ever_and_no_barrier_waits_for_it(job):
    """The other source goes on. The tick catches up, its entry has the end of the split, and no key has ended."""
    story = job.story(bounded(job.two_sources(), "left"))
    story.offers("left", 3)
    ends(story, "left")
    story.offers("right", 1)
    story.is_idle("right")
    assert not story.all(RunMicroBatch)[0].end_of_input
    story.finishes()
    row = story.commits()
    assert [[True], [False], [False]] == [[each.finished for each in vertex.subtasks] for vertex in row.vertices]
    assert TickOutcome.CAUGHT_UP is story.end.outcome
    later = job.story(bounded(job.two_sources(), "left"), restored=row)
    assert ["right"] == [poll.source for poll in later.all(PollSource)]


def test_a_source_that_is_not_bounded_any_more_is_read_on(job):
    """Somebody removed `bounded=True`, so the split is polled from its position."""
    story = job.story(bounded(job.two_sources(), "left"))
    story.offers("left", 3)
    ends(story, "left")
    story.is_idle("right")
    story.finishes()
    later = job.story(job.two_sources(), restored=story.commits())
    assert {("left", "3"), ("right", None)} == {(poll.source, poll.position) for poll in later.all(PollSource)}


def test_a_tick_that_died_before_the_last_checkpoint_ends_the_keys_again(job, graph):
    """All splits had ended at the restored entry, and the vertex had not. So the next tick polls nothing."""
    story = job.story(graph)
    story.offers("left", 3)
    ends(story, "left", "right")
    story.finishes()
    row = story.commits()
    unfinished = row.model_copy(
        update={
            "vertices": tuple(
                each
                if each.splits
                else each.model_copy(update={"subtasks": (replace(each.subtasks[0], finished=False),)})
                for each in row.vertices
            )
        }
    )
    later = job.story(graph, restored=unfinished, claim=next_claim(job))
    assert [] == later.all(PollSource)
    later.finishes()
    assert later.commits().finished
    assert TickOutcome.FINISHED is later.end.outcome


def test_a_door_that_begins_at_a_finished_entry_ends_at_once(job, graph):
    """This happens after a crash between the commit and the publication."""
    story = job.story(graph)
    ends(story, "left", "right")
    story.finishes()
    later = job.story(graph, restored=story.commits())
    assert [] == later.waiting
    assert TickOutcome.FINISHED is later.end.outcome


def test_a_checkpoint_that_began_before_the_end_does_not_finish_the_job(job, graph):
    """Its barrier comes before the end of the data. Another checkpoint follows, and the job finishes with that one."""
    story = job.story(graph, {"every_rows": 3})
    story.offers("left", 3)
    story.finishes()
    ends(story, "left", "right")
    first = story.commits()
    story.finishes()
    assert not first.finished
    assert story.end is None
    assert story.commits().finished
    assert TickOutcome.FINISHED is story.end.outcome


def test_a_last_checkpoint_that_fails_is_taken_again_without_ending_the_keys_again(job, graph):
    """The data ended once, so the vertex runs no second last micro-batch."""
    story = job.story(graph, {"tolerable_failures": 1})
    ends(story, "left", "right")
    story.finishes()
    story.checks("a column was dropped")
    assert [] == story.all(AppendRow)
    story.passes(10_000)
    assert [] == story.all(RunMicroBatch)


def test_a_drain_of_a_job_whose_sources_have_ended_ends_the_keys_once(job, graph):
    """The stop's savepoint is the entry that finishes the job."""
    story = job.story(graph)
    ends(story, "left", "right")
    story.tell(SavepointRequested("mine", SavepointKind.DRAIN))
    story.finishes()
    row = story.commits()
    assert row.pinned
    assert row.finished
    assert TickOutcome.STOPPED is story.end.outcome
