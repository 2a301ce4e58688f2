"""Held cuts in the simulator: ticks hold them, people approve and reject them, and their invariants can fail."""

import pytest

from spec.moves import drawn
from spec.simulator import simulate
from tests.spec.held_falsified import FALSIFIED_HELD, end_an_approval_before_it_has_published
from tests.spec.test_invariants import falsified


@pytest.mark.parametrize("name", FALSIFIED_HELD)
def test_each_invariant_of_held_cuts_can_fail_alone(name):
    """This history has cuts that people approved, and one that they rejected."""
    assert {name} == falsified(FALSIFIED_HELD[name], 12, holds=True, clean_ups_max=1)


def test_an_approval_that_ends_before_it_has_published_is_found():
    """In this history, nobody rejects a cut."""
    assert {"published-at-once"} == falsified(end_an_approval_before_it_has_published, 5, holds=True, clean_ups_max=1)


@pytest.mark.parametrize("seed", [9, 10, 238, 535])
def test_people_settle_held_cuts_beside_everything_else(seed):
    """Crashes, rivals, other visitors and failing stores change nothing of what a held cut promises."""
    assert () == simulate(seed, moves=drawn(seed, holds=True)).violations
