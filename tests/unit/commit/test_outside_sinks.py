"""Tests the pure functions that decide which rows of an entry outside sinks get, and which rollbacks sinks forbid."""

import math
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.at_rest import Imported, Rollback, Stamp
from checkpointing.commit.outside_sinks import beyond_recall, outside_publications, sinks_after
from checkpointing.commit.outside_transaction import (
    STEPS,
    TRIES,
    TargetDone,
    TargetHas,
    TargetLost,
    TargetRefused,
    WriteInTransaction,
    published_once,
)
from checkpointing.commit.two_phase import UnexpectedFactError
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.metadata.record import (
    Claim,
    Holder,
    RowKind,
    TableKeys,
    TableRecord,
    VertexRecord,
)
from jobs.warehouse.outside_publishing import difference
from tests.unit.full_entry import plain_entry

FILE = FileHandle("o/a/_data/1/v-1-a.parquet", 1, 1, 0)
CLAIM = Claim(generation=2, holder=Holder(host="h", pid=1, started="s"), first_id=9, last_id=99, at_ms=0, nonce="n")


def table(name, **changes):
    return TableRecord(table=name, mode=TableMode.APPEND, parent_version=1, **changes)


def row(checkpoint, *tables, kind=RowKind.CHECKPOINT, outside=("o/a",), vertices=()):
    """Return an entry with a sink for table o/a."""
    return plain_entry(
        job="j",
        kind=kind,
        checkpoint=checkpoint,
        parent=checkpoint - 1,
        nonce=f"n/{checkpoint}",
        max_parallelism=128,
        vertices=vertices,
        tables=tables,
        outside=outside,
    )


def test_a_sink_gets_what_a_checkpoint_adds_to_its_table():
    """A sink gets nothing from a table without a sink, or from a table that only loses a column."""
    entry = row(1, table("o/a", adds=(FILE,)), table("o/b", adds=(FILE,)))
    assert [("o/a", (FILE,), True)] == [
        (each.table, each.adds, each.outside) for each in outside_publications(entry, None)
    ]
    assert () == outside_publications(row(1, table("o/a", leaving=("x",))), None)


@pytest.mark.parametrize("kind", [kind for kind in RowKind if kind is not RowKind.CHECKPOINT])
def test_only_a_checkpoint_gives_a_sink_rows(kind):
    """Savepoints, rollbacks and resets give a sink no rows."""
    assert () == outside_publications(row(1, table("o/a", adds=(FILE,)), kind=kind), None)


def test_an_import_gives_a_sink_nothing():
    """The other warehouse has already published these rows."""
    imported = Imported(row(1, table("o/a", adds=(FILE,)))).row(CLAIM, Stamp(0, "n"))
    assert (RowKind.CHECKPOINT, ()) == (imported.kind, outside_publications(imported, None))


def upserting(*paths):
    keyed = (KeyedFile(replace(FILE, path=path), KeyedFileKind.BASE, 0, 9, Version(1, 0)) for path in paths)
    snapshot = SubtaskSnapshot(ranges=(RangeFiles("o/u", tuple(keyed)),))
    keys = (TableKeys(table="o/u", columns=("k",)),)
    return (VertexRecord(vertex="v", micro_batch=1, subtasks=(snapshot,), table_keys=keys),)


def paths_of(record, parent):
    return [
        (each.since, [file.path for file in each.before], [file.path for file in each.files])
        for each in outside_publications(record, parent)
    ]


def test_the_sink_of_an_upsert_table_gets_each_cut_and_what_its_parent_had():
    """The sink gets the whole table if the parent is gone, or gave the sink nothing.

    A rollback changes the sink, too.
    """
    first, bare = (row(1, vertices=upserting("a"), outside=outside) for outside in (("o/u",), ()))
    for kind in (RowKind.CHECKPOINT, RowKind.ROLLBACK):
        second = row(2, vertices=upserting("b"), outside=("o/u",), kind=kind)
        assert [(1, ["a"], ["b"])] == paths_of(second, first)
        assert [(None, [], ["b"])] == paths_of(second, None) == paths_of(second, bare)
        assert [(2, ["b"], [])] == paths_of(row(3, vertices=upserting(), outside=("o/u",)), second)


def test_the_sink_of_an_emptied_table_has_nothing_although_a_renamed_table_takes_its_name():
    """The rollback went back to before the rename.

    The next tick renames again, and reads the cut under the new names.
    """
    emptied = TableRecord(table="o/u", mode=TableMode.UPSERT, files=(), parent_version=1)
    renamed = TableRecord(table="o/u", mode=TableMode.UPSERT, files=(replace(FILE, path="a"),), parent_version=1)
    rollback = row(1, emptied, renamed, kind=RowKind.ROLLBACK, outside=("o/u",), vertices=upserting("a"))
    entry = row(2, outside=("o/u",), vertices=upserting("a", "b"))
    assert [(1, [], ["a", "b"])] == paths_of(entry, rollback)


