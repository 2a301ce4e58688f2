"""Which checkpoint all tables show: what a tick without news says."""

from checkpointing.identifiers import CheckpointId, JobName
from checkpointing.metadata.record import RowKind
from jobs.cli.observation import History, Published


def history(records, published):
    """Return a job's history with these rows, newest first, and the cuts of these."""
    cuts = {CheckpointId(each): Published(0, {}) for each in published}
    return History(JobName("flights"), tuple(records), cuts, "nobody")


def test_a_plain_savepoint_is_not_what_the_tables_show(record):
    """It publishes nothing: the tables are at the checkpoint before it."""
    savepoint = record(7, 6).model_copy(update={"kind": RowKind.SAVEPOINT, "pinned": True})
    assert 6 == history([savepoint, record(6, 5)], [6]).newest_published().checkpoint


def test_neither_is_a_checkpoint_that_is_committed_only(record):
    """Its tables are published by the next tick."""
    assert 6 == history([record(7, 6), record(6, 5)], [6]).newest_published().checkpoint
    assert history([record(1, 0)], []).newest_published() is None
