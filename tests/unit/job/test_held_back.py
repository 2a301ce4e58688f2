"""A micro-batch cannot write its files. Its rows wait for the next barrier, and the job goes on (B2, E5)."""

import pytest

from checkpointing.channel_items import SourceSlice
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import EdgeId
from checkpointing.job.tick_end import FIRST_MS
from checkpointing.messages import (
    AppendRow,
    MicroBatchNotStaged,
    NotifyAborted,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    StopKind,
    StopRequested,
    TickOutcome,
)

FULL = "micro-batch of vertex joined could not be written: the disk is full"


def rows_of(run):
    """Return the slices in a micro-batch."""
    parts = (part for each in run.inputs for part in each.segments)
    return [(part.source, part.start, part.end) for part in parts if isinstance(part, SourceSlice)]


def fails(story, vertex="joined"):
    """Fail the vertex's micro-batch because of a full disk. Return its slices."""
    run = story.take(RunMicroBatch, lambda run: run.vertex == vertex)
    story.tell(MicroBatchNotStaged(vertex, run.micro_batch, FULL))
    return rows_of(run)


def begun(job, **config):
    """Return a job that has read three rows of the left source."""
    story = job.story(job.two_sources(), {"tolerable_failures": 9, **config}, linger_ms=0)
    story.offers("left", 3)
    return story


def test_the_waiting_checkpoint_is_declined_and_the_next_one_has_the_rows(job):
    """Nothing runs before the next barrier. Then the same rows run as another micro-batch, and are committed once."""
    story = begun(job, every_rows=3)
    assert [("left", "0", "3")] == fails(story)
    (aborted,) = story.all_told(NotifyAborted)
    assert (1, Reason.CHECKPOINT_ASYNC_EXCEPTION, FULL) == (aborted.checkpoint, aborted.reason, aborted.message)
    assert story.end is None
    story.passes(FIRST_MS - 1)
    assert [] == story.all(RunMicroBatch)
    story.passes(1)
    (run,) = story.all(RunMicroBatch)
    assert ([("left", "0", "3")], 2) == (rows_of(run), run.micro_batch)
    story.finishes()
    row = story.commits()
    assert (2, ["out-1"]) == (row.checkpoint, [file.path for file in row.tables[0].adds])
    assert "3" == row.vertices[0].subtasks[0].position


def test_a_vertex_without_a_waiting_checkpoint_asks_for_a_barrier(job):
    """The first retry may come at once. Each further one declines its checkpoint and comes after a longer pause."""
    story = begun(job)
    fails(story)
    assert [] == story.all_told(NotifyAborted)
    for number, pause_ms in enumerate((FIRST_MS, 2 * FIRST_MS), start=1):
        assert [("left", "0", "3")] == fails(story)
        assert [*range(1, number + 1)] == [each.checkpoint for each in story.all_told(NotifyAborted)]
        assert [] == story.all(RunMicroBatch)
        story.passes(pause_ms - 1)
        assert [] == story.all(RunMicroBatch)
        story.passes(1)
    story.finishes()
    assert "3" == story.commits().vertices[0].subtasks[0].position


def test_periodic_checkpoints_bring_the_barrier(job):
    """If an interval is set, the tick asks for no barrier of its own, because the user has decided how often."""
    story = begun(job, interval_ms=7_000)
    fails(story)
    story.passes(FIRST_MS)
    assert [] == story.all(RunMicroBatch)
    story.passes(7_000)
    assert [("left", "0", "3")] == rows_of(story.all(RunMicroBatch)[0])


def test_without_a_setting_the_job_fails_and_names_the_way_out(job):
    """After one retry the tick fails. The next tick reads the rows again, and nothing was appended."""
    story = begun(job, tolerable_failures=0)
    fails(story)
    fails(story)
    assert (TickOutcome.FAILED, Reason.CHECKPOINT_ASYNC_EXCEPTION) == (story.end.outcome, story.end.reason)
    assert FULL in story.end.message
    assert "--set tolerable_failures=3" in story.end.message
    assert [] == story.all_told(AppendRow)


