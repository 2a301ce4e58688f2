"""Random stories of a gate. Every segment comes out once and in order. Each checkpoint covers the right segments."""

import random

import pytest

from checkpointing.channel_items import AlignmentType, Barrier, CancelMarker, EndOfChannel
from checkpointing.gate import (
    Deliver,
    GatePolicy,
    GateTimeAdvanced,
    InFlightComplete,
    ItemArrived,
    Polled,
    TriggerCheckpoint,
)
from checkpointing.identifiers import CheckpointId

STEPS = 120


def _facts(tale, policy, seed):
    """Return facts in an order in which three upstream subtasks might send them, with polls and time between."""
    dice = random.Random(seed)  # noqa: S311 - a seeded story, no secret
    unaligned = policy in {GatePolicy.UNALIGNED, GatePolicy.ALTERNATING}
    newest = dict.fromkeys(tale.channels, 0)
    ended = set()
    facts = []
    for step in range(STEPS):
        channel = dice.choice(tale.channels)
        choice = dice.random()
        if choice < 0.45 or channel in ended:
            facts.append(Polled())
        elif choice < 0.65:
            facts.append(ItemArrived(channel, tale.segment(step)))
        elif choice < 0.9:
            newest[channel] += dice.choice((1, 1, 1, 2))
            kinds = [
                AlignmentType.ALIGNED,
                AlignmentType.FORCED_ALIGNED,
                *([AlignmentType.UNALIGNED] if unaligned else []),
            ]
            facts.append(
                ItemArrived(
                    channel, Barrier(CheckpointId(newest[channel]), step, dice.choice(kinds), dice.choice((None, 7)))
                )
            )
        elif choice < 0.95:
            newest[channel] += 1
            facts.append(ItemArrived(channel, CancelMarker(CheckpointId(newest[channel]))))
        elif choice < 0.96:
            ended.add(channel)
            facts.append(ItemArrived(channel, EndOfChannel()))
        else:
            facts.append(GateTimeAdvanced(step))
    return facts


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("policy", GatePolicy)
def test_every_segment_is_delivered_once_and_in_its_channels_order(story, policy, seed):
    """Whatever barriers, cancels and timers do, no segment is lost, doubled, or overtaken by another of its channel."""
    tale = story(policy, channels=3, max_alignment_bytes=60)
    arrived = {channel: [] for channel in tale.channels}
    delivered = {channel: [] for channel in tale.channels}
    facts = _facts(tale, policy, seed)
    ended = {f.channel for f in facts if isinstance(f, ItemArrived) and isinstance(f.item, EndOfChannel)}
    for fact in facts:
        if isinstance(fact, ItemArrived) and hasattr(fact.item, "start"):
            arrived[fact.channel].append(fact.item.start)
        for effect in tale.gate.step(fact):
            if hasattr(effect, "segment"):
                delivered[effect.channel].append(effect.segment.start)
    last = Barrier(CheckpointId(10_000), STEPS, AlignmentType.FORCED_ALIGNED)
    for channel in [c for c in tale.channels if c not in ended]:
        tale.gate.step(ItemArrived(channel, last))
    for effect in tale.drain():
        if hasattr(effect, "segment"):
            delivered[effect.channel].append(effect.segment.start)
    assert arrived == delivered
    assert [] == tale.blocked()


def _before_barrier(facts, channel, checkpoint):
    before = []
    for item in (f.item for f in facts if isinstance(f, ItemArrived) and f.channel == channel):
        if isinstance(item, Barrier) and item.checkpoint == checkpoint:
            break
        if hasattr(item, "start"):
            before.append(item.start)
    return before


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("policy", [p for p in GatePolicy if p is not GatePolicy.AT_LEAST_ONCE])
def test_a_checkpoint_covers_exactly_the_segments_before_its_barriers(story, policy, seed):
    """At the trigger, the delivered segments and those in flight are exactly those that came before the barriers."""
    tale = story(policy, channels=3)
    facts = _facts(tale, policy, seed)
    covered = {}
    delivered = {channel: [] for channel in tale.channels}
    for effect in [effect for fact in facts for effect in tale.gate.step(fact)] + tale.drain():
        match effect:
            case Deliver(channel, segment):
                delivered[channel].append(segment.start)
            case TriggerCheckpoint(barrier, unaligned):
                covered[barrier.checkpoint] = {channel: list(starts) for channel, starts in delivered.items()}
                if not unaligned:
                    _assert_covers(facts, barrier.checkpoint, covered.pop(barrier.checkpoint))
            case InFlightComplete(checkpoint, states):
                cut = covered.pop(checkpoint)
                for state in states:
                    cut[state.channel] += [segment.start for segment in state.segments]
                _assert_covers(facts, checkpoint, cut)


def _assert_covers(facts, checkpoint, cut):
    assert {channel: _before_barrier(facts, channel, checkpoint) for channel in cut} == cut
