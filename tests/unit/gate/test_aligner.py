"""Tests what Flink's own cases leave open in the gate's policies (C1 to C6), and what a gate refuses."""

import pytest

from checkpointing.channel_items import AlignmentType, CancelMarker, EndOfChannel, EndOfData
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate import (
    AbortCheckpoint,
    AnnouncementReceived,
    BarrierReceived,
    BlockChannel,
    ClockRead,
    Deliver,
    DeliverEnd,
    DeliverEndOfData,
    GateConfig,
    GatePolicy,
    GateProtocolError,
    Ignored,
    InFlightComplete,
    ItemArrived,
    Polled,
    PutAside,
    ResumeChannel,
    TriggerCheckpoint,
    WakeGateAt,
)
from checkpointing.gate.channels import AlignmentBuffer
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, VertexId
from spec.flink.gate_cases import GateClosed, ItemHanded

BUFFERING = GatePolicy.ALIGNED_BUFFERING


def _delivered(effects):
    return [int(e.segment.start) for e in effects if isinstance(e, Deliver)]


def test_segments_after_a_barrier_stay_in_the_gate_until_the_alignment_ends(story, barrier):
    """A blocked channel is not read. Its segments are delivered after the trigger, in order."""
    tale = story(channels=2)
    tale.put(0, 1, barrier(1), 2, 3)
    assert [1] == _delivered(tale.drain())
    assert not tale.gate.has_deliverable()
    tale.put(1, 4, barrier(1))
    effects = tale.drain()
    assert [4, 2, 3] == _delivered(effects)
    trigger = next(e for e in effects if isinstance(e, TriggerCheckpoint))
    assert 20 == trigger.bytes_held
    assert 10 == trigger.bytes_processed


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (GatePolicy.ALIGNED_BLOCKING, [(3, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)]),
        (
            GatePolicy.ALIGNED_BUFFERING,
            [(1, Reason.CHECKPOINT_DECLINED_SUBSUMED), (3, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)],
        ),
    ],
)
def test_a_newer_cancel_aborts_the_pending_checkpoint_only_when_buffering(story, barrier, cancel, policy, expected):
    tale = story(policy, channels=2)
    tale.put(0, barrier(1))
    tale.put(1, cancel(3))
    aborts = [(e.checkpoint, e.reason) for e in tale.drain() if isinstance(e, AbortCheckpoint)]
    assert expected == aborts
    assert [] == tale.blocked()
    assert () == tale.gate.pending()


def test_buffering_over_the_limit_aborts_and_delivers(story, barrier):
    """More than `max_alignment_bytes` of held items abort the checkpoint. Exactly as many do not."""
    tale = story(BUFFERING, channels=2, max_alignment_bytes=20)
    tale.put(0, barrier(1), 1, 2)
    tale.drain()
    assert (1,) == tale.gate.pending()
    tale.put(0, 3)
    effects = tale.drain()
    assert AbortCheckpoint(1, Reason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED) in effects
    assert [1, 2, 3] == _delivered(effects)


@pytest.mark.parametrize("limit", [0, -2])
def test_a_limit_that_is_neither_positive_nor_minus_one_is_refused(limit):
    """The error names the field and the rule."""
    with pytest.raises(ValueError, match=r"max_alignment_bytes.*must be positive, or -1"):
        GateConfig(max_alignment_bytes=limit)


@pytest.mark.parametrize("policy", [GatePolicy.ALIGNED_BLOCKING, BUFFERING])
def test_an_unaligned_barrier_is_refused_by_an_aligned_gate_and_nothing_changes(story, barrier, policy):
    """The error names barrier, channel and policy. The gate is unchanged."""
    tale = story(policy, channels=2)
    before = tale.gate.snapshot()
    with pytest.raises(GateProtocolError, match=policy.value):
        tale.put(0, barrier(1, AlignmentType.UNALIGNED))
    assert before == tale.gate.snapshot()


