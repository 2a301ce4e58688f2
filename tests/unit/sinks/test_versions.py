"""Tasks write the rows of the greatest version of each partition, and the protocol agrees which one that is."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.job.operator_run import newest
from checkpointing.metadata.paths import partition_of, staged_name_in
from jobs.operators.reports import report_from
from jobs.operators.stateless_task import StatelessTask
from jobs.sinks.staged_files import StagedFiles, VersionError, newest_rows, require_versions

TABLE = TableName("silver/prices")
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
    version, chosen = newest_rows(TABLE, rows, "v")
    parts = [newest_rows(TABLE, part, "v")[0] for part in (rows[:cut], rows[cut:]) if part.num_rows]
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
    """It is written in one way, since files of several versions of Tidemark lie side by side."""
    version, _ = newest_rows(TABLE, pa.table({"v": pa.array([value], type_)}), "v")
    assert folder == version.folder


def test_versions_that_cannot_be_told_are_refused_by_name():
    """These are null, a text that makes too long a name, and a day after the year 9999."""
    with pytest.raises(VersionError, match=r"silver/prices: version column v is null in 2 of 3 rows: .*check_rows"):
        require_versions(TABLE, pa.table({"v": [1, None, None]}), "v")
    with pytest.raises(VersionError, match=r"version column v makes a name of more than 255 bytes \('xxx.*shorter"):
        newest_rows(TABLE, pa.table({"v": ["x" * 250]}), "v")
    late = pa.array([(date(9999, 12, 31) - date(1970, 1, 1) + timedelta(days=1)).days], pa.int32()).cast(pa.date32())
    with pytest.raises(VersionError, match="column v holds a date outside of the years 1 to 9999"):
        newest_rows(TABLE, pa.table({"v": late}), "v")


SCHEMA = pa.schema([("city", pa.string()), ("v", pa.int64()), ("n", pa.int64())])


@pytest.fixture
def task(tmp_path):
    """Return a function that runs a task over rows of city, version and number."""

    def run(rows, micro_batch=1, *, emits=False):
        writer = StagedFiles(str(tmp_path), JobName("job"), Generation(1), VertexId("prices"), micro_batch)
        of = StatelessTask(
            writer=writer,
            schema=SCHEMA,
            failed=None,
            table=TABLE,
            channel=CHANNEL if emits else None,
            emits=emits,
            quarantine=None,
            partitioned_by=("city",),
            version="v",
        )
        table = pa.table(dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True)), schema=SCHEMA)
        (batch,) = of.run(iter(table.to_batches()))
        return report_from(batch.column("report")[0].as_py())

    return run


def test_a_task_writes_one_file_for_each_partition(task, tmp_path):
    """It leaves out rows that the table cannot show. Null and an empty text are one partition, as everywhere."""
    report = task([("a", 9, 0), ("a", 10, 1), ("b", 3, 2), ("a", 10, 3), (None, 1, 4), ("", 2, 5)])
    found = {
        (dict(partition_of(file.path))["city"], staged_name_in(file.path).version): pq.read_table(tmp_path / file.path)
        for table, file in report.staged
        if table == TABLE
    }
    assert {("a", "version.number.10"): [1, 3], ("b", "version.number.3"): [2], (None, "version.number.2"): [5]} == {
        place: rows.column("n").to_pylist() for place, rows in found.items()
    }
    assert () == report.emitted
    assert all(SCHEMA.equals(rows.schema) for rows in found.values())


def test_later_vertices_read_all_rows(task, tmp_path):
    """They read them from the channel, since the table has only some."""
    report = task([("a", 9, 0), ("a", 10, 1)], emits=True)
    (sent,) = report.emitted
    assert sent.path.startswith(f"{CHANNEL}/")
    assert [0, 1] == pq.read_table(tmp_path / sent.path).column("n").to_pylist()
    ((_, kept),) = report.staged
    assert [1] == pq.read_table(tmp_path / kept.path).column("n").to_pylist()


def test_the_protocol_chooses_among_the_files_of_several_tasks(task, tmp_path):
    """Of the older version in one partition, nothing is left. The other partition has files of both tasks."""
    reports = [task([("a", 9, 0), ("b", 1, 1)], 1), task([("a", 10, 2), ("b", 1, 3)], 2)]
    files = [
        KeyedFile(file, KeyedFileKind.BASE, 0, 0, Version(Generation(1), number))
        for number, report in enumerate(reports)
        for _, file in report.staged
    ]
    rows = [pq.read_table(tmp_path / keyed.file.path).column("n").to_pylist() for keyed in newest(files)]
    assert [[1], [2], [3]] == sorted(rows)
