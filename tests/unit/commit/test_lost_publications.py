"""Tests how tables catch up that show less than a recorded cut. Entries, cuts and logs alone decide this."""

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.lost_publications import (
    Entry,
    LogSeen,
    Standing,
    Wanted,
    corrected,
    decide_repairs,
    in_doubt,
    rebuilt,
)
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.metadata.record import TableKeys, TableRecord, VertexRecord
from tests.unit.full_entry import plain_entry

T = "o/t"


def row(checkpoint, parent=None, *, names=True, parent_version=None, mode=TableMode.APPEND, **more):
    """Return a committed entry. It changes the table if `names` is true."""
    before = checkpoint - 1 if parent_version is None else parent_version
    file = FileHandle(f"{T}/{checkpoint}", 1, 1, 0)
    adds, files = ((file,), ()) if mode is TableMode.APPEND else ((), (file,))
    table = TableRecord(table=T, mode=mode, adds=adds, files=files, parent_version=before)
    return plain_entry(
        job="j",
        checkpoint=checkpoint,
        parent=checkpoint - 1 if parent is None else parent,
        nonce=f"n/{checkpoint}",
        max_parallelism=128,
        tables=(table,) if names else (),
        **more,
    )


def log(version, shows, **published):
    """Return the content of a log. `v3=2` is a log entry of version 3 that published checkpoint 2."""
    return LogSeen(version, shows, {int(name[1:]): Entry(checkpoint) for name, checkpoint in published.items()})


def seen(rows, cuts, of_table):
    """Return the state that was found. A cut is given as the version of the table."""
    return Standing("j", tuple(rows), {checkpoint: {T: version} for checkpoint, version in cuts.items()}, {T: of_table})


def again(facts):
    repairs = decide_repairs(facts)
    return None if repairs.lost else [each.checkpoint for each in repairs.again]


ROWS = (row(3), row(4), row(5))
CUTS = {3: 3, 4: 4, 5: 5}
WHOLE = {"v1": 1, "v2": 2, "v3": 3, "v4": 4, "v5": 5}


def shortened(to):
    return log(to, to, **{name: each for name, each in WHOLE.items() if each <= to})


@pytest.mark.parametrize(("to", "expected"), [(4, [5]), (3, [4, 5]), (2, [3, 4, 5]), (1, None), (0, None)])
def test_an_append_table_needs_every_entry_since_the_one_that_it_shows(to, expected):
    """The known entries reach back to the parent of the oldest retained entry. Older entries are unknown."""
    facts = seen(ROWS, CUTS, shortened(to))
    assert {T} == in_doubt(facts)
    assert expected == again(facts)


def test_an_entry_that_found_the_table_empty_needs_no_older_one():
    """The entry's parent and the parent's cut are gone. The entry itself lists that the table was at version 0."""
    rows = (row(2, parent_version=0), row(3, parent_version=1))
    assert [2, 3] == again(seen(rows, {2: 1, 3: 2}, log(0, 0)))


def test_a_parent_whose_cut_was_corrected_to_an_empty_table_needs_no_older_entry():
    """Entry 5 found the table at version 3. Later its parent's cut was corrected, so that the table is at version 0."""
    rows = (row(5, parent_version=3),)
    assert [5] == again(seen(rows, {4: 0, 5: 6}, log(0, 0)))
    assert None is again(seen(rows, {4: 3, 5: 6}, log(0, 0)))


def test_a_pending_entry_brings_back_an_upsert_table_that_it_does_not_change():
    """The entry names all files of the table, so these are published for its parent's cut.

    No other entry is retained.
    """
    file = KeyedFile(FileHandle(f"{T}/2", 1, 1, 0), KeyedFileKind.BASE, 0, 127, Version(1, 2))
    keys = TableKeys(table=T, columns=("key",), mode=TableMode.UPSERT)
    snapshot = SubtaskSnapshot(ranges=(RangeFiles(T, (file,)),))
    vertex = VertexRecord(vertex="v", micro_batch=0, subtasks=(snapshot,), table_keys=(keys,))
    pending = row(5, names=False).model_copy(update={"vertices": (vertex,)})
    (found,) = decide_repairs(seen([pending], {4: 2}, shortened(1))).again
    assert (4, (f"{T}/2",)) == (found.checkpoint, tuple(each.path for each in found.publication.files))


EMPTY, FILLED = log(0, 0), log(3, 3, v3=3)


@pytest.mark.parametrize(
    ("still", "newest_cut", "rebuilt_at"), [(EMPTY, None, 0), (FILLED, None, None), (FILLED, {T: 5, "o/still": 3}, 3)]
)
def test_a_lost_cut_has_a_table_that_no_entry_names_if_it_is_empty_or_a_newer_cut_tells(still, newest_cut, rebuilt_at):
    """Otherwise the table's version is unknown, and no cut is rebuilt."""
    facts = Standing("j", ROWS[1:], {5: newest_cut} if newest_cut else {}, {T: shortened(5), "o/still": still})
    found = rebuilt(facts, (T, "o/still"))
    due = (None, "o/still") if rebuilt_at is None else ({T: 4, "o/still": rebuilt_at}, None)
    assert due == (found.cuts.get(4), found.unknown)


def test_cuts_get_the_versions_at_which_the_tables_show_them_now():
    """An empty log entry stays at version 4. So checkpoints 4 and 5 are at versions 5 and 6 now."""
    facts = seen(ROWS, CUTS, log(4, 3, v1=1, v2=2, v3=3))
    done = corrected(facts, {T: {1: 1, 2: 2, 3: 3, 4: 5, 5: 6}})
    assert ({4: {T: 5}, 5: {T: 6}}, ()) == (done.changed, done.dropped)


def test_a_cut_of_an_unknown_version_is_dropped_unless_the_next_entry_continues_from_it():
    """Cut 3 does not change."""
    facts = seen(ROWS, CUTS, log(4, 3, v1=1, v2=2, v3=3))
    for published, changed, dropped in (({5: 6}, {5: {T: 6}}, (4,)), ({4: 5}, {4: {T: 5}, 5: {}}, ())):
        done = corrected(facts, {T: published})
        assert (changed, dropped) == (done.changed, done.dropped)


def test_the_oldest_entry_that_a_log_has_must_have_published_the_cut():
    """Only older log entries were dropped regularly. A cut at such a version is believed without its log entry."""
    of_others = LogSeen(6, 6, {5: Entry(4), 6: Entry(6)}, oldest=5)
    assert not of_others.is_as_published(5, Wanted(5, until=5))
    assert of_others.is_as_published(4, Wanted(4, until=4))
