"""Broadcast state in the simulator: every subtask holds all of it, and its invariants can fail."""

import pytest

from spec.moves import drawn
from spec.simulator import simulate
from tests.spec.entries_falsified import FALSIFIED_BROADCASTS
from tests.spec.test_invariants import falsified


@pytest.mark.parametrize("name", FALSIFIED_BROADCASTS)
def test_each_invariant_of_broadcast_state_can_fail_alone(name):
    """This history has a vertex with broadcast state, at more than one subtask."""
    assert {name} == falsified(FALSIFIED_BROADCASTS[name], 3, broadcasts=True)


@pytest.mark.parametrize("seed", [287, 491, 616, 1289])
def test_broadcast_state_goes_back_with_a_rollback_and_moves_with_its_vertex(seed):
    """Crashes, renames, rollbacks and other parallelisms change nothing of what the subtasks hold."""
    assert () == simulate(seed, moves=drawn(seed, broadcasts=True)).violations
