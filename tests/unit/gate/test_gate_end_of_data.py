"""The end of data of a drain on its way through a gate. It is in order like a segment, and no barrier depends on it."""

import pytest

from checkpointing.channel_items import AlignmentType, EndOfData
from checkpointing.gate import BlockChannel, Deliver, DeliverEndOfData, GatePolicy, InFlightComplete, TriggerCheckpoint

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
