"""Judges single histories of outside sinks: a rollback to an entry that has an upsert table under another name."""

from types import SimpleNamespace

import pytest

from checkpointing.graph import TableMode
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics, TableRecord
from spec.history import CutWritten, RowCommitted, TableChanged
from spec.outside import before_its_tables, left_inside, wrongly_outside
from spec.outside_events import OutsidePublished
from spec.rollback import no_way_back

EMPTIED = TableRecord(table="gold/totals", mode=TableMode.UPSERT, parent_version=1)
BACK = CheckpointRecord(
    job="small",
    kind=RowKind.ROLLBACK,
    checkpoint=9,
    parent=3,
    generation=1,
    nonce="n/9",
    max_parallelism=4,
    vertices=(),
    tables=(EMPTIED,),
    outside=("gold/totals",),
    statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
)


@pytest.mark.parametrize(
    ("shown", "wrong", "left"), [((), False, False), (("a",), True, False), (None, False, True)], ids=repr
)
def test_a_rollback_that_empties_a_table_empties_its_sink(shown, wrong, left):
    """The rules want an empty target before the cut. Seed 560 with `holds` and `imports` met it."""
    told = () if shown is None else (OutsidePublished(9, "gold/totals", shown),)
    history = SimpleNamespace(without_flow=[RowCommitted(BACK, (3, 9)), *told, CutWritten(9, (), ())])
    assert (wrong, left) == (bool([*wrongly_outside(history)]), bool([*left_inside(history)]))


@pytest.mark.parametrize(("kept", "wrong"), [((3, 9), False), ((9,), True)], ids=str)
def test_the_entry_before_an_unpublished_one_stays(kept, wrong):
    """Without it, nobody could go back from an entry that a sink never takes."""
    history = SimpleNamespace(baseline=(3,), pinned=(), without_flow=[RowCommitted(BACK, kept)])
    assert wrong == bool([*no_way_back(history)])


@pytest.mark.parametrize("first", ["table", "sink"])
def test_a_sink_gets_an_entry_after_its_tables(first):
    """A table that refuses the entry afterwards would leave rows in the sink that no table shows."""
    shown = TableChanged(9, Publication(table="gold/totals", mode=TableMode.UPSERT), 2, frozenset())
    both = [shown, OutsidePublished(9, "gold/totals", ())]
    events = [RowCommitted(BACK, (3, 9)), *(both if first == "table" else reversed(both))]
    assert (first == "sink") == bool([*before_its_tables(SimpleNamespace(without_flow=events))])
