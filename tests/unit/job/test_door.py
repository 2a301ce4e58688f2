"""The job door as its driver sees it: alignment, quality, stops, doubt, failed epochs, order, credit and timers."""

from dataclasses import replace

import pytest

from checkpointing.channel_items import Barrier, CancelMarker, SourceSlice, SubtaskSnapshot
from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import AbortCheckpoint, Ignored, InputGate
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import CheckpointId, EdgeId, SubtaskId, TableName
from checkpointing.job.door import A_JOB_MS, FEW_ROWS, POLLS, Wiring
from checkpointing.job.setup import JobSetup, TickLimits
from checkpointing.messages import (
    AppendRow,
    EndTick,
    JudgeSuites,
    MicroBatchFailed,
    MicroBatchFinished,
    NotifyAborted,
    NotifyComplete,
    PollFailed,
    PollSource,
    RowRefused,
    RowUnknown,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SliceOffered,
    SourceEnded,
    StopKind,
    StopRequested,
    SubtaskOutput,
    SuitesJudged,
    TickOutcome,
)
from checkpointing.task.messages import BroadcastCancelMarker

NOW = StopRequested(StopKind.NOW)
AFTER = StopRequested(StopKind.AFTER_CHECKPOINT)
THREE = {"every_rows": 3, "rows_of": ("left",), "slice_rows_max": 3, "micro_batch_rows_max": 100}


def unequal():
    """Return left -> bronze -> joined and right -> joined. The barriers of `right` come first."""
    return JobGraph(
        (
            Vertex("left", VertexKind.SOURCE, 1, splits=("l",)),
            Vertex("right", VertexKind.SOURCE, 1, splits=("r",)),
            Vertex("bronze", VertexKind.STATELESS, 1, (Table("out/bronze", TableMode.APPEND),)),
            Vertex("joined", VertexKind.KEYED, 1, (Table("out/joined", TableMode.APPEND),)),
        ),
        (EdgeId("left", "bronze"), EdgeId("bronze", "joined", 0), EdgeId("right", "joined", 1)),
    )


def epoch(story, rows=3):
    """Read and run an epoch of left rows. The barrier has passed `joined`."""
    story.offers("left", rows)
    story.passes(2_000)
    story.finishes()


def rows_given(run, number):
    return [(part.start, part.end) for each in run.inputs if each.input == number for part in each.segments]


def test_at_least_once_never_waits(job):
    """Right's rows after barrier 1 run at once, and count again after a crash (C4)."""
    story = job.story(unequal(), {**THREE, "mode": "at_least_once"}, linger_ms=0)
    story.offers("left", 3)
    story.offers("right", 7)
    assert [("0", "7")] == rows_given(story.all(RunMicroBatch)[1], 1)


def test_an_unaligned_barrier_overtakes_and_the_rows_are_in_flight(job):
    """The barrier passes the waiting rows. They are in the entry, and in no table yet (C5)."""
    story = job.story(unequal(), {**THREE, "unaligned": True}, limits=TickLimits(checkpoints=2))
    story.offers("left", 3)
    assert [] == story.all_told(RunMicroBatch)
    row = story.commits()
    held = [(part.start, part.end) for each in row.vertices[2].subtasks[0].in_flight for part in each.segments]
    assert ("3", [("0", "3")], ()) == (row.vertices[0].subtasks[0].position, held, row.tables)
    story.passes(2_000)
    assert [("0", "3")] == rows_given(story.all(RunMicroBatch)[0], 0)


def test_segments_in_flight_are_kept_until_the_snapshot_is_taken(job):
    """The barrier comes while rows wait to run. The snapshot is taken later, and still has the overtaken segments."""
    story = job.story(unequal(), {**THREE, "unaligned": True})
    story.offers("left", 2)  # these wait for company in bronze
    story.offers("left", 1)  # the barrier follows at once and overtakes this row
    story.finishes("bronze")
    row = story.commits()
    held = [(part.start, part.end) for each in row.vertices[2].subtasks[0].in_flight for part in each.segments]
    assert [("2", "3")] == held
    assert ["out-1"] == [each.path for each in row.tables[0].adds]


