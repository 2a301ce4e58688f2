"""Decides which split is read when: exact pacing, caps, fairness and positions (A11)."""

from dataclasses import replace
from random import Random

import pytest

from checkpointing.channel_items import AlignmentType, Barrier, ChannelState, SourceSlice
from checkpointing.commit.recovery import has_finished
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.messages import TriggerTask
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import NO_METRICS
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import GateConfig, GatePolicy, InputGate
from checkpointing.gate.messages import BarrierReceived, InFlightComplete, TriggerCheckpoint
from checkpointing.graph import JobGraph, Vertex, VertexKind
from checkpointing.handles import KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation, SplitId, SubtaskId, VertexId
from checkpointing.job.drafts import EpochLog
from checkpointing.job.operator_run import LiveFiles, OperatorRun, snapshot_for
from checkpointing.job.polling import Credit, CutGroups, Pacing, SourceReaders, UnknownSplitError
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.job.setup import TickLimits
from checkpointing.job.tick_end import Cause, CheckpointIds, Ending, Next
from checkpointing.messages import (
    EndTick,
    MicroBatchFinished,
    PollFailed,
    PollSource,
    SourceEnded,
    StopKind,
    SubtaskOutput,
    TickOutcome,
)

FLIGHTS = Vertex("flights", VertexKind.SOURCE, 3, splits=("e", "j", "l"))
WEATHER = Vertex("weather", VertexKind.SOURCE, 1, splits=("w",))
ALL = frozenset(
    SubtaskId(source.id, index) for source in (FLIGHTS, WEATHER) for index in range(source.parallelism)
).__contains__


def readers(positions=None, **pacing):
    parts = {"slice_rows_max": 100, "every_rows": None, "counted": frozenset(), "caps": {}, "idle_poll_ms": 500}
    return SourceReaders((FLIGHTS, WEATHER), positions or {}, Pacing(**{**parts, "failures_max": 0, **pacing}))


def answer(to, poll, rows):
    start = int(poll.position or 0)
    offered = SourceSlice(poll.source, poll.split, str(start), str(start + rows), "", rows, rows)
    to.offered(offered)
    return offered


@pytest.mark.parametrize("seed", range(20))
def test_an_epoch_has_exactly_its_number_of_rows(seed):
    """`every_rows` N: however many rows each poll finds, the counted sources send exactly N rows, then none (A11)."""
    random = Random(seed)  # noqa: S311
    own = readers(every_rows=50, counted=frozenset({"flights"}), slice_rows_max=random.choice([1, 7, 100]))
    for _ in range(3):
        sent, waiting = 0, []
        while not own.barrier_due:
            waiting += own.polls(0, ALL)
            poll = waiting.pop(random.randrange(len(waiting)))
            rows = random.randint(1, poll.max_rows)
            answer(own, poll, rows)
            sent += rows if poll.source == "flights" else 0
        assert 50 == sent
        assert [] == [poll for poll in own.polls(0, ALL) if poll.source == "flights"]
        own.barrier_sent()
        for poll in waiting:
            own.found_idle(poll.source, poll.split, -1_000)


def test_splits_share_the_quota():
    """No split takes the whole quota from the others. Three splits and ten rows give 4, 3, 3."""
    own = readers(every_rows=10, counted=frozenset({"flights"}))
    assert [4, 3, 3] == [poll.max_rows for poll in own.polls(0, ALL) if poll.source == "flights"]


def test_a_reader_begins_at_the_cut():
    """Each split begins at its position, and the position moves with the rows that it sends."""
    own = readers({SubtaskId("flights", 1): "40"})
    poll = next(poll for poll in own.polls(0, ALL) if poll.split == "j")
    assert "40" == poll.position
    answer(own, poll, 3)
    assert ["43", None] == [own.position(SubtaskId("flights", index)) for index in (1, 2)]


def test_an_answer_without_a_poll_is_refused():
    own = readers()
    with pytest.raises(UnknownSplitError, match="split e of source flights"):
        own.found_idle("flights", "e", 0)
    with pytest.raises(UnknownSplitError, match="split x"):
        own.found_idle("flights", "x", 0)


