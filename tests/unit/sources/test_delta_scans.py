"""Tests the files of Delta tables that tasks read themselves, and those that they leave to Spark."""

import pyarrow as pa
import pytest
from deltalake import Field, write_deltalake
from deltalake.schema import PrimitiveType

from jobs.sources.delta.delta_source import SPLIT, DeltaSource
from jobs.sources.port import SourceError
from tests.unit.sources.test_delta_source import FEED, append, delta, poll, slices


@pytest.fixture
def table(tmp_path):
    """Return the place of a table."""
    return tmp_path / "orders"


def scanned(source: DeltaSource, pieces):
    """Return the rows that tasks read of slices, or None if Spark must read them."""
    scans = source.scans(tuple(pieces))
    schema = pa.schema([("_position", pa.int64()), ("id", pa.int64()), ("word", pa.string()), ("_split", pa.string())])
    return scans and [
        tuple(row.values()) for scan in scans for batch in scan.batches(schema) for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("rows_max", [1, 2, 100])
def test_tasks_read_the_files_of_slices(table, rows_max):
    """They find the rows that the slices name, at their places. A row of a file without a column has null there."""
    write_deltalake(str(table), pa.table({"id": pa.array([1, 2], pa.int64())}))
    delta(table).alter.add_columns([Field("word", PrimitiveType("string"))])
    append(table, 3)
    append(table, 4, 5, 6)
    source = DeltaSource(table, start=0)
    pieces = list(slices(source, rows_max))
    expected = [(number - 1, number, f"w{number}" if number > 2 else None, SPLIT) for number in range(1, 7)]
    assert expected == [row for piece in pieces for row in scanned(source, [piece])]
    assert expected == scanned(source, pieces)


def test_rows_that_tasks_cannot_read_are_left_to_spark(tmp_path):
    """Changes have columns that no file has. So have tables with partitions."""
    append(tmp_path / "feed", 1, 2, configuration=FEED)
    append(tmp_path / "parts", 1, 2, partition_by=["word"])
    for source in (DeltaSource(tmp_path / "feed", changes=True), DeltaSource(tmp_path / "parts")):
        assert scanned(source, slices(source)) is None
    appends = DeltaSource(tmp_path / "feed")
    assert 2 == len(scanned(appends, slices(appends)))


def test_a_vacuumed_file_is_named_before_tasks_read(table):
    """As before Spark reads it."""
    append(table, 1)
    source = DeltaSource(table)
    piece = poll(source)
    for file in table.glob("*.parquet"):
        file.unlink()
    with pytest.raises(SourceError, match="parquet"):
        source.scans([piece])
