"""Decides which entries a rollback drops, abandons, or brings back to the line. The functions are pure."""

import pytest

from checkpointing.commit.fencing import Turn, disposed_with, newest_checkpoint, restorable, turn_back
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics


def row(checkpoint, parent, *, generation=1, **fields):
    """Return an entry without vertices and tables."""
    return CheckpointRecord(
        job="job",
        checkpoint=CheckpointId(checkpoint),
        parent=CheckpointId(parent),
        generation=Generation(generation),
        nonce=f"n{checkpoint}",
        max_parallelism=4,
        vertices=(),
        tables=(),
        statistics=Statistics(triggered_ms=1, committed_ms=2, rows=3),
        **fields,
    )


STRAIGHT = (row(1, 0), row(2, 1), row(4, 2), row(5, 4))
PLAIN = {"kind": RowKind.SAVEPOINT, "pinned": True}


def test_later_entries_are_dropped():
    """No earlier entry is."""
    turn = turn_back(STRAIGHT, STRAIGHT[1])
    assert ((4, 5), (), ()) == (turn.dropped, turn.abandoned, turn.adopted)
    assert Turn((), (), ()) == turn_back(STRAIGHT, STRAIGHT[-1])


@pytest.mark.parametrize(
    ("savepoint", "abandoned", "dropped"), [(row(3, 2, **PLAIN), (), (4, 5)), (row(6, 5, **PLAIN), (5, 6), (4,))]
)
def test_a_plain_savepoint_goes_with_the_cut_that_it_was_taken_after(savepoint, abandoned, dropped):
    """A savepoint of the target cut stays as it was, although its id is higher. Another one keeps its cut's entry."""
    turn = turn_back((*STRAIGHT, savepoint), STRAIGHT[1])
    assert (abandoned, dropped) == (turn.abandoned, turn.dropped)


def test_a_cut_without_its_savepoint_goes():
    """Disposal drops an abandoned checkpoint on which no other savepoint stands, and none that is on the line."""
    left, plain = row(5, 4, abandoned=True), row(6, 5, abandoned=True, **PLAIN)
    other = row(7, 5, abandoned=True, **PLAIN)
    rollback = row(8, 2, kind=RowKind.ROLLBACK)
    assert (6, 5) == disposed_with(plain, (left, plain, rollback))
    assert (6,) == disposed_with(plain, (left, plain, other, rollback))
    assert (6,) == disposed_with(row(6, 2, **PLAIN), (STRAIGHT[1], row(6, 2, **PLAIN), rollback))
    assert (6,) == disposed_with(plain, (left.model_copy(update={"pinned": True}), plain, rollback))


def test_going_back_to_a_plain_savepoint_drops_checkpoints_after_its_parent():
    """A checkpoint with a lower id may have committed after the savepoint."""
    savepoint = row(4, 1, **PLAIN)
    rows = (row(1, 0), savepoint, row(3, 1), row(5, 3))
    assert ((3, 5), ()) == (turn_back(rows, savepoint).dropped, turn_back(rows, savepoint).adopted)


def test_a_pinned_entry_is_abandoned_and_brought_back():
    """It is marked, then unmarked. The other line is dropped from the point where the two part."""
    stop = row(4, 2, pinned=True)
    assert Turn((5,), (4,), ()) == turn_back((row(1, 0), row(2, 1), stop, row(5, 4)), row(2, 1))
    left = stop.model_copy(update={"abandoned": True})
    rows = (row(1, 0), row(2, 1), left, row(6, 2, kind=RowKind.ROLLBACK), row(7, 6))
    turn = turn_back(rows, left)
    assert ((6, 7), (), (4,)) == (turn.dropped, turn.abandoned, turn.adopted)
    assert {4: False} == turn.marks


def test_a_plain_savepoint_is_brought_back_with_its_cut():
    """It was abandoned with the pinned entry whose cut it has, and with another one that stays abandoned."""
    stop, later = row(4, 2, pinned=True, abandoned=True), row(6, 4, pinned=True, abandoned=True)
    plain = (row(5, 4, abandoned=True, **PLAIN), row(7, 6, abandoned=True, **PLAIN))
    rows = (row(1, 0), row(2, 1), stop, later, *plain, row(8, 2, kind=RowKind.ROLLBACK))
    assert (4, 5) == turn_back(rows, stop).adopted
    assert (4, 5, 6, 7) == turn_back(rows, later).adopted


def test_the_last_known_parent_says_where_the_lines_part():
    """The entries between were dropped long ago."""
    left = row(9, 8, pinned=True, abandoned=True)
    rows = (row(2, 1), left, row(20, 2, kind=RowKind.ROLLBACK), row(21, 20))
    assert ((20, 21), (9,)) == (turn_back(rows, left).dropped, turn_back(rows, left).adopted)


def test_the_order_of_the_entries_says_which_is_newest():
    """A rollback counts. An abandoned entry and a plain savepoint do not, whatever their ids."""
    rollback = row(8, 2, generation=3, kind=RowKind.ROLLBACK)
    rows = (row(9, 8, generation=4, **PLAIN), rollback, row(2, 1), row(7, 2, generation=2, pinned=True, abandoned=True))
    assert rollback == newest_checkpoint(rows) == newest_checkpoint(rows[::-1])
    assert [9, 8, 2] == [each.checkpoint for each in restorable(rows)]
