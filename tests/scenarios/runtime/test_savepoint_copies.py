"""A savepoint's self-contained copy: readable as tables, refused whole or made whole, whatever strikes."""

import errno
import os

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake

from checkpointing.identifiers import CheckpointId
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.warehouse import output_tables
from jobs.warehouse.output_tables import TableNotCopyableError
from jobs.warehouse.savepoint_copy import (
    FileNotCopiedError,
    SavepointNotCopiedError,
    copy_savepoint,
    named_files,
    read_manifest,
)
from tests.scenarios.runtime.savepoint_job import at, killed, records, run
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, read_cut


@pytest.fixture
def root(tmp_path):
    """Return a warehouse with two checkpoints and a savepoint of the second."""
    root = tmp_path / "warehouse"
    run(root, 2)
    savepoint_at_rest(at(root))
    return root


def newest(root):
    """Return the id of the newest row."""
    return CheckpointId(max(records(root)))


def there(folder):
    """Return what lies in a folder, hidden names included."""
    return sorted(path.name for path in folder.iterdir())


def test_a_copy_is_a_warehouse_that_anyone_can_read(root, tmp_path):
    """Any reader sees the cut in its tables.

    Its one entry names only files in the copy, and the copy says what it is.
    """
    to = tmp_path / "copy"
    made = copy_savepoint(at(root), newest(root), to)
    assert read_cut(root) == read_cut(to)
    assert 200 == pl.read_delta(str(to / BRONZE)).height
    [row] = records(to).values()
    assert [] == [path for path in named_files(row) if not (to / path).exists()]
    assert (newest(root), True) == (row.checkpoint, row.pinned)
    assert made == read_manifest(at(to))
    assert (len(named_files(row)), newest(root)) == (made.files, made.savepoint)
    assert ["copy", "warehouse"] == there(tmp_path)


def test_a_copy_needs_nothing_of_the_original(root, tmp_path):
    """After it was moved and the original deleted, it shows the same rows."""
    expected = read_cut(root)
    copy_savepoint(at(root), newest(root), tmp_path / "copy")
    root.rename(tmp_path / "gone")
    (tmp_path / "copy").rename(tmp_path / "moved")
    assert expected == read_cut(tmp_path / "moved")


def test_a_savepoint_can_be_copied_long_after(tmp_path):
    """After newer cuts are published, its copy still shows the old tables. Its parent's entry stays as long as it."""
    root = tmp_path / "warehouse"
    run(root, 1)
    row, expected = savepoint_at_rest(at(root)), read_cut(root)
    run(root)
    assert {row.parent, row.checkpoint} < records(root).keys()
    copy_savepoint(at(root), row.checkpoint, tmp_path / "copy")
    assert expected == read_cut(tmp_path / "copy")


def test_any_row_is_copied_as_its_cut_was(root, tmp_path):
    """An older checkpoint's copy shows the tables as they were then."""
    older = min(records(root))
    copy_savepoint(at(root), CheckpointId(older), tmp_path / "copy")
    rows = pl.read_delta(str(tmp_path / "copy" / BRONZE)).height
    assert rows == pl.read_delta(str(root / BRONZE), version=1).height < 200


def test_what_others_appended_is_part_of_the_table(root, tmp_path):
    """Rows of another writer, and files that this writer compacted, are copied with statistics and a checksum."""
    rows = pl.DataFrame({"split": ["x"], "n": [1], "key": [1], "value": [1], "_split": ["x"], "_position": [1]})
    write_deltalake(str(root / BRONZE), rows.to_arrow(), mode="append")
    DeltaTable(str(root / BRONZE)).optimize.compact()
    run(root, 1)
    copy_savepoint(at(root), newest(root), tmp_path / "copy")
    assert 301 == pl.read_delta(str(tmp_path / "copy" / BRONZE)).height
    assert read_cut(root) == read_cut(tmp_path / "copy")
    [row] = records(tmp_path / "copy").values()
    adds = next(table.adds for table in row.tables if table.table == BRONZE)
    assert all(file.crc32 >= 0 and '"minValues"' in file.stats for file in adds)


