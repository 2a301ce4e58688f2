"""Decides, from entries, cuts and logs alone, how tables catch up that show less than a recorded cut says."""

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.columns import TableColumns
from checkpointing.commit.lost_publications import (
    Entry,
    LogSeen,
    Reference,
    Standing,
    corrected,
    decide_repairs,
    in_doubt,
    known_tables,
    lacks_cuts,
    rebuilt,
    reference,
)
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.metadata.record import (
    CheckpointRecord,
    RowKind,
    Statistics,
    TableKeys,
    TableRecord,
    VertexRecord,
)

T = "o/t"


def row(checkpoint, parent=None, *, names=True, parent_version=None, mode=TableMode.APPEND, **more):
    """Return a committed entry that changes the table, or does not."""
    before = checkpoint - 1 if parent_version is None else parent_version
    file = FileHandle(f"{T}/{checkpoint}", 1, 1, 0)
    adds, files = ((file,), ()) if mode is TableMode.APPEND else ((), (file,))
    table = TableRecord(table=T, mode=mode, adds=adds, files=files, parent_version=before)
    return CheckpointRecord(
        job="j",
        checkpoint=checkpoint,
        parent=checkpoint - 1 if parent is None else parent,
        generation=1,
        nonce=f"n/{checkpoint}",
        max_parallelism=128,
        vertices=(),
        tables=(table,) if names else (),
        statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
        **more,
    )


def log(version, shows, **published):
    """Return what a log says. `v3=2` is a log entry of version 3 that published checkpoint 2."""
    return LogSeen(version, shows, {int(name[1:]): Entry(checkpoint) for name, checkpoint in published.items()})


def seen(rows, cuts, of_table):
    """Return the facts. A cut is given as the table's version."""
    return Standing("j", tuple(rows), {checkpoint: {T: version} for checkpoint, version in cuts.items()}, {T: of_table})


def again(facts):
    """Return the checkpoints to publish again, or None if the table is lost."""
    repairs = decide_repairs(facts)
    return None if repairs.lost else [each.checkpoint for each in repairs.again]


ROWS = (row(3), row(4), row(5))
CUTS = {3: 3, 4: 4, 5: 5}
WHOLE = {"v1": 1, "v2": 2, "v3": 3, "v4": 4, "v5": 5}


def shortened(to):
    """Return the log with its entries up to that version."""
    return log(to, to, **{name: each for name, each in WHOLE.items() if each <= to})


def test_a_log_that_agrees_with_the_cuts_needs_nothing():
    """Nothing is published again."""
    assert frozenset() == in_doubt(seen(ROWS, CUTS, shortened(5)))


@pytest.mark.parametrize(("to", "expected"), [(4, [5]), (3, [4, 5]), (2, [3, 4, 5]), (1, None), (0, None)])
def test_an_append_table_needs_every_entry_since_the_one_that_it_shows(to, expected):
    """They reach back to the parent of the oldest retained entry. Older ones are unknown."""
    facts = seen(ROWS, CUTS, shortened(to))
    assert {T} == in_doubt(facts)
    assert expected == again(facts)


def test_with_all_entries_even_a_table_without_a_log_comes_back():
    """The first entry has no parent."""
    rows = (row(1), row(2))
    assert [1, 2] == again(seen(rows, {1: 1, 2: 2}, LogSeen(None)))


def test_an_untouched_parent_is_no_gap():
    """Entry 5 is the oldest retained one. It says at which version it found the table: the one that shows 2."""
    rows = (row(5, parent_version=2),)
    assert [5] == again(seen(rows, {5: 3}, log(2, 2, v1=1, v2=2)))
    assert None is again(seen(rows, {5: 3}, log(1, 1, v1=1)))


def test_an_entry_that_found_the_table_empty_needs_no_older_one():
    """The entry before it, and that entry's cut, are gone. The entry itself says that the table was at version 0."""
    rows = (row(2, parent_version=0), row(3, parent_version=1))
    assert [2, 3] == again(seen(rows, {2: 1, 3: 2}, log(0, 0)))


def test_a_parent_whose_cut_was_corrected_to_an_empty_table_needs_no_older_entry():
    """Entry 5 found the table at version 3. Later its parent's cut was corrected: there, the table is at version 0."""
    rows = (row(5, parent_version=3),)
    assert [5] == again(seen(rows, {4: 0, 5: 6}, log(0, 0)))
    assert None is again(seen(rows, {4: 3, 5: 6}, log(0, 0)))


