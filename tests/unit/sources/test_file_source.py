"""Tests polling of folders of real Parquet files, without Spark."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_position import FilePosition, SliceDetail
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError, read_schema

SCHEMA = StructType().add("n", LongType()).add("word", StringType())
EWR = SplitId("EWR")


def write(path: Path, rows: int, **columns: pa.Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {"n": pa.array(range(rows), pa.int64()), "word": pa.array(["w"] * rows, pa.string())}
    pq.write_table(pa.table(plain | columns), path)


def poll(source: FileSource, position: str | None = None, rows_max: int = 100):
    return source.poll(PollSource(VertexId("flights"), EWR, position, rows_max))


def names(slice_):
    return [part.file.name for part in SliceDetail.model_validate_json(slice_.detail).ranges]


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "EWR" / "002.parquet", 3)
    return tmp_path


@pytest.fixture
def source(root):
    return FileSource(root, SCHEMA)


def test_slices_follow_each_other_without_a_gap(source):
    """The first slice begins at the start, and each slice where the one before ends. At the end there is no slice."""
    first = poll(source, rows_max=2)
    second = poll(source, first.end, rows_max=2)
    assert (FilePosition().text(), 2) == (first.start, first.rows)
    assert (first.end, 1) == (second.start, second.rows)
    assert poll(source, second.end) is None


def test_the_same_position_gives_the_same_slice(source, root):
    """Polling is repeatable until a file arrives, because a position has one written form."""
    write(root / "EWR" / "003.parquet", 2)
    assert poll(source) == poll(FileSource(root, SCHEMA))


def test_a_late_file_with_an_earlier_name_is_read_next(source, root):
    """The file 001 arrives after 002 was read, and is not lost."""
    first = poll(source)
    write(root / "EWR" / "001.parquet", 1)
    assert ["001.parquet"] == names(poll(source, first.end))


@pytest.mark.parametrize("name", [".002.parquet", "_002.parquet", "003.parquet.tmp", "003.parquet.crc", "notes.txt"])
def test_unfinished_files_are_ignored(source, root, name):
    """Temporary names and other files are no input."""
    (root / "EWR" / name).write_bytes(b"PAR1 half a file")
    assert ["002.parquet"] == names(poll(source))


def test_a_new_folder_is_a_new_split(source, root):
    """The splits are the folders that exist now, sorted. Temporary ones are left out."""
    assert ("EWR",) == source.splits()
    for name in ("ABQ", "_staging", ".hidden"):
        (root / name).mkdir()
    assert ("ABQ", "EWR") == source.splits()


def test_a_folder_whose_name_cannot_be_a_split_is_named(source, root):
    """A folder's name becomes a key. A name that may not be one is refused with the folder's path."""
    (root / "New York").mkdir()
    with pytest.raises(SourceError, match=r"New York cannot be a split.*rename the folder"):
        source.splits()


def test_a_file_beside_the_folders_is_not_lost_silently(source, root):
    """A Parquet file in the root would never be read, so it is an error."""
    write(root / "stray.parquet", 1)
    with pytest.raises(SourceError, match=r"stray\.parquet lies beside the folders.*\(one_split=True\)"):
        source.splits()


def test_a_missing_root_names_itself(tmp_path):
    """The error says which folder to create."""
    with pytest.raises(SourceError, match=r"nowhere cannot be listed \(No such file.*create the folder"):
        FileSource(tmp_path / "nowhere", SCHEMA).splits()


def test_a_missing_folder_is_named_with_the_ways_out(source, root):
    """An empty folder in its place lets the others go on. When the files come back, none is read a second time."""
    end = poll(source).end
    (root / "EWR").rename(root.parent / "away")
    with pytest.raises(SourceError, match=r"EWR, a folder that was a split of the source, is gone: put it back, or"):
        poll(source, end)
    (root / "EWR").mkdir()
    assert poll(source, end) is None
    (root / "EWR").rmdir()
    (root.parent / "away").rename(root / "EWR")
    assert poll(source, end) is None


def test_a_read_file_that_changed_is_an_error(source, root):
    """Its rows are in the tables already, and would contradict the new contents."""
    end = poll(source).end
    write(root / "EWR" / "002.parquet", 3, n=pa.array([7, 8, 9]))
    with pytest.raises(SourceError, match=r"002\.parquet has been read, and its contents have changed") as refused:
        poll(source, end)
    assert "Put it back as it was (its time does not matter), or remove it" in str(refused.value)
    assert str(refused.value).endswith("tidemark reset PIPELINE flights --split EWR --to 002.parquet:0")


def test_a_read_file_that_was_only_touched_is_no_error(source, root):
    """A backup or a copy gives files new times. The source compares contents before it stops anybody."""
    slice_ = poll(source)
    os.utime(root / "EWR" / "002.parquet", ns=(1, 1))
    assert poll(source, slice_.end) is None
    source._check_present(EWR, SliceDetail.model_validate_json(slice_.detail).ranges[0])


def test_a_read_file_that_was_renamed_is_not_read_again(source, root):
    """Its old name is gone. Size, time and contents are those that were read."""
    end = poll(source).end
    (root / "EWR" / "002.parquet").rename(root / "EWR" / "2013.parquet")
    assert poll(source, end) is None


def test_a_read_file_may_be_deleted(source, root):
    """Its rows are in the tables, so nobody needs it any more."""
    end = poll(source).end
    (root / "EWR" / "002.parquet").unlink()
    assert poll(source, end) is None


def test_a_partly_read_file_may_not_be_deleted(source, root):
    """Its other rows would be lost."""
    end = poll(source, rows_max=1).end
    (root / "EWR" / "002.parquet").unlink()
    with pytest.raises(SourceError, match=r"is gone, with 2 rows not yet consumed.* --to 002\.parquet:3"):
        poll(source, end)


def test_a_truncated_file_is_named(source, root):
    """The error names the file, and says how a writer avoids it."""
    path = root / "EWR" / "001.parquet"
    path.write_bytes((root / "EWR" / "002.parquet").read_bytes()[:-20])
    with pytest.raises(SourceError, match=r"001\.parquet cannot be read as Parquet .*temporary name"):
        poll(source)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"n": pa.array([1.0])}, r"column 'n' is double, but the source's schema says bigint"),
        ({"word": pa.array([1], pa.int32())}, r"column 'word' is int, but the source's schema says string"),
    ],
)
def test_a_file_with_another_type_is_named_with_its_column(tmp_path, columns, message):
    """The error names file, column, both types and what to do."""
    write(tmp_path / "EWR" / "001.parquet", 1, **columns)
    with pytest.raises(SourceError, match=r"001\.parquet: " + message + r".*change the schema"):
        poll(FileSource(tmp_path, SCHEMA))


def test_a_file_without_a_column_is_named(tmp_path):
    """Otherwise the missing column would silently be null."""
    (tmp_path / "EWR").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "EWR" / "001.parquet")
    with pytest.raises(SourceError, match=r"001\.parquet has no column 'word' \(it has n\)"):
        poll(FileSource(tmp_path, SCHEMA))


def test_other_forms_of_the_same_type_are_accepted(tmp_path):
    """A dictionary of strings is a string. A timestamp as INT96, as Spark writes it, is a timestamp."""
    moments = pa.array([0], pa.timestamp("us"))
    (tmp_path / "EWR").mkdir()
    pq.write_table(
        pa.table({"word": pa.array(["w"]).dictionary_encode(), "at": moments}),
        tmp_path / "EWR" / "001.parquet",
        use_deprecated_int96_timestamps=True,
    )
    schema = StructType().add("word", StringType()).add("at", TimestampType())
    assert 1 == poll(FileSource(tmp_path, schema)).rows


def test_a_file_that_changes_between_poll_and_read_is_an_error(source, root):
    """A slice is lazy. The source checks its files again before it builds a plan on them."""
    slice_ = poll(source)
    write(root / "EWR" / "002.parquet", 9)
    with pytest.raises(SourceError, match=r"002\.parquet was found with other contents than it has now"):
        source.read(None, [slice_])


def test_column_names_that_the_source_adds_are_refused(tmp_path):
    """The source adds `_split` and `_position` itself."""
    with pytest.raises(SourceError, match="'_position', a name that is taken"):
        FileSource(tmp_path, StructType().add("_position", LongType()))


def test_read_adds_split_and_position(source):
    """`read` returns the schema's columns, and the two that every source adds."""
    assert ["n", "word", "_split", "_position"] == read_schema(source).names


def test_a_file_name_that_is_no_text_is_named(source, root):
    """A name that is not UTF-8 could not be written into a position."""
    (root / "EWR" / os.fsdecode(b"\xff.parquet")).touch()
    with pytest.raises(SourceError, match=r"'\\udcff\.parquet'.* is not UTF-8: rename the file"):
        poll(source)
