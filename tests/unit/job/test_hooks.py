"""Master hooks in the job door: restored first, asked within a time limit, and their states put into the entry (A8)."""

import json
from dataclasses import replace

import pytest

from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CloseHook,
    HookAnswered,
    HookFailed,
    OperatorCoordinatorAnswered,
)
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import Hook, InvalidGraphError, JobGraph
from checkpointing.job.restoring import CutDoesNotFitError, check_fits
from checkpointing.messages import (
    AppendRow,
    CoordinatorReset,
    HookRestored,
    HookRestoreFailed,
    NotifyAborted,
    PollSource,
    StopKind,
    StopRequested,
    TickOutcome,
)
from checkpointing.metadata.record import HookState
from checkpointing.metadata.row_validity import INLINE_STATE_MAX

LIMIT_MS = 5_000
LEDGER, CLOCK = Hook("ledger", LIMIT_MS), Hook("clock", 2 * LIMIT_MS)


@pytest.fixture
def hooked(job):
    """Return a function that starts a job with these hooks. The default is one hook."""

    def start(*hooks, config=None, **setup):
        plain = job.two_sources()
        graph = JobGraph(plain.vertices, plain.edges, hooks or (LEDGER,))
        return job.story(graph, {"every_rows": 3, **(config or {})}, **setup)

    return start


def restored(story, *hooks):
    for hook in hooks or (LEDGER,):
        story.tell(HookRestored(hook.name))


def triggered(story):
    """Let the sources send enough rows for a checkpoint. Return the requests to the hooks."""
    story.offers("left", 3)
    return story.all_told(AskHook)


def test_a_hook_that_cannot_be_restored_fails_the_tick(hooked):
    """The tick fails with the hook's message, before any source is read."""
    story = hooked()
    story.tell(HookRestoreFailed("ledger", "master hook 'ledger' is away"))
    assert (TickOutcome.FAILED, "master hook 'ledger' is away") == (story.end.outcome, story.end.message)
    assert [] == story.all(PollSource)


def test_a_restore_that_takes_too_long_fails_the_tick_by_name(hooked):
    """The time limit counts from the start of the tick."""
    story = hooked(LEDGER, CLOCK)
    restored(story, CLOCK)
    story.passes(LIMIT_MS - 1)
    assert story.end is None
    story.passes(1)
    assert "master hook 'ledger' was not restored within 5 s" in story.end.message


def test_a_tick_may_be_stopped_while_a_hook_is_restored(hooked):
    """The tick ends normally, and closes its hooks."""
    story = hooked()
    story.tell(StopRequested(StopKind.NOW))
    assert TickOutcome.STOPPED is story.end.outcome
    assert [CloseHook("ledger")] == story.all_told(CloseHook)


def test_a_hook_that_fails_fails_its_checkpoint_and_the_job_goes_on(hooked):
    """One failure is tolerated. The second failure in a row fails the job with the hook's message."""
    story = hooked(config={"tolerable_failures": 1})
    restored(story)
    triggered(story)
    story.tell(HookFailed("ledger", 1, "master hook 'ledger' failed: no ink"))
    (aborted,) = story.all_told(NotifyAborted)
    assert (1, CheckpointFailureReason.CHECKPOINT_DECLINED) == (aborted.checkpoint, aborted.reason)
    assert "no ink" in aborted.message
    assert not aborted.ends_tick
    assert story.end is None
    story.passes(1_000)
    story.finishes()
    story.is_idle("right")
    story.tell(HookFailed("ledger", 2, "master hook 'ledger' failed: no paper"))
    assert TickOutcome.FAILED is story.end.outcome
    assert "2 checkpoints failed in a row" in story.end.message
    assert "no paper" in story.end.message
    assert [False, True] == [each.ends_tick for each in story.all_told(NotifyAborted)]


@pytest.mark.parametrize("state", ["{", "x" * 10, json.dumps("y" * INLINE_STATE_MAX), "[" * 100_000])
def test_a_state_that_no_entry_may_hold_fails_the_checkpoint(hooked, state):
    """A text that is no JSON, or that is too long, is not committed."""
    story = hooked(config={"tolerable_failures": 9})
    restored(story)
    triggered(story)
    story.tell(HookAnswered("ledger", 1, state))
    (aborted,) = story.all_told(NotifyAborted)
    assert "the state of master hook 'ledger' is" in aborted.message


def test_state_without_its_hook_is_refused_unless_it_may_be_left_behind(job):
    """The message names the hook and the flag (Flink: `MasterHooks.restoreMasterHooks`)."""
    plain = job.two_sources()
    record = job.record(plain, 7, {}, hooks=(HookState(hook="ledger", state="1"),))
    with pytest.raises(CutDoesNotFitError, match=r"hook 'ledger'.*pipeline\.hook\('ledger'.*--allow-non-restored"):
        check_fits(plain, record, 128)
    check_fits(plain, record, 128, allow_non_restored_state=True)
    check_fits(JobGraph(plain.vertices, plain.edges, (LEDGER,)), record, 128)


def test_a_graph_has_each_hook_once():
    """Two hooks with one name would share one state."""
    with pytest.raises(InvalidGraphError, match="hook ledger twice"):
        JobGraph((), (), (LEDGER, Hook("ledger", 1)))


# ------------------------------------------------------------------
# Source coordinators in the job door: restored first, asked before the barriers, and their states put into the entry
# (A7).


def coordinated(job, *sources, hooks=()):
    """Return the graph of two sources, in which the named `sources` have coordinators."""
    plain = job.two_sources()
    vertices = tuple(replace(vertex, coordinated=vertex.id in sources) for vertex in plain.vertices)
    return replace(plain, vertices=vertices, hooks=hooks)


@pytest.fixture
def begun(job):
    """Return a function that starts a job. Its named sources have coordinators, by default the left source."""

    def start(*sources, config=None, hooks=(), **setup):
        graph = coordinated(job, *(sources or ("left",)), hooks=hooks)
        return job.story(graph, {"every_rows": 3, **(config or {})}, **setup)

    return start


def coordinators_reset(story, *sources):
    for source in sources or ("left",):
        story.tell(CoordinatorReset(source))


def asked_for_states(story):
    """Let the sources send enough rows for a checkpoint. Return the requests to the coordinators."""
    story.offers("left", 3)
    return story.all_told(AskOperatorCoordinator)


def test_coordinators_answer_before_hooks_are_asked_and_barriers_sent(begun):
    """The entry has each source's state at the source's vertex. A source without a coordinator has no state."""
    story = begun(hooks=(Hook("ledger", 5_000),))
    coordinators_reset(story)
    story.tell(HookRestored("ledger"))
    assert [AskOperatorCoordinator("left", 1)] == asked_for_states(story)
    assert [] == story.all(AskHook)
    story.tell(OperatorCoordinatorAnswered("left", 1, '["x"]'))
    story.passes(1_000)
    story.finishes()
    assert [] == story.all(AppendRow)
    story.tell(HookAnswered("ledger", 1))
    story.checks()
    (append,) = story.all(AppendRow)
    assert ['["x"]', None, None] == [vertex.coordinator for vertex in append.row.vertices]


@pytest.mark.parametrize("state", ["{", "x" * (INLINE_STATE_MAX + 1)])
def test_a_state_that_no_entry_may_hold_declines_the_checkpoint(begun, state):
    """The message names the source."""
    story = begun(config={"tolerable_failures": 9})
    coordinators_reset(story)
    asked_for_states(story)
    story.tell(OperatorCoordinatorAnswered("left", 1, state))
    (aborted,) = story.all_told(NotifyAborted)
    assert "the state of source 'left' is" in aborted.message


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
