"""Large entries on real Delta tables: their manifests are shared, cleaned up, and missed by name."""

import shutil

import pytest

from checkpointing.commit.manifests import Sizes
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.codec import UnreadableRowError
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord
from jobs.tick.at_rest.import_entry import import_row
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.tick.rollback_plan import DamagedCheckpointError
from jobs.warehouse import checkpoints
from jobs.warehouse.checkpoints import Appended, CheckpointStore, ManifestFiles
from jobs.warehouse.savepoint_copy import copy_savepoint
from tests.scenarios.runtime.savepoint_job import at, records, run, wanted
from tests.scenarios.runtime.sequence_job import build, read_cut
from tests.unit.commit.large_rows import large_record, numbered

LOW = Sizes(inline=1, recent=1, manifest=3, sparse=2, few=1)
ROWS = {"a": 300, "b": 300}
NONE = [[] for _ in range(100)]


def _manifests(root):
    return {str(path.relative_to(root)) for path in root.rglob("manifests/**/*.zst")}


def _bytes(root):
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def _newest(warehouse, **how):
    row = CheckpointStore(warehouse, **how).observe()[1][0]
    assert isinstance(row, CheckpointRecord)
    return row


def test_a_large_entry_is_read_by_any_store_and_the_next_writes_what_changed(warehouse, rows):
    """3,000 handles are written once. The next entry has 300 others, and costs less than a quarter of the first."""
    store, lists = CheckpointStore(warehouse), numbered(100, 30)
    store.append(rows.claim(3), 0)
    before = _bytes(warehouse.root)
    first = large_record(lists, NONE)
    assert Appended(2) == store.append(first, 1)
    whole = _bytes(warehouse.root) - before
    read = _newest(warehouse)
    assert (first, 1) == (read.model_copy(update={"held_in": ()}), len(read.held_in))
    changed = [[*own[3:], *new] for own, new in zip(lists, numbered(100, 3, 50_000), strict=True)]
    before += whole
    second = large_record(changed, NONE, 2)
    assert Appended(3) == store.append(second, 2, {CheckpointId(1)})
    assert (_bytes(warehouse.root) - before) * 4 < whole
    read = _newest(warehouse)
    assert (second, 2) == (read.model_copy(update={"held_in": ()}), len(read.held_in))
    assert read == store.latest()[0]
    assert set(read.held_in) == _manifests(warehouse.root)


def test_an_entry_that_is_marked_keeps_its_manifests(warehouse, rows):
    """A rollback marks entries as abandoned: their handles stay where they are."""
    store, record = CheckpointStore(warehouse), large_record(numbered(100, 30), NONE)
    store.append(record, 0)
    store.append(rows.claim(4), 1, marks={CheckpointId(1): True})
    marked = CheckpointStore(warehouse).observe()[1][1]
    assert marked == record.model_copy(update={"abandoned": True, "held_in": marked.held_in})
    assert 1 == len(_manifests(warehouse.root))


@pytest.mark.parametrize("how", ["gone", "changed", "cut off"])
def test_an_entry_whose_manifest_is_damaged_is_named(warehouse, rows, how):
    """Who needs the entry learns which manifest is damaged. A rollback passes over the entry."""
    store = CheckpointStore(warehouse)
    store.append(rows.claim(3), 0)
    store.append(rows.checkpoint(1, 3), 1)
    store.append(large_record(numbered(100, 30), NONE, 2), 2)
    (path,) = _manifests(warehouse.root)
    file = warehouse.path(path)
    content = file.read_bytes()
    file.unlink()
    if how == "changed":
        other = CheckpointStore(warehouse.__class__(warehouse.root / "other", warehouse.paths))
        other.append(large_record(numbered(100, 30, 7), NONE), 0)
        shutil.copy(next((warehouse.root / "other").rglob("*.zst")), file)
    elif how == "cut off":
        file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UnreadableRowError, match=f"checkpoint 2 of job flights cannot be made whole: .*{path}"):
        CheckpointStore(warehouse).observe()
    beyond = CheckpointStore(warehouse, beyond_damage=True)
    assert [1] == [row.checkpoint for row in beyond.observe()[1] if isinstance(row, CheckpointRecord)]
    assert ["the entry of checkpoint 2"] == [each.name for each in beyond.damaged]


