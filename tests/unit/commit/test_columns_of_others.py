"""Which rollbacks are refused because nobody knows under which name files of others have a column (D6, G2)."""

import pytest

from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit.columns import renamed_back, unclear_back
from checkpointing.identifiers import CheckpointId, TableName

TABLE = TableName("bronze/kept")


def column(name, after=0, first=""):
    """Return a column of whole numbers."""
    return TableColumn(name, "long", CheckpointId(after), first)


def refused(now, then, dropped=(), held=()):
    """Return why a rollback between these columns is refused, or None. Files of others have the columns `held`."""
    listed, back = TableColumns(TABLE, tuple(now), dropped), tuple(then)
    return unclear_back(listed.columns, back, renamed_back(listed.columns, back, None, TABLE), listed, held)


@pytest.mark.parametrize(
    ("now", "then", "dropped"),
    [
        ([column("a")], [column("a")], ()),
        ([column("b", first="a")], [column("a")], ()),
        ([column("a"), column("c", 5)], [column("a"), column("c", 3)], ()),
        ([column("a")], [column("a"), column("b")], ("B",)),
        ([column("a")], [column("a"), column("b", 3)], ()),
    ],
)
def test_a_rollback_is_clear(now, then, dropped):
    """A column has the same name, its old one, the name with which it began again, or that of the dropped one."""
    assert refused(now, then, dropped) is None


@pytest.mark.parametrize(
    ("now", "then", "dropped", "why"),
    [
        ([column("b", first="a"), column("a", 4)], [column("a")], (), "a was renamed to b, and another column has"),
        ([column("b", 4)], [column("b", first="a")], (), "b was another column then, which began as a"),
        ([column("a", 4)], [column("a")], ("c",), "a may have had another name when it was dropped (c)"),
        ([column("x")], [column("x"), column("b", first="a")], ("a",), "b may have had another name when it was drop"),
    ],
)
def test_a_rollback_is_refused(now, then, dropped, why):
    """The name belongs to another column, or a dropped column may be the one that is wanted."""
    assert why in (refused(now, then, dropped) or "")


def test_a_column_that_came_since_is_not_taken_for_one_that_was_dropped():
    """The newest entry tells under which name the column was dropped. It cannot tell that of a line that was left."""
    now, then = [column("a"), column("d", 4)], [column("a"), column("b", 1)]
    assert refused(now, then, ("b",), ["a", "d"]) is None
    assert "b may have another name there (d)" in (refused(now, then, (), ["a", "d"]) or "")


@pytest.mark.parametrize(
    ("then", "dropped", "held", "why"),
    [
        ([column("a"), column("b", 1)], (), ["a", "c"], "b may have another name there (c)"),
        ([column("a"), column("b", 1)], (), ["a", "b"], None),
        ([column("a")], (), ["a", "c"], None),
        ([column("a"), column("b"), column("c")], ("b", "c"), ["a", "b", "c"], "another name there (b, c)"),
        ([column("a"), column("b"), column("c")], ("b", "c"), ["a"], None),
        ([column("a"), column("b")], ("b",), ["a", "b"], None),
    ],
)
def test_a_column_that_is_gone_may_have_another_name_in_files_of_others(then, dropped, held, why):
    """It was renamed on a line that was left, or one of several columns that were dropped."""
    found = refused([column("a")], then, dropped, held)
    assert found is None if why is None else why in (found or "")


def test_a_table_that_the_newest_entry_lacks_is_judged_by_its_names_alone():
    """Its log tells no more of its columns."""
    now, then = (column("b"),), (column("b", first="a"),)
    assert unclear_back(now, then, (), None) is None
