"""The aligned policies (C1, C2, C3), with the rules that implementers get wrong."""

import pytest

from checkpointing.channel_items import AlignmentType, CancelMarker, ChannelState, EndOfChannel, EndOfData
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
from spec.flink.gate import AnnouncementHanded, GateClosed, ItemHanded

BUFFERING = GatePolicy.ALIGNED_BUFFERING


def _kinds(effects: object) -> list[str]:
    return [type(effect).__name__ for effect in effects]  # type: ignore[attr-defined]


def _delivered(effects: object) -> list[int]:
    return [int(e.segment.start) for e in effects if isinstance(e, Deliver)]  # type: ignore[attr-defined, union-attr]


def test_the_last_channel_is_blocked_too_then_the_trigger_then_all_are_released(story, barrier):
    """The last barrier blocks its channel and triggers. Then all channels are released."""
    tale = story(channels=2)
    tale.put(0, barrier(1))
    tale.put(1, barrier(1))
    tale.poll()
    assert [0] == tale.blocked()
    a, b = tale.channels
    expected = (
        BarrierReceived(b, 1, 0),
        BlockChannel(b),
        TriggerCheckpoint(barrier(1)),
        ResumeChannel(a),
        ResumeChannel(b),
    )
    assert expected == tale.poll()
    assert [] == tale.blocked()


def test_a_newer_barrier_releases_and_aborts_the_old_one_before_it_blocks(story, barrier):
    """A newer barrier releases the channels of the old one, aborts it, and then blocks its own channel."""
    tale = story(channels=2)
    tale.put(0, barrier(1))
    tale.put(1, barrier(2))
    tale.poll()
    a, b = tale.channels
    expected = (
        BarrierReceived(b, 2, 0),
        ResumeChannel(a),
        AbortCheckpoint(1, Reason.CHECKPOINT_DECLINED_SUBSUMED),
        BlockChannel(b),
    )
    assert expected == tale.poll()


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


def test_an_obsolete_barrier_resumes_its_channel(story, barrier, cancel):
    """A barrier with a cancelled id is ignored and blocks nothing. The items after it are read."""
    tale = story(channels=2)
    tale.put(0, cancel(1))
    tale.put(1, barrier(1), 5)
    tale.poll()
    channel = tale.channels[1]
    expected = (BarrierReceived(channel, 1, 0), Ignored(channel, barrier(1)), ResumeChannel(channel))
    assert expected == tale.poll()
    assert [5] == _delivered(tale.drain())


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (GatePolicy.ALIGNED_BLOCKING, [(3, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)]),
        (
            GatePolicy.ALIGNED_BUFFERING,
            [
                (1, Reason.CHECKPOINT_DECLINED_SUBSUMED),
                (3, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER),
            ],
        ),
    ],
)
def test_a_newer_cancel_aborts_the_pending_checkpoint_only_when_buffering(story, barrier, cancel, policy, expected):
    """If 1 is pending, cancel(3) aborts only 3 in the blocking policy, and both in the buffering one."""
    tale = story(policy, channels=2)
    tale.put(0, barrier(1))
    tale.put(1, cancel(3))
    aborts = [(e.checkpoint, e.reason) for e in tale.drain() if isinstance(e, AbortCheckpoint)]
    assert expected == aborts
    assert [] == tale.blocked()
    assert () == tale.gate.pending()


def test_a_cancel_is_obeyed_once(story, cancel):
    """A second cancel marker of an id, or one of an older id, is ignored."""
    tale = story(channels=3)
    for channel, checkpoint in enumerate((2, 2, 1)):
        tale.put(channel, cancel(checkpoint))
    assert ["AbortCheckpoint", "Ignored", "Ignored"] == _kinds(tale.drain())


def test_the_target_is_fixed_at_the_first_barrier_and_an_end_counts_once(story, barrier, end):
    """A channel that ends during the alignment counts as aligned.

    If it had aligned before, its end waits behind its barrier, and does not count again.
    """
    tale = story(channels=3)
    tale.put(0, barrier(1), end)
    assert [0] == [e.channel.subtask for e in tale.drain() if isinstance(e, BlockChannel)]
    assert (1,) == tale.gate.pending()
    tale.put(1, end)
    assert ["DeliverEnd"] == _kinds(tale.drain())
    tale.put(2, barrier(1))
    effects = tale.drain()
    assert any(isinstance(e, TriggerCheckpoint) for e in effects)
    assert [0] == [e.channel.subtask for e in effects if isinstance(e, DeliverEnd)]


