"""Decides as a pure function how a job recovers (G1)."""

import pytest

from checkpointing.channel_items import ChannelState, SourceSlice, SubtaskSnapshot
from checkpointing.commit.fencing import HolderObserved, Refused
from checkpointing.commit.recovery import Observed, completion, decide_recovery
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation
from checkpointing.messages import RecordCut, TablePublished
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Statistics, TableRecord, VertexRecord
from checkpointing.tick.door import rolled_forward
from checkpointing.tick.messages import CutRead, ReadCut, RolledForward

CLAIM = Claim(generation=1, holder=Holder(host="h", pid=1, started="s"), first_id=1, last_id=1_000, at_ms=0, nonce="n")
DEAD = HolderObserved(alive=False, lease=None)


def row(checkpoint, tables=()):
    return CheckpointRecord(
        job="j",
        checkpoint=checkpoint,
        parent=checkpoint - 1,
        generation=1,
        nonce=f"n/{checkpoint}",
        max_parallelism=128,
        vertices=(),
        tables=tables,
        statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
    )


def decide(rows, cuts, holder=DEAD):
    return decide_recovery(Observed(3, (*rows, CLAIM), frozenset(cuts), holder, 1), take_over=False)


def test_a_committed_entry_without_a_cut_is_rolled_forward():
    """The crash came after the commit point. So the epoch is committed, and the next tick publishes it."""
    plan = decide((row(4), row(5)), {4})
    assert (5, 5) == (plan.roll_forward.checkpoint, plan.restore.checkpoint)


def test_a_live_holder_is_refused_before_anything_else():
    """A refusal plans nothing else."""
    assert isinstance(decide((row(5),), {4}, HolderObserved(alive=True, lease=None)), Refused)


def test_a_completion_names_the_position_of_every_split():
    """A split that was never read has no position. A vertex that is no source has none either (F2)."""
    subtasks = (SubtaskSnapshot(position="7"), SubtaskSnapshot(), SubtaskSnapshot(position="9"))
    vertices = (
        VertexRecord(vertex="orders", micro_batch=0, subtasks=subtasks, splits=("b", "c", "a")),
        VertexRecord(vertex="totals", micro_batch=3, subtasks=(SubtaskSnapshot(),)),
    )
    told = completion(row(4).model_copy(update={"vertices": vertices}))
    assert (4, (("orders", "b", "7"), ("orders", "a", "9"))) == (told.checkpoint, told.positions)


def flying(*slices, split="b"):
    channel = ChannelId(EdgeId("orders", "bronze"), 0)
    held = tuple(SourceSlice("orders", split, start, end, "", 1, 1) for start, end in slices)
    return SubtaskSnapshot(in_flight=(ChannelState(channel, held),))


def told_with(*snapshots, position="9"):
    source = VertexRecord(vertex="orders", micro_batch=0, subtasks=(SubtaskSnapshot(position=position),), splits=("b",))
    operator = VertexRecord(vertex="bronze", micro_batch=1, subtasks=snapshots)
    told = completion(row(4).model_copy(update={"vertices": (source, operator)}))
    return {split: at for _, split, at in told.positions}


def test_a_completion_names_a_position_before_all_slices_in_flight():
    """Their rows are stored nowhere else.

    A program that deletes input before the named position must not delete them.
    """
    assert {"b": "3"} == told_with(flying(("3", "5"), ("5", "9")))
    assert {"b": "3"} == told_with(flying(("5", "9")), flying(("3", "5"), ("5", "9")))
    assert {"b": "9"} == told_with(flying(("3", "5"), split="other"))


def test_a_completion_names_no_position_of_a_split_with_a_gap_in_flight():
    """A reset lies in between. Only the source knows which of two positions comes first."""
    assert {} == told_with(flying(("3", "5")))
    assert {} == told_with(flying(("3", "5"), ("7", "9")))
    assert {} == told_with(flying(("3", "9"), ("7", "9")))
    assert {} == told_with(flying(("3", "5")), position=None)


# ------------------------------------------------------------------
# Rolls a committed entry forward while a holder that was taken over still runs (G1).


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
