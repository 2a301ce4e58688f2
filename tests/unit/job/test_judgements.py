"""The asynchronous part in the job door: when a checkpoint ends, its judgements are cancelled (J3, B2)."""

import pytest

from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    EndTick,
    JudgementFailed,
    JudgeSuites,
    NotifyAborted,
    StopKind,
    StopRequested,
    SuitesJudged,
    TickOutcome,
)

TIMEOUT_MS = 5_000


@pytest.fixture
def judging(job):
    """Return a job whose first checkpoint waits for its verdict."""
    story = job.story(
        job.two_sources(judged=True), {"every_rows": 3, "timeout_ms": TIMEOUT_MS, "tolerable_failures": 9}, linger_ms=0
    )
    story.offers("left", 3)
    story.finishes()
    assert [1] == [asked.checkpoint for asked in story.all(JudgeSuites)]
    return story


def test_a_timeout_cancels_the_judgement_of_its_checkpoint(judging):
    """It is cancelled once, for the vertex that is judged. The listeners hear of the abort first."""
    judging.passes(TIMEOUT_MS)
    told = [effect for effect in judging.told if isinstance(effect, NotifyAborted | CancelJudgement)]
    assert [NotifyAborted, CancelJudgement] == [type(effect) for effect in told]
    assert CheckpointFailureReason.CHECKPOINT_EXPIRED is told[0].reason
    assert CancelJudgement("joined", 1) == told[1]


@pytest.mark.parametrize("passed", [True, False])
def test_a_late_verdict_changes_nothing(judging, passed):
    """Nothing is appended, and a rejection does not fail the job."""
    judging.passes(TIMEOUT_MS)
    judging.passes(7)
    before = len(judging.told)
    judging.tell(SuitesJudged("joined", 1, passed, '["late"]', "too bad"))
    assert before == len(judging.told)
    assert [] == judging.all(AppendRow)


def test_a_stop_cancels_judgements(judging):
    """The tick ends without the verdict, and cancels the judgement before its end."""
    judging.tell(StopRequested(StopKind.NOW))
    last = [effect for effect in judging.told if isinstance(effect, CancelJudgement | EndTick)]
    assert [CancelJudgement, EndTick] == [type(effect) for effect in last]


def test_a_verdict_in_time_is_not_cancelled(judging):
    """It is cancelled neither when it comes nor when the tick ends."""
    judging.judges()
    judging.tell(StopRequested(StopKind.NOW))
    assert [] == judging.all_told(CancelJudgement)


def test_a_checkpoint_that_has_ended_is_not_judged(job):
    """Its barrier reaches the vertex after the timeout, when nobody would wait for the verdict."""
    story = job.story(
        job.two_sources(judged=True), {"every_rows": 3, "timeout_ms": TIMEOUT_MS, "tolerable_failures": 9}
    )
    story.offers("left", 3)
    story.passes(TIMEOUT_MS)
    story.finishes()
    assert [1] == [aborted.checkpoint for aborted in story.all_told(NotifyAborted)]
    assert 1 not in [asked.checkpoint for asked in story.all_told(JudgeSuites)]


UNJUDGED = "suite s of table out/joined could not be judged: the file is damaged"


def test_a_judgement_that_failed_declines_its_checkpoint_and_the_job_goes_on(judging):
    """No suite has rejected anything. The next checkpoint judges the same rows with its own, and commits them."""
    judging.tell(JudgementFailed("joined", 1, UNJUDGED))
    (aborted,) = judging.all_told(NotifyAborted)
    assert (1, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION, UNJUDGED) == (
        aborted.checkpoint,
        aborted.reason,
        aborted.message,
    )
    assert judging.end is None
    assert [] == judging.all_told(CancelJudgement)
    judging.take(JudgeSuites)
    judging.offers("left", 3)
    judging.finishes()
    assert ["out-1", "out-2"] == [file.path for _, files in judging.judges().files for file in files]
    row = judging.commits()
    assert (2, ["out-1", "out-2"]) == (row.checkpoint, [file.path for file in row.tables[0].adds])


def test_a_judgement_that_failed_counts_and_the_message_names_the_way_out(job):
    """By default, no failure is tolerated. The job fails with the cause, and with the setting that lets it go on."""
    story = job.story(job.two_sources(judged=True), {"every_rows": 3}, linger_ms=0)
    story.offers("left", 3)
    story.finishes()
    story.tell(JudgementFailed("joined", 1, UNJUDGED))
    assert (TickOutcome.FAILED, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION) == (
        story.end.outcome,
        story.end.reason,
    )
    assert UNJUDGED in story.end.message
    assert "--set tolerable_failures=3" in story.end.message
    assert [] == story.all_told(AppendRow)


def test_a_late_failure_of_the_judge_changes_nothing(judging):
    """Its checkpoint has expired, and counts as one failure."""
    judging.passes(TIMEOUT_MS)
    before = len(judging.told)
    judging.tell(JudgementFailed("joined", 1, UNJUDGED))
    assert before == len(judging.told)