def test_channels_take_turns_in_the_order_in_which_they_got_items(story):
    """After one item, a channel goes to the end of the queue."""
    tale = story(channels=3)
    tale.put(2, 1, 2)
    tale.put(0, 3, 4)
    tale.put(1, 5)
    assert [1, 3, 5, 2, 4] == _delivered(tale.drain())


def test_a_queue_of_many_epochs_does_not_slow_the_gate(story, barrier):
    """Several checkpoints may wait one after another in every channel. Each triggers in turn."""
    tale = story(channels=2)
    for channel in (0, 1):
        for number in range(1, 200):
            tale.put(channel, number, barrier(number))
    triggered = [e.barrier.checkpoint for e in tale.drain() if isinstance(e, TriggerCheckpoint)]
    assert list(range(1, 200)) == triggered


def test_held_items_nest_newest_first():
    """Items that are held while others are delivered come before the rest of those, at any depth."""
    buffer = AlignmentBuffer(-1)
    channel = ChannelId(EdgeId(VertexId("a"), VertexId("b")), 0)
    for number in (1, 2, 3):
        buffer.put_aside(channel, CancelMarker(CheckpointId(number)))
        buffer.resume(channel)
    replayed = [buffer.take() for _ in range(3)]
    assert [3, 2, 1] == [queued[1].checkpoint for queued in replayed]
    assert buffer.take() is None


# ------------------------------------------------------------------
# The unaligned mode, and the aligned mode with a timeout (C5, C6).


ALTERNATING = GatePolicy.ALTERNATING
UNALIGNED = GatePolicy.UNALIGNED


def _outcome(effects):
    return [
        (type(e).__name__, e.barrier.checkpoint if isinstance(e, TriggerCheckpoint) else e.checkpoint)
        for e in effects
        if isinstance(e, TriggerCheckpoint | AbortCheckpoint)
    ]


def _triggers(effects):
    return [(e.barrier.checkpoint, e.unaligned) for e in effects if isinstance(e, TriggerCheckpoint)]


def _in_flight(effects):
    return {
        e.checkpoint: {state.channel.subtask: [int(s.start) for s in state.segments] for state in e.channels}
        for e in effects
        if isinstance(e, InFlightComplete)
    }


def _taken(effects):
    names = {AnnouncementReceived: "announcement", BarrierReceived: "barrier", Deliver: "segment", DeliverEnd: "end"}
    return [names[type(e)] for e in effects if type(e) in names]


# ---------------------------------------------------------------------- UNALIGNED


# ---------------------------------------------------------------------- ALTERNATING


def test_a_late_announcement_waits_for_the_timer(story, barrier):
    """If a first announcement is older than its timeout, the timer is due at once. Nothing else happens."""
    tale = story(ALTERNATING)
    for channel in (0, 1):
        tale.put(channel, channel, barrier(1, timeout_ms=10))
    tale.gate.tell(ClockRead(11))
    assert ["announcement"] == _taken(tale.poll())
    tale.at(11)
    effects = tale.drain()
    assert ["announcement", "barrier", "barrier", "segment", "segment"] == _taken(effects)
    assert [(1, True)] == _triggers(effects)


def test_a_barrier_exactly_as_old_as_its_timeout_does_not(story, barrier):
    """The check at a barrier is `age > timeout`. Only the timer fires at equality."""
    tale = story(ALTERNATING)
    tale.put(0, barrier(1, timeout_ms=10))
    tale.poll()
    tale.gate.tell(ClockRead(10))
    assert [] == _triggers(tale.poll())


def test_the_timer_of_an_ended_checkpoint_does_not_change_a_savepoint(story, barrier):
    """A timer ends with its checkpoint. A savepoint that is pending at the timer's time stays aligned."""
    tale = story(ALTERNATING)
    tale.put(0, barrier(1, timeout_ms=100))
    tale.put(1, barrier(1, timeout_ms=100))
    tale.drain()
    tale.put(0, barrier(2, AlignmentType.FORCED_ALIGNED))
    tale.drain()
    assert () == tale.at(200)
    tale.put(1, barrier(2, AlignmentType.FORCED_ALIGNED))
    assert [(2, False)] == _triggers(tale.drain())


