"""Tests that a part of a Parquet file is read exactly, whatever its row groups are."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.storage.parquet import FileScan, Numbering, ScanError

STORED = pa.schema([("k", pa.int64()), ("v", pa.string())])
NUMBERED = pa.schema([("v", pa.string()), ("_position", pa.int64()), ("k", pa.int64()), ("_split", pa.string())])


def stored(folder, rows, group_rows):
    """Write a file whose row `i` has the key `i`."""
    table = pa.table([range(rows), [f"value {number}" for number in range(rows)]], schema=STORED)
    pq.write_table(table, folder / "a.parquet", row_group_size=group_rows)


def scan(folder, first, end, numbering=None):
    """Return the scan of some rows of that file."""
    return FileScan(root=str(folder), name="a.parquet", first=first, end=end, bytes=1, numbering=numbering)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_exactly_the_asked_rows_come_in_order_with_their_positions(tmp_path_factory, data):
    """The positions count from the position of row 0, wherever the scan begins."""
    folder = tmp_path_factory.mktemp("scanned")
    rows = data.draw(st.integers(1, 60))
    first = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(first + 1, rows))
    stored(folder, rows, data.draw(st.integers(1, rows)))
    batches = scan(folder, first, end, Numbering("_split", "EWR", "_position", 1_000)).batches(NUMBERED)
    found = pa.Table.from_batches(batches, NUMBERED).to_pylist()
    assert found == [
        {"v": f"value {number}", "_position": 1_000 + number, "k": number, "_split": "EWR"}
        for number in range(first, end)
    ]


def test_only_the_asked_columns_come_widened_and_a_missing_one_is_null(tmp_path):
    """Spark reads a file of an older schema so, too."""
    pq.write_table(pa.table({"k": pa.array([1], pa.int32()), "other": ["x"]}), tmp_path / "a.parquet")
    wanted = pa.schema([("k", pa.int64()), ("new", pa.decimal128(9, 2))])
    (batch,) = scan(tmp_path, 0, 1).batches(wanted)
    assert batch.schema == wanted
    assert batch.to_pylist() == [{"k": 1, "new": None}]


@pytest.mark.parametrize("case", ["missing", "damaged", "shorter"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, case):
    """The message says what to do."""
    if case == "damaged":
        (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    if case == "shorter":
        stored(tmp_path, 3, 2)
    with pytest.raises(ScanError, match=r"a\.parquet cannot be read .*: put it back as it was"):
        list(scan(tmp_path, 0, 4).batches(STORED))
