"""Simulates power cuts and tables that lose log entries, with many seeds, and counts what the seeds meet."""

from collections import Counter

import pytest

from spec.mishap_events import CutsSeen, PowerLost
from spec.mishaps import Mishaps
from spec.moves import Moves, drawn
from spec.simulator import simulate as run

SEEDS = 240
SHARES = 6
OFTEN = Mishaps(power_cuts_max=1, losses_max=2)


@pytest.mark.matrix
@pytest.mark.parametrize("share", range(SHARES))
def test_every_seed_keeps_every_invariant_after_power_cuts_and_lost_log_entries(share):
    """A power cut comes in any tick, and any table loses log entries between two ticks. Every cut stays as it was."""
    seeds = range(share, SEEDS, SHARES)
    outcomes = {
        seed: run(seed, moves=drawn(seed, savepoints_max=seed % 3, rollbacks_max=seed % 2, mishaps=OFTEN))
        for seed in seeds
    }
    assert {} == {seed: outcome.violations for seed, outcome in outcomes.items() if outcome.violations}


def test_the_seeds_meet_power_cuts_and_lost_log_entries():
    """Some starts find lost log entries, and publish them again or ask for a backup."""
    told: Counter[str] = Counter()

    def narrate(line):
        told.update(word for word in ("POWER CUT", "lost its newest") if word in line)

    events = [
        event for seed in range(120) for event in run(seed, narrate, moves=drawn(seed, mishaps=OFTEN)).history.events
    ]
    assert min(told["POWER CUT"], told["lost its newest"]) > 5
    assert {CutsSeen, PowerLost} <= {type(event) for event in events}


@pytest.mark.parametrize("seed", [10, 104, 173, 548, 563])
def test_bugs_that_the_simulator_found_stay_repaired(seed):
    """A committed entry with a subsumed parent, a rollback to a savepoint, a table that no retained entry changes."""
    mishaps = Mishaps(1, seed % 3)
    asked = {"savepoints_max": 3 * (seed % 2), "rollbacks_max": (seed // 2) % 3}
    assert () == run(seed, moves=Moves(mishaps=mishaps, **asked)).violations


def test_a_restart_recognises_an_older_claim_of_its_own():
    """The tick's release is lost, and the list lacks its newest claim. So it ends with an older one of the tick."""
    lists = {"stores_fail": True, "lists_lag": True, "leases": True}
    assert () == run(497, moves=drawn(497, restarts=True, **lists)).violations