@pytest.mark.parametrize("name", ["full", "inside", "file"])
def test_a_folder_in_use_is_refused(root, tmp_path, name):
    """A folder with something in it, a file, and one inside the warehouse are left as they are."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full/note").touch()
    (tmp_path / "file").touch()
    to = {"full": tmp_path / "full", "inside": root / "bronze/copy", "file": tmp_path / "file"}[name]
    with pytest.raises(SavepointNotCopiedError, match=r"is not empty|lies in the warehouse"):
        copy_savepoint(at(root), newest(root), to)
    assert ["file", "full", "warehouse"] == there(tmp_path)


def test_an_empty_folder_becomes_the_copy(root, tmp_path):
    """A folder that was made for it is used."""
    (tmp_path / "copy").mkdir()
    copy_savepoint(at(root), newest(root), tmp_path / "copy")
    assert read_cut(root) == read_cut(tmp_path / "copy")


def spoil_missing(path):
    path.unlink()


def spoil_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def spoil_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(spoil_missing, "is missing"), (spoil_short, "bytes instead of"), (spoil_bit, "is damaged: its checksum")],
)
def test_a_file_that_is_not_what_the_row_says_is_refused_by_name(root, tmp_path, spoil, said):
    """A file is missing, too short, or has a flipped bit. It is named, and nothing of the copy is left."""
    row = records(root)[newest(root)]
    path = min(named_files(row))
    spoil(root / path)
    with pytest.raises(FileNotCopiedError, match=rf"file {path} in .* {said}"):
        copy_savepoint(at(root), newest(root), tmp_path / "copy")
    assert ["warehouse"] == there(tmp_path)


def test_deletion_vectors_are_refused_by_table(root, tmp_path, monkeypatch):
    """A copy of the files would bring deleted rows back, so the table is named with the way out."""
    monkeypatch.setattr(
        output_tables, "paths_with_deletion_vectors", lambda table: frozenset(table.file_uris()) | {"x", *paths(table)}
    )
    with pytest.raises(TableNotCopyableError, match=r"table bronze/numbers has deletion vectors on 2 files.*PURGE"):
        copy_savepoint(at(root), newest(root), tmp_path / "copy")
    assert ["warehouse"] == there(tmp_path)


def paths(table):
    """Return a table's files as its log names them."""
    return [uri.rpartition("/numbers/")[2] for uri in table.file_uris()]


def test_a_full_disk_leaves_nothing(root, tmp_path, monkeypatch):
    """The message names the error. The folder does not exist, and nothing lies beside it."""
    left = [3]

    def full(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SavepointNotCopiedError, match=r"No space left on device.*nothing of the copy is left"):
        copy_savepoint(at(root), newest(root), tmp_path / "copy")
    assert ["warehouse"] == there(tmp_path)


def test_a_disk_without_room_is_refused_before_anything_is_written(root, tmp_path, monkeypatch):
    """Both numbers are named."""
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("jobs.storage.copy_folder.shutil.disk_usage", lambda path: usage)
    with pytest.raises(SavepointNotCopiedError, match=r"files are \d+ bytes, and .* has room for 10"):
        copy_savepoint(at(root), newest(root), tmp_path / "copy")
    assert ["warehouse"] == there(tmp_path)


@pytest.mark.kill
@pytest.mark.parametrize("after", [1, 6])
def test_a_killed_copy_is_not_there_and_the_next_one_sweeps_up(root, tmp_path, after):
    """SIGKILL while copying leaves no folder of that name; copying again makes it, and nothing else stays."""
    killed("copy", root, newest(root), tmp_path / "copy", after)
    assert not (tmp_path / "copy").exists()
    assert 2 == len(there(tmp_path))
    copy_savepoint(at(root), newest(root), tmp_path / "copy")
    assert ["copy", "warehouse"] == there(tmp_path)
    assert read_cut(root) == read_cut(tmp_path / "copy")


def test_a_row_that_is_not_there_is_refused_with_those_that_are(root, tmp_path):
    """The message lists the ids that exist."""
    ids = ", ".join(str(each) for each in sorted(records(root)))
    with pytest.raises(SavepointNotCopiedError, match=f"numbers has no savepoint 99: there are {ids}"):
        copy_savepoint(at(root), CheckpointId(99), tmp_path / "copy")


def test_upsert_tables_are_whole(root, tmp_path):
    """Gold is in the copy with every key, although the savepoint itself changes none of it."""
    copy_savepoint(at(root), newest(root), tmp_path / "copy")
    assert 7 == pl.read_delta(str(tmp_path / "copy" / GOLD)).height