def test_an_abort_ends_the_recording(story, barrier, cancel):
    """The recorded segments of an aborted checkpoint are dropped at once."""
    tale = story(UNALIGNED)
    tale.put(0, barrier(1))
    tale.drain()
    tale.put(1, 1, cancel(1), 2)
    tale.drain()
    tale.put(1, 3)
    assert [(), ()] == [channel.recorded for channel in tale.gate.snapshot().channels.channels]


def test_a_newer_barrier_in_the_channel_aborts_no_unaligned_checkpoint(story, barrier):
    """Flink aborts in this case, because its channels remember one barrier.

    A savepoint follows the checkpoint at once.
    """
    told = story(UNALIGNED, 2)
    told.put(0, 1, barrier(1), 2, barrier(2, alignment=AlignmentType.FORCED_ALIGNED))
    effects = told.poll()
    assert [(1, True)] == _triggers(effects)
    told.put(1, 3, barrier(1), barrier(2, alignment=AlignmentType.FORCED_ALIGNED))
    effects = told.drain()
    assert {1: {0: [1], 1: [3]}} == _in_flight(effects)
    assert [(2, False)] == _triggers(effects)
    assert [] == [effect for effect in effects if isinstance(effect, AbortCheckpoint)]


# ------------------------------------------------------------------
# A gate refuses items that it cannot handle. The error names them, and the gate is unchanged.


STRANGE = ChannelId(EdgeId(VertexId("elsewhere"), VertexId("task")), 0)


@pytest.mark.parametrize("policy", GatePolicy)
@pytest.mark.parametrize("fact", [ItemArrived, ItemHanded])
def test_a_channel_of_another_gate_is_refused_and_nothing_changes(story, barrier, policy, fact):
    """The error names the channel and the gate's channels. The checkpoint in progress goes on."""
    kind = AlignmentType.AT_LEAST_ONCE if policy is GatePolicy.AT_LEAST_ONCE else AlignmentType.FORCED_ALIGNED
    tale = story(policy)
    tale.put(0, barrier(1, kind))
    tale.drain()
    before = tale.gate.snapshot()
    with pytest.raises(
        GateProtocolError, match=r"elsewhere->task:0\[0\] is none of this gate's.*upstream->task:0\[1\]"
    ):
        tale.gate.tell(fact(STRANGE, tale.segment(1)))
    assert before == tale.gate.snapshot()


@pytest.mark.parametrize("policy", GatePolicy)
def test_an_ended_channel_takes_no_more_items(story, policy):
    """An item after the end of its channel is refused. The other channels go on."""
    tale = story(policy)
    tale.put(0, EndOfChannel())
    tale.drain()
    before = tale.gate.snapshot()
    with pytest.raises(GateProtocolError):
        tale.put(0, 1)
    assert before == tale.gate.snapshot()
    tale.put(1, 2)
    assert 1 == len(tale.drain())


@pytest.mark.parametrize("policy", GatePolicy)
def test_a_closed_gate_delivers_and_aborts_nothing(story, barrier, policy):
    """Once the task is cancelled, no segment is delivered and no timer fires, whatever the channels hold."""
    tale = story(policy)
    kind = AlignmentType.AT_LEAST_ONCE if policy is GatePolicy.AT_LEAST_ONCE else AlignmentType.FORCED_ALIGNED
    tale.put(0, barrier(1, kind), 1)
    tale.put(1, 2)
    assert tale.gate.has_deliverable()
    assert () == tale.gate.tell(GateClosed())
    assert not tale.gate.has_deliverable()
    assert () == tale.gate.tell(Polled())
    assert () == tale.at(10_000_000)


# ------------------------------------------------------------------
# The end of data of a drain on its way through a gate. It is in order like a segment, and no barrier depends on it.


END = EndOfData()


