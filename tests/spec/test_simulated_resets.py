"""Simulates resets between ticks, with many seeds, and counts what the seeds meet."""

import pytest

from checkpointing.metadata.record import RowKind
from spec.cut_contents import in_flight, positions
from spec.history import CutWritten, JobClaimed, RowCommitted
from spec.moves import Moves, drawn
from spec.simulator import simulate as run

SEEDS = 120
SHARES = 6
SEEDS_OF_ALL_KINDS = (*range(43), 64, 77)
"""With today's draw, seed 64 resets a source with rows in flight, and seed 77 resets one after a rollback."""


@pytest.mark.matrix
@pytest.mark.parametrize("share", range(SHARES))
def test_every_seed_keeps_every_invariant_after_resets(share):
    """Resets go back or forth and may die half-way. They follow rollbacks and savepoints too. Every cut stays exact."""
    seeds = range(share, SEEDS, SHARES)
    outcomes = {seed: run(seed, moves=drawn(seed, savepoints_max=3, rollbacks_max=1, resets_max=2)) for seed in seeds}
    assert {} == {seed: outcome.violations for seed, outcome in outcomes.items() if outcome.violations}


def test_the_seeds_meet_every_kind_of_reset():
    """Resets go back and forth, from cuts with rows in flight, from rollbacks, stops and resets.

    Some die after their entry.
    """
    met = set()
    for seed in SEEDS_OF_ALL_KINDS:
        events = run(seed, moves=Moves(savepoints_max=3, rollbacks_max=1, resets_max=2)).history.events
        rows = {event.record.checkpoint: event.record for event in events if isinstance(event, RowCommitted)}
        for place, event in enumerate(events):
            if isinstance(event, RowCommitted) and event.record.kind is RowKind.RESET:
                met |= set(kinds(rows[event.record.parent], event.record))
                later = next((each for each in events[place:] if isinstance(each, JobClaimed | CutWritten)), None)
                met |= {"died"} if isinstance(later, JobClaimed) else set()
    assert {RowKind.CHECKPOINT, RowKind.ROLLBACK, RowKind.RESET, "stop", "back", "forth", "died", "in flight"} == met


def kinds(parent, row):
    before, after = positions(parent), positions(row)
    yield parent.kind
    yield from ("stop",) * parent.pinned
    yield from ("in flight",) * any(in_flight(parent))
    yield from ("back" if after[split] < before[split] else "forth" for split in after if after[split] != before[split])
