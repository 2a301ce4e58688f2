"""An overwrite table shows the rows of the batch query, in whatever order its files come."""

from datetime import date
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.job.operator_run import LiveFiles, NoVersionError, newest
from checkpointing.metadata.paths import ProtocolPaths, StagedName, parse_staged_name, partition_of, staged_name_in
from checkpointing.partitions import TableVersion, VersionKind, folder_of, version_of_folder

TABLE = TableName("silver/prices")
PATHS = ProtocolPaths(JobName("shop"))


def keyed(number, version, partition=""):
    """Return a file of a version, in the folder of a partition."""
    name = StagedName(VertexId("prices"), number, f"{number:032x}", partition, version.folder)
    file = FileHandle(PATHS.staged_file(TABLE, Generation(1), name), 1, 1, 0)
    return KeyedFile(file, KeyedFileKind.BASE, 0, 0, Version(Generation(1), number))


def numbered(value):
    """Return a version that is a whole number."""
    return TableVersion(VersionKind.NUMBER, str(value))


@given(
    files=st.lists(st.tuples(st.sampled_from(["", "d=1", "d=2"]), st.integers(-3, 12)), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=4),
)
def test_the_files_that_are_shown_do_not_depend_on_micro_batches(files, cuts):
    """File by file, or several at a time, the table shows those that a query over all files chooses."""
    everything = [keyed(number, numbered(version), partition) for number, (partition, version) in enumerate(files)]
    greatest = {partition: max(version for at, version in files if at == partition) for partition, _ in files}
    due = {number for number, (partition, version) in enumerate(files) if version == greatest[partition]}
    places = sorted({0, len(files), *(cut for cut in cuts if cut < len(files))})
    live = LiveFiles()
    for begin, end in pairwise(places):
        live.overwrite(TABLE, everything[begin:end])
    shown = live.of(TABLE)
    assert due == {each.version.micro_batch for each in shown}
    assert shown == newest(everything)
    assert shown == newest(reversed(newest(reversed(everything))))


VALUES = {
    VersionKind.NUMBER: (st.integers(-(2**63), 2**63 - 1), str),
    VersionKind.DATE: (st.dates(), date.isoformat),
    VersionKind.TIME: (st.datetimes(), lambda at: at.isoformat(timespec="microseconds")),
    VersionKind.TEXT: (st.text(), str),
}


@given(data=st.data(), kind=st.sampled_from(VersionKind))
def test_versions_are_in_the_order_of_their_values(data, kind):
    """A folder's name tells the version, and is read back as it was given."""
    values, text = VALUES[kind]
    one, other = data.draw(values), data.draw(values)
    versions = [TableVersion(kind, text(value)) for value in (one, other)]
    assert (one < other) == (versions[0].order < versions[1].order)
    assert versions == [version_of_folder(version.folder) for version in versions]
    assert "=" not in versions[0].folder.partition(".")[0]


def test_a_time_in_utc_is_told_from_one_without_a_zone():
    """Both are compared as they are written, and a column has only one of them."""
    at = "2024-05-01T00:00:00.000000"
    utc = TableVersion(VersionKind.TIME, f"{at}Z")
    assert "version.time.2024-05-01T00%3A00%3A00.000000Z" == utc.folder
    assert utc != TableVersion(VersionKind.TIME, at)


@given(values=st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=2), text=st.text())
def test_a_file_has_a_partition_and_a_version(values, text):
    """Neither is taken for the other, also if a partition column is called like a version's folder."""
    version = TableVersion(VersionKind.TEXT, text)
    folder = folder_of([("version.text.", "x"), *values])
    name = StagedName(VertexId("prices"), 3, "0" * 32, folder, version.folder)
    assert name == parse_staged_name(str(name))
    path = PATHS.staged_file(TABLE, Generation(1), name)
    assert (("version.text.", "x"), *values) == partition_of(path)
    assert version == version_of_folder(staged_name_in(path).version)


@pytest.mark.parametrize(
    "folder", ["version.number.x", "version.number.", "version.double.1", "version", "version.number.1/d=1", "2024"]
)
def test_no_micro_batch_writes_into_such_a_folder(folder):
    """So an entry from outside that names a file there is refused, before a version is compared."""
    assert parse_staged_name(f"{folder}/prices-1-{'0' * 32}.parquet") is None


def test_a_file_without_a_version_is_no_file_of_an_overwrite_table():
    """The error names the file."""
    name = StagedName(VertexId("prices"), 1, "0" * 32)
    path = PATHS.staged_file(TABLE, Generation(1), name)
    with pytest.raises(NoVersionError, match=path):
        newest([KeyedFile(FileHandle(path, 1, 1, 0), KeyedFileKind.BASE, 0, 0, Version(Generation(1), 1))])