def test_the_end_of_the_last_missing_channel_triggers_before_it_is_delivered(story, barrier, end):
    """An end of channel counts as its barrier, and is delivered last."""
    tale = story(channels=2)
    tale.put(0, barrier(1))
    tale.drain()
    tale.put(1, end)
    assert ["TriggerCheckpoint", "ResumeChannel", "DeliverEnd"] == _kinds(tale.drain())


@pytest.mark.parametrize("policy", [GatePolicy.ALIGNED_BLOCKING, BUFFERING])
def test_an_end_aborts_without_the_flag_and_always_when_buffering(story, barrier, end, policy):
    """If ends do not count as barriers, an end during the alignment aborts it."""
    tale = story(policy, channels=2, checkpoint_after_tasks_finished=policy is BUFFERING)
    tale.put(0, barrier(1))
    tale.drain()
    tale.put(1, end)
    effects = tale.drain()
    assert AbortCheckpoint(1, Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM) in effects
    assert DeliverEnd(tale.channels[1]) == effects[-1]


def test_one_channel_triggers_at_every_barrier(story, barrier):
    """With one channel, each newer barrier completes its checkpoint at once."""
    tale = story(channels=1)
    tale.put(0, barrier(1), 1, barrier(2), barrier(2))
    assert [1, 2] == [e.barrier.checkpoint for e in tale.drain() if isinstance(e, TriggerCheckpoint)]


def test_id_zero_is_a_checkpoint(story, barrier):
    """The first id may be 0."""
    tale = story(channels=1)
    tale.put(0, barrier(0))
    assert any(isinstance(e, TriggerCheckpoint) for e in tale.drain())


def test_alignment_time_runs_from_the_first_barrier_to_the_last(story, barrier):
    """`alignment_ms` is the time between the handling of the first and of the last barrier."""
    tale = story(channels=2)
    tale.at(1000)
    tale.put(0, barrier(1))
    tale.drain()
    tale.at(1700)
    tale.put(1, barrier(1))
    trigger = next(e for e in tale.drain() if isinstance(e, TriggerCheckpoint))
    assert 700 == trigger.alignment_ms


def test_buffering_delivers_held_items_in_arrival_order_before_new_input(story, barrier):
    """Items that were held come in the order of their arrival, before any later item."""
    tale = story(BUFFERING, channels=2)
    tale.put(0, barrier(1), 1)
    assert PutAside(tale.channels[0], tale.segment(1)) in tale.drain()
    tale.put(1, 2, barrier(1), 3)
    tale.put(0, 4)
    assert [2, 1, 4, 3] == _delivered(tale.drain())


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


def test_nothing_may_come_after_the_end_of_a_channel(story, end):
    """An item after the end is refused. The error names the channel, and the gate is unchanged."""
    tale = story(channels=1)
    tale.put(0, end)
    before = tale.gate.snapshot()
    with pytest.raises(GateProtocolError, match=r"upstream->task:0\[0\] has ended"):
        tale.put(0, 1)
    assert before == tale.gate.snapshot()


def test_channels_take_turns_in_the_order_in_which_they_got_items(story):
    """After one item, a channel goes to the end of the queue."""
    tale = story(channels=3)
    tale.put(2, 1, 2)
    tale.put(0, 3, 4)
    tale.put(1, 5)
    assert [1, 3, 5, 2, 4] == _delivered(tale.drain())


def test_a_poll_of_an_empty_gate_has_no_effect(story):
    """The answer is empty, and the gate says so before the poll."""
    tale = story()
    assert not tale.gate.has_deliverable()
    assert () == tale.poll()


def test_a_queue_of_many_epochs_does_not_slow_the_gate(story, barrier):
    """Several checkpoints may wait one after another in every channel. Each triggers in turn."""
    tale = story(channels=2)
    for channel in (0, 1):
        for number in range(1, 200):
            tale.put(channel, number, barrier(number))
    triggered = [e.barrier.checkpoint for e in tale.drain() if isinstance(e, TriggerCheckpoint)]
    assert list(range(1, 200)) == triggered


