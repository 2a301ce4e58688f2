"""Tests that a staged file is complete or missing, and that its handle and statistics are right."""

import json
import zlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count, pairwise
from types import SimpleNamespace

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import TaskWork
from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, JobName, TableName, VertexId, job_name
from checkpointing.job.operator_run import newest
from checkpointing.key_groups import KeyGroupRange
from checkpointing.metadata.paths import partition_of, staged_name_in
from jobs.operators.reports import report_from
from jobs.operators.stateless_task import StatelessTask
from jobs.sinks import staged_files
from jobs.sinks import staged_files as module
from jobs.sinks.staged_files import (
    Encoding,
    PartitionError,
    StagedFileError,
    StagedFiles,
    VersionError,
    newest_rows,
    partitions,
    require_versions,
)
from jobs.sinks.statistics import FileStatistics, statistics_json
from jobs.state.keyed_rows import KeyedRows
from jobs.state.upsert_range import UpsertRange

TABLE = TableName("silver/flights")
ROWS = pa.table({"a": pa.array([1, None, 3], pa.int32()), "f": [1.0, float("nan"), None]})


def files(root):
    return StagedFiles(str(root), job_name("j"), Generation(7), VertexId("silver"), 12)


def test_a_handle_describes_its_file(tmp_path):
    """The path has generation, vertex and micro-batch. Rows, bytes and checksum are those of the file."""
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
    """A reader need not know how integers are encoded. Nested columns and columns of only nulls are written, too."""
    rows = pa.table(
        {"a": pa.array([1, None, -3]), "t": ["x", "x", None], "l": [[1], None, []], "none": pa.nulls(3, pa.int16())}
    )
    handle = files(tmp_path).write(TABLE, rows, encoding)
    assert rows.equals(pq.read_table(tmp_path / handle.path))


def test_integers_of_a_state_are_stored_as_differences(tmp_path):
    """The file's metadata names this encoding. A text column has a dictionary in both encodings."""
    rows = pa.table({"a": list(range(1000)), "t": ["x", "y"] * 500})
    handle = files(tmp_path).write(TABLE, rows, Encoding.DIFFERENCES)
    group = pq.read_metadata(tmp_path / handle.path).row_group(0)
    assert "DELTA_BINARY_PACKED" in group.column(0).encodings
    assert "RLE_DICTIONARY" in group.column(1).encodings


def test_a_file_for_the_next_vertex_is_written_for_speed(tmp_path):
    """Only a column with repeated texts gets a dictionary.

    For other texts, a dictionary costs time and saves no space.
    """
    rows = pa.table({"t": ["x", "y"] * 500, "own": [str(n) for n in range(1000)]})
    handle = files(tmp_path).write_channel(TABLE, iter([rows[:500], rows[500:]]), rows.schema)
    repeats, own = (pq.read_metadata(tmp_path / handle.path).row_group(0).column(place) for place in range(2))
    assert ["LZ4", "LZ4"] == [repeats.compression, own.compression]
    assert "RLE_DICTIONARY" in repeats.encodings
    assert "RLE_DICTIONARY" not in own.encodings
    assert rows.equals(pq.read_table(tmp_path / handle.path))


def test_a_stopwatch_measures_writing_separately(monkeypatch, tmp_path):
    """The clock advances one second at each call.

    A write takes one second, and the task all seconds since its start.
    """
    seconds = count()
    clock = SimpleNamespace(monotonic_ns=lambda: next(seconds) * 1_000_000_000)
    monkeypatch.setattr(staged_files, "time", clock)
    timed = files(tmp_path).timed()
    timed.write(TABLE, ROWS)
    timed.inline(TABLE, ROWS)
    assert TaskWork(task_ms=5_000, sync_ms=2_000, rows=3) == timed.watch.work(3)


