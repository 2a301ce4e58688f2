"""Tests what a gate refuses, and where it decides differently from Flink (C1 to C6).

Flink's own cases and the gate's machine test everything else.
"""

import pytest

from checkpointing.channel_items import AlignmentType
from checkpointing.gate import (
    AbortCheckpoint,
    AnnouncementReceived,
    Deliver,
    GateConfig,
    GatePolicy,
    GateProtocolError,
    GateTimeAdvanced,
    InFlightComplete,
    ItemArrived,
    TriggerCheckpoint,
)
from checkpointing.identifiers import ChannelId, EdgeId, VertexId
from spec.flink.gate_cases import ItemHanded


def _delivered(effects):
    return [int(e.segment.start) for e in effects if isinstance(e, Deliver)]


@pytest.mark.parametrize("limit", [0, -2])
def test_a_limit_that_is_neither_positive_nor_minus_one_is_refused(limit):
    """The error names the field and the rule."""
    with pytest.raises(ValueError, match=r"max_alignment_bytes.*must be positive, or -1"):
        GateConfig(max_alignment_bytes=limit)


@pytest.mark.parametrize("policy", [GatePolicy.ALIGNED_BLOCKING, GatePolicy.ALIGNED_BUFFERING])
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


# ------------------------------------------------------------------
# Cases in which Flink decides differently, or that Flink does not test.


def test_with_one_open_channel_completion_drops_all_older_checkpoints_too(story, barrier, end):
    """Checkpoints 1 and 2 wait for the one open channel. Once checkpoint 3 completes there, 1 and 2 never trigger."""
    told = story(GatePolicy.AT_LEAST_ONCE, 2)
    told.put(1, barrier(1), barrier(2), end)
    told.drain()
    assert (1, 2) == told.gate.pending()
    told.put(0, barrier(3), end)
    triggered = [effect.barrier.checkpoint for effect in told.drain() if isinstance(effect, TriggerCheckpoint)]
    assert [3] == triggered
    assert () == told.gate.pending()


def test_a_cancel_aborts_a_checkpoint_that_was_only_announced(story, barrier, cancel):
    """The cancel marker comes before any barrier.

    The barrier that follows is obsolete, and does not block its channel.
    """
    told = story(GatePolicy.ALTERNATING, 2)
    told.put(0, barrier(1, timeout_ms=100), 5)
    assert (AnnouncementReceived(told.channels[0], 1),) == told.poll()[:1]
    effects = told.hand(1, cancel(1))
    assert [1] == [effect.checkpoint for effect in effects if isinstance(effect, AbortCheckpoint)]
    assert [5] == _delivered(told.drain())
    assert [] == told.blocked()


def test_an_end_before_the_first_barrier_leaves_the_timer_of_an_announced_checkpoint(story, barrier, end):
    """When the timer fires, the barrier overtakes the segments before it."""
    told = story(GatePolicy.ALTERNATING, 3)
    told.put(0, 5, 6, barrier(1, timeout_ms=100))
    told.poll()
    told.hand(1, end)
    told.gate.tell(GateTimeAdvanced(100))
    assert [(1, True)] == _triggers(told.poll())


def _triggers(effects):
    return [(e.barrier.checkpoint, e.unaligned) for e in effects if isinstance(e, TriggerCheckpoint)]


def _in_flight(effects):
    return {
        e.checkpoint: {state.channel.subtask: [int(s.start) for s in state.segments] for state in e.channels}
        for e in effects
        if isinstance(e, InFlightComplete)
    }


def test_a_newer_barrier_in_the_channel_aborts_no_unaligned_checkpoint(story, barrier):
    """Flink aborts in this case, because its channels remember one barrier.

    A savepoint follows the checkpoint at once.
    """
    told = story(GatePolicy.UNALIGNED, 2)
    told.put(0, 1, barrier(1), 2, barrier(2, alignment=AlignmentType.FORCED_ALIGNED))
    effects = told.poll()
    assert [(1, True)] == _triggers(effects)
    told.put(1, 3, barrier(1), barrier(2, alignment=AlignmentType.FORCED_ALIGNED))
    effects = told.drain()
    assert {1: {0: [1], 1: [3]}} == _in_flight(effects)
    assert [(2, False)] == _triggers(effects)
    assert [] == [effect for effect in effects if isinstance(effect, AbortCheckpoint)]