def test_segments_wait_behind_a_barrier_that_was_handed_past_the_queue(story, barrier):
    """An aligned barrier that is handed past the queue blocks its channel. Its segments come after the trigger."""
    tale = story()
    tale.put(0, 1)
    tale.hand(0, barrier(1))
    assert not tale.gate.has_deliverable()
    tale.put(1, barrier(1))
    assert [1] == _delivered(tale.drain())


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


def _delivered_of_gate_unaligned(effects):
    return [int(e.segment.start) for e in effects if isinstance(e, Deliver)]


def _triggers(effects):
    return [(e.barrier.checkpoint, e.unaligned) for e in effects if isinstance(e, TriggerCheckpoint)]


def _in_flight(effects):
    return {
        e.checkpoint: {state.channel.subtask: [int(s.start) for s in state.segments] for state in e.channels}
        for e in effects
        if isinstance(e, InFlightComplete)
    }


def _taken(effects):
    names = {
        AnnouncementReceived: "announcement",
        BarrierReceived: "barrier",
        Deliver: "segment",
        DeliverEnd: "end",
    }
    return [names[type(e)] for e in effects if type(e) in names]


# ---------------------------------------------------------------------- UNALIGNED


def test_the_first_barrier_triggers_and_overtakes(story, barrier):
    """The barrier passes the segments before it. They are in flight, and still delivered."""
    tale = story(UNALIGNED)
    tale.put(0, 1, 2, barrier(1))
    effects = tale.poll()
    assert [(1, True)] == _triggers(effects)
    tale.put(1, 3, barrier(1), 4)
    effects = tale.drain()
    assert {1: {0: [1, 2], 1: [3]}} == _in_flight(effects)
    assert [1, 2, 3, 4] == sorted(_delivered_of_gate_unaligned(effects))


def test_the_barrier_is_sent_on_as_an_unaligned_one(story, barrier):
    """The barrier that goes downstream says that its checkpoint is unaligned."""
    tale = story(UNALIGNED)
    tale.put(0, barrier(1, timeout_ms=5))
    trigger = next(e for e in tale.poll() if isinstance(e, TriggerCheckpoint))
    assert barrier(1, AlignmentType.UNALIGNED) == trigger.barrier


def test_segments_are_in_flight_from_the_trigger_to_the_channels_barrier_or_end(story, barrier, end):
    """Segments that were delivered before the trigger, or come after the channel's barrier, are not in flight."""
    tale = story(UNALIGNED, channels=3)
    tale.put(1, 0)
    tale.drain()
    tale.put(0, barrier(1), 1)
    tale.put(1, 2)
    tale.drain()
    tale.put(1, 3, barrier(1), 4)
    tale.put(2, 5, end)
    effects = tale.drain()
    assert {1: {1: [2, 3], 2: [5]}} == _in_flight(effects)


def test_several_barriers_in_one_queue_divide_the_segments_exactly(story, barrier):
    """For each of several checkpoints, the segments in flight end at its own barrier."""
    tale = story(UNALIGNED, channels=1)
    tale.put(0, 1, barrier(1), 2, barrier(2), 3)
    effects = tale.drain()
    assert {1: {0: [1]}, 2: {0: [1, 2]}} == _in_flight(effects)
    assert [1, 2, 3] == _delivered_of_gate_unaligned(effects)


def test_an_obsolete_barrier_does_not_end_the_recording(story, barrier):
    """A late barrier of an older checkpoint does not end the newer one's segments in flight."""
    tale = story(UNALIGNED)
    tale.put(0, barrier(2))
    tale.drain()
    tale.put(1, 1, barrier(1), 2, barrier(2))
    assert {2: {1: [1, 2]}} == _in_flight(tale.drain())


def test_an_aborted_checkpoint_has_no_segments_in_flight(story, barrier, cancel):
    """A cancel marker drops the recorded segments. The next checkpoint begins without any."""
    tale = story(UNALIGNED)
    tale.put(0, barrier(1))
    tale.put(1, 1, cancel(1))
    effects = tale.drain()
    assert AbortCheckpoint(1, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER) in effects
    assert {} == _in_flight(effects)
    tale.put(0, barrier(2))
    tale.put(1, barrier(2))
    assert {2: {}} == _in_flight(tale.drain())


