"""A table or an operator under another name is refused before the claim: it would begin without its rows (G2)."""

import pytest
from deltalake import DeltaTable

from checkpointing.job.restoring import CutDoesNotFitError
from jobs.tick.at_rest.roll_back import roll_back
from tests.scenarios.runtime.evolving_job import GOLD, Version, at, laid_out, newest, shown, tick, versions

HALF = 35
"""Rows of the first tick: five of each key."""
GOLD_RENAMED, BRONZE_RENAMED = Version(gold="gold/per_key"), Version(bronze="bronze/all")
OPERATOR_RENAMED = Version(operator="per_key")


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (GOLD_RENAMED, "has table gold/sums, which the pipeline no longer has, and gold/per_key is new in it"),
        (BRONZE_RENAMED, "has table bronze/numbers, which the pipeline no longer has, and bronze/all is new in it"),
        (OPERATOR_RENAMED, "holds state of 'sums', which the pipeline no longer has, and 'per_key' is new in it"),
    ],
)
def test_an_undeclared_rename_changes_nothing_and_says_both_names(tmp_path, version, says):
    """There is no claim, no new table and no new version. Under its old name the job goes on."""
    laid_out(tmp_path, HALF)
    before, rows = versions(tmp_path), newest(tmp_path)
    with pytest.raises(CutDoesNotFitError, match=says) as refused:
        tick(tmp_path, HALF + 7, version)
    assert "--allow-non-restored-state" in str(refused.value)
    assert (before, rows) == (versions(tmp_path), newest(tmp_path))
    assert not (tmp_path / "gold/per_key").exists()
    tick(tmp_path, HALF + 7)
    assert [(key, 6) for key in range(7)] == shown(tmp_path, GOLD)


def test_what_the_user_leaves_behind_stays_behind(tmp_path):
    """The flag is needed once. Later ticks need none, the new table goes on counting, and the old one is unchanged."""
    laid_out(tmp_path, HALF)
    old = shown(tmp_path, GOLD)
    tick(tmp_path, HALF + 1, GOLD_RENAMED, allowed=True)
    tick(tmp_path, HALF + 2, GOLD_RENAMED)
    assert [(0, 6), (1, 6)] == shown(tmp_path, "gold/per_key")
    assert old == shown(tmp_path, GOLD)
    assert all(GOLD not in str(path) for path in _named(tmp_path))


def _named(root):
    """Return the files that the newest row names."""
    return [
        keyed.file.path
        for vertex in newest(root).vertices
        for snapshot in vertex.subtasks
        for ranges in snapshot.ranges
        for keyed in ranges.files
    ]


def test_a_rollback_across_a_rename_brings_the_old_table_back(tmp_path):
    """The cut that the job goes back to knows the old name, and the pipeline of then goes on exactly."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1, GOLD_RENAMED, allowed=True)
    roll_back(at(tmp_path), first)
    assert 0 == DeltaTable(str(tmp_path / "gold/per_key")).to_pyarrow_table().num_rows
    tick(tmp_path, HALF + 7)
    assert [(key, 6) for key in range(7)] == shown(tmp_path, GOLD)
