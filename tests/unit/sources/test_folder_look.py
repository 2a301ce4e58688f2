"""Tests that a source of files counts and names the files that it ignores, with the reason and the way out."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.identifiers import VertexId
from jobs.sources.committed_positions import CommitsToFile
from jobs.sources.files.file_source import FileSource
from jobs.sources.folder_look import Why
from jobs.sources.hybrid import SequenceSource
from jobs.tick.discovery import look_at_input

SCHEMA = StructType().add("n", LongType())
ORDERS = VertexId("orders")


@pytest.fixture
def root(tmp_path):
    """Return the data folder: a split with one file to read."""
    (tmp_path / "EWR").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "EWR" / "1.parquet")
    return tmp_path


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def sentences(root, source=None):
    return [
        said for seen in look_at_input({ORDERS: source or FileSource(root, SCHEMA)}, None) for said in seen.sentences()
    ]


def test_other_suffixes_are_counted_and_named(root):
    """The files are CSV, JSON lines, and odd suffixes. The message has three names, how many more, and what to do."""
    touch(root, "EWR/a.csv", "EWR/b.jsonl", "EWR/c.parq", "EWR/d.PARQUET")
    (said,) = sentences(root)
    names = "(EWR/a.csv, EWR/b.jsonl, EWR/c.parq and 1 more)"
    assert f"source orders passes over 4 files in {root}: 4 whose names do not end in .parquet {names}" in said
    assert "to have them read, write those as Parquet, or rename them; to silence this message, let their names" in said


def test_nested_files_and_files_beside_the_splits_are_named_with_a_way_out(root):
    """The source looks through folders in a split's folder to their ends. Hidden files in them are left out."""
    touch(root, "EWR/2024/01/x.parquet", "EWR/2024/_SUCCESS", "EWR/2024/_temporary/y.parquet", "README.txt")
    (said,) = sentences(root)
    assert "passes over 2 files" in said
    assert "1 in folders inside a split's folder (EWR/2024/01/x.parquet)" in said
    assert "1 beside the folders of splits (README.txt)" in said
    assert "move those up into the split's folder and move those into one of the folders" in said


def test_a_link_without_a_target_is_named(root):
    """It has the right name, but it is no file."""
    (root / "EWR" / "2.parquet").symlink_to(root / "gone.parquet")
    assert {Why.NO_FILE: ["EWR/2.parquet"]} == FileSource(root, SCHEMA).look().passed_over


@pytest.mark.parametrize(
    "name", ["EWR/_SUCCESS", "EWR/.x.crc", "EWR/_x.parquet", "EWR/x.parquet.tmp", "EWR/x._COPYING_", "_tmp/x.csv"]
)
def test_files_hidden_by_convention_are_ignored_silently(root, name):
    """Spark ignores them too."""
    touch(root, name)
    assert (1, {}) == ((found := FileSource(root, SCHEMA).look()).files, found.passed_over)
    assert [] == sentences(root)


def test_a_source_that_has_never_found_a_file_says_where_it_looks(root):
    """A source whose positions are committed outside says it too."""
    (root / "EWR" / "1.parquet").rename(root / "EWR" / "1.csv")
    said = sentences(root)
    assert said == sentences(root, CommitsToFile(FileSource(root, SCHEMA), root / "_positions.json"))
    assert (
        f"source orders has found no file under {root}: it reads {root}/SPLIT/*.parquet, and none of the 1 folders "
        "there has such a file; put the input there, or name the right folder (--data)"
    ) == said[0]
    assert "passes over 1 file in" in said[1]


def test_a_source_without_a_folder_reports_nothing(root):
    """A source of numbers reads no files."""
    assert [] == sentences(root, SequenceSource({"a": 1}))
