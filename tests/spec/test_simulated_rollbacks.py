"""Simulates rollbacks between ticks, with many seeds, and counts what the seeds meet."""

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
def test_every_seed_keeps_every_invariant_after_rollbacks(share):
    """Rollbacks go to any entry, abandoned savepoints included, and may die half-way. Every cut stays exact."""
    seeds = range(share, SEEDS, SHARES)
    outcomes = {seed: run(seed, moves=drawn(seed, savepoints_max=3, rollbacks_max=2)) for seed in seeds}
    assert {} == {seed: outcome.violations for seed, outcome in outcomes.items() if outcome.violations}


def test_the_seeds_meet_every_kind_of_rollback():
    """They go back to checkpoints, rollbacks and savepoints, past savepoints that stay, and then to one of these."""
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


def test_a_merge_of_files_that_a_dead_rollback_must_still_remove_is_no_finding():
    """Another program compacts a table between the rollback's entry and its publication.

    The product refuses to publish then.
    """
    assert () == run(531, moves=Moves(savepoints_max=3, rollbacks_max=1, resets_max=2)).violations


def test_a_tick_that_was_overtaken_before_it_began_is_no_finding():
    """Another tick claimed the job between its claim and its door. It began from the newest entry that it knew."""
    assert () == run(609, moves=Moves(savepoints_max=3, rollbacks_max=2)).violations
