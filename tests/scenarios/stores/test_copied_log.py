"""A copy of a log says what the log itself says. Otherwise it cannot be opened."""

import pytest
from deltalake import DeltaTable

from jobs.storage.place import scratch_folder
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.delta_log import copied
from jobs.warehouse.log_entries import entry_place, log_of
from jobs.warehouse.table_snapshot import active_paths

VERSIONS = 7


@pytest.mark.parametrize("checkpoint_at", [-1, 0, 4, VERSIONS])
def test_a_copied_log_has_the_same_table(warehouse, rows, checkpoint_at):
    """Only the newest Delta log checkpoint and the entries after it are needed."""
    folder = _log_of_checkpoints(warehouse, rows)
    for version in {checkpoint_at, checkpoint_at // 2} - {-1}:
        DeltaTable(str(folder), version=version).create_checkpoint()
    for version in range(checkpoint_at):
        entry_place(folder, version).delete()
    (copy, start), table = copied(folder), DeltaTable(str(folder))
    assert (VERSIONS, checkpoint_at) == (copy.version(), start)
    assert sorted(active_paths(table)) == sorted(active_paths(copy))
    assert (table.metadata().id, table.protocol(), table.schema()) == (
        copy.metadata().id,
        copy.protocol(),
        copy.schema(),
    )


def test_a_log_with_a_gap_or_a_checkpoint_in_parts_is_not_copied(warehouse, rows):
    """delta-rs says what is wrong with the log, or reads the parts."""
    folder = _log_of_checkpoints(warehouse, rows)
    parts = log_of(folder) / f"{4:020d}.checkpoint.{1:010d}.{2:010d}.parquet"
    parts.write(b"one of two")
    with pytest.raises(FileNotFoundError):
        copied(folder)
    parts.delete()
    entry_place(folder, 3).delete()
    with pytest.raises(Exception, match=r"3|gap|contiguous|sequential"):
        copied(folder)


def test_a_missing_table_cannot_be_copied():
    """The store creates it then."""
    with scratch_folder() as folder, pytest.raises(Exception, match="log"):
        copied(folder)


def _log_of_checkpoints(warehouse, rows):
    store = CheckpointStore(warehouse)
    for number in range(1, VERSIONS + 1):
        store.append(rows.checkpoint(number), number - 1)
    return warehouse.place(warehouse.paths.checkpoints)
