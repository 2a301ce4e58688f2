"""Staged files are complete or missing. Their handles and statistics are right."""

import json
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count, pairwise
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import TaskWork
from checkpointing.identifiers import Generation, TableName, VertexId, job_name
from jobs.sinks import staged_files
from jobs.sinks.staged_files import Encoding, StagedFileError, StagedFiles
from jobs.sinks.statistics import FileStatistics, statistics_json

TABLE = TableName("silver/flights")
ROWS = pa.table({"a": pa.array([1, None, 3], pa.int32()), "f": [1.0, float("nan"), None]})


def files(root):
    """Return the writer of a micro-batch."""
    return StagedFiles(str(root), job_name("j"), Generation(7), VertexId("silver"), 12)


def test_a_handle_describes_its_file(tmp_path):
    """Its path has generation, vertex and micro-batch. Its rows, bytes and checksum are those of the file."""
    handle = files(tmp_path).write(TABLE, ROWS)
    content = (tmp_path / handle.path).read_bytes()
    assert handle.path.startswith("silver/flights/_data/7/silver-12-")
    assert (3, len(content), zlib.crc32(content)) == (handle.rows, handle.bytes, handle.crc32)


def test_null_stays_null_and_nan_stays_nan(tmp_path):
    """The file has the user's rows unchanged."""
    handle = files(tmp_path).write(TABLE, ROWS)
    read = pq.read_table(tmp_path / handle.path)
    assert [1, None, 3] == read["a"].to_pylist()
    assert "[1.0, nan, None]" == str(read["f"].to_pylist())
    assert ROWS.schema == read.schema


@pytest.mark.parametrize("encoding", list(Encoding))
def test_both_encodings_give_back_the_same_rows(tmp_path, encoding):
    """A reader need not know how integers are encoded. Nested and empty columns are written too."""
    rows = pa.table(
        {"a": pa.array([1, None, -3]), "t": ["x", "x", None], "l": [[1], None, []], "none": pa.nulls(3, pa.int16())}
    )
    handle = files(tmp_path).write(TABLE, rows, encoding)
    assert rows.equals(pq.read_table(tmp_path / handle.path))


def test_integers_of_a_state_are_stored_as_differences(tmp_path):
    """The file says so. A text column has its dictionary in both encodings."""
    rows = pa.table({"a": list(range(1000)), "t": ["x", "y"] * 500})
    handle = files(tmp_path).write(TABLE, rows, Encoding.DIFFERENCES)
    group = pq.read_metadata(tmp_path / handle.path).row_group(0)
    assert "DELTA_BINARY_PACKED" in group.column(0).encodings
    assert "RLE_DICTIONARY" in group.column(1).encodings


def test_a_stopwatch_measures_writing_separately(monkeypatch, tmp_path):
    """The clock advances a second at each look. A write counts as one second, and the task as all since its start."""
    seconds = count()
    clock = SimpleNamespace(monotonic_ns=lambda: next(seconds) * 1_000_000_000)
    monkeypatch.setattr(staged_files, "time", clock)
    timed = files(tmp_path).timed()
    timed.write(TABLE, ROWS)
    timed.inline(TABLE, ROWS)
    assert TaskWork(task_ms=5_000, sync_ms=2_000, rows=3) == timed.watch.work(3)


def test_two_writes_of_the_same_rows_make_two_files(tmp_path):
    """A retried task leaves an unused file, and overwrites none. No temporary file stays."""
    one, two = (files(tmp_path).write(TABLE, ROWS) for _ in range(2))
    assert one.path != two.path
    assert 2 == len(list((tmp_path / one.path).parent.iterdir()))


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """The error names the file, the system's message and the way out."""
    (tmp_path / "silver").write_text("in the way")
    with pytest.raises(
        StagedFileError, match=r"can't write staged file silver/flights/_data/7/silver-12-.*check the free space"
    ):
        files(tmp_path).write(TABLE, ROWS)


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    """A file gets its name only by the final rename. The temporary file is deleted."""

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(StagedFileError, match="No space left on device"):
        files(tmp_path).write(TABLE, ROWS)
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