def test_a_split_that_cannot_be_read_is_polled_again_and_fails_in_the_end():
    """It is polled again after a pause. Any answer, with rows or without, resets its failures."""
    own = readers(failures_max=2)
    (_, weather) = [polled for polled in list(own.polls(0, ALL)) if polled.split in ("e", "w")]
    said = []
    for now_ms in (0, 500, 1_000):
        said.append(own.failed("weather", "w", now_ms))
        assert (True, now_ms + 500) == (own.failing, own.next_poll_ms(now_ms))
        assert [] == [polled for polled in own.polls(now_ms + 499, ALL) if polled.split == "w"]
        assert [weather] == [polled for polled in own.polls(now_ms + 500, ALL) if polled.split == "w"]
    assert [False, False, True] == said
    own.found_idle("weather", "w", 2_000)
    assert not own.failing
    list(own.polls(2_500, ALL))
    assert not own.failed("weather", "w", 2_500)
    (again,) = [polled for polled in own.polls(3_000, ALL) if polled.split == "w"]
    answer(own, again, 3)
    list(own.polls(3_000, ALL))
    assert not own.failed("weather", "w", 3_000)


# ------------------------------------------------------------------
# Splits that run ahead in event time are held back, and nothing waits for ever (N1).


def reached(own, **times):
    """Say how far splits have been read, in ms. Each may be 10 ms ahead of the others."""
    places = {"e": ("flights", 0), "j": ("flights", 1), "l": ("flights", 2), "w": ("weather", 0)}
    own.reached(
        (ChannelId(EdgeId(places[split][0], "bronze"), places[split][1]), ms, 10) for split, ms in times.items()
    )


def polled(own, now_ms=0):
    return [poll.split for poll in own.polls(now_ms, ALL)]


def at_rest(own):
    """Let all polls bring a row, so that no split is known to have nothing to read."""
    for poll in list(own.polls(0, ALL)):
        own.ran(answer(own, poll, 1))


def test_a_split_that_is_ahead_is_not_read_until_the_others_have_caught_up():
    """It may be as far ahead as was said. All streams that say so wait for each other."""
    own = readers()
    at_rest(own)
    reached(own, e=100, j=110, l=111, w=100)
    first = list(own.polls(0, ALL))
    assert ["e", "j", "w"] == [poll.split for poll in first]
    assert not own.all_idle, "l may have rows"
    for poll in first:
        own.ran(answer(own, poll, 1))
    reached(own, e=101)
    assert "l" not in polled(own), "the weather is behind"
    reached(own, w=101)
    assert ["l"] == polled(own)


def test_a_split_is_read_on_once_it_is_known_how_far_its_rows_are():
    """A poll may bring a whole backlog. Rows that no vertex has run yet may be any time ahead."""
    own = readers()
    reached(own, e=0, j=0, l=0, w=0)
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    first = answer(own, polls["w"], 1)
    assert "w" not in polled(own)
    answer(own, polls["e"], 1)
    own.ran(first)
    assert ["w"] == polled(own), "e has not run yet"


def test_without_hold_back_a_split_is_read_on_before_its_rows_have_run():
    own = readers()
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    answer(own, polls["w"], 1)
    assert ["w"] == polled(own)


def test_what_has_nothing_to_read_holds_nobody_back():
    """FLINK-32414, -32496, -37670: what has no rows, is idle, or has ended holds nobody back."""
    own = readers()
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    for split in ("e", "l"):
        own.found_idle("flights", split, 0)
    own.ran(answer(own, polls["j"], 1))
    own.ran(answer(own, polls["w"], 1))
    reached(own, e=-(2**63), l=5, j=100, w=50)
    assert ["w"] == polled(own), "e has never had rows, and l has none now"
    own.found_ended("weather", "w")
    assert ["j"] == polled(own)


def test_a_split_that_cannot_be_read_holds_nobody_back():
    own = readers(failures_max=3)
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    own.failed("weather", "w", 0)
    for split in ("e", "j", "l"):
        own.ran(answer(own, polls[split], 1))
    reached(own, w=0, e=100, j=100, l=100)
    assert ["e", "j", "l"] == polled(own)


