"""Recovery as a pure decision (G1)."""

from checkpointing.commit.fencing import HolderObserved, Refused
from checkpointing.commit.recovery import Observed, completion, decide_recovery, publications
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Statistics, TableRecord, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot

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
    """The crash came after the commit point: the epoch is, and whoever comes next publishes it."""
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


def test_publications_say_what_each_table_becomes():
    """A row carries everything that publishing it needs."""
    file = FileHandle("a", 1, 1, 0)
    tables = (
        TableRecord(table="o/a", mode=TableMode.APPEND, adds=(file,), parent_version=1),
        TableRecord(table="o/u", mode=TableMode.UPSERT, files=(file,), parent_version=1),
    )
    got = publications(row(1, tables))
    assert [("o/a", (file,), ()), ("o/u", (), (file,))] == [(p.table, p.adds, p.files) for p in got]
