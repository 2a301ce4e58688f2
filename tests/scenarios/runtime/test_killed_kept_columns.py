"""A tick that dies as it changes the columns of an append table is made up for (D6, G2)."""

import pytest

from tests.scenarios.runtime.conftest import Dead, Mortal
from tests.scenarios.runtime.kept_job import (
    DROPPED,
    RENAMED,
    TABLE,
    columns,
    foreign,
    killed,
    laid_out,
    numbers,
    shown,
    tick,
)
from tests.scenarios.runtime.test_kept_columns import HALF, files

COMMITTED = ["after:AppendRow", f"before:PublishTable:{TABLE}", f"after:PublishTable:{TABLE}", "after:RecordCut"]
BEFORE = [
    f"before:RenameColumns:{TABLE}",
    f"after:RenameColumns:{TABLE}",
    "after:RunMicroBatch",
    "before:AppendRow",
]


@pytest.mark.kill
@pytest.mark.parametrize("version", ["renamed", "dropped"])
@pytest.mark.parametrize("boundary", [*BEFORE, *COMMITTED])
def test_a_tick_killed_as_it_changes_columns_is_made_up_for(tmp_path, boundary, version):
    """After SIGKILL before the commit point the previous version goes on. Behind it, the new one does."""
    if "RenameColumns" in boundary and version == "dropped":
        boundary = "after:EnsureTables"
    laid_out(tmp_path, HALF)
    foreign(tmp_path, 100)
    killed(tmp_path, HALF + 7, version, boundary)
    foreign(tmp_path, 101, name=next((name for name in ("value", "amount") if name in columns(tmp_path)), None))
    if boundary not in COMMITTED:
        tick(tmp_path, HALF + 8)
        assert numbers([*range(HALF + 8), 100, 101]) == shown(tmp_path, "n", "value")
    new, names = (RENAMED, ("n", "amount")) if version == "renamed" else (DROPPED, ("n", "key"))
    tick(tmp_path, HALF + 9, new)
    expected = numbers([*range(HALF + 9), 100, 101])
    assert (expected if version == "renamed" else [(n, n % 7) for n, _ in expected]) == shown(tmp_path, *names)
    assert [*new.columns] == columns(tmp_path)


def test_nothing_is_seen_before_the_commit_point(tmp_path, monkeypatch):
    """A tick that dies there has renamed nothing, and its files go like all leftovers."""
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    laid_out(tmp_path, HALF)
    with pytest.raises(Dead):
        tick(tmp_path, HALF + 7, RENAMED, boundary=Mortal("before:AppendRow"))
    assert ["n", "key", "value"] == columns(tmp_path)
    tick(tmp_path, HALF + 7)
    assert numbers(range(HALF + 7)) == shown(tmp_path, "n", "value")
    staged = {path.name for path in (tmp_path / TABLE / "_data").rglob("*.parquet")}
    assert {path.rpartition("/")[2] for path in files(tmp_path)} == staged
