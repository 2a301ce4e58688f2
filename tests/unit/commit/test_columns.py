"""Tests pure functions on a table's columns: what a rollback removes, and what the next cut has."""

import pytest

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns, in_another_order, renamed_between
from checkpointing.commit.columns import (
    appended_columns,
    due_renames_of_columns,
    leaving_back,
    renamed_back,
    table_changes,
    unclear_back,
    unknown_drop,
)
from checkpointing.commit.net_files import net_tables
from checkpointing.commit.recovery import publications
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId
from checkpointing.metadata.record import Statistics, TableRecord, VertexRecord
from tests.unit.full_entry import plain_entry

GOLD = "o/gold"


def columns(*names):
    return tuple(TableColumn(name, "long") for name in names)


def waiting(*names, table=GOLD):
    """Return a committed entry that is not published yet, and that removes these columns from a table."""
    leaves = TableRecord(table=table, mode=TableMode.UPSERT, leaving=names, parent_version=1)
    statistics = Statistics(triggered_ms=0, committed_ms=0, rows=0)
    return plain_entry(job="j", checkpoint=2, parent=1, max_parallelism=4, tables=(leaves,), statistics=statistics)


@pytest.mark.parametrize(
    ("shown", "then", "pending", "lost"),
    [
        (columns("k", "new"), columns("k"), None, ("new",)),
        (columns("k"), columns("k"), waiting("old"), ("old",)),
        (columns("k", "new"), columns("k"), waiting("old", "new"), ("new", "old")),
        (columns("k", "new"), columns("k", "old"), waiting("old"), ("new",)),
        (columns("k"), columns("k"), waiting("old", table="o/silver"), ()),
        (None, columns("k"), waiting("old"), ("old",)),
        (columns("k", "new"), None, waiting("old"), ()),
    ],
)
def test_a_rollback_takes_away_what_the_entry_that_it_leaves_would_have_taken_away(shown, then, pending, lost):
    """The table may still show its columns from before the pending entry. So both sets are removed, each name once."""
    assert lost == leaving_back(shown, then, pending, GOLD)


# ------------------------------------------------------------------
# The columns of an append table at the next cut: kept, renamed, dropped, reordered (D6, G2).


NAME, KEPT, PARENT = TableName("bronze/t"), VertexId("kept"), CheckpointId(4)


def of(*names, after=0, first=""):
    return tuple(TableColumn(name, "long", CheckpointId(after), first) for name in names)


def table(*names, drops=(), in_order=False):
    return Table(NAME, TableMode.APPEND, columns=of(*names), drops=drops, in_order=in_order)


def at_next(declared, was, renamed=None):
    now = appended_columns(declared, TableColumns(NAME, was), PARENT, renamed or {})
    return [column.name for column in now.columns], now.dropped


@pytest.mark.parametrize(
    ("declared", "renamed", "names", "dropped"),
    [
        (table("a", "b"), {}, ["a", "b"], ()),
        (table("a", "c"), {}, ["a", "b", "c"], ()),
        (table("a", "c"), {"c": "b"}, ["a", "c"], ()),
        (table("a", drops=("b",)), {}, ["a"], ("b",)),
        (table("a", drops=("x",)), {}, ["a", "b"], ()),
        (table("b", "a"), {}, ["a", "b"], ()),
        (table("b", "a", in_order=True), {}, ["b", "a"], ()),
        (table("c", "b", in_order=True), {}, ["c", "b", "a"], ()),
        (table("c", drops=("a",), in_order=True), {"c": "b"}, ["c"], ("a",)),
    ],
)
def test_the_columns_of_the_next_cut(declared, renamed, names, dropped):
    """Only columns that the pipeline declares change. The others stay in their places, and new columns come last."""
    assert (names, dropped) == at_next(declared, of("a", "b"), renamed)


def test_what_two_cuts_call_the_same_column():
    """A new column under an old name is another column."""
    was, now = of("a", "k"), (*of("b", first="a"), *of("a", after=4), *of("k"))
    assert (("b", "a"),) == renamed_between(was, now)
    assert (("a", "b"),) == renamed_between(now, was)
    assert () == renamed_between(was, of("a", "k", "n"))
    assert in_another_order(of("a", "b"), of("b", "a"))
    assert not in_another_order(of("a", "b", "c"), (*of("a"), *of("c"), *of("x")))


