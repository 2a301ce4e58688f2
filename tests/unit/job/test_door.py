"""Tests what the simulator's rules leave open about the job door: how long rows wait, estimates, late barriers."""

from dataclasses import replace

import pytest

from checkpointing.channel_items import Barrier, CancelMarker, SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import AbortCheckpoint, Ignored, InputGate
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import CheckpointId, EdgeId, SubtaskId, TableName
from checkpointing.job.door import A_JOB_MS, FEW_ROWS, POLLS, Wiring
from checkpointing.job.setup import JobSetup, TickLimits
from checkpointing.messages import (
    MicroBatchFinished,
    PollFailed,
    PollSource,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SliceOffered,
    SubtaskOutput,
    TickOutcome,
)

THREE = {"every_rows": 3, "rows_of": ("left",), "slice_rows_max": 3, "micro_batch_rows_max": 100}


# ------------------------------------------------------------------
# The ways between the parts of a job: what a subtask sends reaches all channels that lead from it.


def test_the_marker_of_a_cancelled_checkpoint_goes_into_every_channel_of_its_subtask(job, monkeypatch):
    """In this graph, two vertices read the same source."""
    readers = [Vertex(name, VertexKind.KEYED, 1, (Table(f"out/{name}", TableMode.APPEND),)) for name in ("one", "two")]
    source = Vertex("left", VertexKind.SOURCE, 1, splits=("l",))
    graph = JobGraph((source, *readers), tuple(EdgeId("left", each.id) for each in readers))
    setup = JobSetup(graph=graph, config=CheckpointConfig(), job="j", claim=job.claim, at_version=1)
    wiring, sent = Wiring(setup), []
    monkeypatch.setattr(wiring, "arrive", lambda channel, item: sent.append((channel.edge.downstream, item)))
    wiring.broadcast(SubtaskId("left", 0), CancelMarker(7))
    assert [("one", CancelMarker(7)), ("two", CancelMarker(7))] == sent


# ------------------------------------------------------------------
# Shortly before a periodic barrier, a few rows wait for the barrier, and idle splits are polled more often (A2).


INTERVAL_MS = 200
FAR_MS = 600_000
IDLE_MS = 500


@pytest.fixture
def expecting(job):
    """Return a function that begins a job with a checkpoint interval."""

    def begun(interval_ms=INTERVAL_MS, graph=None, **setup):
        config = {"interval_ms": interval_ms, "micro_batch_rows_max": 10 * FEW_ROWS}
        limits = TickLimits(until_caught_up=False)
        return job.story(graph or job.two_sources(), config, **{"limits": limits, **setup})

    return begun


def begun(story):
    return len(story.all_told(RunMicroBatch))


def reads(story, rows):
    story.offers("left", rows)
    story.is_idle("left", "right")


def test_a_few_rows_wait_for_the_barrier_that_is_near(expecting):
    """At the barrier, all these rows run in one micro-batch."""
    story = expecting()
    reads(story, 3)
    assert begun(story) == 0
    story.passes(INTERVAL_MS)
    assert begun(story) == 1


@pytest.mark.parametrize("graph", ["two_sources", "in_a_row"], ids=["beside them", "two steps above"])
def test_rows_wait_as_long_as_a_source_is_being_asked(job, expecting, graph):
    """The poll may bring more rows for the same micro-batch."""
    story = expecting(FAR_MS, getattr(job, graph)())
    story.offers("right", 3)
    story.is_idle("right")
    assert begun(story) == 0
    story.is_idle("left")
    assert begun(story) == 1


def test_a_vertex_runs_nothing_while_a_channel_of_one_of_its_subtasks_is_full(job):
    """The first subtask of bronze has sent a file that `joined` has not processed yet."""
    left, right, bronze, joined = job.in_a_row().vertices
    graph = replace(job.in_a_row(), vertices=(left, right, replace(bronze, parallelism=2), joined))
    story = job.story(graph, linger_ms=0, credit_bytes=10)
    story.offers("left", 1)
    story.finishes("bronze")
    story.offers("left", 1)
    assert ["joined"] == [run.vertex for run in story.all(RunMicroBatch)]
    story.finishes("joined")
    assert ["bronze"] == [run.vertex for run in story.all(RunMicroBatch)]


