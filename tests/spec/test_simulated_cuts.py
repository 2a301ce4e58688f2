"""Simulates jobs that read the cuts of another job. At each entry they stand at one cut (A10)."""

from spec.moves import Moves
from spec.simulator import simulate
from spec.upstream import CutReached

SEEDS = range(12)


def test_jobs_stand_at_one_cut_of_their_upstream_job():
    """This holds under all faults, with savepoints, rollbacks and changing splits. The jobs really reach cuts."""
    reached = 0
    for seed in SEEDS:
        moves = Moves(savepoints_max=3, rollbacks_max=1, splits=True, declines=True, cuts=True)
        outcome = simulate(seed, moves=moves)
        assert () == outcome.violations, seed
        reached += sum(isinstance(event, CutReached) for event in outcome.history.events)
    assert reached > len(SEEDS)
