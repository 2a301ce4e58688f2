"""Simulates releases of the pipeline with other columns, and rollbacks between them (D6)."""

from dataclasses import replace

import pytest

from checkpointing.metadata.record import RowKind
from spec.columns import wrongly_said, wrongly_shown
from spec.history import ColumnMissed, CutWritten, RowCommitted
from spec.moves import Moves, drawn
from spec.names import wrongly_renamed
from spec.pipeline import RENAMED_VALUE, is_renamed
from spec.simulator import simulate as run

SEEDS = 60
SHARES = 6


@pytest.mark.matrix
@pytest.mark.parametrize("share", range(SHARES))
def test_every_seed_keeps_every_invariant_when_the_columns_change(share):
    """Releases come and go, with crashes, zombies and rollbacks. Each cut shows the columns of its entry."""
    seeds = range(share, SEEDS, SHARES)
    outcomes = {seed: run(seed, moves=drawn(seed, savepoints_max=3, rollbacks_max=2, releases=True)) for seed in seeds}
    assert {} == {seed: outcome.violations for seed, outcome in outcomes.items() if outcome.violations}


def test_the_seeds_meet_columns_that_come_go_and_return():
    """Otherwise the invariants would judge nothing. Columns come and go in turn, and rollbacks go back to fewer."""
    met = set()
    for seed in (*range(30, 50), 88):
        shown = {}
        for event in run(seed, moves=Moves(rollbacks_max=2, releases=True)).history.events:
            if isinstance(event, RowCommitted):
                for each in event.record.columns:
                    names = {column.name for column in each.columns}
                    before = shown.get(each.table, names)
                    back = event.record.kind is RowKind.ROLLBACK
                    met |= {("back" if back else "on", "more")} if names - before else set()
                    met |= {("back" if back else "on", "fewer")} if before - names else set()
                    shown[each.table] = names
    assert {("on", "more"), ("on", "fewer"), ("back", "fewer")} <= met


def test_the_seeds_meet_renames_rolled_back_and_tables_that_return():
    """Otherwise the rule of names would judge nothing.

    Tables are renamed both ways, by rollbacks too, and to used names.
    """
    met, renames = set(), {(how, now) for how in ("renamed", "rolled back", "again") for now in (False, True)}
    for seed in range(400):
        if renames <= met:
            break
        names, before = set(), None
        for event in run(seed, moves=Moves(rollbacks_max=2, releases=True)).history.events:
            if isinstance(event, RowCommitted) and event.record.commits:
                now = is_renamed(event.record)
                if before is not None and now != before:
                    back = event.record.kind is RowKind.ROLLBACK
                    met |= {("rolled back" if back else "renamed", now), ("again" if now in names else "first", now)}
                names.add(now)
                before = now
    assert renames <= met


def test_the_seeds_meet_columns_renamed_both_ways():
    """Otherwise the rule of names would judge no column. Releases and rollbacks rename columns, both ways."""
    met, renames = set(), {(how, now) for how in ("on", "back") for now in (False, True)}
    for seed in range(40, 400):
        if renames <= met:
            break
        before = None
        for event in run(seed, moves=Moves(rollbacks_max=2, releases=True)).history.events:
            if isinstance(event, RowCommitted) and event.record.commits:
                names = {column.name for each in event.record.columns for column in each.columns}
                now = RENAMED_VALUE in names
                if before is not None and now != before:
                    met.add(("back" if event.record.kind is RowKind.ROLLBACK else "on", now))
                before = now
    assert renames <= met


def test_a_file_whose_renamed_column_was_not_found_is_told():
    """The judge finds one such reading in a healthy history."""
    history = run(0, moves=Moves(releases=True)).history
    assert [] == [*wrongly_renamed(history)]
    history.add(ColumnMissed("_tidemark/small/state/totals/a", "line"))
    (said,) = wrongly_renamed(history)
    assert "has the column line under another name" in said


def test_a_cut_with_columns_of_no_entry_is_found():
    """The judge finds it if a cut has one column less, and if the entries that list columns are missing."""
    history = run(0, moves=Moves(releases=True)).history
    assert [] == [*wrongly_shown(history), *wrongly_said(history)]
    place, cut = next((n, event) for n, event in enumerate(history.events) if isinstance(event, CutWritten))
    columns = tuple((table, names - {"row"}) for table, names in cut.columns)
    narrower = CutWritten(cut.checkpoint, cut.versions, cut.active, columns)
    history = replace(history, events=[*history.events[:place], narrower, *history.events[place + 1 :]])
    assert any("whose row says" in what for what in wrongly_shown(history))


def test_columns_of_an_entry_that_is_not_committed_are_found():
    """A table with more columns than the committed entries have shows a checkpoint that does not exist."""
    history = next(each for seed in range(20) if _growing(each := run(seed, moves=Moves(releases=True)).history))
    history.events.remove(_growing(history))
    assert any("no row says them" in what for what in wrongly_shown(history))


def _growing(history):
    """Return the first entry that adds a column to a table, and is published later."""
    said = {}
    for event in history.events:
        for each in event.record.columns if isinstance(event, RowCommitted) else ():
            names = {column.name for column in each.columns}
            if names - said.get(each.table, names) and event.record.commits:
                return event
            said.setdefault(each.table, set()).update(names)
    return None
