"""A power cut takes every byte and every name that nobody synced; no row, no cut and no data row goes with it."""

import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.rollback_plan import RollbackRefusedError, plan_rollback
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import PUBLISH_AGAIN, cross_freely
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.delta_log import Durability
from jobs.warehouse.job_stores import JobStores
from tests.scenarios.runtime.conftest import Dead, Mortal
from tests.scenarios.runtime.rollback_job import KEEPS_ALL, at_cut, laid_out, tick
from tests.scenarios.runtime.savepoint_job import at, records
from tests.scenarios.runtime.sequence_job import LocalEngine, read_cut
from tests.scenarios.runtime.test_cancelling import contents
from tests.scenarios.runtime.test_rollback_of_merges import merged


class Disk:
    """Knows which files' bytes were synced, and which names, by the folders that were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watch every fsync of this process from now on."""
        self._bytes: set[int] = set()
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()
        self._real = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, descriptor: int) -> None:
        self._real(descriptor)
        seen = os.fstat(descriptor)
        with self._lock:
            if not stat.S_ISDIR(seen.st_mode):
                self._bytes.add(seen.st_ino)
                return
            folder = Path(f"/proc/self/fd/{descriptor}").readlink()
            for entry in os.scandir(folder):
                self._names[entry.path] = entry.inode()

    def after_a_power_cut(self, root: Path, to: Path) -> None:
        """Copy what is durable of a folder."""
        for path in sorted(root.rglob("*")):
            seen = path.stat()
            named = all(self._is_named(each) for each in (path, *path.parents) if each != root and root in each.parents)
            if not named:
                continue
            if path.is_dir():
                (to / path.relative_to(root)).mkdir(parents=True, exist_ok=True)
            elif seen.st_ino in self._bytes:
                shutil.copy2(path, to / path.relative_to(root))

    def _is_named(self, path: Path) -> bool:
        return self._names.get(str(path)) == path.stat().st_ino


@pytest.mark.parametrize(
    ("boundary", "occurrence"),
    [
        ("after:AppendRow", 2),
        ("after:PublishTable:bronze/numbers", 2),
        ("before:RecordCut", 2),
        ("after:RecordCut", 2),
        ("before:Release", 1),
    ],
)
def test_a_power_cut_takes_nothing_that_was_committed(tmp_path, undisturbed, monkeypatch, boundary, occurrence):
    """Only synced files are left. All entries and cuts exist and show the same as before, and the job goes on."""
    root, left = tmp_path / "before", tmp_path / "after"
    left.mkdir()
    root.mkdir()
    disk = Disk(monkeypatch)
    with pytest.raises(Dead):
        run_tick(
            KEEPS_ALL, RuntimeSettings(warehouse=root), engine=LocalEngine(), boundary=Mortal(boundary, occurrence)
        )
    disk.after_a_power_cut(root, left)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    assert sorted(records(root)) == sorted(records(left))
    recorded = CutStore(at(root)).recorded()
    assert recorded == CutStore(at(left)).recorded()
    assert [at_cut(root, each) for each in recorded] == [at_cut(left, each) for each in recorded]
    tick(left)
    assert undisturbed == read_cut(left) == contents(left)


def test_what_is_published_again_is_durable_at_once(tmp_path, monkeypatch):
    """A start may die before it corrects the cuts. No later start finds anything lost, and none syncs the entry."""
    laid_out(tmp_path, 2)
    log = tmp_path / "bronze/numbers/_delta_log"
    newest = max(log.glob("*.json"))
    newest.unlink()
    disk = Disk(monkeypatch)
    with pytest.raises(Dead):
        run_tick(
            KEEPS_ALL,
            RuntimeSettings(warehouse=tmp_path),
            engine=LocalEngine(),
            boundary=Mortal(f"after:{PUBLISH_AGAIN}:bronze/numbers"),
        )
    left = tmp_path / "left"
    left.mkdir()
    disk.after_a_power_cut(log, left)
    assert newest.name in {each.name for each in left.iterdir()}


@pytest.mark.parametrize("is_undone", [False, True])
def test_the_undoing_of_a_merge_is_durable_before_the_rollback_relies_on_it(tmp_path, monkeypatch, is_undone):
    """The rollback dies behind its entry. Without the undoing, its publication would find other files than it names.

    With `is_undone`, an earlier rollback has undone the merge, and was killed before it made the undoing durable.
    """
    first, *_ = laid_out(tmp_path, 2)
    log = tmp_path / "bronze/numbers/_delta_log"
    merges = merged(tmp_path).version()
    disk = Disk(monkeypatch)
    if is_undone:
        stores = JobStores(at(tmp_path), cross_freely)
        (back,) = (each for each in plan_rollback(stores, stores.observe(), first, checksums=False).tables if each.undo)
        stores.rearrange(back.record.table, back.undo.actions, version=back.version)
    with pytest.raises(Dead):
        roll_back(at(tmp_path), first, boundary=Mortal("after:AppendRow"))
    left = tmp_path / "left"
    left.mkdir()
    disk.after_a_power_cut(log, left)
    undoing = {f"{version:020}.json" for version in (merges, merges + 1)}
    assert undoing <= {each.name for each in left.iterdir()}


def test_a_rollback_is_refused_if_log_entries_cannot_be_made_durable(tmp_path, monkeypatch):
    """Otherwise the rollback's entry would rely on log entries that the next power cut may take."""
    first, *_ = laid_out(tmp_path, 2)
    merged(tmp_path)
    before = records(tmp_path)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Durability, "sync_entries", fails)
    with pytest.raises(RollbackRefusedError, match=r"could not be made durable .*No space left.*type the same again"):
        roll_back(at(tmp_path), first)
    assert before == records(tmp_path)
