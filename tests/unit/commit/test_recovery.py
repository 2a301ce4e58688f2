"""Recovery as a pure decision (G1)."""

from checkpointing.channel_items import SourceSlice
from checkpointing.commit.fencing import HolderObserved, Refused
from checkpointing.commit.recovery import Observed, completion, decide_recovery, publications
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import ChannelId, EdgeId
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Statistics, TableRecord, VertexRecord
from checkpointing.snapshots import ChannelState, SubtaskSnapshot

CLAIM = Claim(generation=1, holder=Holder(host="h", pid=1, started="s"), first_id=1, last_id=1_000, at_ms=0, nonce="n")
DEAD = HolderObserved(alive=False, lease=None)


def row(checkpoint, tables=()):
    """Return a committed checkpoint."""
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
    """Decide on these rows and recorded cuts."""
    return decide_recovery(Observed(3, (*rows, CLAIM), frozenset(cuts), holder, 1), take_over=False)


def test_without_a_checkpoint_the_job_starts_from_the_start():
    """Nothing committed: nothing to restore, nothing to roll forward."""
    plan = decide((), ())
    assert (None, None) == (plan.restore, plan.roll_forward)


def test_a_committed_row_without_a_cut_is_rolled_forward():
    """The crash came after the commit point: the epoch is committed, and the next tick publishes it."""
    plan = decide((row(4), row(5)), {4})
    assert (5, 5) == (plan.roll_forward.checkpoint, plan.restore.checkpoint)


def test_a_row_whose_cut_is_recorded_needs_nothing():
    """The newest row is restored, in whatever order the rows come."""
    plan = decide((row(5), row(4)), {4, 5})
    assert (None, 5) == (plan.roll_forward, plan.restore.checkpoint)


def test_a_live_holder_is_refused_before_anything_else():
    """Politeness comes first: a refusal plans nothing."""
    assert isinstance(decide((row(5),), {4}, HolderObserved(alive=True, lease=None)), Refused)


def test_a_completion_tells_the_position_of_every_split_by_name():
    """A split that was never read has none; what no source is tells nothing (F2)."""
    subtasks = (SubtaskSnapshot(position="7"), SubtaskSnapshot(), SubtaskSnapshot(position="9"))
    vertices = (
        VertexRecord(vertex="orders", micro_batch=0, subtasks=subtasks, splits=("b", "c", "a")),
        VertexRecord(vertex="totals", micro_batch=3, subtasks=(SubtaskSnapshot(),)),
    )
    told = completion(row(4).model_copy(update={"vertices": vertices}))
    assert (4, (("orders", "b", "7"), ("orders", "a", "9"))) == (told.checkpoint, told.positions)


def flying(*slices, split="b"):
    """Return a snapshot that holds these slices of a split in flight."""
    channel = ChannelId(EdgeId("orders", "bronze"), 0)
    held = tuple(SourceSlice("orders", split, start, end, "", 1, 1) for start, end in slices)
    return SubtaskSnapshot(in_flight=(ChannelState(channel, held),))


def told_with(*snapshots, position="9"):
    """Return what is told of split b, which was read up to that position."""
    source = VertexRecord(vertex="orders", micro_batch=0, subtasks=(SubtaskSnapshot(position=position),), splits=("b",))
    operator = VertexRecord(vertex="bronze", micro_batch=1, subtasks=snapshots)
    told = completion(row(4).model_copy(update={"vertices": (source, operator)}))
    return {split: at for _, split, at in told.positions}


def test_a_completion_tells_a_position_before_all_slices_in_flight():
    """Nothing has kept their rows: who deletes input up to the position that is told must not delete those."""
    assert {"b": "3"} == told_with(flying(("3", "5"), ("5", "9")))
    assert {"b": "3"} == told_with(flying(("5", "9")), flying(("3", "5"), ("5", "9")))
    assert {"b": "9"} == told_with(flying(("3", "5"), split="other"))


def test_a_completion_tells_nothing_of_a_split_whose_slices_do_not_lead_to_its_position():
    """A reset lies in between. Which of two positions comes first is known to the source alone."""
    assert {} == told_with(flying(("3", "5")))
    assert {} == told_with(flying(("3", "5"), ("7", "9")))
    assert {} == told_with(flying(("3", "9"), ("7", "9")))
    assert {} == told_with(flying(("3", "5")), position=None)


def test_publications_say_what_each_table_becomes():
    """A row carries everything that publishing it needs."""
    file = FileHandle("a", 1, 1, 0)
    tables = (
        TableRecord(table="o/a", mode=TableMode.APPEND, adds=(file,), parent_version=1),
        TableRecord(table="o/u", mode=TableMode.UPSERT, files=(file,), parent_version=1),
    )
    got = publications(row(1, tables))
    assert [("o/a", (file,), ()), ("o/u", (), (file,))] == [(p.table, p.adds, p.files) for p in got]