def told(effects):
    heard = {Deliver: lambda e: int(e.segment.start), DeliverEndOfData: lambda e: ("end", e.channel.subtask)}
    heard[TriggerCheckpoint] = lambda e: ("trigger", e.barrier.checkpoint)
    return [heard[type(effect)](effect) for effect in effects if type(effect) in heard]


@pytest.mark.parametrize("policy", GatePolicy)
def test_the_end_of_data_comes_after_the_last_row_and_blocks_nothing(story, barrier, policy):
    """In every policy, the gate delivers it in its channel's order. The barrier after it still triggers."""
    gate = story(policy)
    kind = AlignmentType.AT_LEAST_ONCE if policy is GatePolicy.AT_LEAST_ONCE else AlignmentType.FORCED_ALIGNED
    gate.put(0, 1, END, barrier(1, kind))
    gate.put(1, 2, 3, END, barrier(1, kind))
    effects = gate.drain()
    assert [1, 2, ("end", 0), 3, ("end", 1), ("trigger", 1)] == told(effects)
    assert frozenset(gate.channels) == gate.gate.open_channels()


@pytest.mark.parametrize("policy", [GatePolicy.ALIGNED_BLOCKING, GatePolicy.ALIGNED_BUFFERING])
def test_an_earlier_barrier_holds_the_end_of_data_back_like_a_row(story, barrier, policy):
    """The data of one channel stays ended while the barrier of an older checkpoint comes on the other channel."""
    gate = story(policy)
    gate.put(0, barrier(1), END, barrier(2))
    gate.put(1, 5, barrier(1), 6, END, barrier(2))
    effects = gate.drain()
    assert [5, ("trigger", 1), ("end", 0), 6, ("end", 1), ("trigger", 2)] == told(effects)
    assert 4 == sum(isinstance(effect, BlockChannel) for effect in effects)


def test_an_obsolete_barrier_between_two_ends_changes_nothing(story, barrier):
    """A checkpoint that was aborted before a drain may still be on its way on the slower channel."""
    gate = story()
    gate.put(0, END, barrier(2))
    gate.put(1, barrier(1), 6, END, barrier(2))
    assert [("end", 0), 6, ("end", 1), ("trigger", 2)] == told(gate.drain())


def test_the_end_of_data_is_not_in_flight(story, barrier):
    """An unaligned barrier may overtake it. Only rows are stored as in flight, and the end is still delivered."""
    gate = story(GatePolicy.UNALIGNED)
    gate.put(0, 1, END, barrier(1, AlignmentType.UNALIGNED))
    gate.put(1, barrier(1, AlignmentType.UNALIGNED))
    effects = gate.drain()
    (in_flight,) = [effect for effect in effects if isinstance(effect, InFlightComplete)]
    assert [(gate.channels[0], ["1"])] == [(s.channel, [i.start for i in s.segments]) for s in in_flight.channels]
    assert [("trigger", 1), 1, ("end", 0)] == told(effects)


def test_a_new_gate_does_not_know_an_earlier_end_of_data(story):
    """A cut does not have it, so a restored vertex waits for rows again."""
    gate = story()
    gate.put(0, END)
    assert [("end", 0)] == told(gate.drain())
    assert [] == told(story().drain())


def test_an_obsolete_barrier_resumes_its_channel(story, barrier, cancel):
    """A barrier with a cancelled id is ignored and blocks nothing. The items after it are read."""
    tale = story(channels=2)
    tale.put(0, cancel(1))
    tale.put(1, barrier(1), 5)
    tale.poll()
    channel = tale.channels[1]
    expected = (BarrierReceived(channel, barrier(1), 0), Ignored(channel, barrier(1)), ResumeChannel(channel))
    assert expected == tale.poll()
    assert [5] == _delivered(tale.drain())


def test_buffering_delivers_held_items_in_arrival_order_before_new_input(story, barrier):
    tale = story(BUFFERING, channels=2)
    tale.put(0, barrier(1), 1)
    assert PutAside(tale.channels[0], tale.segment(1)) in tale.drain()
    tale.put(1, 2, barrier(1), 3)
    tale.put(0, 4)
    assert [2, 1, 4, 3] == _delivered(tale.drain())