# ------------------------------------------------------------------ entries


def graph(declared, renamed=None):
    return JobGraph((Vertex(KEPT, VertexKind.STATELESS, 1, (declared,), columns_renamed_from=renamed or {}),), ())


def entry(columns, dropped=()):
    """Return a checkpoint at which the table has these columns."""
    return plain_entry(
        job="job", checkpoint=PARENT, parent=CheckpointId(3), columns=(TableColumns(NAME, columns, dropped),)
    )


def test_an_entry_says_what_its_publication_renames():
    """The checkpoint here adds no row. Files that are written again get the generation of the entry."""
    declared, was = table("c", "a", in_order=True), entry(of("a", "b"))
    now = appended_columns(declared, was.columns[0], PARENT, {"c": "b"})
    vertices = {KEPT: VertexRecord(vertex=KEPT, micro_batch=0, subtasks=(SubtaskSnapshot(),))}
    (record,) = net_tables(graph(declared), vertices, was, {}, (now,))
    assert ((("c", "b"),), ("b",), True) == (record.renamed, record.leaving, record.in_order)
    (published,) = publications(was.model_copy(update={"tables": (record,), "columns": (now,)}))
    assert ((("c", "b"),), Generation(1)) == (published.renamed, published.generation)


def test_a_tick_knows_before_its_first_epoch_what_it_renames():
    """A rename that a cut already shows is not due any more."""
    assert {NAME: (("c", "b"),)} == due_renames_of_columns(graph(table("a", "c"), {"c": "b"}), entry(of("a", "b")))
    assert {} == due_renames_of_columns(graph(table("a", "c"), {"c": "b"}), entry(of("a", "c")))
    assert {} == due_renames_of_columns(graph(table("a", "c"), {"c": "b"}), None)


def changes(declared, was, renamed=None):
    found = table_changes(graph(declared, renamed), was)
    return [(each.column, each.becomes.partition(".")[0], bool(each.refused)) for each in found]


def test_each_change_is_told_before_it_happens():
    """A change that is refused has the reason in `refused`."""
    was = entry(of("a", "b"), ("gone",))
    assert [("c", "renamed, with its values", False)] == changes(table("a", "c"), was, {"c": "b"})
    assert [("b", "dropped", False)] == changes(table("a", drops=("b",)), was)
    assert [("b", "stays, null in new rows", False)] == changes(table("a"), was)
    assert ("Gone", "", True) in changes(table("a", "b", "Gone"), was)
    assert ("x", "", True) in changes(table("a", drops=("x",)), was)


# ------------------------------------------------------------------
# Rollbacks that are refused, because it is unknown under which name the files of other programs have a column (D6, G2).


TABLE = TableName("bronze/kept")


def column(name, after=0, first=""):
    return TableColumn(name, "long", CheckpointId(after), first)


def refused(now, then, dropped=(), held=()):
    """Return why a rollback between these columns is refused, or None.

    Other programs' files have the columns `held`.
    """
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
    """Each column of the old cut is known by its name, by its new name, or by the name of a dropped column."""
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
    """The name belongs to another column, or the wanted column may have been dropped under another name."""
    assert why in (refused(now, then, dropped) or "")


def test_a_column_that_came_since_is_not_taken_for_one_that_was_dropped():
    """The newest entry lists under which name a column was dropped, but not if that was on an abandoned line."""
    now, then = [column("a"), column("d", 4)], [column("a"), column("b", 1)]
    assert refused(now, then, ("b",), ["a", "d"]) is None
    assert "b may have another name there (d)" in (refused(now, then, (), ["a", "d"]) or "")


def test_a_drop_of_a_column_that_never_was():
    """Such a drop is unclear only if it may mean another column."""
    was = TableColumns(NAME, of("a", "b"), ("old",))
    assert ("x", "b") == unknown_drop(table("a", drops=("x",)), was)
    assert unknown_drop(table("a", "b", drops=("x",)), was) is None
    assert unknown_drop(table("a", drops=("old", "b")), was) is None
