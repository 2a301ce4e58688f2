"""After a failed checkpoint of the tick's own, the tick pauses, so that the problem may pass (E5)."""

from dataclasses import replace

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.at_rest import Approved, Stamp, to_settle, turn_of
from checkpointing.commit.cleanup import needed_cuts, referenced
from checkpointing.commit.fencing import newest_checkpoint, restorable
from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.event_time import EventTime
from checkpointing.failures import CheckpointFailureReason
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import EdgeId
from checkpointing.job.restoring import completed_store
from checkpointing.job.setup import TickLimits
from checkpointing.job.tick_end import FIRST_MS, LONGEST_MS, Pause
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    DiscardFiles,
    EndTick,
    LookForRival,
    MicroBatchFailed,
    MicroBatchFinished,
    NotifyComplete,
    PollFailed,
    PollSource,
    PublishTable,
    RecordCut,
    RivalSeen,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    StopKind,
    StopRequested,
    SubtaskOutput,
    TableCheckFailed,
    TickOutcome,
)
from checkpointing.metadata.codec import decode, encode
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import InputTimeRecord, RowKind, TableRecord, VertexTimeRecord
from tests.unit.job.conftest import CLAIM


def fails(pause, reason, now_ms, kind=None):
    pause.answered(RequestFailed("tick", reason, ""), kind, now_ms)


def test_a_pause_doubles_with_each_failure_in_a_row():
    """It begins with a second and stays below a minute. One success resets it."""
    pause, now_ms, lengths = Pause(), 5_000, []
    for _ in range(8):
        fails(pause, Reason.CHECKPOINT_ASYNC_EXCEPTION, now_ms)
        lengths.append(pause.until_ms - now_ms)
        assert not pause.is_over(pause.until_ms - 1)
        assert pause.is_over(pause.until_ms)
        now_ms = pause.until_ms
    assert [FIRST_MS * 2**power for power in range(6)] + [LONGEST_MS] * 2 == lengths
    pause.answered(RequestSucceeded("tick", 9), None, now_ms)
    assert pause.is_over(now_ms)
    fails(pause, Reason.CHECKPOINT_EXPIRED, now_ms)
    assert FIRST_MS == pause.until_ms - now_ms


@pytest.fixture
def caught_up(job):
    """Return a job whose last checkpoint waits for the check of its tables."""

    def begun(tolerable):
        story = job.story(job.two_sources(), {"tolerable_failures": tolerable}, linger_ms=0)
        story.offers("left", 3)
        story.finishes()
        story.is_idle("left", "right")
        return story

    return begun


def fail(story, checkpoint):
    assert checkpoint == story.take(CheckTables).checkpoint
    story.tell(TableCheckFailed(checkpoint, "the log cannot be read"))


def test_checks_that_failed_are_counted(caught_up):
    """One failure too many fails the job, with the cause and the way out. Nothing was appended."""
    story = caught_up(1)
    fail(story, 1)
    story.passes(FIRST_MS)
    fail(story, 2)
    assert (TickOutcome.FAILED, Reason.FINALIZE_CHECKPOINT_FAILURE) == (story.end.outcome, story.end.reason)
    assert "the log cannot be read" in story.end.message
    assert "--set tolerable_failures=4" in story.end.message
    assert [] == story.all_told(AppendRow)


# ------------------------------------------------------------------
# A tick looks for another claim after a failed checkpoint, and ends as fenced if there is one (G5).


@pytest.fixture
def story(job):
    """Return a job whose last checkpoint waits for the check of its tables."""
    story = job.story(job.two_sources(), {"tolerable_failures": 100}, linger_ms=0)
    story.offers("left", 3)
    story.finishes()
    story.is_idle("left", "right")
    return story


def fail_once(story):
    story.tell(TableCheckFailed(story.take(CheckTables).checkpoint, "the log cannot be read"))


def test_a_tick_that_holds_its_job_goes_on_and_looks_after_each_failure(story):
    """The next checkpoint is tried after the pause. While a look is in progress, no second one begins."""
    fail_once(story)
    story.passes(1_000)
    fail_once(story)
    assert [LookForRival(1)] == story.all_told(LookForRival)
    story.tell(RivalSeen(None))
    assert story.end is None
    story.passes(2_000)
    fail_once(story)
    assert [LookForRival(1)] * 2 == story.all_told(LookForRival)


# ------------------------------------------------------------------
# Savepoints that users request while the job runs: plain ones, stops, drains, and the answer to each request.


