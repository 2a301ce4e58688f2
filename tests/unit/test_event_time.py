"""Watermarks of channels and vertices, by Flink's cases and at barriers (N1)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import Barrier, SubtaskSnapshot
from checkpointing.event_time import BEFORE_TIME, END_OF_TIME, EventTime, Expiry, TimePartitions, VertexTime
from checkpointing.gate.messages import TriggerCheckpoint
from checkpointing.graph import Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation, TableName, VertexId
from checkpointing.job.operator_run import LiveFiles, OperatorRun
from checkpointing.job.restoring import _now_ms, live_files
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from checkpointing.metadata.record import ExpiryRecord, VertexRecord

A, B = (ChannelId(EdgeId("clicks", "hourly"), split) for split in range(2))
UPSTREAM = ChannelId(EdgeId("bronze", "hourly", 1), 0)


def _vertex(idle_after_ms=None, close_after_ms=None):
    declared = EventTime(10, idle_after_ms, close_after_ms=close_after_ms)
    return VertexTime({A: declared, B: declared})


def _barrier(vertex, number, clock_ms, *idle, ended=(), unaligned=False):
    """Deliver a barrier on all channels, also on those of `idle` splits and of splits that have `ended`.

    Return the barrier that the vertex sends on.
    """
    for channel in vertex.channels:
        end_ms = END_OF_TIME if channel in ended else BEFORE_TIME
        vertex.received(channel, Barrier(number, clock_ms, watermark_ms=end_ms, idle=channel in idle))
    return vertex.pass_barrier(Barrier(number, clock_ms), unaligned=unaligned)


def _run(vertex, channel, *times):
    vertex.came(channel)
    vertex.ran(channel, 1)
    for time in times:
        vertex.read(channel, time)


def test_a_split_that_has_not_spoken_holds_the_watermark_back_also_after_a_restore():
    """Rows change the watermark only at the next barrier (FLINK-32828)."""
    vertex = _vertex()
    _run(vertex, A, 100)
    assert BEFORE_TIME == _barrier(vertex, 1, 0).watermark_ms
    _run(vertex, B, 60, 50)
    assert BEFORE_TIME == vertex.watermark.ms
    assert 49 == _barrier(vertex, 2, 0).watermark_ms
    again = _vertex()
    again.restore(vertex.watermark, vertex.rows.ms, vertex.channels)
    _run(again, A, 500)
    assert 49 == _barrier(again, 3, 0).watermark_ms


@pytest.mark.parametrize("said", ["idle_after_ms", "close_after_ms"])
def test_a_rest_lasts_at_least_a_millisecond(said):
    assert 1 == getattr(EventTime(10, **{said: 1}), said)
    with pytest.raises(ValueError, match="is 0, so"):
        EventTime(10, **{said: 0})


def test_a_split_without_rows_is_idle_by_the_clock_of_barriers():
    """A split with unread rows is not idle. When an idle split gets rows, time waits until it has caught up."""
    vertex = _vertex(idle_after_ms=1_000)
    _run(vertex, A, 100)
    _run(vertex, B, 60)
    assert 49 == _barrier(vertex, 1, 0).watermark_ms
    _run(vertex, A, 200)
    assert 49 == _barrier(vertex, 2, 1_000, B).watermark_ms
    assert 1_001 == vertex.idles_at_ms(), "B does, and A later"
    _run(vertex, A, 300)
    assert 289 == _barrier(vertex, 3, 1_001, B).watermark_ms
    assert 2_002 == vertex.idles_at_ms(), "B is idle already"
    _run(vertex, B, 70)
    _run(vertex, A, 400)
    assert 289 == _barrier(vertex, 4, 1_002).watermark_ms
    _run(vertex, B, 350)
    assert 339 == _barrier(vertex, 5, 1_003).watermark_ms
    held = _vertex(idle_after_ms=1_000)
    _run(held, A, 100)
    assert BEFORE_TIME == _barrier(held, 1, 0).watermark_ms
    assert BEFORE_TIME == _barrier(held, 2, 5_000, A).watermark_ms, "B had rows that nobody has read yet"


def test_the_last_split_that_turns_idle_closes_what_the_furthest_has_reached():
    vertex = _vertex(idle_after_ms=1_000)
    _run(vertex, A, 100)
    _run(vertex, B, 60)
    _barrier(vertex, 1, 0)
    sent = _barrier(vertex, 2, 1_001, A, B)
    assert (89, True) == (sent.watermark_ms, sent.idle)


def test_the_time_of_a_stream_at_rest_goes_on_by_the_clock():
    """Time goes on from the greatest row once all splits rest. New rows stop it until they catch up with it."""
    vertex = _vertex(close_after_ms=1_000)
    _run(vertex, A, 100)
    _run(vertex, B, 60)
    assert 49 == _barrier(vertex, 1, 500).watermark_ms
    assert 49 == _barrier(vertex, 2, 1_500, A, B).watermark_ms
    assert (89 + 1_001, False) == ((sent := _barrier(vertex, 3, 1_501, A, B)).watermark_ms, sent.idle)
    assert 89 + 1_001 == _barrier(vertex, 4, 1_400, A, B).watermark_ms, "a clock that goes back"
    assert 89 + 5_000 == _barrier(vertex, 5, 5_500, A, B).watermark_ms
    _run(vertex, A, 4_000)
    assert 89 + 5_000 == _barrier(vertex, 6, 6_000, B).watermark_ms
    assert 89 + 5_000 == _barrier(vertex, 7, 7_000, A, B).watermark_ms, "A has rested for a second, and no more"
    assert 3_989 + 1_101 == _barrier(vertex, 8, 7_101, A, B).watermark_ms


def test_rest_alone_does_not_end_time():
    vertex = _vertex(close_after_ms=1)
    for channel in (A, B):
        _run(vertex, channel, END_OF_TIME - 3)
    _barrier(vertex, 1, 0)
    assert END_OF_TIME - 1 == _barrier(vertex, 2, 5_000, A, B).watermark_ms


def test_a_split_with_something_to_read_keeps_its_stream_from_rest():
    vertex = _vertex(close_after_ms=1_000)
    _run(vertex, A, 100)
    _run(vertex, B, 60)
    _barrier(vertex, 1, 0)
    assert 49 == _barrier(vertex, 2, 5_000, A).watermark_ms
    assert 49 == _barrier(vertex, 3, 6_000, A, B).watermark_ms
    assert 89 + 1_001 == _barrier(vertex, 4, 6_001, A, B).watermark_ms
    _barrier(none := _vertex(close_after_ms=1), 1, 0)
    assert BEFORE_TIME == _barrier(none, 2, 5_000, A, B).watermark_ms, "no row has come yet"


def test_each_stream_of_a_vertex_rests_by_itself():
    """At rest, an idle stream holds no other stream back. A stream that is not idle holds the others at its time."""
    other = ChannelId(EdgeId("orders", "hourly", 1), 0)
    for idle_after_ms, watermark_ms in ((None, 89 + 2_000), (1_500, 4_989)):
        declared = EventTime(10, idle_after_ms, close_after_ms=1_000)
        vertex = VertexTime({A: declared, other: declared})
        _run(vertex, A, 100)
        _run(vertex, other, 5_000)
        assert 89 == _barrier(vertex, 1, 0).watermark_ms
        assert watermark_ms == _barrier(vertex, 2, 2_000, A).watermark_ms


def test_a_restored_stream_has_rested_since_its_last_rows():
    vertex = _vertex(close_after_ms=1_000)
    _run(vertex, A, 100)
    _run(vertex, B, 60)
    _barrier(vertex, 1, 0)
    again = _vertex(close_after_ms=1_000)
    again.restore(vertex.watermark, vertex.rows.ms, vertex.channels)
    then = {channel: Barrier(2, 2_000, idle=True) for channel in (A, B)}
    assert 89 + 2_000 == again.foreseen(Barrier(2, 2_000), then).watermark_ms
    assert 49 == again.watermark.ms, "nothing has come yet"
    assert 49 == _barrier(again, 2, 2_000, A).watermark_ms
    assert 89 + 1_001 == _barrier(again, 3, 3_001, A, B).watermark_ms


def test_a_stream_rests_at_unaligned_barriers_by_the_clock_of_those_that_count():
    """A barrier counts for the rows before it once they have run.

    A stream is not at rest while rows that a barrier overtook have not run.
    """
    vertex = _vertex(close_after_ms=1_000)
    _run(vertex, A, 100)
    _run(vertex, B, 60)
    _barrier(vertex, 1, 0, unaligned=True)
    assert 49 == _barrier(vertex, 2, 1_001, A, B, unaligned=True).watermark_ms
    vertex.overtook(A, 2, 1)
    assert 49 == _barrier(vertex, 3, 5_000, A, B, unaligned=True).watermark_ms
    _run(vertex, A, 200)
    assert 49 == _barrier(vertex, 4, 6_000, A, B, unaligned=True).watermark_ms
    assert 49 == _barrier(vertex, 5, 7_000, A, B, unaligned=True).watermark_ms
    assert 49 == _barrier(vertex, 6, 7_001, A, B, unaligned=True).watermark_ms
    assert 189 + 1_001 == _barrier(vertex, 7, 9_000, A, B, unaligned=True).watermark_ms


def test_an_end_is_the_end_of_time():
    vertex = _vertex()
    _run(vertex, A, 100)
    assert 89 == _barrier(vertex, 1, 0, ended=[B]).watermark_ms
    assert END_OF_TIME == _barrier(vertex, 2, 0, ended=[A]).watermark_ms


def test_a_split_at_its_end_turns_idle_no_more():
    vertex = _vertex(idle_after_ms=1_000)
    _run(vertex, A, 100)
    _run(vertex, B, 60)
    _barrier(vertex, 1, 0, ended=[B])
    assert 1_001 == vertex.idles_at_ms()
    _barrier(vertex, 2, 500, ended=[B])
    assert 1_501 == vertex.idles_at_ms(), "A does"
    _barrier(vertex, 3, 600, ended=[A, B])
    assert vertex.idles_at_ms() is None


def test_after_a_drain_time_goes_on_where_the_rows_were():
    """Otherwise all later rows would be late. A split that stays at its end holds no other split back."""
    vertex, after = _vertex(), VertexTime({UPSTREAM: None})
    _run(vertex, A, 100)
    _run(vertex, B, 60)
    after.received(UPSTREAM, _barrier(vertex, 1, 0))
    after.pass_barrier(Barrier(1))
    vertex.end()
    after.received(UPSTREAM, _barrier(vertex, 2, 0))
    assert END_OF_TIME == after.pass_barrier(Barrier(2)).watermark_ms
    for was, ended, now_ms in ((vertex, (), 49), (vertex, (B,), 49), (vertex, (A, B), END_OF_TIME), (after, (), 49)):
        again = VertexTime({A: EventTime(10), B: EventTime(10)}) if was is vertex else VertexTime({UPSTREAM: None})
        again.restore(was.watermark, was.rows.ms, was.channels, ended)
        assert now_ms == again.watermark.ms


def test_a_split_that_ends_lets_no_split_that_is_behind_jump_to_the_end():
    vertex = _vertex(idle_after_ms=1_000)
    _run(vertex, A, 100)
    _barrier(vertex, 1, 0, B)
    assert 89 == _barrier(vertex, 2, 1_001, B).watermark_ms
    _run(vertex, B, 60)
    assert 89 == _barrier(vertex, 3, 1_002, ended=[A]).watermark_ms


def test_a_split_that_waits_for_an_earlier_part_holds_nobody_back():
    vertex = _vertex()
    _run(vertex, A, 100)
    vertex.received(A, Barrier(1))
    vertex.received(B, Barrier(1, idle=True, waits=True))
    assert 89 == vertex.pass_barrier(Barrier(1)).watermark_ms
    assert 89 == _barrier(vertex, 2, 0, ended=[A]).watermark_ms, "the second part is read from now on"


def test_a_split_turns_idle_at_unaligned_barriers_too():
    """A barrier's time applies from the next barrier on, but not before the rows that the barrier overtook have run."""
    vertex = _vertex(idle_after_ms=1_000)
    _run(vertex, A, 100)
    _barrier(vertex, 1, 0, B, unaligned=True)
    assert BEFORE_TIME == _barrier(vertex, 2, 1_000, B, unaligned=True).watermark_ms
    _run(vertex, A, 200)
    assert 189 == _barrier(vertex, 3, 1_001, B, unaligned=True).watermark_ms


