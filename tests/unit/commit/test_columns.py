"""Decides as a pure function which columns a table loses by a rollback."""

import pytest

from checkpointing.columns import TableColumn
from checkpointing.commit.columns import leaving_back
from checkpointing.graph import TableMode
from checkpointing.metadata.record import CheckpointRecord, Statistics, TableRecord

GOLD = "o/gold"


def columns(*names):
    """Return columns of these names."""
    return tuple(TableColumn(name, "long") for name in names)


def waiting(*names, table=GOLD):
    """Return a committed entry that waits for its publication, and takes these columns out of a table."""
    leaves = TableRecord(table=table, mode=TableMode.UPSERT, leaving=names, parent_version=1)
    statistics = Statistics(triggered_ms=0, committed_ms=0, rows=0)
    return CheckpointRecord(
        job="j",
        checkpoint=2,
        parent=1,
        generation=1,
        nonce="n",
        max_parallelism=4,
        vertices=(),
        tables=(leaves,),
        statistics=statistics,
    )


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
    """The table may show what it showed before the pending entry, so both sets of columns leave, each name once."""
    assert lost == leaving_back(shown, then, pending, GOLD)