def test_two_writes_of_the_same_rows_make_two_files(tmp_path):
    """So a retried task overwrites no file, and leaves an unused file. No temporary file stays."""
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
    """A file gets its final name only in the last step. If that step fails, the temporary file is deleted."""

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
    """With a bound that is wrong by a millisecond or a letter, a reader would skip rows."""
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
    """If some columns have bounds and another has none, the dataset of delta-rs skips the file."""
    stats = json.loads(statistics_json(pa.table({"n": [1, 2], "f": [odd, 1.0], "x": [None, None]})))
    assert {"numRecords": 2, "nullCount": {"n": 0, "f": 0, "x": 2}} == stats


def test_nested_columns_and_those_after_the_32nd_have_no_statistics():
    """Delta's readers use statistics of the first 32 columns. A struct counts as one column."""
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


# ------------------------------------------------------------------
# Rows are split into the files of their partitions.


GOLD = TableName("gold/t")
SCHEMA = pa.schema([("k", pa.int64()), ("city", pa.string()), ("v", pa.int64())])


def test_each_partition_gets_its_rows_in_their_order():
    """Null has its own partition, and an empty text counts as null.

    Dates and booleans are written as Delta writes them.
    """
    rows = pa.table(
        {
            "n": range(7),
            "city": ["a/b", "", "a/b", None, "null", "a/b", "__HIVE_DEFAULT_PARTITION__"],
            "at": [date(2024, 5, 1)] * 7,
            "good": [True, False, True, False, None, False, False],
        }
    )
    found = {folder: part.column("n").to_pylist() for folder, part in partitions(GOLD, rows, ("at", "city", "good"))}
    assert {
        "at=2024-05-01/city=a%2Fb/good=true": [0, 2],
        "at=2024-05-01/city=a%2Fb/good=false": [5],
        "at=2024-05-01/city=null/good=__HIVE_DEFAULT_PARTITION__": [4],
        "at=2024-05-01/city=__HIVE_DEFAULT_PARTITION__/good=false": [1, 3, 6],
    } == found


def test_values_that_no_folder_can_have_are_refused_by_name(monkeypatch):
    """A folder's name has at most 255 bytes, and a task writes at most a fixed number of partitions."""
    long = pa.table({"city": ["x" * 251], "n": [1]})
    with pytest.raises(PartitionError, match=r"gold/t: a value of partition column city .* 255 bytes .*shorter"):
        list(partitions(GOLD, long, ("city",)))
    fits = pa.table({"city": ["x" * 250], "n": [1]})
    assert [f"city={'x' * 250}"] == [folder for folder, _ in partitions(GOLD, fits, ("city",))]
    monkeypatch.setattr(module, "PARTITIONS_MAX", 2)
    assert 2 == len(list(partitions(GOLD, pa.table({"c": [1, 2, 1], "n": [1, 2, 3]}), ("c",))))
    with pytest.raises(PartitionError, match=r"rows of 3 partitions by c .* at most 2: .*fewer values"):
        list(partitions(GOLD, pa.table({"c": [1, 2, 3], "n": [1, 2, 3]}), ("c",)))


@pytest.fixture
def upsert(tmp_path):
    """Return a function that makes a range of an upsert table over these files."""

    def of(files=(), keys=("k",), *, all_files=False):
        writer = StagedFiles(str(tmp_path), JobName("job"), Generation(1), VertexId("sums"), len(files))
        return UpsertRange(
            operator="sums",
            table=GOLD,
            keys=keys,
            schema=SCHEMA,
            range=KeyGroupRange(first=0, last=3),
            files=files,
            writer=writer,
            version=Version(Generation(1), len(files)),
            partitioned_by=("city",),
            all_files=all_files,
        )

    return of


def frame(*rows):
    return pl.DataFrame(list(rows), schema={"k": pl.Int64, "city": pl.String, "v": pl.Int64}, orient="row")