REASON = CheckpointFailureReason
PLAIN, SUSPEND, DRAIN = SavepointKind.PLAIN, SavepointKind.SUSPEND, SavepointKind.DRAIN
NEVER = TickLimits(until_caught_up=False)


def asked(kind, request="mine"):
    return SavepointRequested(request, kind)


def chain():
    """Return left -> bronze (stateless) -> joined (keyed) <- right."""
    return JobGraph(
        (
            Vertex("left", VertexKind.SOURCE, 1, splits=("l",)),
            Vertex("right", VertexKind.SOURCE, 1, splits=("r",)),
            Vertex("bronze", VertexKind.STATELESS, 1, (Table("out/bronze", TableMode.APPEND),)),
            Vertex("joined", VertexKind.KEYED, 1, (Table("out/joined", TableMode.APPEND),)),
        ),
        (EdgeId("left", "bronze"), EdgeId("bronze", "joined", 0), EdgeId("right", "joined", 1)),
    )


def answers(story):
    return [told for told in story.told if isinstance(told, SavepointTaken | SavepointFailed)]


# ------------------------------------------------------------------ plain


def test_no_file_that_a_savepoint_names_is_discarded(job):
    """A state file that no checkpoint uses any more stays while a savepoint, an older one or this tick's, names it."""
    graph = JobGraph(
        (
            Vertex("left", VertexKind.SOURCE, 1, splits=("l",)),
            Vertex("joined", VertexKind.KEYED, 1, (Table("state/joined", TableMode.STATE),)),
        ),
        (EdgeId("left", "joined"),),
    )

    def base(number):
        file = KeyedFile(job.file(f"state-{number}"), KeyedFileKind.BASE, 0, 127, Version(1, number))
        return SubtaskOutput(state=(file,))

    old = SubtaskSnapshot(state=(job.keyed("state-0", 0, 127, Version(0, 1)),))
    pinned = job.record(graph, 1, {"joined": (old,)}, kind=RowKind.SAVEPOINT, pinned=True)
    cut = job.record(graph, 2, {"joined": (old,)})
    claim = job.claim.model_copy(update={"first_id": 3})
    three = {"every_rows": 3, "slice_rows_max": 3}
    story = job.story(graph, three, linger_ms=0, restored=cut, retained=(pinned, cut), claim=claim, limits=NEVER)
    for number in (1, 2, 3, 4, 5):
        story.offers("left", 3)
        if number == 2:
            story.tell(asked(PLAIN))
        story.take(RunMicroBatch)
        story.tell(MicroBatchFinished("joined", number, (base(number),)))
        while story.all(CheckTables) or story.all(AppendRow):
            story.commits() if story.all(CheckTables) else story.appends()
    gone = {path for effect in story.all_told(DiscardFiles) for path in effect.paths}
    (taken,) = answers(story)
    assert isinstance(taken, SavepointTaken)
    assert {"state-1", "state-3"} == gone


# ------------------------------------------------------------------ stops


def test_a_suspend_commits_publishes_and_ends_the_tick(job):
    """Its entry is a pinned checkpoint, published and notified. Nothing is read after its barrier (F4)."""
    story = job.story(job.two_sources(), linger_ms=0, limits=NEVER)
    story.offers("left", 3)
    story.tell(asked(SUSPEND))
    story.offers("left", 4)  # this row was being read when the barrier was sent, so the next tick reads it
    story.finishes()
    row = story.commits()
    assert (RowKind.CHECKPOINT, True, "3") == (row.kind, row.pinned, row.vertices[0].subtasks[0].position)
    assert [SavepointTaken("mine", row.checkpoint), EndTick(TickOutcome.STOPPED)] == story.told[-2:]
    assert [row.checkpoint] == [told.checkpoint for told in story.all_told(NotifyComplete)]
    assert [] == story.all(RunMicroBatch)


@pytest.mark.parametrize("kind", [PLAIN, SUSPEND])
def test_a_request_while_the_tick_stops_is_refused(job, kind):
    """After a stop, this tick takes no savepoint. Each request is answered at once, with the reason."""
    story = job.story(job.two_sources(), linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(SUSPEND))
    story.tell(asked(kind, "late"))
    (refusal,) = answers(story)
    assert ("late", REASON.CHECKPOINT_COORDINATOR_SUSPEND) == (refusal.request, refusal.reason)


def test_a_request_after_the_end_is_refused(job):
    """The last effect was EndTick, and still every request gets an answer."""
    story = job.story(job.two_sources())
    story.tell(StopRequested(StopKind.NOW))
    assert story.end is not None
    story.tell(asked(PLAIN))
    assert [REASON.CHECKPOINT_COORDINATOR_SHUTDOWN] == [told.reason for told in answers(story)]


