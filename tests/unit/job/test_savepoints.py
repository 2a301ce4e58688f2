"""Savepoints that users request while the job runs: plain ones, stops, drains, and the answer to each request."""

from dataclasses import replace

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import EdgeId
from checkpointing.job.restoring import completed_store
from checkpointing.job.setup import TickLimits
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    DiscardFiles,
    EndTick,
    MicroBatchFinished,
    NotifyAborted,
    NotifyComplete,
    PollFailed,
    PollSource,
    PublishTable,
    RowUnknown,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    StopKind,
    StopRequested,
    SubtaskOutput,
    SuitesJudged,
    TickOutcome,
)
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import RowKind, TableRecord

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


def test_a_plain_savepoint_is_a_pinned_entry_and_the_job_goes_on(job):
    """Nothing is checked, published or notified. Its files stay staged, so the next checkpoint publishes them (9)."""
    story = job.story(job.two_sources(), linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(PLAIN))
    story.finishes()
    row = story.appends()
    assert (RowKind.SAVEPOINT, True, ("out-1",)) == (
        row.kind,
        row.pinned,
        tuple(file.path for table in row.tables for file in table.adds),
    )
    assert [SavepointTaken("mine", row.checkpoint)] == answers(story)
    assert ([], [], []) == (story.all(CheckTables), story.all(PublishTable), story.all_told(NotifyComplete))
    story.is_idle("right", "left")
    following = story.commits()
    assert (0, ("out-1",)) == (following.parent, tuple(file.path for file in following.tables[0].adds))
    assert TickOutcome.CAUGHT_UP is story.end.outcome


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


def test_each_request_gets_its_own_savepoint(job):
    """A second request with the same name is ignored. The tick's own checkpoint by rows is another one."""
    story = job.story(job.two_sources(), {"every_rows": 3, "rows_of": ("left",)}, linger_ms=0)
    for request in ("tick", "b", "tick"):
        story.tell(asked(PLAIN, request))
    rows = [story.appends(), story.appends()]
    assert [SavepointTaken("tick", rows[0].checkpoint), SavepointTaken("b", rows[1].checkpoint)] == answers(story)
    story.offers("left", 3)
    story.finishes()
    assert RowKind.CHECKPOINT is story.commits().kind
    assert 2 == len(answers(story))


def test_a_plain_savepoint_that_fails_leaves_the_job_as_it_was(job):
    """It expires. The answer has the reason, and the job goes on."""
    story = job.story(job.two_sources(judged=True), {"timeout_ms": 5_000}, linger_ms=0, limits=NEVER)
    story.offers("left", 3)
    story.tell(asked(PLAIN))
    story.passes(6_000)
    late = (
        "no snapshot came from vertex joined within 5 s: if a function hangs, correct it; "
        "if it is slow, set a longer timeout_ms or smaller micro-batches (micro_batch_rows_max)"
    )
    assert [SavepointFailed("mine", REASON.CHECKPOINT_EXPIRED, late)] == answers(story)
    assert [REASON.CHECKPOINT_EXPIRED] == [told.reason for told in story.all_told(NotifyAborted)]
    assert story.end is None


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


def test_a_stop_ends_pending_checkpoints_first(job):
    """As in Flink, the scheduler stops and pending checkpoints end. Then the barrier of the stop is sent."""
    story = job.story(job.two_sources(), {"every_rows": 3, "rows_of": ("left",)}, linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(PLAIN, "first"))
    story.tell(asked(DRAIN, "stop"))
    assert [("first", REASON.CHECKPOINT_COORDINATOR_SUSPEND)] == [
        (told.request, told.reason) for told in answers(story)
    ]
    assert [1, 2] == sorted(told.checkpoint for told in story.all_told(NotifyAborted))
    story.finishes()
    story.finishes()
    assert 3 == story.commits().checkpoint
    assert EndTick(TickOutcome.STOPPED) == story.end