def test_a_failed_suite_ends_the_tick_with_its_message(job):
    """A rejected epoch fails the tick with reason QUALITY and the judge's message. Nothing is committed (J3)."""
    story = job.story(job.two_sources(judged=True), {**THREE, "tolerable_failures": 9})
    epoch(story)
    story.judges(passed=False, message="3 rows have no key: repair the file")
    assert (
        EndTick(TickOutcome.FAILED, CheckpointFailureReason.QUALITY, "3 rows have no key: repair the file") == story.end
    )
    assert [] == story.all_told(AppendRow)
    assert [NotifyAborted(1, CheckpointFailureReason.QUALITY, "3 rows have no key: repair the file")] == story.all_told(
        NotifyAborted
    )


def test_stop_after_checkpoint_commits_all_rows_read_so_far(job):
    """STOP AFTER CHECKPOINT: no new poll, open answers count, one last checkpoint, then the end."""
    story = job.story(job.two_sources(), {})
    story.offers("left", 2)
    story.tell(AFTER)
    polls = len(story.all_told(PollSource))
    story.offers("left", 4)
    story.is_idle("right")
    story.passes(2_000)
    story.finishes()
    row = story.commits()
    assert "6" == row.vertices[0].subtasks[0].position
    assert EndTick(TickOutcome.STOPPED) == story.end
    assert polls == len(story.all_told(PollSource))


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [(NOW, TickOutcome.STOPPED), (MicroBatchFailed("joined", 9, "a task died"), TickOutcome.FAILED)],
)
def test_a_tick_never_ends_in_doubt(job, asked, outcome):
    """While an entry is being appended or published, neither a stop nor a failure ends the tick.

    After the cut they do.
    """
    story = job.story(job.two_sources(), THREE)
    epoch(story)
    story.checks()
    story.tell(asked)
    assert story.end is None
    story.appends()
    assert story.end is None
    story.publishes()
    assert story.end is None
    story.records()
    assert outcome is story.end.outcome
    assert [1] == [effect.checkpoint for effect in story.all_told(NotifyComplete)]


def test_a_refused_entry_names_the_holder_of_the_job(job):
    """The tick ends as FENCED and names the holder. Nothing is published."""
    story = job.story(job.two_sources(), THREE)
    epoch(story)
    story.checks()
    story.tell(RowRefused(story.take(AppendRow).row.nonce, "process 7 on here, generation 2"))
    assert CheckpointFailureReason.FENCED is story.end.reason
    assert "process 7 on here" in story.end.message


def test_an_unknown_outcome_ends_the_tick_and_aborts_nothing(job):
    """The entry may be in. So nobody hears that the checkpoint was aborted, and nothing is deleted."""
    story = job.story(job.two_sources(), THREE)
    epoch(story)
    story.checks()
    story.tell(RowUnknown(story.take(AppendRow).row.nonce, "the connection broke"))
    assert TickOutcome.FAILED is story.end.outcome
    assert [] == story.all_told(NotifyAborted)


def test_files_of_a_failed_epoch_are_in_the_next_entry(job):
    """A checkpoint that expires loses nothing. The next entry adds its files too, each once."""
    story = job.story(job.two_sources(judged=True), {**THREE, "timeout_ms": 5_000, "tolerable_failures": 1})
    epoch(story)
    late = story.take(JudgeSuites)
    story.passes(6_000)
    assert [1] == [told.checkpoint for told in story.all_told(NotifyAborted)]
    story.tell(SuitesJudged(late.vertex, late.checkpoint, passed=True, report="{}"))
    epoch(story)
    asked = story.judges()
    row = story.commits()
    assert 2 == row.checkpoint
    assert ["out-1", "out-2"] == [each.path for each in row.tables[0].adds]
    assert ["out-1", "out-2"] == [each.path for _, files in asked.files for each in files]