def test_a_version_number_that_was_used_again_proves_nothing():
    """The log entry at version 2 was published again, so it is not the version that entry 5 found."""
    rows = (row(5, parent_version=2),)
    seen_log = LogSeen(2, 2, {1: Entry(1), 2: Entry(2, again=True)})
    assert None is again(seen(rows, {5: 3}, seen_log))


def test_a_hole_before_a_newer_publication_is_lost():
    """An older checkpoint cannot be published after a newer one."""
    lost = decide_repairs(seen(ROWS, CUTS, log(5, 5, v3=3, v5=5))).lost
    assert [(T, 5, 5, 4)] == [(each.table, each.shows, each.cut, each.lacks) for each in lost]


def test_a_table_does_not_lack_the_entry_that_it_shows():
    """Its log has dropped the entry in order, and the cut with its version is lost. What the table shows is enough."""
    dropped = LogSeen(version=5, shows=4, published={}, oldest=5)
    assert [5] == again(seen((row(4), row(5, parent_version=5)), {5: 6}, dropped))


def test_a_repair_that_died_is_gone_on_with():
    """It has published the newest entry again, at another version than the cut names. Only the cut is corrected."""
    facts = seen(ROWS, {3: 3, 4: 4, 5: 6}, shortened(5))
    assert {T} == in_doubt(facts)
    assert [] == again(facts)


def test_an_upsert_table_needs_only_the_newest_entries():
    """Each entry names all its files, so a gap before them does not matter."""
    rows = [row(each, mode=TableMode.UPSERT) for each in (3, 4, 5)]
    assert [3, 4, 5] == again(seen(rows, CUTS, log(0, 0)))
    assert [] == again(seen(rows, CUTS, log(5, 5, v3=3, v5=5)))


def test_an_upsert_table_that_comes_back_has_only_the_columns_of_its_entry():
    """The entry that removed a column may be subsumed.

    An append table comes back entry by entry, and keeps other columns.
    """
    for mode, expected in ((TableMode.UPSERT, [True]), (TableMode.STATE, [True]), (TableMode.APPEND, [False])):
        facts = seen([row(5, mode=mode)], {5: 5}, shortened(4))
        assert expected == [each.publication.no_others for each in decide_repairs(facts).again]


def test_a_foreign_log_entry_at_the_version_of_a_cut_does_not_count():
    """Somebody restored an older backup and appended to it. The table has the version of the cut, but other content."""
    facts = seen(ROWS, CUTS, log(5, 3, v1=1, v2=2, v3=3))
    assert {T} == in_doubt(facts)
    assert [4, 5] == again(facts)


def test_a_table_that_no_retained_entry_changes_is_lost_with_its_version():
    """No entry says what it held."""
    facts = seen([row(5, names=False)], {5: 2}, log(1, 1, v1=1))
    assert {T} == in_doubt(facts)
    assert None is again(facts)


def test_a_rollback_is_published_again_only_onto_the_cut_that_it_left():
    """It removes files from that cut, which is not retained. Onto its target it changes nothing."""
    back = row(9, parent=3, parent_version=5, kind=RowKind.ROLLBACK)
    assert [9] == again(seen([row(3), back], {3: 3, 9: 6}, log(5, 5, v3=3, v4=4, v5=5)))
    assert [9] == again(seen([row(3), back], {3: 3, 9: 6}, log(3, 3, v3=3)))
    assert None is again(seen([row(3), back], {3: 3, 9: 6}, log(4, 4, v3=3, v4=4)))


def test_a_pending_entry_is_left_to_the_roll_forward():
    """Its cut is not recorded, so no table need show it."""
    assert frozenset() == in_doubt(seen(ROWS, {3: 3, 4: 4}, shortened(4)))


def test_a_pending_entry_refers_to_its_parents_cut():
    """The parent may be subsumed. Without its cut, nothing tells what the tables must show."""
    pending = row(5)
    assert Reference(4, (), pending) == reference(seen([pending], {4: 4}, shortened(4)))
    assert None is reference(seen([pending], {3: 3}, shortened(4)))