def test_the_declined_savepoint_of_a_stop_fails_the_job(job):
    """Half of the job has stopped, so it cannot go on (11; FLINK-12858). The request is answered first."""
    story = job.story(job.two_sources(judged=True), {"tolerable_failures": 9}, linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(SUSPEND))
    story.finishes()
    story.judges(passed=False, message="a row is bad")
    assert [SavepointFailed("mine", REASON.QUALITY, "a row is bad")] == answers(story)
    assert (TickOutcome.FAILED, REASON.QUALITY) == (story.end.outcome, story.end.reason)


def test_an_expired_savepoint_of_a_stop_fails_the_job(job):
    """After its barrier nothing is read any more, whatever ends it."""
    story = job.story(job.two_sources(), {"timeout_ms": 5_000, "tolerable_failures": 9}, linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(SUSPEND))
    story.passes(6_000)
    assert [REASON.CHECKPOINT_EXPIRED] == [told.reason for told in answers(story)]
    assert (TickOutcome.FAILED, REASON.CHECKPOINT_EXPIRED) == (story.end.outcome, story.end.reason)


def test_a_savepoint_of_unknown_outcome_is_reported_as_unknown(job):
    """The tick ends in doubt. The user gets one answer with the known facts."""
    story = job.story(job.two_sources(), linger_ms=0)
    story.tell(asked(PLAIN))
    story.tell(RowUnknown("nonce/1", "no answer"))
    (told,) = answers(story)
    assert (REASON.FINALIZE_CHECKPOINT_FAILURE, story.end.message) == (told.reason, told.message)
    assert "unknown" in told.message


def test_a_poll_that_fails_after_a_stop_does_not_count(job):
    """The next tick reads these rows again, and reports the failure."""
    story = job.story(job.two_sources(), linger_ms=0)
    story.tell(asked(SUSPEND))
    poll = story.take(PollSource)
    story.tell(PollFailed(poll.source, poll.split, "damaged"))
    story.commits()
    assert EndTick(TickOutcome.STOPPED) == story.end


def test_stop_now_ends_a_stop_with_a_savepoint_too(job):
    """Nothing of the savepoint is left, and its request is answered."""
    story = job.story(job.two_sources(), linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(DRAIN))
    story.tell(StopRequested(StopKind.NOW))
    assert [REASON.CHECKPOINT_COORDINATOR_SHUTDOWN] == [told.reason for told in answers(story)]
    assert EndTick(TickOutcome.STOPPED) == story.end


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


def test_a_drain_without_rows_runs_only_keyed_vertices(job):
    """A keyed vertex ends the keys of its state in any case. A stateless vertex holds no rows back."""
    story = job.story(chain())
    story.tell(asked(DRAIN))
    (run,) = story.all(RunMicroBatch)
    assert ("joined", True, ()) == (run.vertex, run.end_of_input, run.inputs)
    story.finishes("joined")
    assert {"out/joined"} == {table.table for table in story.commits().tables}


def test_a_suspend_ends_no_input(job):
    """Waiting rows stay in the state, and no micro-batch is a last one."""
    story = job.story(chain(), linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(SUSPEND))
    story.finishes("bronze")
    assert [False] == [run.end_of_input for run in story.all(RunMicroBatch)]


def test_a_running_micro_batch_is_not_the_last_one(job):
    """The end of the data waits until it has finished. Rows collected in the meantime run as the last one."""
    story = job.story(job.two_sources(), linger_ms=0)
    story.offers("left", 3)
    story.tell(asked(DRAIN))
    assert [False] == [run.end_of_input for run in story.all(RunMicroBatch)]
    story.finishes()
    assert [True] == [run.end_of_input for run in story.all(RunMicroBatch)]


def test_a_failed_drain_fails_the_job(job):
    """Its last micro-batch fails. The job fails, the request is answered, and nothing was committed."""
    story = job.story(job.two_sources(judged=True))
    story.tell(asked(DRAIN))
    story.finishes()
    story.tell(SuitesJudged("joined", 1, passed=False, report="{}", message="bad"))
    assert (1, TickOutcome.FAILED) == (len(answers(story)), story.end.outcome)


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
