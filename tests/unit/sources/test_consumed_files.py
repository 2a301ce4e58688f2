"""Tests that files go only after a completed checkpoint has their rows, and that earlier positions are then refused."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_matching import LEDGER
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError

SCHEMA = StructType().add("n", LongType())
EWR = SplitId("EWR")


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(range(rows), pa.int64())}), path)


def poll(source, position=None, rows_max=3):
    return source.poll(PollSource(VertexId("in"), EWR, position, rows_max))


@pytest.fixture
def root(tmp_path):
    for name in ("1", "2", "3"):
        write(tmp_path / "in" / "EWR" / f"{name}.parquet", 3)
    return tmp_path / "in"


@pytest.fixture
def deleting(root):
    return FileSource(root, SCHEMA, after_reading="delete")


@pytest.fixture
def archiving(root, tmp_path):
    return FileSource(root, SCHEMA, after_reading="archive", archive=tmp_path / "archive")


def complete(source, position, checkpoint=1):
    source.notify_checkpoint_complete(CheckpointId(checkpoint), {EWR: position})


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("_"))


def test_only_files_before_the_position_are_removed(deleting, root):
    """Polling ahead removes nothing. The completed checkpoint's position decides."""
    first = poll(deleting)
    poll(deleting, first.end)
    assert ["1.parquet", "2.parquet", "3.parquet"] == names(root / "EWR")
    complete(deleting, first.end)
    assert ["2.parquet", "3.parquet"] == names(root / "EWR")


def test_a_file_that_was_read_in_part_stays(deleting, root):
    """The source still has to read the rest of it."""
    part = poll(deleting, poll(deleting).end, rows_max=2)
    complete(deleting, part.end)
    assert ["2.parquet", "3.parquet"] == names(root / "EWR")
    rest = poll(deleting, part.end, rows_max=1)
    assert 1 == rest.rows
    complete(deleting, rest.end, 2)
    assert ["3.parquet"] == names(root / "EWR")


def test_files_are_read_on_after_others_have_gone(deleting, root):
    """One of them is a late file with an earlier name."""
    first = poll(deleting)
    complete(deleting, first.end)
    write(root / "EWR" / "0.parquet", 1)
    assert 7 == poll(deleting, first.end, rows_max=10).rows


def test_a_changed_file_stays(deleting, root):
    """Somebody replaced it after it was read, and the new contents are not read yet."""
    first = poll(deleting)
    write(root / "EWR" / "1.parquet", 5)
    complete(deleting, first.end)
    assert "1.parquet" in names(root / "EWR")


def test_an_earlier_position_is_refused_by_name(deleting, archiving, root, tmp_path):
    """A rollback, or a job that begins at the start, would silently miss the rows of removed files."""
    first = poll(archiving)
    second = poll(archiving, first.end)
    complete(archiving, second.end, 7)
    for position in (None, first.end):
        with pytest.raises(SourceError, match=r"after its checkpoint 7, .* bring them back from .*archive and delete"):
            poll(archiving, position)
    assert poll(archiving, second.end).rows == 3
    for path in (tmp_path / "archive" / "EWR").iterdir():
        path.rename(root / "EWR" / path.name)
    (root / "EWR" / LEDGER).unlink()
    assert first == poll(archiving)


def test_a_second_call_changes_nothing(archiving, root, tmp_path):
    """A starting tick reports the restored checkpoint again. A crash may have left half of the files."""
    first = poll(archiving)
    complete(archiving, first.end)
    complete(archiving, first.end)
    assert ["1.parquet"] == names(tmp_path / "archive" / "EWR")
    assert ["2.parquet", "3.parquet"] == names(root / "EWR")


def test_the_ledger_is_written_before_a_file_is_removed(deleting, root, monkeypatch):
    """A crash between the two leaves a file too many. It never removes a file that the ledger does not name."""

    def crash(self, **_):
        raise KeyboardInterrupt

    first = poll(deleting)
    monkeypatch.setattr("pathlib.Path.unlink", crash)
    with pytest.raises(KeyboardInterrupt):
        complete(deleting, first.end)
    assert (root / "EWR" / LEDGER).exists()


def test_an_archive_overwrites_nothing(archiving, root, tmp_path):
    """A file of that name in the archive is another file."""
    write(tmp_path / "archive" / "EWR" / "1.parquet", 9)
    with pytest.raises(SourceError, match=r"1\.parquet has been read, and cannot be archived: there is .* already"):
        complete(archiving, poll(archiving).end)
    assert "1.parquet" in names(root / "EWR")


def test_keep_removes_nothing_and_is_the_default(root):
    """A source without the setting removes no file."""
    source = FileSource(root, SCHEMA)
    complete(source, poll(source).end)
    assert {"1.parquet", "2.parquet", "3.parquet"} == set(names(root / "EWR"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"after_reading": "burn"}, "write one of keep, archive, delete"),
        ({"after_reading": "archive"}, "give both, or neither"),
        ({"archive": "elsewhere"}, "give both, or neither"),
        ({"after_reading": "archive", "archive": "in/old"}, "lies below the source's root"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(root, monkeypatch, given, message):
    """The message says what to write."""
    monkeypatch.chdir(root.parent)
    with pytest.raises(SourceError, match=message):
        FileSource("in", SCHEMA, **given)