def test_segments_keep_their_order(job):
    """The slices of a split reach its vertex in their order, over several micro-batches too."""
    story = job.story(job.two_sources(), {"slice_rows_max": 2, "micro_batch_rows_max": 4})
    met = []
    for _ in range(3):
        story.offers("left", 2)
        story.offers("left", 2)
        met += rows_given(story.all(RunMicroBatch)[0], 0)
        story.finishes()
    assert [("0", "2"), ("2", "4"), ("4", "6"), ("6", "8"), ("8", "10"), ("10", "12")] == met


def test_a_tick_is_caught_up_when_all_rows_read_are_committed(job):
    """Idle sources alone end nothing. The tick first commits all rows that were read, by one checkpoint of its own."""
    story = job.story(job.two_sources(), {})
    story.offers("left", 2)
    story.is_idle("left", "right")
    story.finishes()
    assert story.end is None
    assert "2" == story.commits().vertices[0].subtasks[0].position
    assert EndTick(TickOutcome.CAUGHT_UP) == story.end


def test_rows_in_flight_keep_a_tick_from_being_caught_up(job):
    """The tables do not show the rows in flight of a restored cut. A tick commits them even if it reads nothing."""
    graph = job.two_sources()
    held = tuple(job.in_flight_of(EdgeId("left", "joined", 0), 0, "old"))
    cut = job.record(graph, 7, {"joined": (SubtaskSnapshot(in_flight=held),)})
    claim = job.claim.model_copy(update={"first_id": 8})
    story = job.story(graph, {}, restored=cut, retained=(cut,), claim=claim)
    story.is_idle("left", "right")
    assert ["old"] == [part.files[0].path for part in story.all(RunMicroBatch)[0].inputs[0].segments]
    story.finishes()
    row = story.commits()
    assert (7, ()) == (row.parent, row.vertices[2].subtasks[0].in_flight)
    assert EndTick(TickOutcome.CAUGHT_UP) == story.end


# ------------------------------------------------------------------
# The ways between the parts of a job: what a subtask says reaches all who must hear it.


def test_the_marker_of_a_cancelled_checkpoint_goes_into_every_channel_of_its_subtask(job, monkeypatch):
    """Here two vertices read the same source."""
    readers = [Vertex(name, VertexKind.KEYED, 1, (Table(f"out/{name}", TableMode.APPEND),)) for name in ("one", "two")]
    source = Vertex("left", VertexKind.SOURCE, 1, splits=("l",))
    graph = JobGraph((source, *readers), tuple(EdgeId("left", each.id) for each in readers))
    setup = JobSetup(graph=graph, config=CheckpointConfig(), job="j", claim=job.claim, at_version=1)
    wiring, sent = Wiring(setup), []
    monkeypatch.setattr(wiring, "arrive", lambda channel, item: sent.append((channel.edge.downstream, item)))
    wiring.from_subtask(SubtaskId("left", 0), (BroadcastCancelMarker(7),))
    assert [("one", CancelMarker(7)), ("two", CancelMarker(7))] == sent


# ------------------------------------------------------------------
# Shortly before a periodic barrier, a few rows wait for it, and idle splits are asked more often (A2).


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
    return len(story.all_told(RunMicroBatch))


def reads(story, rows):
    story.offers("left", rows)
    story.is_idle("left", "right")


def test_a_few_rows_wait_for_the_barrier_that_is_near(expecting):
    """It brings them into one micro-batch."""
    story = expecting()
    reads(story, 3)
    assert begun(story) == 0
    story.passes(INTERVAL_MS)
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


# ------------------------------------------------------------------
# Bounded sources end, and the job finishes. The door is driven fact by fact.


def bounded(graph, *sources):
    return JobGraph(tuple(replace(each, bounded=each.id in sources) for each in graph.vertices), graph.edges)


def ends(story, *sources):
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


# ------------------------------------------------------------------
# Rows trigger checkpoints (A11): how many at a time, and which rows an entry counts.