def test_the_declined_savepoint_of_a_stop_fails_the_job(job):
    """Half of the job has stopped, so it cannot go on (11; FLINK-12858). The request is answered first."""
    story = job.story(job.two_sources(judged=True), {"tolerable_failures": 9}, linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(SUSPEND))
    story.finishes()
    story.judges(passed=False, message="a row is bad")
    assert [SavepointFailed("mine", REASON.QUALITY, "a row is bad")] == answers(story)
    assert (TickOutcome.FAILED, REASON.QUALITY) == (story.end.outcome, story.end.reason)


# ------------------------------------------------------------------ drains


def test_a_drain_runs_a_last_micro_batch_and_sends_the_end_downstream(job):
    """Inputs end before the barrier: bronze's last rows, then the end of joined's input, then the snapshots."""
    story = job.story(chain(), linger_ms=1_000)
    story.offers("left", 3)
    story.tell(asked(DRAIN))
    bronze = story.all(RunMicroBatch)[0]
    assert ("bronze", True) == (bronze.vertex, bronze.end_of_input)
    assert [] == [run for run in story.all(RunMicroBatch) if run.vertex == "joined"]
    story.finishes("bronze")
    (joined,) = story.all(RunMicroBatch)
    assert ("joined", True, [0]) == (joined.vertex, joined.end_of_input, [each.input for each in joined.inputs])
    story.finishes("joined")
    row = story.commits()
    assert (True, {"out/bronze", "out/joined"}) == (row.pinned, {table.table for table in row.tables})
    assert [SavepointTaken("mine", row.checkpoint), EndTick(TickOutcome.STOPPED)] == story.told[-2:]


# ------------------------------------------------------------------ rows


def test_savepoints_do_not_count_as_retained_checkpoints(job):
    """No savepoint is in the coordinator's store. So it subsumes no checkpoint, and is never subsumed."""
    graph = job.two_sources()
    rows = (
        job.record(graph, 1, {}),
        job.record(graph, 2, {}, kind=RowKind.SAVEPOINT, pinned=True),
        job.record(graph, 3, {}, pinned=True),
    )
    assert [1] == [kept.id for kept in completed_store(rows, 2).checkpoints]
    assert 3 == newest_checkpoint(rows).checkpoint
    assert 1 == newest_checkpoint(rows[:2]).checkpoint


def test_an_entry_names_all_its_files(job):
    """These are files of state, ranges, staging, in flight and tables.

    They must stay with the entry (a savepoint pins them).
    """
    graph = job.two_sources()
    channels = tuple(job.in_flight_of(graph.edges[0], 0, "flight"))
    snapshot = SubtaskSnapshot(state=(job.keyed("state", 0, 1, Version(1, 1)),), in_flight=channels)
    ranges = (RangeFiles("out/sums", (job.keyed("range", 0, 1, Version(1, 1)),)),)
    staged = (StagedFile("out/joined", job.file("staged"), 0),)
    snapshot = replace(snapshot, ranges=ranges, staged=staged)
    append = TableRecord(table="out/joined", mode=TableMode.APPEND, adds=(job.file("added"),), parent_version=0)
    state = TableRecord(table="state/joined", mode=TableMode.STATE, files=(job.file("shown"),), parent_version=0)
    row = job.record(graph, 1, {"joined": (snapshot,)}, tables=(append, state))
    assert frozenset({"state", "flight", "range", "staged", "added", "shown"}) == files_of(row)


# ------------------------------------------------------------------
# A tick that must stop, or cannot go on, only waits until no entry is in doubt.


CONFIG = {"every_rows": 3, "rows_of": ("left",), "slice_rows_max": 3, "interval_ms": 200, "max_concurrent": 1_000}


@pytest.mark.parametrize("asked", [StopRequested(StopKind.NOW), MicroBatchFailed("joined", 9, "a task died")])
def test_a_tick_that_waits_for_its_end_begins_nothing(job, asked):
    """It reads no more, and takes no checkpoint. Another entry in doubt would keep it from its end."""
    story = job.story(job.two_sources(), CONFIG)
    story.offers("left", 3)
    story.passes(2_000)
    story.finishes()
    story.checks()
    story.is_idle("right")
    story.tell(asked)
    polls, next_id = len(story.all_told(PollSource)), story.door.next_id
    story.passes(5_000)
    assert (polls, next_id) == (len(story.all_told(PollSource)), story.door.next_id)
    story.appends()
    story.publishes()
    story.records()
    assert story.end is not None