def test_a_reader_whose_entry_is_dropped_before_it_reads_the_manifests_reads_again(warehouse, rows, monkeypatch):
    """The entry goes, and a clean-up deletes its manifest, while somebody reads: the reader sees the newest entries."""
    store = CheckpointStore(warehouse)
    store.append(large_record(numbered(100, 30), NONE), 0)
    real = ManifestFiles.read

    def late(self, entries):
        if monkeypatch.undo() is None and len(store.observe()[1]) == 1:
            store.append(rows.checkpoint(2, 3), 1, {CheckpointId(1)})
            for path in _manifests(warehouse.root):
                warehouse.path(path).unlink()
        real(self, entries)

    reader = CheckpointStore(warehouse)
    monkeypatch.setattr(ManifestFiles, "read", late)
    assert (2, (rows.checkpoint(2, 3),)) == reader.observe()


@pytest.fixture
def low(monkeypatch):
    """Let the smallest entry have manifests."""
    monkeypatch.setattr(checkpoints, "SIZES", LOW)


@pytest.fixture
def root(tmp_path, low):
    """Return a warehouse with three checkpoints of one tick, a savepoint, and one more checkpoint."""
    run(tmp_path / "warehouse", 3, plan=build(ROWS))
    savepoint_at_rest(at(tmp_path / "warehouse"))
    run(tmp_path / "warehouse", 1, plan=build(ROWS))
    return tmp_path / "warehouse"


def test_a_job_whose_entries_have_manifests_ends_with_the_same_tables(root, tmp_path, monkeypatch):
    """Ticks, a savepoint and its copy, a restore of the copy, and a clean-up with no grace lose nothing."""
    warehouse = at(root)
    assert all(row.held_in for row in records(root).values())
    orphan = warehouse.paths.manifest(1, "0" * 64)
    warehouse.path(orphan).write_bytes(b"of a tick that was killed before its entry was in")
    clean_up(warehouse, 0)
    assert {path for row in records(root).values() for path in row.held_in} == _manifests(root)
    saved = next(row.checkpoint for row in records(root).values() if row.is_savepoint)
    copy_savepoint(warehouse, CheckpointId(saved), tmp_path / "copy")
    ((_, copied),) = records(tmp_path / "copy").items()
    assert _manifests(tmp_path / "copy") == set(copied.held_in)
    assert all((tmp_path / "copy" / path).exists() for path in files_of(copied))
    plain = tmp_path / "plain"
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "SIZES", Sizes())
        run(plain, plan=build(ROWS))
    for number, origin in enumerate((f"{root}@{saved}", str(tmp_path / "copy"))):
        restored = tmp_path / f"restored_{number}"
        import_row(wanted(origin, restored, plan=build(ROWS)))
        run(restored, plan=build(ROWS))
        assert read_cut(plain) == read_cut(restored)
    run(root, plan=build(ROWS))
    assert read_cut(plain) == read_cut(root)


def test_a_warehouse_from_before_there_were_manifests_goes_on(tmp_path, monkeypatch):
    """Entries that name all their files are restored from; the next ones have manifests."""
    root, plain = tmp_path / "warehouse", tmp_path / "plain"
    run(root, 2, plan=build(ROWS))
    assert {()} == {row.held_in for row in records(root).values()}
    monkeypatch.setattr(checkpoints, "SIZES", LOW)
    run(root, 1, plan=build(ROWS))
    assert records(root)[max(records(root))].held_in
    monkeypatch.undo()
    run(root, plan=build(ROWS))
    run(plain, plan=build(ROWS))
    assert read_cut(plain) == read_cut(root)


def test_a_tick_is_refused_if_a_manifest_of_its_checkpoint_is_gone(root):
    """The message names the manifest, and the checkpoint to go back to."""
    rows = records(root)
    newest = rows[max(rows)]
    others = {path for number, row in rows.items() if number != newest.checkpoint for path in row.held_in}
    lost = next(path for path in newest.held_in if path not in others)
    (root / lost).unlink()
    with pytest.raises(DamagedCheckpointError, match=f"{lost} cannot be read.*tidemark rollback numbers"):
        run(root, plan=build(ROWS))
