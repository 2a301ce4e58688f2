"""The asynchronous part in the job door: when a checkpoint ends, its judgements are cancelled (J3, B2)."""

import pytest

from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import EdgeId
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    EndTick,
    JudgementFailed,
    JudgeSuites,
    MicroBatchFinished,
    NotifyAborted,
    RunMicroBatch,
    StopKind,
    StopRequested,
    SubtaskOutput,
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


COUNTED = Table("out/counted", TableMode.APPEND, judged=True, judged_empty=True)


def counted() -> JobGraph:
    """Return the graph in -> passing -> counted. The suite of the last table says something of no rows."""
    return JobGraph(
        (
            Vertex("in", VertexKind.SOURCE, 1, splits=("i",)),
            Vertex("beside", VertexKind.SOURCE, 1, splits=("b",)),
            Vertex("passing", VertexKind.STATELESS, 1, (Table("out/passing", TableMode.APPEND),)),
            Vertex("counted", VertexKind.STATELESS, 1, (COUNTED,)),
            Vertex("other", VertexKind.STATELESS, 1, (Table("out/other", TableMode.APPEND),)),
        ),
        (EdgeId("in", "passing"), EdgeId("passing", "counted"), EdgeId("beside", "other")),
    )


def ran(story, vertex: str, *tables: str, emitted: bool = False) -> None:
    """Finish the vertex's micro-batch with a file for each of these tables, and one for the next vertex."""
    effect = story.take(RunMicroBatch, lambda run: run.vertex == vertex)
    new = FileHandle(f"{vertex}-{effect.micro_batch}", 3, 30, 0)
    output = SubtaskOutput(emitted=(new,) if emitted else (), staged=tuple((table, new) for table in tables))
    story.tell(MicroBatchFinished(vertex, effect.micro_batch, (output,)))


@pytest.mark.parametrize("dropped", ["passing", "counted"])
def test_a_table_to_which_no_row_came_is_judged(job, dropped):
    """Rows came, and the vertex dropped them, or the vertex before it. The suite gets the table without a file."""
    story = job.story(counted(), {"every_rows": 3}, linger_ms=0)
    story.offers("in", 3)
    ran(story, "passing", emitted=dropped == "counted")
    if dropped == "counted":
        ran(story, "counted")
    (asked,) = story.all(JudgeSuites)
    assert ("counted", 1, (("out/counted", ()),)) == (asked.vertex, asked.checkpoint, asked.files)


def test_a_table_to_whose_vertex_no_row_could_come_is_not_judged(job):
    """Only the other source has rows. A suite that rejected this checkpoint would stop the job for nothing."""
    story = job.story(counted(), {"every_rows": 3}, linger_ms=0)
    story.offers("beside", 3)
    ran(story, "other", "out/other")
    assert [] == story.all_told(JudgeSuites)
    assert 1 == story.commits().checkpoint


def test_the_rows_of_an_earlier_completed_epoch_do_not_count(job):
    """Each epoch is judged for itself: rows of the first one do not make the table full or empty in the second."""
    story = job.story(counted(), {"every_rows": 3}, linger_ms=0)
    story.offers("in", 3)
    ran(story, "passing", emitted=True)
    ran(story, "counted", "out/counted")
    assert 1 == len(story.judges().files[0][1])
    story.commits()
    story.offers("beside", 3)
    ran(story, "other", "out/other")
    assert [] == story.all(JudgeSuites)
    story.commits()
    story.offers("in", 3)
    ran(story, "passing")
    assert (("out/counted", ()),) == story.take(JudgeSuites).files