@pytest.mark.parametrize("kind", [SavepointKind.PLAIN, SavepointKind.SUSPEND])
def test_a_user_hears_why_a_savepoint_is_given_up(job, kind):
    """The savepoint waits for its turn. The tick must stop, so it is not taken any more."""
    story = job.story(job.two_sources(), CONFIG)
    story.offers("left", 3)
    story.passes(2_000)
    story.finishes()
    story.checks()
    story.tell(SavepointRequested("mine", kind))
    assert story.all_told(SavepointFailed) == []
    story.tell(StopRequested(StopKind.NOW))
    assert ["the tick is about to end: ask again when it has"] == [
        each.message for each in story.all_told(SavepointFailed)
    ]


# ------------------------------------------------------------------
# A job that holds its checkpoint: one entry of kind HELD, nothing published, and the tick ends.


HOLD = TickLimits(hold=True)


@pytest.fixture
def held(job):
    """Return a story whose tick has held a cut, and the cut's entry."""
    story = job.story(job.two_sources(), linger_ms=0, limits=HOLD)
    story.offers("left", 3)
    story.finishes()
    story.is_idle("left", "right")
    story.checks()
    return story, story.appends()


def test_a_held_checkpoint_is_an_entry_and_the_end(held):
    """The tables are checked, nothing is published or told, and the tick ends saying how to settle the cut."""
    story, row = held
    assert (RowKind.HELD, True, False) == (row.kind, row.pinned, row.commits)
    assert any(isinstance(told, CheckTables) for told in story.told)
    assert not [told for told in story.told if isinstance(told, PublishTable | RecordCut | NotifyComplete)]
    (end,) = [told for told in story.told if isinstance(told, EndTick)]
    assert TickOutcome.HELD is end.outcome
    assert f"cut {row.checkpoint} of" in end.message


def test_a_tick_that_holds_refuses_a_stop_and_takes_a_savepoint(job):
    """A stop would publish. A plain savepoint publishes nothing, and the tick goes on."""
    story = job.story(job.two_sources(), linger_ms=0, limits=HOLD)
    story.offers("left", 3)
    story.tell(SavepointRequested("stop", SavepointKind.SUSPEND))
    (refused,) = [told for told in story.told if isinstance(told, SavepointFailed)]
    assert CheckpointFailureReason.CHECKPOINT_DECLINED is refused.reason
    assert "tidemark cancel" in refused.message
    story.tell(SavepointRequested("keep", SavepointKind.PLAIN))
    story.finishes()
    assert RowKind.SAVEPOINT is story.appends().kind


def test_a_held_cut_is_kept_and_nobody_begins_from_it(held):
    """Its files and its parent's cut stay. It is not the newest checkpoint, and no rollback offers it."""
    _, row = held
    assert newest_checkpoint((row,)) is None
    assert () == restorable([row])
    assert {file.path for table in row.tables for file in table.adds} <= referenced([row]).pinned
    assert row.parent in needed_cuts((row,), ())
    told = row.model_copy(update={"vertices": (), "tables": ()})
    assert told == decode(encode(told, writer="test"))


def test_an_approved_cut_replaces_the_held_one(held):
    """It has the held cut's parent, tables and vertices under a new id, and drops the held entry in its commit."""
    _, row = held
    recipe = Approved(to_settle((row,), row.job, approve=True).held)
    claim = CLAIM.model_copy(update={"generation": 2, "first_id": 7})
    approved = recipe.row(claim, Stamp(99, "n"))
    assert (RowKind.CHECKPOINT, False, 7, row.parent) == (
        approved.kind,
        approved.pinned,
        approved.checkpoint,
        approved.parent,
    )
    assert (row.vertices, row.tables, row.columns) == (approved.vertices, approved.tables, approved.columns)
    assert (row.checkpoint,) == turn_of(recipe, (row,)).dropped


def test_the_tick_waits_for_a_requested_savepoint(job):
    """All rows are committed, but a request waits for a checkpoint to end. It is fulfilled before the tick ends."""
    story = job.story(job.two_sources(), {"unaligned": True, "interval_ms": 10_000}, seed=1)
    story.passes(10_000)
    assert 1 == len(story.all(CheckTables))
    story.tell(asked(PLAIN))
    story.is_idle("left", "right")
    assert story.end is None
    story.commits()
    row = story.appends()
    assert [SavepointTaken("mine", row.checkpoint), EndTick(TickOutcome.CAUGHT_UP)] == story.told[-2:]