def test_a_split_that_is_held_back_is_not_idle_at_a_barrier():
    """FLINK-35886: it could not be read, so its idle time does not run. Flink stops the clock of a paused split too."""
    own = readers()
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    for split in ("e", "j", "w"):
        own.ran(answer(own, polls[split], 1))
    own.found_idle("flights", "l", 0)
    reached(own, e=100, j=100, w=100, l=500)
    assert "l" not in polled(own, 1_000)
    held = SubtaskId("flights", 2)
    trigger = TriggerTask(held, CheckpointId(1), CHECKPOINT)
    sent = snapshot_for(trigger, CheckpointConfig(), 1_000, own.split(held))
    assert not sent.barrier.idle
    reached(own, e=490, j=490, w=490)
    assert "l" in polled(own, 1_000)
    own.found_idle("flights", "l", 1_000)
    assert snapshot_for(trigger, CheckpointConfig(), 1_000, own.split(held)).barrier.idle


# ------------------------------------------------------------------
# Groups of splits that read another job's cuts: which one is polled, up to which cut, and when a barrier follows.


A, B, FREE = ((VertexId(name), SplitId("table")) for name in ("a", "b", "free"))
GROUPS = {VertexId("a"): "shop", VertexId("b"): "shop"}


def groups(**positions):
    known = {A: positions.get("a"), B: positions.get("b"), FREE: "7"}
    return CutGroups(GROUPS, known)


def test_one_split_at_a_time_is_polled_for_any_cut():
    """Two splits might find different cuts."""
    cuts = groups(a="1", b="1")
    assert not cuts.seeks(A, [])
    assert not cuts.seeks(A, [FREE])
    assert cuts.seeks(A, [B])
    assert not cuts.seeks(FREE, [A])


# ------------------------------------------------------------------
# A source that was read alone goes on as the first part: only names change (B4).


LEFT, RIGHT = VertexId("left"), VertexId("right")


def cut(job, splits):
    """Return a cut: positions, ends and rows in flight of the left source by split. The right one has one split."""
    left, *others = job.two_sources().vertices
    left = replace(left, splits=tuple(splits), parallelism=len(splits))
    record = job.record(JobGraph((left, *others), job.two_sources().edges), 3, {})
    was, right, joined = record.vertices
    subtasks = tuple(
        replace(snapshot, position=position, finished=finished)
        for snapshot, (position, finished, _) in zip(was.subtasks, splits.values(), strict=True)
    )
    held = tuple(
        ChannelState(
            ChannelId(EdgeId("left", "joined", 0), place),
            (*(piece(LEFT, split) for _ in range(rows)), piece(RIGHT, "r")),
        )
        for place, (split, (_, _, rows)) in enumerate(splits.items())
    )
    first, *more = joined.subtasks
    joined = joined.model_copy(update={"subtasks": (replace(first, in_flight=held), *more)})
    return record.model_copy(update={"vertices": (was.model_copy(update={"subtasks": subtasks}), right, joined)})


def piece(source, split):
    return SourceSlice(source, SplitId(split), "0", "5", "[0,5]", 5, 40)


def positions(record, begin=""):
    (left, *_) = record.vertices
    return {
        split.removeprefix(begin): (each.position, each.finished)
        for split, each in zip(left.splits, left.subtasks, strict=True)
    }


# ------------------------------------------------------------------
# A source that is read in parts, one after the other: told fact by fact (B4).


HISTORY, MORE, LIVE = "1.a", "1.b", "2.all"


def parted(job, *splits, bounded=False, parts=("1.", "2.")):
    left, *others = job.two_sources().vertices
    left = replace(left, splits=splits, parallelism=len(splits), parts=parts, bounded=bounded)
    return JobGraph((left, *others), job.two_sources().edges)


def asked(story):
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


# ------------------------------------------------------------------
# The small parts of the job door: ends, credit, ids, epochs, a vertex's run and its live files.


CAUGHT_UP, STOPPED = EndTick(TickOutcome.CAUGHT_UP), EndTick(TickOutcome.STOPPED)
EDGE = EdgeId("up", "down")
ONE = JobGraph((Vertex("v", VertexKind.KEYED, 1),), ())
"""A graph with one vertex of one subtask."""


