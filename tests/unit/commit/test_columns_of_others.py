"""Which rollbacks are refused because nobody knows under which name files of others have a column (D6, G2)."""

import pytest

from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit.columns import renamed_back, unclear_back
from checkpointing.identifiers import CheckpointId, TableName

TABLE = TableName("bronze/kept")


def column(name, after=0, first=""):
    """Return a column of whole numbers."""
    return TableColumn(name, "long", CheckpointId(after), first)


def refused(now, then, dropped=()):
    """Return why a rollback between these columns is refused, or None."""
    listed = TableColumns(TABLE, tuple(now), dropped)
    return unclear_back(listed.columns, tuple(then), renamed_back(listed.columns, tuple(then), None, TABLE), listed)


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


def test_a_table_that_the_newest_entry_lacks_is_judged_by_its_names_alone():
    """Its log tells no more of its columns."""
    now, then = (column("b"),), (column("b", first="a"),)
    assert unclear_back(now, then, (), None) is None