def test_a_savepoint_is_aligned_in_the_unaligned_mode_too(story, barrier):
    """A barrier that must be aligned blocks, and triggers with the last one."""
    tale = story(UNALIGNED)
    tale.put(0, barrier(1, AlignmentType.FORCED_ALIGNED), 1)
    assert [] == _delivered_of_gate_unaligned(tale.drain())
    assert [0] == tale.blocked()
    tale.put(1, barrier(1, AlignmentType.FORCED_ALIGNED))
    effects = tale.drain()
    assert [(1, False)] == _triggers(effects)
    assert [1] == _delivered_of_gate_unaligned(effects)


def test_in_flight_segments_come_by_channel_in_order(story, barrier):
    """The effect names the channels, and their segments in order of arrival."""
    tale = story(UNALIGNED, channels=1)
    tale.put(0, 1, 2, barrier(1))
    effect = next(e for e in tale.drain() if isinstance(e, InFlightComplete))
    assert (ChannelState(tale.channels[0], (tale.segment(1), tale.segment(2))),) == effect.channels


# ---------------------------------------------------------------------- ALTERNATING


def test_a_checkpoint_that_aligns_in_time_stays_aligned(story, barrier):
    """Before the timeout, the channels block, the trigger is aligned, and nothing is in flight."""
    tale = story(ALTERNATING)
    tale.put(0, 1, barrier(1, timeout_ms=100), 2)
    tale.put(1, barrier(1, timeout_ms=100))
    effects = tale.drain()
    assert [(1, False)] == _triggers(effects)
    assert [1, 2] == _delivered_of_gate_unaligned(effects)
    assert {} == _in_flight(effects)


def test_the_timer_is_requested_when_a_checkpoint_is_first_announced(story, barrier):
    """WakeGateAt names the time at which the barrier's age reaches its timeout."""
    tale = story(ALTERNATING)
    tale.put(0, 1, barrier(1, timeout_ms=100, created_ms=50))
    assert WakeGateAt(150) in tale.poll()


def test_the_timer_triggers_after_a_first_barrier(story, barrier):
    """The timer triggers. The aligned channel has nothing in flight, and the other one has its queued segments."""
    tale = story(ALTERNATING)
    tale.put(0, barrier(1, timeout_ms=100), 1)
    tale.drain()
    tale.put(1, 2)
    assert [(1, True)] == _triggers(tale.at(100))
    tale.put(1, 3, barrier(1, timeout_ms=100), 4)
    assert {1: {1: [2, 3]}} == _in_flight(tale.drain())


def test_a_timer_that_is_early_or_of_an_aborted_checkpoint_does_nothing(story, barrier, cancel):
    """The timer has no effect before its time, or after an abort, a completion or a close."""
    tale = story(ALTERNATING)
    tale.put(0, barrier(1, timeout_ms=100))
    tale.drain()
    assert () == tale.at(99)
    tale.put(1, cancel(1))
    tale.drain()
    assert () == tale.at(100)
    tale.put(0, barrier(2, timeout_ms=100, created_ms=100))
    tale.drain()
    tale.gate.tell(GateClosed())
    assert () == tale.at(500)
    assert not tale.gate.has_deliverable()


def test_barriers_announced_after_the_timeout_overtake_too(story, barrier):
    """Once the checkpoint is unaligned, an announced barrier passes at once."""
    tale = story(ALTERNATING)
    tale.put(0, barrier(1, timeout_ms=10))
    tale.drain()
    tale.at(20)
    tale.put(1, 1, barrier(1, timeout_ms=10))
    effects = tale.drain()
    assert ["announcement", "barrier", "segment"] == _taken(effects)
    assert {1: {1: [1]}} == _in_flight(effects)


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


def test_a_barrier_older_than_its_timeout_makes_the_checkpoint_unaligned(story, barrier):
    """The first barrier is handled too late. It triggers unaligned, and its channel waits."""
    tale = story(ALTERNATING)
    tale.put(0, 1, barrier(1, timeout_ms=10), 2)
    tale.poll()
    tale.poll()
    tale.gate.tell(ClockRead(11))
    effects = tale.poll()
    assert [(1, True)] == _triggers(effects)
    assert not tale.gate.has_deliverable()
    tale.put(1, 3, barrier(1, timeout_ms=10))
    effects = tale.drain()
    assert {1: {1: [3]}} == _in_flight(effects)
    assert [2, 3] == sorted(_delivered_of_gate_unaligned(effects))


