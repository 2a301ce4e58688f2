"""The rule `pauses` judges when a tick tries again after its checkpoint has failed."""

from dataclasses import replace

import pytest

from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import LookForRival, NotifyAborted, RivalSeen, TimeAdvanced
from spec.at_doors import badly_driven
from spec.moves import NO_MOVES
from spec.simulator import simulate

SEED = 6
"""Its ticks have no interval and no quota, so all checkpoints are their own."""


def with_a_failure(history, later_ms):
    """Let the first checkpoint of the last tick fail before it has begun, and let so much time pass."""
    generation, (begun, *others) = list(history.steps.items())[-1]
    first, now_ms = begun.told.setup.claim.first_id, begun.told.now_ms
    expired = NotifyAborted(first, CheckpointFailureReason.CHECKPOINT_EXPIRED, "slow")
    fails = replace(begun, told=TimeAdvanced(now_ms), effects=(expired, LookForRival(generation)))
    nobody = replace(begun, told=RivalSeen(None), effects=())
    later = replace(begun, told=TimeAdvanced(now_ms + later_ms), effects=())
    return replace(history, steps={**history.steps, generation: [begun, fails, nobody, later, *others]})


@pytest.mark.parametrize(("later_ms", "is_wrong"), [(0, True), (999, True), (1_000, False)])
def test_a_tick_waits_a_second_after_its_first_failure(later_ms, is_wrong):
    """A checkpoint that begins before the pause is over breaks the rule, and a later one does not."""
    history = with_a_failure(simulate(SEED, moves=NO_MOVES).history, later_ms)
    found = [what for what in badly_driven(history, "pauses") if "before the pause" in what]
    assert is_wrong == bool(found)


def test_a_tick_that_could_try_again_does():
    """Nothing moves any more, and the pause is over. No checkpoint begins, and the tick does not end."""
    history = simulate(SEED, moves=NO_MOVES).history
    generation, (begun, *others, last) = list(history.steps.items())[-1]
    expired = NotifyAborted(begun.told.setup.claim.first_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "slow")
    at_ms = max(step.told.now_ms for step in others if isinstance(step.told, TimeAdvanced))
    fails = replace(last, effects=(expired,))
    later = replace(last, told=TimeAdvanced(at_ms + 1_500), effects=())
    steps = {**history.steps, generation: [begun, *others, fails, later, replace(last, told=later.told)]}
    assert not list(badly_driven(history, "pauses"))
    (found,) = badly_driven(replace(history, steps=steps), "pauses")
    assert "no checkpoint begins" in found