def test_rows_that_come_in_the_meantime_follow_in_micro_batches_of_the_usual_size(job):
    """The waiting vertex takes all items from its gate. Otherwise no barrier would ever reach it."""
    story = begun(job, interval_ms=7_000, micro_batch_rows_max=4, slice_rows_max=4)
    fails(story)
    for _ in range(3):
        story.offers("left", 2)
    story.passes(7_000)
    met = []
    while story.all(RunMicroBatch):
        met.append(rows_of(story.all(RunMicroBatch)[0]))
        story.finishes()
    assert [[("left", "0", "3"), ("left", "3", "5")], [("left", "5", "7"), ("left", "7", "9")]] == met


def test_an_expired_checkpoint_is_reported_once(job):
    """Its barrier waited for the micro-batch.

    So the late failure declines nothing, and the next checkpoint is tried.
    """
    story = begun(job, every_rows=3, timeout_ms=5_000)
    story.passes(5_000)
    fails(story)
    assert [(1, Reason.CHECKPOINT_EXPIRED)] == [
        (each.checkpoint, each.reason) for each in story.all_told(NotifyAborted)
    ]
    story.passes(FIRST_MS)
    assert [("left", "0", "3")] == rows_of(story.all(RunMicroBatch)[0])


@pytest.mark.parametrize("kind", [SavepointKind.SUSPEND, SavepointKind.DRAIN])
def test_the_savepoint_of_a_stop_is_the_next_barrier(job, kind):
    """If the rows cannot be written for it, the stop fails. Nothing is read after it (Flink)."""
    story = begun(job)
    fails(story)
    story.tell(SavepointRequested("mine", kind))
    while story.all(RunMicroBatch):
        fails(story)
    (answer,) = story.all_told(SavepointFailed)
    assert ("mine", Reason.CHECKPOINT_ASYNC_EXCEPTION) == (answer.request, answer.reason)
    assert TickOutcome.FAILED is story.end.outcome


def test_a_drain_emits_waiting_rows_once_the_disk_has_room(job):
    """The last micro-batch ends the input. The snapshot is taken after it."""
    story = job.story(job.two_sources(), {"tolerable_failures": 9}, linger_ms=0)
    story.tell(SavepointRequested("mine", SavepointKind.DRAIN))
    run = story.take(RunMicroBatch)
    assert ([], True) == (rows_of(run), run.end_of_input)
    story.tell(MicroBatchNotStaged("joined", run.micro_batch, FULL))
    (again,) = story.all(RunMicroBatch)
    assert (2, True) == (again.micro_batch, again.end_of_input)
    assert [] == story.all_told(NotifyAborted)
    story.finishes()
    assert 1 == story.commits().checkpoint
    assert TickOutcome.STOPPED is story.end.outcome


def test_a_stop_ends_a_tick_whose_vertex_waits(job):
    """STOP NOW: the next tick reads the rows again."""
    story = begun(job, interval_ms=7_000)
    fails(story)
    story.tell(StopRequested(StopKind.NOW))
    assert TickOutcome.STOPPED is story.end.outcome


def test_a_vertex_that_waits_does_not_hold_its_barrier_back(job):
    """It returns no credit. The upstream vertex still sends all items before the barrier."""
    graph = JobGraph(
        (
            Vertex("left", VertexKind.SOURCE, 1, splits=("l",)),
            Vertex("bronze", VertexKind.STATELESS, 1, (Table("bronze/rows", TableMode.APPEND),)),
            Vertex("joined", VertexKind.KEYED, 1, (Table("out/joined", TableMode.APPEND),)),
        ),
        (EdgeId("left", "bronze", 0), EdgeId("bronze", "joined", 0)),
    )
    config = {"interval_ms": 7_000, "tolerable_failures": 9}
    story = job.story(graph, config, linger_ms=0, credit_bytes=10)
    story.offers("left", 1)
    story.finishes("bronze")
    story.offers("left", 1)
    fails(story)
    assert [] == [run for run in story.all(RunMicroBatch) if run.vertex == "bronze"]
    story.passes(7_000)
    story.finishes("bronze")
    (run,) = [run for run in story.all(RunMicroBatch) if run.vertex == "joined"]
    assert ["out-1", "out-2"] == [file.path for each in run.inputs for part in each.segments for file in part.files]
