"""Tests that words for a place in a split become the position that the source itself writes there, without Spark."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import NoSuchPositionError
from jobs.sources.position_words import Place, seek

NUMBERS = VertexId("numbers")


@pytest.fixture
def files(tmp_path):
    """Return a source of one split with files of 3, 4 and 5 rows."""
    (tmp_path / "s").mkdir()
    for rows in (3, 4, 5):
        pq.write_table(pa.table({"n": list(range(rows))}), tmp_path / f"s/{rows}.parquet")
    return FileSource(tmp_path, StructType().add("n", LongType()))


def place(position=None):
    """Return a place in the single split."""
    return Place(NUMBERS, SplitId("s"), position)


@pytest.mark.parametrize(
    ("words", "rows"), [("start", 0), ("3.parquet:2", 2), ("4.parquet:4", 7), ("5.parquet:0", 7), ("end", 12)]
)
def test_a_file_and_its_rows_name_a_position(files, words, rows):
    """This holds from any earlier position. Reading goes on with exactly the rows after it."""
    for stands in (None, seek(files, place(), "4.parquet:1"), seek(files, place(), "end")):
        found = seek(files, place(stands), words)
        assert rows == files.rows_between(SplitId("s"), None, found)
        if words not in ("start", "end"):
            assert words == files.named(SplitId("s"), found)
        left = files.poll(PollSource(NUMBERS, SplitId("s"), found, 100))
        assert 12 - rows == (left.rows if left else 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("6.parquet:1", r"FILE:ROWS, like 5.parquet:5; files: 3.parquet to 5.parquet"),
        ("3.parquet", "FILE:ROWS"),
        ("3.parquet:4", "3.parquet has 3 rows"),
        ("3.parquet:-1", "FILE:ROWS"),
        ("../3.parquet:1", "FILE:ROWS"),
    ],
)
def test_other_words_are_refused_with_the_right_ones(files, words, said):
    """The message names split and source."""
    with pytest.raises(NoSuchPositionError, match=f"is not a position in split s of source numbers: .*{said}"):
        seek(files, place(), words)


def test_a_number_names_a_position_of_a_sequence():
    """The number must lie within the bounds of the split. A split without an end has none."""
    source = SequenceSource({"s": 10, "endless": None})
    assert ["7", None, "10"] == [seek(source, place("3"), words) for words in ("7", "start", "end")]
    with pytest.raises(NoSuchPositionError, match="a number from 0 to 10"):
        seek(source, place("3"), "11")
    with pytest.raises(NoSuchPositionError, match="it has no end"):
        seek(source, Place(NUMBERS, SplitId("endless"), "3"), "end")


def test_an_empty_split_has_only_its_start(tmp_path):
    """No other place exists there."""
    (tmp_path / "s").mkdir()
    source = FileSource(tmp_path, StructType().add("n", LongType()))
    assert [None, None] == [seek(source, place(), words) for words in ("start", "end")]
    with pytest.raises(NoSuchPositionError, match="the split is empty so far"):
        seek(source, place(), "a.parquet:1")