def test_an_aborted_barrier_speaks_for_nobody():
    """An aborted barrier's time never applies.

    The rows that the barrier overtook have not run, and their number is unknown.
    """
    vertex = VertexTime({UPSTREAM: None})
    vertex.received(UPSTREAM, Barrier(1, watermark_ms=50))
    vertex.pass_barrier(Barrier(1), unaligned=True)
    vertex.aborted(1)
    assert BEFORE_TIME == vertex.pass_barrier(Barrier(2), unaligned=True).watermark_ms


def test_rows_that_have_run_before_their_barrier_came_are_not_waited_for():
    vertex = VertexTime({UPSTREAM: None})
    vertex.pass_barrier(Barrier(1), unaligned=True)
    vertex.ran(UPSTREAM, 1)
    vertex.received(UPSTREAM, Barrier(1, watermark_ms=50))
    vertex.overtook(UPSTREAM, 1, 1)
    assert 50 == vertex.pass_barrier(Barrier(2), unaligned=True).watermark_ms


def test_a_barrier_speaks_for_rows_that_it_overtook_once_they_have_run():
    """The upstream vertex sends its watermark with its barrier. The barrier overtakes two segments."""
    vertex = VertexTime({UPSTREAM: None})
    vertex.received(UPSTREAM, Barrier(1, watermark_ms=50))
    assert BEFORE_TIME == vertex.pass_barrier(Barrier(1), unaligned=True).watermark_ms
    vertex.overtook(UPSTREAM, 1, 2)
    vertex.ran(UPSTREAM, 1)
    assert BEFORE_TIME == vertex.pass_barrier(Barrier(2), unaligned=True).watermark_ms
    vertex.ran(UPSTREAM, 1)
    assert 50 == vertex.pass_barrier(Barrier(3), unaligned=True).watermark_ms


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(-1_000, 1_000))), st.data())
def test_micro_batches_change_no_watermark(rows, data):
    """Rows in any micro-batches, in any order between two barriers, leave the same watermark."""
    order = data.draw(st.permutations(rows))
    one, other = _vertex(), _vertex()
    for channel, time in rows:
        _run(one, channel, time)
    for channel in (A, B):
        times = [time for at, time in order if at == channel]
        if times:
            _run(other, channel, max(times))
    assert _barrier(one, 1, 0) == _barrier(other, 1, 0)


