"""A lost cut is told again from rows and logs where they prove it, and never guessed."""

from checkpointing.commit.behind import Entry, LogSeen, Standing
from checkpointing.commit.cut_rebuilding import lacks_cuts, rebuilt
from checkpointing.metadata.record import RowKind
from tests.unit.commit.test_behind import T, row

QUIET = "o/quiet"
ROWS = (row(3), row(4), row(5))
LOG = LogSeen(5, 5, {each: Entry(each) for each in (1, 2, 3, 4, 5)})


SHOWN = LogSeen(2, 2, {2: Entry(2)})


def seen(rows, cuts, quiet=SHOWN):
    """Return the facts; every cut has the quiet table, which no row changes, at version 2."""
    whole = {checkpoint: {T: version, QUIET: 2} for checkpoint, version in cuts.items()}
    return Standing("j", tuple(rows), whole, {T: LOG, QUIET: quiet})


def test_only_a_row_that_is_yet_to_be_published_may_have_no_cut():
    """Its parent's cut is there; any other row without a cut has lost it."""
    assert not lacks_cuts(seen(ROWS, {3: 3, 4: 4, 5: 5}))
    assert not lacks_cuts(seen(ROWS, {3: 3, 4: 4}))
    assert lacks_cuts(seen(ROWS, {3: 3, 5: 5}))
    assert lacks_cuts(seen(ROWS, {3: 3}))
    assert lacks_cuts(seen((row(5),), {}))


def test_an_older_cut_is_rebuilt_from_the_entry_that_builds_on_it():
    """What that row changes was at the version that it says; the rest is where it is at that row's cut."""
    assert {4: {T: 4, QUIET: 2}, 3: {T: 3, QUIET: 2}} == rebuilt(seen(ROWS, {5: 5}), (T, QUIET)).cuts


def test_a_rollback_tells_nothing_of_the_row_that_it_went_back_to():
    """The version that it says is the one of the cut that it left."""
    back = row(9, parent=4, parent_version=5, kind=RowKind.ROLLBACK)
    assert {} == rebuilt(seen((row(4), back), {9: 6}), (T, QUIET)).cuts


def test_the_newest_cut_is_rebuilt_from_the_log_entries_that_published_it():
    """Every table is changed by a retained row; the older cuts follow."""
    facts = Standing("j", ROWS, {}, {T: LOG})
    assert {3: {T: 3}, 4: {T: 4}, 5: {T: 5}} == rebuilt(facts, (T,)).cuts


def test_a_table_that_no_retained_row_changes_is_not_guessed():
    """Its log may have lost its newest entries too: the newest cut is refused, naming it."""
    assert QUIET == rebuilt(seen(ROWS, {}), (T, QUIET)).unknown
    untouched = seen(ROWS, {}, LogSeen(0, 0, {}))
    assert {T: 5, QUIET: 0} == rebuilt(untouched, (T, QUIET)).cuts[5]


def test_a_log_that_contradicts_a_row_tells_nothing():
    """Version 4 was published for another checkpoint, so the row's word is stale."""
    log = LogSeen(6, 5, {1: Entry(1), 2: Entry(2), 3: Entry(3), 5: Entry(4, again=True), 6: Entry(5, again=True)})
    facts = Standing("j", ROWS, {5: {T: 6}}, {T: log})
    assert {} == rebuilt(facts, (T,)).cuts