@pytest.fixture
def waiting(expecting):
    """Return a job with a few rows, a checkpoint that waits for its tables, and a request for the next checkpoint."""
    story = expecting()
    story.is_idle("left", "right")
    story.passes(INTERVAL_MS)
    story.passes(IDLE_MS)
    reads(story, 3)
    assert begun(story) == 0
    return story


def test_a_few_rows_wait_for_the_checkpoint_before_theirs(waiting):
    """The next barrier is sent once the first checkpoint is complete."""
    waiting.commits()
    assert begun(waiting) == 1


def test_a_few_rows_wait_no_longer_than_others(waiting):
    """A second is the longest wait, however long the checkpoint before takes."""
    waiting.passes(999)
    assert begun(waiting) == 0
    waiting.passes(1)
    assert begun(waiting) == 1


@pytest.mark.parametrize(("setup", "pause_ms"), [({}, IDLE_MS // POLLS), ({"interval_ms": FAR_MS}, IDLE_MS)])
def test_an_idle_split_is_asked_more_often_before_a_barrier(expecting, setup, pause_ms):
    """So newer rows come before the barrier."""
    story = expecting(**setup)
    story.is_idle("left", "right")
    story.passes(pause_ms - 1)
    assert story.all(PollSource) == []
    story.passes(1)
    assert {"left", "right"} == {poll.source for poll in story.all(PollSource)}


# ------------------------------------------------------------------
# Rows trigger checkpoints (A11): how many may be pending, and which rows an entry counts.


@pytest.mark.parametrize(("concurrent", "pending"), [(1, 1), (2, 2)])
def test_rows_trigger_as_many_checkpoints_as_may_be_pending(job, concurrent, pending):
    """The configuration may allow a second epoch's barrier while the first checkpoint is pending."""
    story = job.story(job.in_a_row(), {**THREE, "max_concurrent": concurrent}, linger_ms=0)
    story.offers("left", 3)
    assert 2 == story.door.next_id
    story.offers("left", 3)
    story.passes(5_000)
    assert pending + 1 == story.door.next_id


def test_estimated_rows_pace_like_others_and_are_marked(job):
    """Three estimated rows of a slice count towards the epoch, although the slice may have none.

    The entry lists how many of its rows were estimated.
    """
    story = job.story(job.two_sources(), {"every_rows": 5, "slice_rows_max": 3}, linger_ms=0)
    for estimated in (3, 0):
        story.offers("left", 3, estimated=estimated > 0)
        story.offers("right", 2)
        while story.all(RunMicroBatch):
            story.finishes()
        row = story.commits()
        assert (5, estimated) == (row.statistics.rows, row.statistics.rows_estimated)


# ------------------------------------------------------------------
# A cut of another job that is never reached.


ONE_JOB = {"left": "shop", "right": "shop"}


def reads_to(story, source, end, *, at_cut=True):
    """Answer the source's poll with the rows up to a position. The position is a cut's, or lies before the cut."""
    poll = story.take(PollSource, lambda poll: poll.source == source)
    start = int(poll.position or 0)
    rows = end - start
    cut = poll.cut or f"cut of {source}"
    story.tell(
        SliceOffered(SourceSlice(source, poll.split, str(start), str(end), "", rows, rows, cut=cut, at_cut=at_cut))
    )


def test_a_table_that_cannot_be_read_up_to_the_cut_fails_the_tick_at_once(job):
    """No barrier can be sent before the cut is reached, so the tick cannot wait for a last checkpoint."""
    story = job.story(job.two_sources(), {"tolerable_poll_failures": 0}, linger_ms=0, cut_groups=ONE_JOB)
    reads_to(story, "left", 4)
    story.tell(PollFailed("right", story.take(PollSource).split, "a file of right is damaged"))
    assert (TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE) == (story.end.outcome, story.end.reason)
    assert "a file of right is damaged" == story.end.message


# ------------------------------------------------------------------
# What a gate does with a checkpoint when a newer one follows, and with a barrier that comes too late (C1, A9).


def gated(monkeypatch):
    """Return a list. From now on, all gates add to it which checkpoints they abort, and what they ignore."""
    seen, step = [], InputGate.step

    def watched(self, fact):
        effects = step(self, fact)
        seen.extend(effect for effect in effects if isinstance(effect, AbortCheckpoint | Ignored))
        return effects

    monkeypatch.setattr(InputGate, "step", watched)
    return seen


def in_two_steps():
    """Return the graph left -> joined <- middle <- right. Each vertex appends to a table of its own."""
    sources = (Vertex(name, VertexKind.SOURCE, 1, splits=(name[0],)) for name in ("left", "right"))
    tables = {name: (Table(TableName(f"out/{name}"), TableMode.APPEND),) for name in ("middle", "joined")}
    vertices = (Vertex(name, VertexKind.STATELESS, 1, of) for name, of in tables.items())
    edges = (EdgeId("left", "joined", 0), EdgeId("right", "middle"), EdgeId("middle", "joined", 1))
    return JobGraph((*sources, *vertices), edges)


def test_a_newer_barrier_that_overtakes_a_cancel_marker_subsumes_the_aligned_one(job, monkeypatch):
    """A savepoint expires while `middle` runs, so `middle` sends a cancel marker. Checkpoint 2 overtakes the marker.

    When the newer barrier comes, `joined` still waits for the savepoint's other barrier. Then the marker is too old,
    and `joined` ignores it.
    """
    seen = gated(monkeypatch)
    sizes = {"micro_batch_rows_max": 10, "slice_rows_max": 10}
    config = {"unaligned": True, "timeout_ms": 500, "tolerable_failures": 9, "interval_ms": 10_000, **sizes}
    story = job.story(in_two_steps(), config, linger_ms=0)
    story.offers("right", 10)
    story.offers("right", 10)
    story.tell(SavepointRequested("keep", SavepointKind.PLAIN))
    story.finishes("middle")
    assert ["joined", "middle"] == sorted(run.vertex for run in story.all(RunMicroBatch))
    story.passes(500)
    (failed,) = story.all_told(SavepointFailed)
    assert CheckpointFailureReason.CHECKPOINT_EXPIRED is failed.reason
    while not story.door.pending:
        story.passes(100)
    story.finishes("middle")
    assert [] == seen
    story.finishes("joined")
    assert (1, CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED) == (seen[0].checkpoint, seen[0].reason)
    assert [CancelMarker(CheckpointId(1))] == [each.item for each in seen[1:]]


def test_a_barrier_that_comes_after_its_checkpoint_was_aborted_is_ignored(job, monkeypatch):
    """More than `max_alignment_bytes` waits behind the first barrier, so the checkpoint is aborted.

    Then the other one comes.
    """
    seen = gated(monkeypatch)
    config = {"max_alignment_bytes": 50, "tolerable_failures": 9, "micro_batch_rows_max": 10, "slice_rows_max": 10}
    story = job.story(job.two_sources(), config, linger_ms=0)
    for _ in range(3):
        story.offers("right", 10)
    story.tell(SavepointRequested("keep", SavepointKind.PLAIN))
    story.offers("left", 10)
    for _ in range(4):
        story.finishes()
    aborted, ignored = seen
    assert (1, CheckpointFailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED) == (
        aborted.checkpoint,
        aborted.reason,
    )
    assert ("right", 1) == (ignored.channel.edge.upstream, ignored.item.checkpoint)
    assert isinstance(ignored.item, Barrier)


@pytest.mark.parametrize("completes", [True, False], ids=["the one before completes", "the one before goes on"])
def test_rows_wait_for_a_barrier_that_fires_no_longer_than_a_job_takes(job, completes):
    """Checkpoint 2 was requested, and waits until checkpoint 1 is complete.

    Its barrier would fire timers with the rows.
    """
    left, right, joined = job.two_sources().vertices
    graph = replace(job.two_sources(), vertices=(left, right, replace(joined, fires=True, by_clock=True)))
    story = job.story(graph, {"every_rows": 3})
    story.offers("left", 3)
    first = story.take(RunMicroBatch)
    story.tell(MicroBatchFinished("joined", first.micro_batch, (SubtaskOutput(due_ms=story.now_ms + 50),)))
    story.passes(10)
    story.offers("left", 3)
    story.is_idle("right")
    assert [] == story.all(RunMicroBatch)
    story.passes(A_JOB_MS - 1)
    assert [] == story.all(RunMicroBatch)
    if completes:
        story.commits()
    else:
        assert story.wake_ms == story.now_ms + 1
        story.passes(1)
    (ran,) = story.all(RunMicroBatch)
    assert (3, completes) == (sum(each.rows for each in ran.inputs[0].segments), ran.due_ms is not None)
