"""Table logs over ticks, on real Delta without Spark: entries go, and every retained cut reads and comes back."""

import pytest
from deltalake import DeltaTable

from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.warehouse.cuts_table import CutStore
from tests.scenarios.runtime.savepoint_job import at, run
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, read_cut
from tests.scenarios.runtime.test_cleanup import whole

NO_WAIT = {"reader_grace_ms": 0, "table_log_keep_ms": 0}


def first_entry(root, table):
    return min(int(path.stem) for path in (root / table / "_delta_log").glob("*.json"))


def log_checkpoints(root):
    """Write a Delta log checkpoint of each table, as a tick does every fifty versions."""
    for table in (BRONZE, GOLD):
        DeltaTable(root / table).create_checkpoint()


@pytest.fixture
def root(tmp_path):
    """Run two ticks; the log checkpoints of the first are at versions that no retained cut needs any more."""
    run(tmp_path, 2, **NO_WAIT)
    log_checkpoints(tmp_path)
    run(tmp_path, 3, **NO_WAIT)
    return tmp_path


def test_entries_that_no_cut_needs_go_and_the_oldest_cut_comes_back(root, undisturbed):
    """The log begins at its last checkpoint before the oldest retained cut, and a rollback to that cut ends well."""
    assert (0, 0) == (first_entry(root, BRONZE), first_entry(root, GOLD))
    run(root, 1, **NO_WAIT)
    oldest = min(CutStore(at(root)).all())
    assert 0 < first_entry(root, BRONZE) <= CutStore(at(root)).all()[oldest][BRONZE]
    assert 0 < first_entry(root, GOLD) <= CutStore(at(root)).all()[oldest][GOLD]
    whole(root)
    roll_back(at(root), oldest)
    run(root, **NO_WAIT)
    whole(root)
    assert undisturbed == read_cut(root)


@pytest.mark.parametrize("kept", [{"table_log_keep_ms": 0}, {"reader_grace_ms": 0}, {"reader_grace_ms": None}], ids=str)
def test_entries_stay_for_the_readers_grace_and_their_own_age(root, kept):
    """A day after they were needed by default, and thirty days in all; a tick that deletes nothing keeps them all."""
    run(root, 1, **kept)
    assert (0, 0) == (first_entry(root, BRONZE), first_entry(root, GOLD))


def test_a_savepoint_keeps_the_entries_of_its_cut(tmp_path):
    """As long as it is there, its tables read by version."""
    run(tmp_path, 2, **NO_WAIT)
    savepoint_at_rest(at(tmp_path))
    run(tmp_path, 1, **NO_WAIT)
    log_checkpoints(tmp_path)
    for _ in range(3):
        run(tmp_path, 1, **NO_WAIT)
    whole(tmp_path)
    assert (0, 0) == (first_entry(tmp_path, BRONZE), first_entry(tmp_path, GOLD))
