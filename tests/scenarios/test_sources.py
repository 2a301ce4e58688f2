"""Tests that sources on real Spark read exactly the rows of their slices, with exact ordinals."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import read_schema

pytestmark = pytest.mark.spark

SCHEMA = StructType().add("row", LongType()).add("file", StringType())
ODD_NAMES = ["a=1", "EWR"]
ODD_FILES = ["b [1] {x}*.parquet", "a%20b.parquet", "ü'quote+plus.parquet", "plain.parquet"]


@pytest.fixture
def root(tmp_path):
    """Return two splits of four files. Spark, Hadoop or SQL could misread the names.

    Each file has 7 rows, 3 in a row group.
    """
    root = tmp_path / "in put#1"
    for split in ODD_NAMES:
        (root / split).mkdir(parents=True)
        for name in ODD_FILES:
            columns = {"row": pa.array(range(7), pa.int64()), "file": [f"{split}/{name}"] * 7}
            pq.write_table(pa.table(columns), root / split / name, row_group_size=3)
    return root


def polls(source, rows_max):
    """Return every slice of every split, in order."""
    for split in source.splits():
        position = None
        while (piece := source.poll(PollSource(VertexId("in"), SplitId(split), position, rows_max))) is not None:
            yield piece
            position = piece.end


def generated_code(frame):
    """Return the Java text that Spark generates for a frame."""
    stages = frame._jdf.queryExecution().debug().codegenToSeq()
    assert stages.size()
    return tuple(stages.apply(index)._2() for index in range(stages.size()))


def shape(schema):
    return [(field.name, field.dataType) for field in schema.fields]


@pytest.mark.parametrize("rows_max", [2, 5, 10, 100])
def test_all_slices_in_one_read_are_all_rows(spark, root, rows_max):
    """This holds for any size of slices and any file names: each row comes once, in order, without a gap."""
    source = FileSource(root, SCHEMA)
    frame = source.read(spark, list(polls(source, rows_max)))
    expected = [
        (row, f"{split}/{name}", split, position * 7 + row)
        for split in sorted(ODD_NAMES)
        for position, name in enumerate(sorted(ODD_FILES))
        for row in range(7)
    ]
    assert shape(read_schema(source)) == shape(frame.schema)
    assert expected == [tuple(row) for row in frame.orderBy("_split", "_position").collect()]


def test_some_slices_are_exactly_their_rows(spark, root):
    """The slices begin and end within files, belong to several splits and are not adjacent.

    One scan reads just their rows.
    """
    source = FileSource(root, SCHEMA)
    chosen = list(polls(source, 5))[1::3]
    found = source.read(spark, chosen).select("_split", "_position").collect()
    expected = set()
    for split in source.splits():
        before = 0
        for piece in [piece for piece in polls(source, 5) if piece.split == split]:
            if piece in chosen:
                expected |= {(split, position) for position in range(before, before + piece.rows)}
            before += piece.rows
    assert sorted(expected) == sorted(tuple(row) for row in found)


def test_the_compiled_code_does_not_depend_on_where_slices_begin(spark, root):
    """Otherwise Spark would compile code for each micro-batch, and the JIT would begin anew."""
    source = FileSource(root, SCHEMA)
    slices = list(polls(source, 5))
    compiled = {generated_code(source.read(spark, chosen)) for chosen in (slices[:1], slices[1:2], slices[2:5])}
    assert 1 == len(compiled)


def test_a_late_file_does_not_change_the_ordinals_of_earlier_ones(spark, tmp_path):
    """Ordinals follow the order of discovery. A late file with an earlier name continues the count."""
    (tmp_path / "EWR").mkdir()
    write = lambda name, rows: pq.write_table(  # noqa: E731 - two calls
        pa.table({"row": pa.array(range(rows), pa.int64()), "file": [name] * rows}), tmp_path / "EWR" / name
    )
    source = FileSource(tmp_path, SCHEMA)
    write("b.parquet", 2)
    first = next(polls(source, 10))
    write("a.parquet", 2)
    second = source.poll(PollSource(VertexId("in"), SplitId("EWR"), first.end, 10))
    found = source.read(spark, [second, first]).select("file", "_position").orderBy("_position").collect()
    assert [("b.parquet", 0), ("b.parquet", 1), ("a.parquet", 2), ("a.parquet", 3)] == [tuple(row) for row in found]


def test_a_sequence_has_the_same_rows_in_slices_of_any_size(spark):
    """A row is a formula of its split and n."""
    source = SequenceSource({"a": 5, "b": 3}, keys=2, step=10, offset=1)
    for rows_max in (1, 2, 100):
        frame = source.read(spark, list(polls(source, rows_max)))
        assert shape(read_schema(source)) == shape(frame.schema)
        expected = [(s, n, n % 2, n * 10 + 1, s, n) for s, rows in (("a", 5), ("b", 3)) for n in range(rows)]
        assert expected == [tuple(row) for row in frame.orderBy("split", "n").collect()]
