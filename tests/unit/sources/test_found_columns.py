"""Tests that with `columns="evolve"` a source gets the columns that its files bring, and never loses one again."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files import FileSource
from jobs.sources.found_columns import FOUND
from jobs.sources.port import SourceError, has_ended

SCHEMA = StructType().add("n", LongType())


def write(root, name, **columns):
    (root / "a").mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": pa.array([1], pa.int64())} | columns), root / "a" / name)


def source(root, **given):
    return FileSource(root, SCHEMA, **({"columns": "evolve"} | given))


def poll(read, position=None):
    return read.poll(PollSource(VertexId("in"), SplitId("a"), position, 100))


def names(read):
    return [(field.name, field.dataType.simpleString()) for field in read.schema()]


def test_a_file_with_a_new_column_waits_for_the_next_tick(tmp_path):
    """The source reads the files before it now. The next tick's source has the column, and reads on."""
    write(tmp_path, "1.parquet")
    write(tmp_path, "2.parquet", at=pa.array([None], pa.timestamp("ns", "UTC")), word=pa.array(["w"]))
    write(tmp_path, "3.parquet")
    first = source(tmp_path)
    slice_ = poll(first)
    assert (1, None) == (slice_.rows, poll(first, slice_.end))
    assert [("n", "bigint")] == names(first)
    then = source(tmp_path)
    assert [("n", "bigint"), ("at", "timestamp"), ("word", "string")] == names(then)
    assert 2 == poll(then, slice_.end).rows


def test_a_bounded_split_does_not_end_before_a_file_that_waits(tmp_path):
    """The next tick reads the file, and then the split ends."""
    write(tmp_path, "1.parquet")
    write(tmp_path, "2.parquet", word=pa.array(["w"]))
    first, split = source(tmp_path, bounded=True), SplitId("a")
    read = poll(first)
    assert (None, False) == (poll(first, read.end), has_ended(first, split, read.end))
    then = source(tmp_path, bounded=True)
    rest = poll(then, read.end)
    assert (1, None, True) == (rest.rows, poll(then, rest.end), has_ended(then, split, rest.end))


def test_a_column_stays_when_its_files_are_gone(tmp_path):
    """A declared column may still not be missing."""
    write(tmp_path, "1.parquet", word=pa.array(["w"]))
    assert poll(source(tmp_path)) is None
    (tmp_path / "a" / "1.parquet").unlink()
    write(tmp_path, "2.parquet", more=pa.array([1.5]))
    assert poll(source(tmp_path)) is None
    assert [("n", "bigint"), ("word", "string"), ("more", "double")] == names(source(tmp_path))
    assert 1 == poll(source(tmp_path)).rows
    pq.write_table(pa.table({"word": ["w"]}), tmp_path / "a" / "3.parquet")
    with pytest.raises(SourceError, match="no column 'n'"):
        poll(source(tmp_path))


def test_a_column_that_is_declared_later_comes_once(tmp_path):
    """The declared type counts."""
    write(tmp_path, "1.parquet", word=pa.array(["w"]))
    assert poll(source(tmp_path)) is None
    declared = FileSource(tmp_path, StructType().add("word", StringType()).add("n", LongType()), columns="evolve")
    assert [("word", "string"), ("n", "bigint")] == names(declared)


def test_another_type_is_refused(tmp_path):
    """A later file has the found column with another type. It is named, like a wrong type of a declared column."""
    write(tmp_path, "1.parquet", word=pa.array(["w"]))
    assert poll(source(tmp_path)) is None
    write(tmp_path, "2.parquet", word=pa.array([1], pa.int64()))
    with pytest.raises(SourceError, match="column 'word' is bigint, but the source's schema says string"):
        poll(source(tmp_path))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([None], pa.null()), "has no values and no type"),
        (pa.array([1], pa.duration("ns")), "a type that Spark cannot read"),
    ],
)
def test_a_column_that_cannot_be_added_is_named(tmp_path, column, message):
    """The message names the file and the column."""
    write(tmp_path, "1.parquet", word=column)
    with pytest.raises(SourceError, match=rf"1\.parquet: column 'word' .*{message}"):
        poll(source(tmp_path))


@pytest.mark.parametrize("text", ["", "{}", '{"columns": {"fields": 1}}', '{"columns": {}, "secret": 1}'])
def test_a_damaged_file_of_recorded_columns_is_named(tmp_path, text):
    """Otherwise columns would be lost silently."""
    write(tmp_path, "1.parquet")
    (tmp_path / FOUND).write_text(text)
    with pytest.raises(SourceError, match=r"_columns\.json, .* cannot be read .* put it back as it was"):
        source(tmp_path)