FAR = 2**62
DIGITS = Decimal("-12345678901234567.89")
NO_UTF8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
MOMENT = datetime(2013, 1, 1, 5, 0, 0, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "low", "high"),
    [
        pytest.param(pa.array([3, 1, None]), 1, 3, id="integers"),
        pytest.param(pa.array([1.5, -2.0]), -2.0, 1.5, id="floats"),
        pytest.param(pa.array(["b", "a" * 40]), "a" * 32, "b", id="long text: a prefix is a lower bound"),
        pytest.param(pa.array(["z" * 33]), "z" * 32, "z" * 32 + "\U0010ffff", id="long text: upper bound is above it"),
        pytest.param(pa.array([date(2013, 1, 2)]), "2013-01-02", "2013-01-02", id="dates"),
        pytest.param(pa.array([Decimal("1.50")]), Decimal("1.50"), Decimal("1.50"), id="decimals"),
        pytest.param(pa.array([DIGITS]), DIGITS, DIGITS, id="all digits of a decimal"),
        pytest.param(
            pa.array([MOMENT], pa.timestamp("us", "UTC")),
            "2013-01-01T05:00:00.123Z",
            "2013-01-01T05:00:00.124Z",
            id="moments: microseconds are rounded outwards",
        ),
        pytest.param(
            pa.array([MOMENT.replace(tzinfo=None)], pa.timestamp("us")),
            "2013-01-01T05:00:00.123",
            "2013-01-01T05:00:00.124",
            id="local times",
        ),
        pytest.param(pa.array([1.0, float("nan")]), None, None, id="no bounds with NaN"),
        pytest.param(pa.array([1.0, float("inf")]), None, None, id="no bounds with infinity, which JSON lacks"),
        pytest.param(pa.array([None, None], pa.int64()), None, None, id="only nulls"),
        pytest.param(pa.array([True, False]), False, True, id="booleans"),
        pytest.param(pa.array(["z" * 32 + "\U0010ffff"]), None, None, id="no text is above it"),
        pytest.param(pa.array([0.0]), -0.0, 0.0, id="both zeros"),
        pytest.param(pa.array([FAR], pa.timestamp("us", "UTC")), None, None, id="moments after the year 9999"),
        pytest.param(pa.array([-FAR], pa.timestamp("us")), None, None, id="local times before the year 1"),
        pytest.param(pa.array([4_000_000], pa.int32()).view(pa.date32()), None, None, id="days after the year 9999"),
        pytest.param(NO_UTF8, None, None, id="a text that is no UTF-8"),
    ],
)
def test_bounds_cover_every_value_or_are_left_out(column, low, high):
    """A bound that is wrong by a millisecond or a letter would make a reader skip rows."""
    stats = json.loads(statistics_json(pa.table({"c": column})), parse_float=Decimal)
    if isinstance(low, float):
        assert str(low) == str(stats["minValues"]["c"])
        assert str(high) == str(stats["maxValues"]["c"])
        low, high = stats["minValues"]["c"], stats["maxValues"]["c"]
    assert (low, high) == (stats.get("minValues", {}).get("c"), stats.get("maxValues", {}).get("c"))
    assert {"c": column.null_count} == stats["nullCount"]
    assert len(column) == stats["numRecords"]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_a_file_gets_all_of_its_bounds_or_none(odd):
    """If only one column lacks its bounds, the dataset of delta-rs skips the file."""
    stats = json.loads(statistics_json(pa.table({"n": [1, 2], "f": [odd, 1.0], "x": [None, None]})))
    assert {"numRecords": 2, "nullCount": {"n": 0, "f": 0, "x": 2}} == stats


def test_nested_columns_and_those_after_the_32nd_have_no_statistics():
    """Delta's readers use the first 32 columns. The fields of a struct are not counted."""
    rows = pa.table({"s": [{"x": 1}]} | {f"c{i:02d}": [i] for i in range(40)})
    assert [f"c{i:02d}" for i in range(31)] == sorted(json.loads(statistics_json(rows))["nullCount"])


@given(
    values=st.lists(st.none() | st.integers(-5, 5), max_size=20),
    texts=st.lists(st.none() | st.text("aZ~", max_size=40), max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    odd=st.sampled_from([None, None, float("nan"), float("inf")]),
)
def test_the_statistics_of_parts_are_those_of_the_whole(values, texts, cuts, odd):
    """A file that is written part by part gets the same statistics as at once, wherever a part ends."""
    rows = min(len(values), len(texts))
    floats = [*map(float, range(rows))]
    if odd is not None and rows:
        floats[rows // 2] = odd
    columns = {"n": pa.array(values[:rows], pa.int64()), "t": pa.array(texts[:rows], pa.string())}
    whole = pa.table(columns | {"f": pa.array(floats, pa.float64()), "p": pa.nulls(rows)})
    ends = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    statistics = FileStatistics(besides=["p"])
    for start, end in pairwise(ends):
        statistics.add(whole.slice(start, end - start))
    assert statistics_json(whole, besides=["p"]) == statistics.json()
