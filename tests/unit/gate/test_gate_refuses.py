"""A gate refuses items that it cannot handle. The error names them, and the gate is unchanged."""

import pytest

from checkpointing.channel_items import AlignmentType, EndOfChannel
from checkpointing.gate import GatePolicy, GateProtocolError, ItemArrived, Polled
from checkpointing.identifiers import ChannelId, EdgeId, VertexId
from spec.flink.gate import GateClosed, ItemHanded

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