def test_completion_drops_all_older_checkpoints_silently(story, barrier):
    """When a checkpoint completes, older pending ones are dropped, and their late barriers are ignored."""
    tale = story(GatePolicy.AT_LEAST_ONCE)
    tale.put(0, barrier(1), barrier(2))
    tale.put(1, barrier(2))
    assert [("TriggerCheckpoint", 2)] == _outcome(tale.drain())
    assert () == tale.gate.pending()
    tale.put(1, barrier(1))
    assert Ignored(tale.channels[1], barrier(1)) in tale.drain()


def test_at_most_fifty_checkpoints_are_remembered(story, barrier):
    """If one too many is pending, the oldest id is forgotten silently."""
    tale = story(GatePolicy.AT_LEAST_ONCE)
    for number in range(1, 52):
        tale.put(0, barrier(number))
    assert [] == _outcome(tale.drain())
    assert tuple(range(2, 52)) == tale.gate.pending()


def test_each_checkpoint_has_its_own_alignment_time(story, barrier):
    tale = story(GatePolicy.AT_LEAST_ONCE)
    tale.put(0, barrier(1))
    tale.drain()
    tale.at(100)
    tale.put(0, 1, barrier(2), 2)
    tale.drain()
    tale.at(300)
    tale.put(1, barrier(1), barrier(2))
    triggers = [e for e in tale.drain() if isinstance(e, TriggerCheckpoint)]
    assert [(300, 20), (200, 10)] == [(t.alignment_ms, t.bytes_processed) for t in triggers]


def test_with_one_open_channel_completion_drops_all_older_checkpoints_too(story, barrier, end):
    """Checkpoints 1 and 2 wait for the one open channel. 3 completes there, and then neither triggers."""
    told = story(GatePolicy.AT_LEAST_ONCE, 2)
    told.put(1, barrier(1), barrier(2), end)
    told.drain()
    assert (1, 2) == told.gate.pending()
    told.put(0, barrier(3), end)
    triggered = [effect.barrier.checkpoint for effect in told.drain() if isinstance(effect, TriggerCheckpoint)]
    assert [3] == triggered
    assert () == told.gate.pending()


def test_a_cancel_aborts_a_checkpoint_that_was_only_announced(story, barrier, cancel):
    """The marker comes before any barrier. When the barrier comes, it is obsolete, and its channel goes on."""
    told = story(GatePolicy.ALTERNATING, 2)
    told.put(0, barrier(1, timeout_ms=100), 5)
    assert (AnnouncementReceived(told.channels[0], 1),) == told.poll()[:1]
    effects = told.hand(1, cancel(1))
    assert [1] == [effect.checkpoint for effect in effects if isinstance(effect, AbortCheckpoint)]
    assert [5] == _delivered(told.drain())
    assert [] == told.blocked()


def test_an_id_is_aborted_once_even_with_one_open_channel(story, cancel, end):
    tale = story(GatePolicy.AT_LEAST_ONCE)
    tale.put(1, end)
    tale.put(0, cancel(3), cancel(3))
    assert [("AbortCheckpoint", 3)] == _outcome(tale.drain())


def test_the_timer_is_requested_when_a_checkpoint_is_first_announced(story, barrier):
    """WakeGateAt names the time at which the barrier's age reaches its timeout."""
    tale = story(ALTERNATING)
    tale.put(0, 1, barrier(1, timeout_ms=100, created_ms=50))
    assert WakeGateAt(150) in tale.poll()


def test_an_aborted_checkpoint_never_triggers(story, barrier, cancel):
    """Barriers of an aborted id are still counted, but complete nothing."""
    tale = story(GatePolicy.AT_LEAST_ONCE, channels=3)
    tale.put(0, barrier(1))
    tale.put(1, cancel(1))
    tale.put(2, barrier(1))
    assert [("AbortCheckpoint", 1)] == _outcome(tale.drain())
    assert () == tale.gate.pending()