def test_a_poll_that_fails_after_a_stop_does_not_count(job):
    """The next tick reads these rows again, and reports the failure."""
    story = job.story(job.two_sources(), linger_ms=0)
    story.tell(asked(SUSPEND))
    poll = story.take(PollSource)
    story.tell(PollFailed(poll.source, poll.split, "damaged"))
    story.commits()
    assert EndTick(TickOutcome.STOPPED) == story.end


def at_rest(job, due_ms, *known):
    """Return a story of two streams, of which the cut knows these. Their greatest rows are of 10 and 11 ms."""
    declared = (EventTime(0, close_after_ms=1_000),) * 2
    left, right, joined = job.two_sources().vertices
    graph = replace(job.two_sources(), vertices=(left, right, replace(joined, event_times=declared, fires=True)))
    inputs = tuple(
        InputTimeRecord(input=place, upstream=name, split=name[0], watermark_ms=10 + place, active_ms=1_000)
        for place, name in enumerate(known)
    )
    was = job.record(
        graph, 1, {"joined": (SubtaskSnapshot(due_ms=due_ms, state=(job.keyed("s", 0, 127, Version(1, 1)),)),)}
    )
    time = VertexTimeRecord(watermark_ms=10, inputs=inputs)
    was = was.model_copy(update={"vertices": (*was.vertices[:2], was.vertices[2].model_copy(update={"time": time}))})
    return job.story(graph, restored=was, claim=job.claim.model_copy(update={"first_id": 2}))


@pytest.mark.parametrize("due_ms", [None, 50])
def test_the_rest_of_a_new_split_begins_at_a_barrier_that_comes_without_rows(job, due_ms):
    """Otherwise no cut would ever know the split, and it would hold windows open for ever. One cut is enough."""
    story = at_rest(job, due_ms, "left")
    story.passes(1_100)
    story.is_idle("left", "right")
    if due_ms is not None:
        assert story.end is None
        assert [1_000, 2_100] == [each.active_ms for each in story.commits().vertices[2].time.inputs]
    assert TickOutcome.CAUGHT_UP is story.end.outcome


@pytest.mark.parametrize("due_ms", [None, 1_110, 1_111])
def test_what_falls_due_while_the_input_rests_is_shown_and_nothing_else_brings_a_cut(job, due_ms):
    """The streams have rested for 1,100 ms. So their time is 1,100 ms after their greatest rows."""
    story = at_rest(job, due_ms, "left", "right")
    story.passes(1_100)
    story.is_idle("left", "right")
    if due_ms != 1_110:
        assert TickOutcome.CAUGHT_UP is story.end.outcome
        return
    assert story.end is None
    fired = story.take(RunMicroBatch)
    assert ((), 1_110) == (fired.inputs, fired.due_ms)
    story.tell(MicroBatchFinished("joined", fired.micro_batch, (SubtaskOutput(),)))
    assert 1_110 == story.commits().vertices[2].time.watermark_ms
    assert TickOutcome.CAUGHT_UP is story.end.outcome


def test_what_falls_due_by_idleness_is_shown_although_no_rows_come(job):
    """The left split has no rows for more than its idle time. Then the right one alone says how far time is."""
    declared = (EventTime(0, idle_after_ms=1_000),) * 2
    left, right, joined = job.two_sources().vertices
    graph = replace(job.two_sources(), vertices=(left, right, replace(joined, event_times=declared, fires=True)))
    inputs = tuple(
        InputTimeRecord(input=place, upstream=name, split=name[0], watermark_ms=ms, active_ms=active_ms)
        for place, (name, ms, active_ms) in enumerate([("left", 10, 0), ("right", 99, 1_000)])
    )
    was = job.record(
        graph, 1, {"joined": (SubtaskSnapshot(due_ms=50, state=(job.keyed("s", 0, 127, Version(1, 1)),)),)}
    )
    time = VertexTimeRecord(watermark_ms=10, inputs=inputs)
    was = was.model_copy(update={"vertices": (*was.vertices[:2], was.vertices[2].model_copy(update={"time": time}))})
    for rests_ms, fires in ((0, False), (1, True)):
        story = job.story(graph, restored=was, claim=job.claim.model_copy(update={"first_id": 2}))
        story.passes(rests_ms)
        story.is_idle("left", "right")
        assert fires is (story.end is None)
    fired = story.take(RunMicroBatch)
    assert ((), 99) == (fired.inputs, fired.due_ms)
    story.tell(MicroBatchFinished("joined", fired.micro_batch, (SubtaskOutput(),)))
    assert 99 == story.commits().vertices[2].time.watermark_ms
    assert TickOutcome.CAUGHT_UP is story.end.outcome
