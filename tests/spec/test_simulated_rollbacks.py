"""The simulator with rollbacks between its ticks: many seeds, and what they meet."""

import pytest

from checkpointing.metadata.record import RowKind
from spec.history import RowCommitted
from spec.moves import Moves, drawn
from spec.rollback import Line
from spec.simulator import simulate as run

SEEDS = 60
SHARES = 6


@pytest.mark.matrix
@pytest.mark.parametrize("share", range(SHARES))
def test_every_seed_keeps_every_invariant_when_the_job_is_taken_back(share):
    """To any row that is there, abandoned savepoints too, by somebody who may die over it: every cut stays exact."""
    seeds = range(share, SEEDS, SHARES)
    outcomes = {seed: run(seed, moves=drawn(seed, savepoints_max=3, rollbacks_max=2)) for seed in seeds}
    assert {} == {seed: outcome.violations for seed, outcome in outcomes.items() if outcome.violations}


def test_the_seeds_meet_every_kind_of_rollback():
    """Back to checkpoints, rollbacks and savepoints; behind savepoints, which stay; to one of those again."""
    met, due = set(), {RowKind.CHECKPOINT, RowKind.ROLLBACK, RowKind.SAVEPOINT, "left", "again", "gone"}
    for seed in range(400):
        if due <= met:
            break
        events = run(seed, moves=drawn(seed, savepoints_max=3, rollbacks_max=2)).history.events
        line = Line()
        for commit in (event for event in events if isinstance(event, RowCommitted)):
            turn = line.turn(commit.record)
            if turn is not None:
                met |= {line.there[commit.record.parent].kind, *(("left",) if turn.abandoned else ())}
                met |= {*(("again",) if turn.adopted else ()), *(("gone",) if turn.dropped else ())}
            line.take(commit.record, commit.kept)
    assert due <= met


def test_a_merge_of_what_a_dead_rollback_has_still_to_take_out_is_no_finding():
    """A neighbour compacted a table between the rollback's row and its publication, which the product refuses."""
    assert () == run(531, moves=Moves(savepoints_max=3, rollbacks_max=1, resets_max=2)).violations


def test_a_tick_that_was_overtaken_before_it_began_is_no_finding():
    """Another one claimed the job between its claim and its door: it began from what was newest to it."""
    assert () == run(609, moves=Moves(savepoints_max=3, rollbacks_max=2)).violations
