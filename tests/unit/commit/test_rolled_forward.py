"""Rolls a committed entry forward while a holder that was taken over still runs (G1)."""

import pytest

from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import RecordCut, TablePublished
from checkpointing.metadata.record import CheckpointRecord, Statistics, TableRecord
from checkpointing.tick.door import rolled_forward
from checkpointing.tick.messages import CutRead, ReadCut, RolledForward

RECORD = CheckpointRecord(
    job="small",
    checkpoint=CheckpointId(2),
    parent=CheckpointId(1),
    generation=Generation(1),
    nonce="n",
    max_parallelism=1,
    vertices=(),
    tables=(TableRecord(table="out/a", mode="append", parent_version=6),),
    statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
)


def test_a_cut_that_the_earlier_holder_recorded_counts():
    """The earlier holder has recorded it and dropped the parent's cut. The parent's versions would be too old."""
    steps = rolled_forward(RECORD, ())
    assert ReadCut(1) == next(steps)
    assert ReadCut(2) == steps.send(CutRead({}))
    versions = {"out/a": 7, "out/b": 3}
    assert RolledForward(RECORD, tuple(versions.items()), ()) == steps.send(CutRead(versions))
    assert [] == list(steps)


def test_a_cut_that_is_not_recorded_follows_from_its_parents():
    """The tables are published. The cut has their new versions, and the other versions of the parent's cut."""
    steps = rolled_forward(RECORD, ())
    next(steps)
    steps.send(CutRead({"out/a": 6, "out/b": 3}))
    assert 2 == steps.send(CutRead({})).checkpoint
    cut = steps.send(TablePublished(CheckpointId(2), "out/a", 7))
    assert RecordCut(CheckpointId(2), (("out/a", 7), ("out/b", 3))) == cut


@pytest.mark.parametrize(
    ("mode", "parent_version", "parent", "expected"),
    [
        ("upsert", 6, {"out/b": 3}, True),
        ("state", 6, {"out/b": 3}, True),
        ("append", 6, {"out/b": 3}, False),
        ("upsert", 0, {"out/b": 3}, False),
        ("upsert", 6, {"out/a": 6}, False),
        ("upsert", 6, {}, False),
    ],
)
def test_a_table_that_left_the_parents_cut_keeps_no_other_columns(mode, parent_version, parent, expected):
    """It had lost log entries, so nobody knows its columns. A new table is not in the parent's cut either."""
    table = TableRecord(table="out/a", mode=mode, parent_version=parent_version)
    steps = rolled_forward(RECORD.model_copy(update={"tables": (table,)}), ())
    next(steps)
    steps.send(CutRead(parent))
    assert expected == steps.send(CutRead({})).publication.no_others