# ------------------------------------------------------------------ ending


def is_asked(ending, now_ms=0, **seen):
    """Return the next step of a tick. By default, the tick is quiet and idle."""
    usual = {"quiet": True, "in_doubt": False, "idle": True, "spent": False, "failing": False, "ended": False}
    return ending.next(now_ms, **{**usual, **seen})


@pytest.mark.parametrize(
    ("uncommitted", "seen", "expected"),
    [
        (False, {}, CAUGHT_UP),
        (True, {}, Next.CHECKPOINT),
        (False, {"quiet": False}, Next.GO_ON),
        (False, {"idle": False}, Next.GO_ON),
        (True, {"idle": False, "spent": True}, Next.CHECKPOINT),
    ],
)
def test_a_tick_ends_caught_up_when_all_rows_are_committed(uncommitted, seen, expected):
    """A quiet, idle tick with everything committed ends.

    Rows that no cut shows, or a spent quota, need a checkpoint first.
    """
    ending = Ending(TickLimits())
    ending.uncommitted = uncommitted
    assert expected == is_asked(ending, **seen)


def test_a_stop_that_came_during_a_savepoint_counts_when_that_fails():
    """No other checkpoint is taken during the savepoint of a stop.

    If it fails, the tick takes its last checkpoint and ends.
    """
    ending = Ending(TickLimits(duration_ms=100))
    ending.told(Cause.SAVEPOINT_ASKED)
    ending.stop_requested(StopKind.AFTER_CHECKPOINT)
    ending.uncommitted = True
    assert Next.GO_ON is is_asked(ending, 500)
    ending.told(Cause.SAVEPOINT_FAILED)
    assert Next.CHECKPOINT is is_asked(ending)
    ending.completed(uncommitted=False)
    assert STOPPED == is_asked(ending)


# ------------------------------------------------------------------ credit


def test_credit_is_counted_by_channel():
    """A subtask may send while each of its channels is below the limit. Processed bytes are returned as credit."""
    graph = JobGraph(
        (
            Vertex("s", VertexKind.SOURCE, 2, splits=("a", "b")),
            Vertex("x", VertexKind.STATELESS, 1),
            Vertex("y", VertexKind.STATELESS, 1),
        ),
        (EdgeId("s", "x"), EdgeId("s", "y")),
    )
    credit = Credit(graph, 10)
    into_x, into_y = ChannelId(EdgeId("s", "x"), 0), ChannelId(EdgeId("s", "y"), 0)
    assert [into_x, into_y] == credit.channels_from(SubtaskId("s", 0))
    credit.sent(into_x, 9)
    assert credit.has(SubtaskId("s", 0))
    credit.sent(into_y, 10)
    assert [False, True] == [credit.has(SubtaskId("s", index)) for index in (0, 1)]
    credit.processed(into_y, 1)
    assert credit.has(SubtaskId("s", 0))
    assert credit.has(SubtaskId("x", 0))
    assert {into_x: 9, into_y: 9} == {channel: size for channel, size in credit._bytes.items() if size}


# ------------------------------------------------------------------ ids


def test_ids_rise_from_block_to_block(job):
    """When a block is used up, a claim reserves the next one, under a new nonce (A6)."""
    ids = CheckpointIds(job.claim.model_copy(update={"first_id": 5, "last_id": 6}))
    assert [5, 6, None] == [ids.take() for _ in range(3)]
    further = ids.further(77)
    assert (7, 1_006, 77, "nonce+7") == (further.first_id, further.last_id, further.at_ms, further.nonce)
    assert [7, 8] == [ids.take(), ids.take()]
    assert 9 == ids.next_id
    ids.next_id = 1_007
    assert ids.take() is None
    assert "nonce+1007" == ids.further(78).nonce


# ------------------------------------------------------------------ epochs