# ------------------------------------------------------------------
# State expires at barriers (N5).


def _keyed(path, touched_ms=None):
    handle = FileHandle(path, 1, 1, 0)
    return KeyedFile(handle, KeyedFileKind.DELTA, 0, 7, Version(Generation(1), 1), touched_ms)


def test_files_of_state_leave_when_all_that_they_hold_has_expired():
    """A file counts as written at the next barrier. It expires at the first barrier that is a whole ttl later (N5)."""
    live, expiry = LiveFiles((_keyed("old", 100), _keyed("new"))), Expiry(50)
    live.age(expiry, 149)
    assert live.state == (_keyed("old", 100), _keyed("new", 149))
    known = live.snapshot()
    live.age(expiry, 149)
    assert live.snapshot() is known
    live.age(expiry, 150)
    assert live.state == (_keyed("new", 149),)


def test_state_ages_at_each_barrier_and_the_cut_says_how_far():
    vertex = Vertex(VertexId("sums"), VertexKind.KEYED, 1, expiry=Expiry(50))
    run = OperatorRun(vertex, None, Generation(1), [LiveFiles((_keyed("old", 100), _keyed("new")))])
    for now_ms, left in ((149, (_keyed("old", 100), _keyed("new", 149))), (150, (_keyed("new", 149),))):
        (snapshot,) = run.take_snapshot(Barrier(CheckpointId(now_ms), watermark_ms=now_ms))
        assert (left, ExpiryRecord(ttl_ms=50, now_ms=now_ms)) == (snapshot.state, run.expiry_record)