@pytest.mark.parametrize(("concurrent", "pending"), [(1, 1), (2, 2)])
def test_rows_trigger_as_many_checkpoints_as_may_be_pending(job, concurrent, pending):
    """The configuration may allow a second epoch's barrier while the first checkpoint is pending."""
    story = job.story(unequal(), {**THREE, "max_concurrent": concurrent}, linger_ms=0)
    story.offers("left", 3)
    assert 2 == story.door.next_id
    story.offers("left", 3)
    story.passes(5_000)
    assert pending + 1 == story.door.next_id


def test_estimated_rows_pace_like_others_and_are_marked(job):
    """Three estimated rows of a slice fill the epoch, although it may have none.

    The entry says how many were estimated.
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
# Tests sources of another job's cuts in a whole job: which barrier waits, and a cut that is never reached.


TWO_JOBS = {"left": "shop", "right": "bank"}
ONE_JOB = {"left": "shop", "right": "shop"}


def reads_to(story, source, end, *, at_cut=True):
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
    reads_to(story, "right", 3, at_cut=False)
    reads_to(story, "left", 4)
    assert 2 == story.door.next_id
    assert (False, True) == (is_polled(story, "left"), is_polled(story, "right"))
    reads_to(story, "right", 6)
    assert (True, True) == (is_polled(story, "left"), is_polled(story, "right"))
    story.finishes()
    story.finishes()
    assert ["4", "6"] == positions(story.commits())


def test_a_table_that_cannot_be_read_up_to_the_cut_fails_the_tick_at_once(job):
    """No barrier can be sent before the cut, so there is no last checkpoint to wait for."""
    story = job.story(job.two_sources(), {"tolerable_poll_failures": 0}, linger_ms=0, cut_groups=ONE_JOB)
    reads_to(story, "left", 4)
    story.tell(PollFailed("right", story.take(PollSource).split, "a file of right is damaged"))
    assert (TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE) == (story.end.outcome, story.end.reason)
    assert "a file of right is damaged" == story.end.message


# ------------------------------------------------------------------
# What a gate does with a checkpoint that a newer one follows, and with a barrier that comes too late (C1, A9).


def gated(monkeypatch):
    """Return a list of what all gates abort and ignore from now on, as they do it."""
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
    """A savepoint expires while `middle` runs, so `middle` cancels it. Checkpoint 2 overtakes its marker.

    `joined` waits for the savepoint's other barrier when the newer one comes. Then the marker is too old, and ignored.
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
    """More than `max_alignment_bytes` waits behind the first barrier. The other one comes when nothing waits for it."""
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


def test_two_checkpoints_in_flight_commit_in_order(job):
    """Epoch 2 is acknowledged while entry 1 waits. Entry 2 is sent after cut 1 is recorded, and builds on it."""
    story = job.story(job.two_sources(), {**THREE, "max_concurrent": 2})
    epoch(story)
    epoch(story)
    first = story.commits()
    second = story.commits()
    assert [(1, 0), (2, 1)] == [(row.checkpoint, row.parent) for row in (first, second)]
    assert [["out-1"], ["out-2"]] == [[each.path for each in row.tables[0].adds] for row in (first, second)]


@pytest.mark.parametrize("completes", [True, False], ids=["the one before completes", "the one before goes on"])
def test_rows_wait_for_a_barrier_that_fires_no_longer_than_a_job_takes(job, completes):
    """Checkpoint 2 was asked for, and waits until checkpoint 1 is complete. Its barrier would fire with the rows."""
    left, right, joined = job.two_sources().vertices
    graph = replace(job.two_sources(), vertices=(left, right, replace(joined, fires=True, by_clock=True)))
    story = job.story(graph, {"every_rows": 3})
    story.offers("left", 3)
    first = story.take(RunMicroBatch)
    story.tell(MicroBatchFinished("joined", first.micro_batch, (SubtaskOutput(due_ms=story.now_ms + 50),)))
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