def test_a_pending_entry_brings_back_an_upsert_table_that_it_does_not_change():
    """It names all files of the table, so they are published at its parent's cut. No other entry is retained."""
    file = KeyedFile(FileHandle(f"{T}/2", 1, 1, 0), KeyedFileKind.BASE, 0, 127, Version(1, 2))
    keys = TableKeys(table=T, columns=("key",), mode=TableMode.UPSERT)
    snapshot = SubtaskSnapshot(ranges=(RangeFiles(T, (file,)),))
    vertex = VertexRecord(vertex="v", micro_batch=0, subtasks=(snapshot,), table_keys=(keys,))
    pending = row(5, names=False).model_copy(update={"vertices": (vertex,)})
    (found,) = decide_repairs(seen([pending], {4: 2}, shortened(1))).again
    assert (4, (f"{T}/2",)) == (found.checkpoint, tuple(each.path for each in found.publication.files))


def test_cuts_get_the_versions_at_which_the_tables_show_them_now():
    """An empty log entry stays at version 4. Checkpoints 4 and 5 are at versions 5 and 6 now."""
    facts = seen(ROWS, CUTS, log(4, 3, v1=1, v2=2, v3=3))
    done = corrected(facts, {T: {1: 1, 2: 2, 3: 3, 4: 5, 5: 6}})
    assert ({4: {T: 5}, 5: {T: 6}}, ()) == (done.changed, done.dropped)


def test_the_cut_that_a_pending_entry_continues_from_is_never_dropped():
    """Only the unknown version leaves it. Entry 5 is committed and not published yet, so it needs its parent's cut."""
    done = corrected(seen(ROWS, {3: 3, 4: 4}, log(3, 3, v3=3)), {T: {3: 3}})
    assert ({4: {}}, ()) == (done.changed, done.dropped)
    done = corrected(seen(ROWS, CUTS, log(3, 3, v3=3)), {T: {3: 3, 5: 4}})
    assert ({5: {T: 4}}, (4,)) == (done.changed, done.dropped)


# ------------------------------------------------------------------
# Rebuilds a lost cut if entries and logs prove it. A cut is never guessed.


QUIET = "o/quiet"
LOG = LogSeen(5, 5, {each: Entry(each) for each in (1, 2, 3, 4, 5)})


SHOWN = LogSeen(2, 2, {2: Entry(2)})


def seen_of_cut_rebuilding(rows, cuts, quiet=SHOWN):
    """Return the facts. Every cut has the quiet table at version 2, and no entry changes it."""
    whole = {checkpoint: {T: version, QUIET: 2} for checkpoint, version in cuts.items()}
    return Standing("j", tuple(rows), whole, {T: LOG, QUIET: quiet})


def test_only_an_entry_that_is_not_published_yet_may_have_no_cut():
    """Its parent's cut exists. Any other entry without a cut has lost it."""
    assert not lacks_cuts(seen_of_cut_rebuilding(ROWS, {3: 3, 4: 4, 5: 5}))
    assert not lacks_cuts(seen_of_cut_rebuilding(ROWS, {3: 3, 4: 4}))
    assert lacks_cuts(seen_of_cut_rebuilding(ROWS, {3: 3, 5: 5}))
    assert lacks_cuts(seen_of_cut_rebuilding(ROWS, {3: 3}))
    assert lacks_cuts(seen_of_cut_rebuilding((row(5),), {}))


def test_an_older_cut_is_rebuilt_from_the_entry_that_builds_on_it():
    """The tables that the later entry changes had the versions that it names.

    The others were as at the later entry's cut.
    """
    assert {4: {T: 4, QUIET: 2}, 3: {T: 3, QUIET: 2}} == rebuilt(seen_of_cut_rebuilding(ROWS, {5: 5}), (T, QUIET)).cuts


def test_a_rollback_says_nothing_about_the_entry_that_it_went_back_to():
    """It names the version of the cut that it left."""
    back = row(9, parent=4, parent_version=5, kind=RowKind.ROLLBACK)
    assert {} == rebuilt(seen_of_cut_rebuilding((row(4), back), {9: 6}), (T, QUIET)).cuts


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


def test_one_log_that_contradicts_is_enough():
    """The quiet table fits, the other one does not. A cut with half of its tables is none."""
    log = LogSeen(6, 5, {1: Entry(1), 2: Entry(2), 3: Entry(3), 5: Entry(4, again=True), 6: Entry(5, again=True)})
    facts = Standing("j", ROWS, {5: {T: 6, QUIET: 2}}, {T: log, QUIET: SHOWN})
    assert {} == rebuilt(facts, (T, QUIET)).cuts
