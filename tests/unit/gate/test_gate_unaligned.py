"""The unaligned mode, and the aligned mode with a timeout (C5, C6)."""

from checkpointing.channel_items import AlignmentType, ChannelState
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate import (
    AbortCheckpoint,
    AnnouncementReceived,
    BarrierReceived,
    ClockRead,
    Deliver,
    DeliverEnd,
    GatePolicy,
    InFlightComplete,
    TriggerCheckpoint,
    WakeGateAt,
)
from spec.flink.gate import AnnouncementHanded, GateClosed

ALTERNATING = GatePolicy.ALTERNATING
UNALIGNED = GatePolicy.UNALIGNED


def _delivered(effects):
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
    assert [1, 2, 3, 4] == sorted(_delivered(effects))


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
    assert [1, 2, 3] == _delivered(effects)


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
    assert [] == _delivered(tale.drain())
    assert [0] == tale.blocked()
    tale.put(1, barrier(1, AlignmentType.FORCED_ALIGNED))
    effects = tale.drain()
    assert [(1, False)] == _triggers(effects)
    assert [1] == _delivered(effects)


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
    assert [1, 2] == _delivered(effects)
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
    assert [2, 3] == sorted(_delivered(effects))


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
    assert [5] == _delivered(told.drain())
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