def test_only_partitions_whose_rows_change_are_written_again(upsert):
    """A row that moves to another partition changes both partitions.

    A partition that loses its last row has no file.
    """
    none = frame()
    first = upsert().write(KeyedRows.of(none), frame((1, "a", 1), (2, "b", 1), (3, None, 1), (4, "c", 1)), none)
    assert [(("city", city),) for city in ("a", "b", "c", None)] == [partition_of(each.file.path) for each in first]
    held = upsert(first)
    second = held.write(held.load(), frame((1, "b", 2)), frame((4, "c", 1)))
    assert {"b", None} == {city for each in second for _, city in partition_of(each.file.path)}
    assert first[3] in second
    assert first[1] not in second
    assert [(1, "b", 2), (2, "b", 1), (3, None, 1)] == sorted(upsert(second).load().frame().rows())
    again = upsert(second, all_files=True)
    third = again.write(again.load(), none, none)
    assert not set(second) & set(third)
    assert sorted(upsert(second).load().frame().rows()) == sorted(upsert(third).load().frame().rows())


def test_a_key_that_is_an_empty_text_cannot_be_a_partition(upsert):
    """As a key, an empty text would be the same partition as null. In another column it counts as null."""
    with pytest.raises(PartitionError, match="key city is '', which"):
        upsert(keys=("k", "city")).write(KeyedRows.of(frame()), frame((1, "", 1)), frame())
    (file,) = upsert().write(KeyedRows.of(frame()), frame((1, "", 1)), frame())
    assert (("city", None),) == partition_of(file.file.path)
    assert [(1, None, 1)] == upsert((file,)).load().frame().rows()


@pytest.mark.parametrize(
    "odd",
    [
        pa.array([4_000_000], pa.int32()).view(pa.date32()),
        pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers()),
    ],
)
def test_a_value_without_a_text_names_table_and_column(odd):
    """Without the check, such a date raised an OverflowError, and bytes that are no UTF-8 a UnicodeDecodeError."""
    with pytest.raises(PartitionError, match="partition column odd holds a date outside of the years 1 to 9999"):
        list(partitions(TableName("silver/days"), pa.table({"odd": odd, "n": [1]}), ("odd",)))


# ------------------------------------------------------------------
# Tasks write the rows of the greatest version of each partition. Tasks and protocol agree which version is the
# greatest.


PRICES = TableName("silver/prices")
CHANNEL = TableName("_tidemark/job/channels/prices")

OLD, NEW = (datetime(year, 1, 1, tzinfo=UTC).replace(tzinfo=None) for year in (1900, 2200))
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)

KINDS = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.timestamp("us", "America/New_York"), st.datetimes(OLD, NEW, timezones=st.just(UTC))),
    (pa.string(), st.text(max_size=20)),
]


@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_a_task_and_the_protocol_agree_which_version_is_the_greatest(data, kind):
    """The rows of a task are cut in two. Each part tells its greatest version, and the greater one is that of all."""
    type_, values = kind
    drawn = data.draw(st.lists(values, min_size=1, max_size=8))
    rows = pa.table({"v": pa.array(drawn, type_), "n": range(len(drawn))})
    cut = data.draw(st.integers(1, len(drawn)))
    version, chosen = newest_rows(PRICES, rows, "v")
    parts = [newest_rows(PRICES, part, "v")[0] for part in (rows[:cut], rows[cut:]) if part.num_rows]
    assert version.order == max(part.order for part in parts)
    assert [n for n, value in enumerate(drawn) if value == max(drawn)] == chosen.column("n").to_pylist()


@pytest.mark.parametrize(
    ("value", "type_", "folder"),
    [
        (-7, pa.int32(), "version.number.-7"),
        (date(987, 5, 1), pa.date32(), "version.date.0987-05-01"),
        (NOON.replace(tzinfo=None), pa.timestamp("us"), "version.time.2024-05-01T12%3A00%3A00.000000"),
        (NOON, pa.timestamp("us", "UTC"), "version.time.2024-05-01T12%3A00%3A00.000000Z"),
        ("", pa.string(), "version.text."),
        ("é/1", pa.string(), "version.text.%C3%A9%2F1"),
    ],
)
def test_the_folder_of_a_version(value, type_, folder):
    """The folder's name may never change, since files of several versions of Tidemark lie side by side."""
    version, _ = newest_rows(PRICES, pa.table({"v": pa.array([value], type_)}), "v")
    assert folder == version.folder