def test_the_sinks_of_upsert_tables_follow_a_rollback_unless_they_are_left():
    """The entry of the rollback names the present sinks."""
    rows = (row(1, outside=()), row(2, vertices=upserting("a"), outside=("o/a", "o/u")))
    assert ("o/a", "o/u") == sinks_after(rows, rows[0], leave_outside=False)
    assert ("o/a",) == sinks_after(rows, rows[0], leave_outside=True)
    version = TableKeys(table="o/a", columns=("v",), mode=TableMode.OVERWRITE)
    other = row(1, vertices=(VertexRecord(vertex="w", micro_batch=1, subtasks=(), table_keys=(version,)),))
    assert ("o/a",) == sinks_after((other, rows[1]), other, leave_outside=True), "o/a was an overwrite table before"
    back = Rollback(rows[0], (), ("o/a",)).row(CLAIM, Stamp(0, "n"))
    assert ((), ("o/a",)) == (outside_publications(back, None), back.outside)


def test_a_rollback_may_not_change_what_a_sink_has():
    """A rollback may neither remove rows from a sink's table nor bring rows back. Other tables do not matter."""
    rows = (row(1, outside=()), row(2))
    for changed in ({"adds": (FILE,)}, {"removes": (FILE,)}):
        assert {"o/a"} == beyond_recall(rows, Rollback(rows[0], (table("o/a", **changed),)), None)
        assert set() == beyond_recall(rows, Rollback(rows[0], (table("o/b", **changed), table("o/a"))), None)


def test_a_rollback_may_not_leave_behind_what_a_sink_may_get():
    """Another process may still publish the pending checkpoint. A rollback to that checkpoint is allowed."""
    first, pending = row(1), row(2, table("o/a", adds=(FILE,)))
    assert {"o/a"} == beyond_recall((first, pending), Rollback(first, ()), pending)
    assert set() == beyond_recall((first, pending), Rollback(pending, ()), pending)


# ------------------------------------------------------------------
# Tests the pure function that decides in which order a process publishes into a target with transactions.


LOST, REFUSED = TargetLost("no reply"), TargetRefused("too large")


def told(checkpoint, *answers):
    """Return the steps that these answers lead to, and the result, or `...` if the process goes on."""
    steps = published_once(checkpoint)
    taken = [next(steps)]
    for answer in answers:
        try:
            taken.append(steps.send(answer))
        except StopIteration as end:
            return taken, end.value
    return taken, ...


def test_a_lost_reply_leads_back_to_the_first_look():
    """That look finds a commit that has arrived. After some tries, the process gives up and reports the reason."""
    found = told(4, TargetHas(3), TargetDone(), TargetHas(3), LOST, TargetHas(4))
    assert ([*STEPS, WriteInTransaction(3), STEPS[0]], None) == found
    assert ([STEPS[0]] * TRIES, LOST) == told(4, *[LOST] * TRIES)


def test_a_refusal_ends_it():
    """The target would refuse another try, too."""
    assert ([*STEPS[:2]], REFUSED) == told(4, TargetHas(3), REFUSED)


def test_an_answer_to_another_question_is_an_error():
    """The question is which number the target has. A confirmation is no answer to this."""
    with pytest.raises(UnexpectedFactError):
        told(4, TargetDone())


# ------------------------------------------------------------------
# Two states of an upsert table are compared: which rows a sink must write, and which keys it must delete.


KEYS = ("a", "b")
VALUES = st.tuples(
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from([0.5, math.nan]),
    st.none() | st.lists(st.none() | st.integers(0, 1), max_size=2),
)
TABLES = st.dictionaries(st.tuples(st.none() | st.integers(0, 3), st.sampled_from(["x", "y"])), VALUES, max_size=6)
SCHEMA = {"v": pl.Int64, "b": pl.String, "f": pl.Float64, "a": pl.Int64, "l": pl.List(pl.Int64)}


def frame(table):
    rows = [{"a": a, "b": b, "v": v, "f": f, "l": held} for (a, b), (v, f, held) in table.items()]
    return pl.DataFrame(rows, schema=SCHEMA) if rows else None


def changes_told(value):
    return repr(value)


@given(now=TABLES, was=TABLES)
def test_a_sink_that_writes_the_difference_has_the_table(now, was):
    """Exactly the rows that differ are written, and exactly the keys that are gone are deleted. Nulls may be keys."""
    found = difference(frame(now), frame(was), KEYS)
    gone = [tuple(row[key] for key in KEYS) for row in found.deleted.to_pylist()]
    written = {(row["a"], row["b"]): (row["v"], row["f"], row["l"]) for row in found.rows.to_pylist()}
    assert sorted(map(changes_told, was.keys() - now.keys())) == sorted(map(changes_told, gone))
    differs = {key: row for key, row in now.items() if key not in was or changes_told(was[key]) != changes_told(row)}
    assert sorted(map(changes_told, differs.items())) == sorted(map(changes_told, written.items()))


def test_rows_with_another_column_have_changed():
    """The table got a column, or a column got a wider type. A deleted key is found nevertheless."""
    now = pl.DataFrame({"a": [1, 2], "v": [1, 2]})
    for was in (pl.DataFrame({"a": [1, 3]}), now.cast(pl.Int32).with_columns(a=pl.Series([1, 3], dtype=pl.Int32))):
        found = difference(now, was, ("a",))
        assert ([1, 2], [3]) == (found.rows["a"].to_pylist(), found.deleted["a"].to_pylist())
