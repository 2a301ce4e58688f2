"""A source that is read in parts, one after the other: told fact by fact (B4)."""

from dataclasses import replace

import pytest

from checkpointing.commit.recovery import has_finished
from checkpointing.graph import JobGraph
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.messages import EndTick, PollSource, SourceEnded, TickOutcome

HISTORY, MORE, LIVE = "1.a", "1.b", "2.all"


def parted(job, *splits, bounded=False, parts=("1.", "2.")):
    """Return the graph whose left source has these splits."""
    left, *others = job.two_sources().vertices
    left = replace(left, splits=splits, parallelism=len(splits), parts=parts, bounded=bounded)
    return JobGraph((left, *others), job.two_sources().edges)


def asked(story):
    """Return the splits of the left source that are being polled."""
    return {poll.split for poll in story.all(PollSource) if poll.source == "left"}


def ends(story, split):
    poll = story.take(PollSource, lambda poll: poll.split == split)
    story.tell(SourceEnded(poll.source, poll.split))


def next_claim(job):
    return job.claim.model_copy(update={"generation": 2, "first_id": 1001, "last_id": 2000})


def test_a_part_is_read_when_all_splits_of_the_part_before_it_have_ended(job):
    """One split of two is not enough. The switch comes in the middle of an epoch: no checkpoint lies between."""
    story = job.story(parted(job, HISTORY, MORE, LIVE))
    assert {HISTORY, MORE} == asked(story)
    ends(story, HISTORY)
    assert {MORE} == asked(story)
    ends(story, MORE)
    assert {LIVE} == asked(story)
    assert story.end is None


def test_a_tick_does_not_end_before_the_next_part_was_asked(job):
    """All that was asked is idle or has ended, and the job has not caught up."""
    story = job.story(parted(job, HISTORY, LIVE))
    story.is_idle("right")
    ends(story, HISTORY)
    assert story.end is None
    story.is_idle("left")
    assert EndTick(TickOutcome.CAUGHT_UP) == story.end


def test_a_tick_catches_up_while_a_part_has_nothing_to_read_yet(job):
    """A bounded source may wait for its next rows. The part behind it holds up no tick."""
    story = job.story(parted(job, HISTORY, LIVE))
    story.is_idle("right")
    story.is_idle("left")
    assert EndTick(TickOutcome.CAUGHT_UP) == story.end


def test_the_next_tick_goes_on_in_the_part_that_the_cut_says(job):
    """The cut says which splits have ended. A split of that part which is found later is not read."""
    story = job.story(parted(job, HISTORY, LIVE))
    story.offers("left", 3)
    ends(story, HISTORY)
    story.offers("left", 2)
    story.is_idle("left")
    story.is_idle("right")
    story.finishes()
    row = story.commits()
    (left, *_) = row.vertices
    assert [("3", True), ("2", False)] == [(each.position, each.finished) for each in left.subtasks]
    later = job.story(parted(job, HISTORY, LIVE, MORE), restored=row, claim=next_claim(job))
    assert [(LIVE, "2")] == [(poll.split, poll.position) for poll in later.all(PollSource) if poll.source == "left"]


def test_a_part_that_is_read_again_holds_the_next_one(job):
    """Somebody has reset a split of the first part: it is not ended any more."""
    story = job.story(parted(job, HISTORY, LIVE))
    ends(story, HISTORY)
    story.offers("left", 2)
    story.is_idle("left")
    story.is_idle("right")
    story.finishes()
    row = story.commits()
    (left, *others) = row.vertices
    moved = left.model_copy(update={"subtasks": (replace(left.subtasks[0], finished=False), left.subtasks[1])})
    row = row.model_copy(update={"vertices": (moved, *others)})
    later = job.story(parted(job, HISTORY, LIVE), restored=row, claim=next_claim(job))
    assert {HISTORY} == asked(later)
    ends(later, HISTORY)
    assert {LIVE} == asked(later)


def test_a_finished_job_with_a_new_part_goes_on(job):
    """Somebody has added a part at the end."""
    whole = parted(job, HISTORY, LIVE, bounded=True)
    graph = JobGraph(tuple(replace(each, bounded=True) for each in whole.vertices), whole.edges)
    story = job.story(graph)
    ends(story, HISTORY)
    ends(story, LIVE)
    ends(story, "r")
    story.finishes()
    row = story.commits()
    assert TickOutcome.FINISHED is story.end.outcome
    assert has_finished(row, graph.sources())
    longer = (replace(graph.vertices[0], parts=("1.", "2.", "3.")), *graph.sources()[1:])
    assert not has_finished(row, longer)


def test_a_cut_of_the_source_alone_is_refused_by_name(job):
    """The position of a split without a part could belong to any of them."""
    alone = JobGraph(job.two_sources().vertices, job.two_sources().edges)
    with pytest.raises(CutDoesNotFitError, match=r"stands in split 'l' of source 'left', which reads several sources"):
        job.story(parted(job, "l", HISTORY, LIVE), restored=job.record(alone, 3, {}))