def test_a_barrier_exactly_as_old_as_its_timeout_does_not(story, barrier):
    """The check at a barrier is `age > timeout`. Only the timer fires at equality."""
    tale = story(ALTERNATING)
    tale.put(0, barrier(1, timeout_ms=10))
    tale.poll()
    tale.gate.tell(ClockRead(10))
    assert [] == _triggers(tale.poll())


def test_an_end_before_the_first_barrier_starts_the_alignments_clock(story, barrier, end):
    """After an announcement, an end counts as the first channel to align (FLINK-24068)."""
    tale = story(ALTERNATING, channels=3)
    tale.put(0, 0, barrier(1, timeout_ms=10_000))
    tale.put(1, end)
    tale.poll()
    assert ["end"] == _taken(tale.poll())
    tale.at(5)
    tale.put(2, barrier(1, timeout_ms=10_000))
    trigger = next(e for e in tale.drain() if isinstance(e, TriggerCheckpoint))
    assert 5 == trigger.alignment_ms


def test_a_later_checkpoint_waits_for_an_aligned_barrier(story, barrier):
    """If barrier 2 is after barrier 1 in a channel, it is not announced before checkpoint 1 has ended."""
    tale = story(ALTERNATING)
    for channel in (0, 1):
        tale.put(channel, barrier(1, timeout_ms=100), 1, barrier(2, timeout_ms=100), 2)
    effects = tale.drain()
    assert [(1, False), (2, False)] == _triggers(effects)
    assert not any(isinstance(e, AbortCheckpoint) for e in effects)


def test_a_newer_unaligned_checkpoint_captures_segments_that_a_savepoint_blocked(story, barrier):
    """The newer one releases the blocked channel before the trigger, and its segments are in flight."""
    tale = story(ALTERNATING)
    tale.put(0, barrier(0, AlignmentType.FORCED_ALIGNED), 1)
    tale.drain()
    tale.put(1, barrier(1, AlignmentType.UNALIGNED))
    effects = tale.drain()
    assert [AbortCheckpoint(0, Reason.CHECKPOINT_DECLINED_SUBSUMED)] == [
        e for e in effects if isinstance(e, AbortCheckpoint)
    ]
    assert [(1, True)] == _triggers(effects)
    tale.put(0, barrier(1, AlignmentType.UNALIGNED))
    assert {1: {0: [1]}} == _in_flight(tale.drain())


def test_an_announcement_that_is_handed_in_makes_its_checkpoint_pending(story, barrier):
    """The gate gets an announcement directly, and the checkpoint is pending. An unaligned barrier then triggers it."""
    tale = story(ALTERNATING)
    tale.gate.tell(AnnouncementHanded(tale.channels[0], barrier(1, timeout_ms=100)))
    assert (1,) == tale.gate.pending()
    assert [(1, True)] == _triggers(tale.hand(1, barrier(1, AlignmentType.UNALIGNED)))


def test_savepoints_and_checkpoints_may_alternate(story, barrier):
    """Aligned checkpoints of all kinds follow each other, and each triggers once."""
    tale = story(ALTERNATING, channels=5)
    for number in range(20):
        alignment = AlignmentType.ALIGNED if number % 2 else AlignmentType.FORCED_ALIGNED
        for channel in range(5):
            tale.put(channel, barrier(number, alignment))
    assert [(number, False) for number in range(20)] == _triggers(tale.drain())


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


def test_a_cancel_aborts_a_checkpoint_that_was_only_announced(story, barrier, cancel):
    """The marker comes before any barrier. When the barrier comes, it is obsolete, and its channel goes on."""
    told = story(GatePolicy.ALTERNATING, 2)
    told.put(0, barrier(1, timeout_ms=100), 5)
    assert (AnnouncementReceived(told.channels[0], 1),) == told.poll()[:1]
    effects = told.hand(1, cancel(1))
    assert [1] == [effect.checkpoint for effect in effects if isinstance(effect, AbortCheckpoint)]
    assert [5] == _delivered_of_gate_unaligned(told.drain())
    assert [] == told.blocked()


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
    """Return what the operator receives, in short: segment numbers, and the channels whose data ended."""
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