def test_a_barrier_that_comes_after_an_unaligned_snapshot_is_measured_too():
    """The snapshot keeps its time. The last barrier says how long the alignment would have been (C5, C7)."""
    log = EpochLog(ONE, Generation(1))
    log.triggered(1, 100, 6)
    log.received("v", BarrierReceived(ChannelId(EDGE, 0), Barrier(1), 110))
    log.passed("v", TriggerCheckpoint(Barrier(1, alignment=AlignmentType.UNALIGNED), unaligned=True), 120)
    log.received("v", BarrierReceived(ChannelId(EDGE, 1), Barrier(1), 910))
    log.overtaken("v", InFlightComplete(1, (), alignment_ms=800))
    (vertex,) = log.ended(1, StatisticsTracker(1)).vertices
    assert (AlignmentType.UNALIGNED, 120, 800) == (vertex.alignment, vertex.aligned_ms, vertex.alignment_ms)
    assert [110, 910] == [barrier.at_ms for barrier in vertex.barriers]


def test_an_epoch_that_has_ended_is_forgotten():
    """Late events of an ended epoch change nothing."""
    log = EpochLog(ONE, Generation(1))
    log.triggered(1, 100, 6)
    log.forget(1)
    assert NO_METRICS == log.acknowledged(SubtaskId("v", 0), 1, 130)
    log.judged(1, "{}")
    log.received("v", BarrierReceived(ChannelId(EDGE, 0), Barrier(1), 110))
    log.triggered(1, 200, 9)
    ended = log.ended(1, StatisticsTracker(1))
    assert (200, 9, (), ()) == (ended.triggered_ms, ended.rows, ended.vertices, ended.verdicts)


# ------------------------------------------------------------------ a vertex's run


@pytest.fixture
def run():
    vertex = Vertex("down", VertexKind.KEYED, 2)
    gate = InputGate(GateConfig(GatePolicy.ALIGNED_BLOCKING), (ChannelId(EDGE, 0),))
    return OperatorRun(vertex, gate, generation=3, live=[LiveFiles(), LiveFiles()], passed=4)


def test_a_base_replaces_the_deltas_before_it(run, job):
    """Deltas pile up until a base. Only deltas that no snapshot has are then discarded."""

    def state(*files):
        return MicroBatchFinished("down", 1, (SubtaskOutput(state=files), SubtaskOutput()))

    run.finish(state(job.keyed("d1", 0, 63, Version(3, 1))))
    run.take_snapshot(Barrier(CheckpointId(5)))
    assert () == run.finish(state(job.keyed("d2", 0, 63, Version(3, 2))))
    assert ["d1", "d2"] == [each.file.path for each in run.live[0].state]
    assert ("d2",) == run.finish(state(job.keyed("b", 0, 63, Version(3, 3), KeyedFileKind.BASE)))
    assert ["b"] == [each.file.path for each in run.take_snapshot(Barrier(CheckpointId(6)))[0].state]


def test_a_staged_file_has_the_id_of_the_barrier_before_it(run, job):
    """This is the last barrier that its vertex had passed. Each entry's net files are found by it."""
    output = SubtaskOutput(staged=(("out/t", job.file("a")),))
    assert (StagedFile("out/t", job.file("a"), 4),) == run.staged(output)
    run.take_snapshot(Barrier(CheckpointId(5)))
    assert (StagedFile("out/t", job.file("a"), 5),) == run.staged(output)


# ------------------------------------------------------------------
# Splits that cannot be read. The other splits go on, and in the end the tick fails with the split's name.


def fails(story, source):
    poll = story.take(PollSource, lambda poll: poll.source == source)
    story.tell(PollFailed(source, poll.split, f"a file of {source} is damaged"))


@pytest.mark.parametrize("tolerated", [0, 2])
def test_a_split_that_fails_too_often_ends_the_tick_after_a_last_checkpoint(job, tolerated):
    """The rows of the other splits are committed first, so each tick makes progress. Then the tick fails."""
    story = job.story(job.two_sources(), {"tolerable_poll_failures": tolerated}, linger_ms=0)
    story.offers("left", 4)
    story.finishes()
    for _ in range(tolerated):
        fails(story, "right")
        story.passes(500)
    fails(story, "right")
    story.is_idle("left")
    assert story.end is None
    assert "4" == story.commits().vertices[0].subtasks[0].position
    assert (TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE) == (story.end.outcome, story.end.reason)
    assert "a file of right is damaged" == story.end.message