def test_the_time_of_expiry_never_goes_back_and_the_end_of_time_is_none():
    """A drain and an earlier clock leave the time of expiry as it is. A later tick still needs the state (N5)."""
    barrier = Barrier(CheckpointId(1), created_ms=7, watermark_ms=5)
    assert Expiry(1).time_at(barrier, None) == 5
    assert Expiry(1).time_at(barrier, 6) == 6
    assert Expiry(1, by_clock=True).time_at(barrier, 6) == 7
    assert Expiry(1).time_at(replace(barrier, watermark_ms=END_OF_TIME), 5) == 5
    assert Expiry(1).time_at(replace(barrier, watermark_ms=BEFORE_TIME), None) is None


@pytest.mark.parametrize(
    ("then", "now", "kept"),
    [
        (ExpiryRecord(ttl_ms=9, now_ms=7), Expiry(3), (7, 5)),
        (ExpiryRecord(ttl_ms=9, now_ms=7), Expiry(3, by_clock=True), (None, None)),
        (None, Expiry(3), (None, None)),
        (ExpiryRecord(ttl_ms=9, now_ms=7), None, (7, 5)),
    ],
    ids=["another ttl", "the other time", "turned on", "turned off"],
)
def test_a_cut_says_when_its_state_was_written(then, now, kept):
    """Event time and the clock cannot be compared. After a change, older state counts as written at the change (N5)."""
    snapshot = SubtaskSnapshot(state=(_keyed("file", 5),))
    was = VertexRecord(vertex=VertexId("sums"), micro_batch=1, subtasks=(snapshot,), expiry=then)
    vertex = Vertex(VertexId("sums"), VertexKind.KEYED, 1, expiry=now)
    (live,) = live_files(vertex, SimpleNamespace(vertices=(was,)), 8)
    assert (_now_ms(vertex, SimpleNamespace(vertices=(was,))), live.state[0].touched_ms) == kept


