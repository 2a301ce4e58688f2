"""Tests shortening an output table's log on real Delta: remaining versions read as before, and no file is forgotten."""

import os
import time

import polars as pl
import pytest
from deltalake import DeltaTable

from jobs.storage.place import local
from jobs.warehouse import log_lengths

NOW_S = int(time.time())
VERSIONS = 9


@pytest.fixture
def folder(tmp_path):
    """Make a table of nine versions with a row each, and Delta log checkpoints at 3 and 6.

    Every log entry is a day old.
    """
    for number in range(VERSIONS):
        pl.DataFrame({"n": [number]}).write_delta(str(tmp_path), mode="append")
        if number in (3, 6):
            DeltaTable(tmp_path).create_checkpoint()
    _age(tmp_path, 86_400)
    return tmp_path


def _age(folder, age_s):
    for path in (folder / "_delta_log").iterdir():
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))


def _entries(folder):
    return sorted(int(path.stem) for path in (folder / "_delta_log").glob("*.json"))


def _rows(folder, version=None):
    return sorted(pl.read_delta(str(folder), version=version)["n"].to_list())


@pytest.mark.parametrize(("floor", "first"), [(0, 0), (2, 0), (3, 3), (5, 3), (6, 6), (8, 6)], ids=str)
def test_a_log_begins_at_the_newest_log_checkpoint_up_to_the_floor(folder, floor, first):
    """Every version from the floor on reads as before, and the table goes on."""
    assert (first > 0) is log_lengths.drop_entries(local(folder), floor, kept_s=0, now_s=NOW_S)
    assert list(range(first, VERSIONS)) == _entries(folder)
    for version in range(max(floor, first), VERSIONS):
        assert list(range(version + 1)) == _rows(folder, version)
    pl.DataFrame({"n": [9]}).write_delta(str(folder), mode="append")
    assert list(range(10)) == _rows(folder)


def test_an_entry_stays_until_it_is_old_enough(folder):
    """The age of the entry with which the log would begin counts."""
    assert not log_lengths.drop_entries(local(folder), 8, kept_s=86_401, now_s=NOW_S)
    os.utime(folder / "_delta_log" / f"{6:020d}.json", (NOW_S, NOW_S))
    assert log_lengths.drop_entries(local(folder), 8, kept_s=60, now_s=NOW_S)
    assert 3 == _entries(folder)[0]


def test_an_entry_stays_while_only_it_names_a_foreign_file(folder):
    """The log entry that removed a foreign file is the only trace of it. Once the file is deleted, the entry may go."""
    DeltaTable(folder).optimize.compact()
    _age(folder, 86_400)
    replaced = sorted(folder.glob("part-*.parquet"))
    DeltaTable(folder).create_checkpoint()
    pl.DataFrame({"n": [9]}).write_delta(str(folder), mode="append")
    DeltaTable(folder).create_checkpoint()
    _age(folder, 86_400)
    assert log_lengths.drop_entries(local(folder), 10, kept_s=0, now_s=NOW_S)
    assert [9, 10] == _entries(folder)
    active = {str(path) for path in DeltaTable(folder).file_uris()}
    for path in replaced:
        if str(path) not in active:
            path.unlink()
    assert log_lengths.drop_entries(local(folder), 10, kept_s=0, now_s=NOW_S)
    assert [10] == _entries(folder)
    assert list(range(10)) == _rows(folder)


def test_an_incomplete_log_checkpoint_does_not_count(folder):
    """A log cannot begin with one of several parts of a Delta log checkpoint."""
    whole = folder / "_delta_log" / f"{6:020d}.checkpoint.parquet"
    whole.rename(whole.with_name(f"{6:020d}.checkpoint.0000000001.0000000002.parquet"))
    assert log_lengths.drop_entries(local(folder), 8, kept_s=0, now_s=NOW_S)
    assert 3 == _entries(folder)[0]
