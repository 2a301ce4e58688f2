"""The aligned policies (C1, C2, C3), with the rules that implementers get wrong."""

import pytest

from checkpointing.channel_items import AlignmentType, CancelMarker
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate import (
    AbortCheckpoint,
    BarrierReceived,
    BlockChannel,
    Deliver,
    DeliverEnd,
    GateConfig,
    GatePolicy,
    GateProtocolError,
    Ignored,
    PutAside,
    ResumeChannel,
    TriggerCheckpoint,
)
from checkpointing.gate.channels import AlignmentBuffer
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, VertexId

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
