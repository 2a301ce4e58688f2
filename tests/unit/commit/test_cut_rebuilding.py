"""Rebuilds a lost cut if entries and logs prove it. A cut is never guessed."""

from checkpointing.columns import TableColumns
from checkpointing.commit.lost_publications import (
    Entry,
    LogSeen,
    Standing,
    decide_repairs,
    known_tables,
    lacks_cuts,
    rebuilt,
)
from checkpointing.graph import TableMode
from checkpointing.metadata.record import RowKind
from tests.unit.commit.test_behind import T, row

QUIET = "o/quiet"
ROWS = (row(3), row(4), row(5))
LOG = LogSeen(5, 5, {each: Entry(each) for each in (1, 2, 3, 4, 5)})


SHOWN = LogSeen(2, 2, {2: Entry(2)})


def seen(rows, cuts, quiet=SHOWN):
    """Return the facts. Every cut has the quiet table at version 2, and no entry changes it."""
    whole = {checkpoint: {T: version, QUIET: 2} for checkpoint, version in cuts.items()}
    return Standing("j", tuple(rows), whole, {T: LOG, QUIET: quiet})


def test_only_an_entry_that_is_not_published_yet_may_have_no_cut():
    """Its parent's cut exists. Any other entry without a cut has lost it."""
    assert not lacks_cuts(seen(ROWS, {3: 3, 4: 4, 5: 5}))
    assert not lacks_cuts(seen(ROWS, {3: 3, 4: 4}))
    assert lacks_cuts(seen(ROWS, {3: 3, 5: 5}))
    assert lacks_cuts(seen(ROWS, {3: 3}))
    assert lacks_cuts(seen((row(5),), {}))


def test_an_older_cut_is_rebuilt_from_the_entry_that_builds_on_it():
    """The tables that the later entry changes had the versions that it names.

    The others were as at the later entry's cut.
    """
    assert {4: {T: 4, QUIET: 2}, 3: {T: 3, QUIET: 2}} == rebuilt(seen(ROWS, {5: 5}), (T, QUIET)).cuts


def test_a_rollback_says_nothing_about_the_entry_that_it_went_back_to():
    """It names the version of the cut that it left."""
    back = row(9, parent=4, parent_version=5, kind=RowKind.ROLLBACK)
    assert {} == rebuilt(seen((row(4), back), {9: 6}), (T, QUIET)).cuts


def test_the_newest_cut_is_rebuilt_from_the_log_entries_that_published_it():
    """A retained entry changes every table. The older cuts follow from it."""
    facts = Standing("j", ROWS, {}, {T: LOG})
    assert {3: {T: 3}, 4: {T: 4}, 5: {T: 5}} == rebuilt(facts, (T,)).cuts


def test_a_table_that_no_retained_entry_changes_is_not_guessed():
    """Its log may have lost its newest entries too. So the newest cut is refused, and the message names the table."""
    assert QUIET == rebuilt(seen(ROWS, {}), (T, QUIET)).unknown
    untouched = seen(ROWS, {}, LogSeen(0, 0, {}))
    assert {T: 5, QUIET: 0} == rebuilt(untouched, (T, QUIET)).cuts[5]


def test_a_log_that_contradicts_an_entry_proves_nothing():
    """Version 4 was published for another checkpoint, so the entry's word no longer counts."""
    log = LogSeen(6, 5, {1: Entry(1), 2: Entry(2), 3: Entry(3), 5: Entry(4, again=True), 6: Entry(5, again=True)})
    facts = Standing("j", ROWS, {5: {T: 6}}, {T: log})
    assert {} == rebuilt(facts, (T,)).cuts


def test_a_log_with_a_hole_does_not_hide_what_it_lacks():
    """A newer publication lies behind the hole. With the rebuilt cut, the table is in doubt, and found to be lost."""
    for log, cuts in (
        (LogSeen(5, 5, {3: Entry(3), 5: Entry(5)}), {4: {T: 4}, 3: {T: 3}}),
        (LogSeen(5, 5, {3: Entry(3), 4: Entry(4), 5: Entry(5)}), {4: {T: 4}, 3: {T: 3}}),
        (LogSeen(3, 3, {3: Entry(3)}), {}),
    ):
        facts = Standing("j", ROWS, {5: {T: 5}}, {T: log})
        assert cuts == rebuilt(facts, (T,)).cuts
    holed = Standing("j", ROWS, {3: {T: 3}, 4: {T: 4}, 5: {T: 5}}, {T: LogSeen(5, 5, {3: Entry(3), 5: Entry(5)})})
    assert [(T, 4)] == [(each.table, each.lacks) for each in decide_repairs(holed).lost]


def test_a_log_with_a_hole_counts_whatever_else_is_damaged():
    """The quiet table's log has lost its newest entry too. This entry may come back. The one in the hole cannot."""
    holed = LogSeen(5, 5, {3: Entry(3), 5: Entry(5)})
    for quiet in (SHOWN, LogSeen(1, 1, {1: Entry(1)})):
        facts = Standing("j", ROWS, {5: {T: 5, QUIET: 2}}, {T: holed, QUIET: quiet})
        assert {T: 4, QUIET: 2} == rebuilt(facts, (T, QUIET)).cuts[4]


def test_a_table_that_comes_back_whole_has_no_hole():
    """The newest entry of an upsert table names all its files, so its log need not have the older ones."""
    rows = [row(each, mode=TableMode.UPSERT) for each in (3, 4, 5)]
    facts = Standing("j", tuple(rows), {5: {T: 5}}, {T: LogSeen(5, 5, {3: Entry(3), 5: Entry(5)})})
    assert {} == rebuilt(facts, (T,)).cuts


def test_a_table_whose_log_was_not_read_is_unknown():
    """No retained entry changes it, and no cut names it. Its version is not guessed, and it is not left out."""
    facts = Standing("j", ROWS, {}, {T: LOG})
    assert QUIET == rebuilt(facts, (T, QUIET)).unknown


def test_the_newest_entry_names_tables_that_no_cut_names_any_more():
    """All cuts are lost. The entry's columns tell that the quiet table was at its cut too."""
    said = (TableColumns(QUIET, ()),)
    facts = Standing("j", (row(4), row(5, columns=said)), {}, {T: LOG})
    assert (QUIET, T) == known_tables(facts)
    assert QUIET == rebuilt(facts, known_tables(facts)).unknown


def test_a_table_without_a_log_is_at_version_0_in_older_cuts_too():
    """Its log cannot contradict that, because there is none."""
    facts = Standing("j", ROWS, {5: {T: 5, QUIET: 0}}, {T: LOG})
    assert {4: {T: 4, QUIET: 0}, 3: {T: 3, QUIET: 0}} == rebuilt(facts, (T, QUIET)).cuts


def test_one_log_that_contradicts_is_enough():
    """The quiet table fits, the other one does not. A cut with half of its tables is none."""
    log = LogSeen(6, 5, {1: Entry(1), 2: Entry(2), 3: Entry(3), 5: Entry(4, again=True), 6: Entry(5, again=True)})
    facts = Standing("j", ROWS, {5: {T: 6, QUIET: 2}}, {T: log, QUIET: SHOWN})
    assert {} == rebuilt(facts, (T, QUIET)).cuts