@pytest.mark.parametrize(
    ("until_ms", "complete"),
    [(-999, 0), (148, 0), (149, 1), (1_998, 19), (1_999, 20), (2_048, 20), (2_049, 21)],
)
def test_partitions_are_those_of_local_time(until_ms, complete):
    """At 2,000 ms, local time changes from 50 ms ahead to 150 ms ahead. So one partition is 100 ms shorter."""
    assert complete == TimePartitions(100, 100, ((500, 50), (2_000, 150))).complete(until_ms)


@pytest.mark.parametrize(
    ("waits_ms", "before_ms", "now_ms", "completes"),
    [
        (0, 98, 99, True),
        (0, 99, 198, False),
        (30, 98, 128, False),
        (30, 128, 129, True),
        (30, 129, 228, False),
        (30, 129, END_OF_TIME, True),
        (None, 98, 99, True),
    ],
)
def test_a_partition_is_complete_once_no_row_of_it_waits_any_more(waits_ms, before_ms, now_ms, completes):
    """A partition covers 100 ms. The vertex emits its rows at most `waits_ms` after their time."""
    table = Table(TableName("gold/sums"), TableMode.APPEND, time_partitions=TimePartitions(100, 0, ((0, 0),)))
    vertex = Vertex(VertexId("sums"), VertexKind.KEYED, 1, (table,), rows_wait_ms=waits_ms)
    run = OperatorRun(vertex, None, Generation(1), [LiveFiles()], time=VertexTime({UPSTREAM: None}))
    run.time.received(UPSTREAM, barrier := Barrier(CheckpointId(1), watermark_ms=before_ms))
    run.time.pass_barrier(barrier)
    assert completes is run.completes_partition_at(Barrier(CheckpointId(2), watermark_ms=now_ms))


@pytest.mark.parametrize(
    ("channels", "with_rows"), [({UPSTREAM: None}, True), ({A: EventTime(10)}, False), (None, False)]
)
def test_what_is_due_fires_with_the_last_rows_if_barriers_alone_say_the_time(channels, with_rows):
    """The times of a split's rows are known only once they have run."""
    vertex = Vertex(VertexId("sums"), VertexKind.KEYED, 1, fires=True)
    time = None if channels is None else VertexTime(channels)
    assert with_rows is OperatorRun(vertex, None, Generation(1), [LiveFiles()], time=time).fires_with_rows


def by_the_clock(due_ms):
    vertex = Vertex(VertexId("seconds"), VertexKind.KEYED, 1, fires=True, by_clock=True)
    return OperatorRun(vertex, None, 3, [LiveFiles(due_ms=due_ms)], clock_ms=5_000)


@pytest.mark.parametrize(("clock_ms", "fires"), [(6_999, False), (7_000, True), (9_000, True)])
def test_by_the_clock_rows_have_the_time_of_the_barrier_before_and_fire_once_it_is_over(clock_ms, fires):
    """A millisecond ends when the next one begins. The rows of an epoch have the time of the barrier before."""
    run = by_the_clock(due_ms=6_999)
    trigger = TriggerCheckpoint(Barrier(CheckpointId(1), clock_ms))
    assert trigger.barrier == run.pass_time(trigger)
    assert fires == run.fires_next
    assert 7_000 == run.turns_at_ms()
    if fires:
        effect = run.fire()
        assert (4_999, clock_ms - 1) == (effect.late_ms, effect.due_ms)
        run.finish(MicroBatchFinished(VertexId("seconds"), 1, (SubtaskOutput(),)))
    run.take_snapshot(run.pass_time(trigger))
    assert not run.fires_next
    assert clock_ms == run.clock_ms
    assert (None if fires else 7_000) == run.turns_at_ms()
