"""Decides as pure functions what outside sinks get of an entry, and which rollbacks they forbid."""

import pytest

from checkpointing.commit.at_rest import Imported, Rollback, Stamp, beyond_recall
from checkpointing.commit.behind import Doubt, Repairs, Standing
from checkpointing.commit.fencing import HolderObserved, MayClaim
from checkpointing.commit.recovery import Observed, RecoveryPlan, outside_publications
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.messages import PublishTable
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, RowKind, Statistics, TableRecord
from checkpointing.tick.claiming import Held
from checkpointing.tick.errand import ROLLBACK, Terms
from checkpointing.tick.messages import CorrectCuts, TablesSeen
from checkpointing.tick.recovering import repaired

FILE = FileHandle("o/a/_data/1/v-1-a.parquet", 1, 1, 0)
CLAIM = Claim(generation=2, holder=Holder(host="h", pid=1, started="s"), first_id=9, last_id=99, at_ms=0, nonce="n")


def table(name, **changes):
    """Return an append table's part of an entry."""
    return TableRecord(table=name, mode=TableMode.APPEND, parent_version=1, **changes)


def row(checkpoint, *tables, kind=RowKind.CHECKPOINT, outside=("o/a",)):
    """Return an entry with a sink for table o/a."""
    return CheckpointRecord(
        job="j",
        kind=kind,
        checkpoint=checkpoint,
        parent=checkpoint - 1,
        generation=1,
        nonce=f"n/{checkpoint}",
        max_parallelism=128,
        vertices=(),
        tables=tables,
        outside=outside,
        statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
    )


def test_a_sink_gets_what_a_checkpoint_adds_to_its_table():
    """A table without a sink, and a table that only loses a column, give it nothing."""
    entry = row(1, table("o/a", adds=(FILE,)), table("o/b", adds=(FILE,)))
    assert [("o/a", (FILE,), True)] == [(each.table, each.adds, each.outside) for each in outside_publications(entry)]
    assert () == outside_publications(row(1, table("o/a", leaving=("x",))))


@pytest.mark.parametrize("kind", [kind for kind in RowKind if kind is not RowKind.CHECKPOINT])
def test_only_a_checkpoint_gives_a_sink_rows(kind):
    """Neither a savepoint nor a rollback nor a reset does."""
    assert () == outside_publications(row(1, table("o/a", adds=(FILE,)), kind=kind))


def test_an_import_gives_a_sink_nothing():
    """The other warehouse has published these rows."""
    imported = Imported(row(1, table("o/a", adds=(FILE,)))).row(CLAIM, Stamp(0, "n"))
    assert (RowKind.CHECKPOINT, ()) == (imported.kind, outside_publications(imported))


def test_a_rollback_may_not_change_what_a_sink_has():
    """Rows may neither leave the sink's table nor come back. Other tables do not matter."""
    rows = (row(1, outside=()), row(2))
    for changed in ({"adds": (FILE,)}, {"removes": (FILE,)}):
        assert {"o/a"} == beyond_recall(rows, Rollback(rows[0], (table("o/a", **changed),)), None)
        assert set() == beyond_recall(rows, Rollback(rows[0], (table("o/b", **changed), table("o/a"))), None)


def test_a_rollback_may_not_leave_behind_what_a_sink_may_get():
    """Another process may still publish the pending checkpoint, unless the rollback goes back to that one."""
    first, pending = row(1), row(2, table("o/a", adds=(FILE,)))
    assert {"o/a"} == beyond_recall((first, pending), Rollback(first, ()), pending)
    assert set() == beyond_recall((first, pending), Rollback(pending, ()), pending)


@pytest.mark.parametrize(("back_to", "expected"), [(None, PublishTable), (2, PublishTable), (1, CorrectCuts)])
def test_a_sink_gets_the_rows_of_a_lost_cut_unless_a_rollback_takes_them_back(back_to, expected):
    """No log says whether the sink has them. A rollback to the newest entry itself keeps them."""
    rows = (row(1), row(2, table("o/a", adds=(FILE,))))
    lost = Doubt(Standing("j", rows, {1: {"o/a": 1}}, {}), Repairs(), rebuilt={2: {"o/a": 2}})
    plan = RecoveryPlan(MayClaim(2, 9, ""), None, None)
    seen = Observed(1, rows, frozenset({1}), HolderObserved(None, None), 0)
    steps = repaired(ROLLBACK, Terms(holder=CLAIM.holder, leaves_behind=back_to), Held(CLAIM, 2, seen, plan))
    next(steps)
    assert expected is type(steps.send(TablesSeen(lost)))