def test_versions_that_cannot_be_told_are_refused_by_name():
    """Such versions are null, a text that makes a name too long, and a date after the year 9999."""
    with pytest.raises(VersionError, match=r"silver/prices: version column v is null in 2 of 3 rows: .*check_rows"):
        require_versions(PRICES, pa.table({"v": [1, None, None]}), "v")
    with pytest.raises(VersionError, match=r"version column v makes a name of more than 255 bytes \('xxx.*shorter"):
        newest_rows(PRICES, pa.table({"v": ["x" * 250]}), "v")
    late = pa.array([(date(9999, 12, 31) - date(1970, 1, 1) + timedelta(days=1)).days], pa.int32()).cast(pa.date32())
    with pytest.raises(VersionError, match="column v holds a date outside of the years 1 to 9999"):
        newest_rows(PRICES, pa.table({"v": late}), "v")


CITY_VERSIONS = pa.schema([("city", pa.string()), ("v", pa.int64()), ("n", pa.int64())])


@pytest.fixture
def task(tmp_path):
    """Return a function that runs a task over rows of city, version and number."""

    def run(rows, micro_batch=1, *, emits=False):
        writer = StagedFiles(str(tmp_path), JobName("job"), Generation(1), VertexId("prices"), micro_batch)
        of = StatelessTask(
            writer=writer,
            schema=CITY_VERSIONS,
            failed=None,
            table=PRICES,
            channel=CHANNEL if emits else None,
            emits=emits,
            quarantine=None,
            partitioned_by=("city",),
            version="v",
        )
        table = pa.table(dict(zip(CITY_VERSIONS.names, zip(*rows, strict=True), strict=True)), schema=CITY_VERSIONS)
        (batch,) = of.run(iter(table.to_batches()))
        return report_from(batch.column("report")[0].as_py())

    return run


def test_a_task_writes_one_file_for_each_partition(task, tmp_path):
    """The task leaves out rows of older versions. Null and an empty text are one partition, as everywhere."""
    report = task([("a", 9, 0), ("a", 10, 1), ("b", 3, 2), ("a", 10, 3), (None, 1, 4), ("", 2, 5)])
    found = {
        (dict(partition_of(file.path))["city"], staged_name_in(file.path).version): pq.read_table(tmp_path / file.path)
        for table, file in report.staged
        if table == PRICES
    }
    assert {("a", "version.number.10"): [1, 3], ("b", "version.number.3"): [2], (None, "version.number.2"): [5]} == {
        place: rows.column("n").to_pylist() for place, rows in found.items()
    }
    assert () == report.emitted
    assert all(CITY_VERSIONS.equals(rows.schema) for rows in found.values())


def test_later_vertices_read_all_rows(task, tmp_path):
    """Later vertices read the channel, since the table has only the rows of the greatest version."""
    report = task([("a", 9, 0), ("a", 10, 1)], emits=True)
    (sent,) = report.emitted
    assert sent.path.startswith(f"{CHANNEL}/")
    assert [0, 1] == pq.read_table(tmp_path / sent.path).column("n").to_pylist()
    ((_, kept),) = report.staged
    assert [1] == pq.read_table(tmp_path / kept.path).column("n").to_pylist()


def test_the_protocol_chooses_among_the_files_of_several_tasks(task, tmp_path):
    """In one partition, the older version's file is dropped.

    In the other partition, both tasks wrote the same version, and both files stay.
    """
    reports = [task([("a", 9, 0), ("b", 1, 1)], 1), task([("a", 10, 2), ("b", 1, 3)], 2)]
    files = [
        KeyedFile(file, KeyedFileKind.BASE, 0, 0, Version(Generation(1), number))
        for number, report in enumerate(reports)
        for _, file in report.staged
    ]
    rows = [pq.read_table(tmp_path / keyed.file.path).column("n").to_pylist() for keyed in newest(files)]
    assert [[1], [2], [3]] == sorted(rows)
