"""Source coordinators in the job door: restored first, asked before the barriers, their states in the entry (A7)."""

from dataclasses import replace

import pytest

from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    HookAnswered,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetOperatorCoordinator,
)
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import Hook
from checkpointing.job.restoring import CutDoesNotFitError, check_fits
from checkpointing.messages import (
    AppendRow,
    CoordinatorReset,
    CoordinatorResetFailed,
    DiscardFiles,
    HookRestored,
    NotifyAborted,
    PollSource,
    StopKind,
    StopRequested,
    TickOutcome,
)
from checkpointing.metadata.row_validity import INLINE_STATE_MAX


def coordinated(job, *sources, hooks=()):
    """Return the graph of two sources. These have coordinators."""
    plain = job.two_sources()
    vertices = tuple(replace(vertex, coordinated=vertex.id in sources) for vertex in plain.vertices)
    return replace(plain, vertices=vertices, hooks=hooks)


@pytest.fixture
def begun(job):
    """Return a function that starts a job whose sources, by default the left one, have coordinators."""

    def start(*sources, config=None, hooks=(), **setup):
        graph = coordinated(job, *(sources or ("left",)), hooks=hooks)
        return job.story(graph, {"every_rows": 3, **(config or {})}, **setup)

    return start


def restored(story, *sources):
    for source in sources or ("left",):
        story.tell(CoordinatorReset(source))


def triggered(story):
    """Let the sources send enough rows for a checkpoint. Return the questions to the coordinators."""
    story.offers("left", 3)
    return story.all_told(AskOperatorCoordinator)


def test_nothing_is_read_before_every_coordinator_is_restored(begun):
    """Without a cut, both begin anew. The sources are polled after both have answered."""
    story = begun("left", "right")
    calls = [ResetOperatorCoordinator("left", None), ResetOperatorCoordinator("right", None)]
    assert calls == story.all_told(ResetOperatorCoordinator)
    story.passes(10_000)
    restored(story, "right")
    assert [] == story.all(PollSource)
    restored(story, "left")
    assert 2 == len(story.all(PollSource))


def test_each_coordinator_gets_its_own_state_back_and_a_new_source_begins_anew(begun, job):
    """The vertex that the entry does not know gets no checkpoint. One without state gets the checkpoint alone."""
    record = job.record(job.two_sources(), 7, {})
    left, right, joined = record.vertices
    known = left.model_copy(update={"coordinator": '["a"]'})
    story = begun("left", "right", restored=record.model_copy(update={"vertices": (known, right, joined)}))
    calls = [ResetOperatorCoordinator("left", 7, '["a"]'), ResetOperatorCoordinator("right", 7, None)]
    assert calls == story.all_told(ResetOperatorCoordinator)
    story = begun("left", "right", restored=record.model_copy(update={"vertices": (known, joined)}))
    assert ResetOperatorCoordinator("right", None) == story.all_told(ResetOperatorCoordinator)[1]


def test_a_coordinator_that_cannot_be_restored_fails_the_tick(begun):
    """The tick fails before anything is read, with the source's message."""
    story = begun()
    story.tell(CoordinatorResetFailed("left", "source left could not take its own state back"))
    assert TickOutcome.FAILED is story.end.outcome
    assert "source left could not take its own state back" == story.end.message
    assert [] == story.all(PollSource)


def test_a_tick_may_be_stopped_while_a_source_is_restored(begun):
    """A later answer changes nothing."""
    story = begun()
    story.tell(StopRequested(StopKind.NOW))
    assert TickOutcome.STOPPED is story.end.outcome
    restored(story)
    assert [] == story.all(PollSource)


def test_coordinators_answer_before_hooks_are_asked_and_barriers_sent(begun):
    """The entry has each source's state with its vertex. A source without a coordinator has none."""
    story = begun(hooks=(Hook("ledger", 5_000),))
    restored(story)
    story.tell(HookRestored("ledger"))
    assert [AskOperatorCoordinator("left", 1)] == triggered(story)
    assert [] == story.all(AskHook)
    story.tell(OperatorCoordinatorAnswered("left", 1, '["x"]'))
    story.passes(1_000)
    story.finishes()
    assert [] == story.all(AppendRow)
    story.tell(HookAnswered("ledger", 1))
    story.checks()
    (append,) = story.all(AppendRow)
    assert ['["x"]', None, None] == [vertex.coordinator for vertex in append.row.vertices]


def test_a_coordinator_that_fails_declines_its_checkpoint_and_the_job_goes_on(begun):
    """The message says what the source said, and the failure counts."""
    story = begun(config={"tolerable_failures": 1})
    restored(story)
    triggered(story)
    story.tell(OperatorCoordinatorFailed("left", 1, "source left could not give its own state"))
    (aborted,) = story.all_told(NotifyAborted)
    assert (1, CheckpointFailureReason.CHECKPOINT_DECLINED) == (aborted.checkpoint, aborted.reason)
    assert "source left could not give its own state" in aborted.message
    assert story.end is None
    story.passes(1_000)
    story.finishes()
    story.is_idle("right")
    story.tell(OperatorCoordinatorFailed("left", 2, "again"))
    assert TickOutcome.FAILED is story.end.outcome
    assert "2 consecutive checkpoints failed" in story.end.message


@pytest.mark.parametrize("state", ["{", "x" * (INLINE_STATE_MAX + 1)])
def test_a_state_that_no_entry_may_hold_declines_the_checkpoint(begun, state):
    """The message names the source."""
    story = begun(config={"tolerable_failures": 9})
    restored(story)
    triggered(story)
    story.tell(OperatorCoordinatorAnswered("left", 1, state))
    (aborted,) = story.all_told(NotifyAborted)
    assert "the state of source 'left' is" in aborted.message


def test_a_late_state_is_in_no_entry_and_no_file_is_deleted_for_it(begun):
    """The checkpoint has failed by another coordinator. The late text is no path."""
    story = begun("left", "right", config={"tolerable_failures": 9})
    restored(story, "left", "right")
    triggered(story)
    story.tell(OperatorCoordinatorFailed("right", 1, "away"))
    before = len(story.told)
    story.tell(OperatorCoordinatorAnswered("left", 1, '["late"]'))
    assert before == len(story.told)
    assert [] == story.all(DiscardFiles)


def test_state_of_another_kind_of_source_is_refused_unless_it_may_be_left_behind(job):
    """The message names the source and the flag."""
    plain = job.two_sources()
    record = job.record(plain, 7, {})
    left, *others = record.vertices
    held = record.model_copy(update={"vertices": (left.model_copy(update={"coordinator": "[]"}), *others)})
    with pytest.raises(CutDoesNotFitError, match=r"state of source 'left' besides its positions.*--allow-non-restored"):
        check_fits(plain, held, 128)
    check_fits(plain, held, 128, allow_non_restored_state=True)
    check_fits(coordinated(job, "left"), held, 128)
