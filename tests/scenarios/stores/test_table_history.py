"""Tests a table's history on real Delta logs: it says what each version showed, or that the log cannot tell."""

import polars as pl
import pytest
from deltalake import DeltaTable

from jobs.storage.place import local
from jobs.warehouse.cleanup import read_history
from jobs.warehouse.table_snapshot import active_paths


@pytest.fixture
def folder(tmp_path):
    """Return a table with appends, a delete, an overwrite, a compaction and a restore that brings files back."""
    folder = tmp_path / "numbers"
    for n in range(3):
        pl.DataFrame({"n": [n, -n]}).write_delta(str(folder), mode="append")
    DeltaTable(folder).delete("n = 1")
    pl.DataFrame({"n": [7]}).write_delta(str(folder), mode="append")
    DeltaTable(folder).optimize.compact()
    pl.DataFrame({"n": [8, 9]}).write_delta(str(folder), mode="overwrite")
    DeltaTable(folder).restore(3)
    DeltaTable(folder).optimize.compact()
    pl.DataFrame({"n": [10]}).write_delta(str(folder), mode="append")
    return folder


def shown_at(folder, version):
    return set(active_paths(DeltaTable(folder, version=version)))


def entry(folder, version):
    return folder / "_delta_log" / f"{version:020d}.json"


def test_files_of_a_version_are_still_shown_or_were_removed_since(folder):
    """For each version, the log's entries say the same as loading that version."""
    history, newest = read_history(local(folder)), DeltaTable(folder).version()
    shown = shown_at(folder, newest)
    assert newest == 9
    for version in range(newest):
        assert history.tells_of(version, newest)
        assert shown_at(folder, version) - shown == set(history.removed_since(version)), version
    assert not set(history.removed_since(newest))
    assert len({frozenset(history.removed_since(version)) for version in range(newest)}) > 5


def test_the_history_does_not_guess_at_lost_log_entries(folder):
    """Up to a gap, only loading a version says what it showed. After the gap, the log says it."""
    newest = DeltaTable(folder).version()
    shown = [shown_at(folder, version) for version in range(newest + 1)]
    DeltaTable(folder).create_checkpoint()
    entry(folder, 4).unlink()
    history = read_history(local(folder))
    told = [version for version in range(newest) if history.tells_of(version, newest)]
    assert [5, 6, 7, 8] == told
    for version in told:
        assert shown[version] - shown[newest] == set(history.removed_since(version))
    assert not history.tells_of(newest, newest + 1)
