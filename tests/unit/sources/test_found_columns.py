"""Tests that with `columns="evolve"` a source gets the columns of files that it reads, and never loses one again."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_source import FOUND, FileSource
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
    """A completed checkpoint has read them. A declared column may still not be missing."""
    write(tmp_path, "1.parquet", word=pa.array(["w"]))
    assert poll(source(tmp_path)) is None
    then = source(tmp_path)
    then.notify_checkpoint_complete(CheckpointId(1), {SplitId("a"): poll(then).end})
    (tmp_path / "a" / "1.parquet").unlink()
    write(tmp_path, "2.parquet", more=pa.array([1.5]))
    assert poll(source(tmp_path)) is None
    assert [("n", "bigint"), ("word", "string"), ("more", "double")] == names(source(tmp_path))
    assert 1 == poll(source(tmp_path)).rows
    pq.write_table(pa.table({"word": ["w"]}), tmp_path / "a" / "3.parquet")
    with pytest.raises(SourceError, match="no column 'n'"):
        poll(source(tmp_path))


@pytest.mark.parametrize("mend", [True, False])
def test_a_file_that_was_never_read_is_forgotten_when_it_is_removed_or_mended(tmp_path, mend):
    """What a bad file taught must not outlive it: the next file may have the column with another type."""
    write(tmp_path, "1.parquet", word=pa.array([1]))
    assert poll(source(tmp_path)) is None
    assert [("n", "bigint"), ("word", "bigint")] == names(source(tmp_path))
    (tmp_path / "a" / "1.parquet").unlink()
    assert [("n", "bigint")] == names(source(tmp_path))
    write(tmp_path, "1.parquet" if mend else "2.parquet", word=pa.array(["w"]))
    assert poll(source(tmp_path)) is None
    assert [("n", "bigint"), ("word", "string")] == names(source(tmp_path))
    assert 1 == poll(source(tmp_path)).rows


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("1.json", b'{"n": 1, "word": "w"}\n{"n": 2,\n', "line 2 is no JSON object, so its columns are not added"),
        ("1.json", b'{"n": 1, "N": "w"}\n', "column 'N' has the name of column 'n' but for its case"),
        ("1.parquet", None, "cannot be read as Parquet"),
    ],
)
def test_a_damaged_file_teaches_nothing(tmp_path, name, data, why):
    """It is named. When it is gone, the split goes on."""
    write(tmp_path, name, word=pa.array(["w" * 1_000]))
    path = tmp_path / "a" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 60 + whole[64:] if data is None else data)
    with pytest.raises(SourceError, match=why):
        poll(source(tmp_path, format=name.split(".")[1]))
    assert not (tmp_path / FOUND).exists()
    path.unlink()
    assert poll(source(tmp_path, format=name.split(".")[1])) is None


def test_digits_that_a_double_would_lose_stay(tmp_path):
    """A field with a number of 16 digits and one with a point becomes text. Without the point it is a bigint."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.json").write_text('{"x": 9007199254740993, "y": 9007199254740993}\n{"x": 0.5, "y": 1}\n')
    assert poll(source(tmp_path, format="json")) is None
    assert [("n", "bigint"), ("x", "string"), ("y", "bigint")] == names(source(tmp_path, format="json"))


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
