"""Tests that a source of files finds in an object store what it finds in a folder, on a real S3 server."""

from io import BytesIO
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.files.input_folder import glob_pattern
from jobs.sources.port import SourceError
from jobs.storage.address import StoreUrl
from jobs.storage.place import place_in

SCHEMA = StructType().add("n", LongType()).add("word", StringType())
ALL = SplitId("all")


def parquet(rows, **more):
    sink = BytesIO()
    pq.write_table(pa.table({"n": range(rows), "word": ["w"] * rows} | more), sink)
    return sink.getvalue()


def orc_table(rows):
    sink = BytesIO()
    orc.write_table(pa.table({"n": range(rows), "word": ["w"] * rows}), sink)
    return sink.getvalue()


@pytest.fixture
def url(store_server, monkeypatch):
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return StoreUrl(f"s3://lake/{uuid4().hex}/in")


@pytest.fixture(params=["folder", "store"])
def root(request, tmp_path):
    return tmp_path / "in" if request.param == "folder" else request.getfixturevalue("url")


def put(root, name, content):
    place_in(root, "").storage.replace(name, content)


def poll(source, split, position=None, rows_max=100):
    return source.poll(PollSource(VertexId("in"), SplitId(split), position, rows_max))


def test_parquet_files_are_found_in_the_folders_of_splits(root):
    """There are two splits. A slice may end inside a file.

    Hidden and unfinished files are no input, others are named.
    """
    for name, rows in {"a/1.parquet": 3, "a/2.parquet": 2, "b/1 ü.parquet": 4}.items():
        put(root, name, parquet(rows))
    for name in ("a/_hidden.parquet", "a/.x.parquet", "a/3.parquet.tmp", "_dir/1.parquet"):
        put(root, name, b"not read")
    put(root, "a/notes.txt", b"passed over")
    put(root, "a/deeper/1.parquet", b"passed over")
    source = FileSource(root, SCHEMA)
    assert ("a", "b") == source.splits()
    first = poll(source, "a", rows_max=2)
    assert 2 == first.rows
    assert 3 == poll(source, "a", first.end).rows
    assert poll(source, "a", poll(source, "a").end) is None
    assert 4 == poll(source, "b").rows
    look = source.look()
    assert (2, 3, 2) == (look.splits, look.files, look.count)
    assert ["a/deeper/1.parquet", "a/notes.txt"] == sorted(
        name for names in look.passed_over.values() for name in names
    )
    assert {"a": 5, "b": 4} == {split: lag.rows for split, lag in source.lag({}).items()}


@pytest.mark.parametrize(
    ("form", "content"), [("csv", b"n,word\n1,a\n"), ("json", b'{"n": 1, "word": "a"}\n'), ("orc", orc_table(2))]
)
def test_a_file_of_another_format_is_read_whole_and_known_again(root, form, content):
    """A file that is written again with the same bytes is recognised. Other bytes under its name are refused."""
    put(root, f"a/1.{form}", content)
    source = FileSource(root, SCHEMA, format=form, options={"header": "true"} if form == "csv" else None)
    found = poll(source, "a")
    assert found.rows_estimated
    put(root, f"a/1.{form}", content)
    assert poll(source, "a", found.end) is None
    put(root, f"a/1.{form}", content + content)
    with pytest.raises(SourceError, match=rf"a/1\.{form} has been read, and its contents have changed"):
        poll(source, "a", found.end)


def test_a_glob_means_the_same_files(root):
    """The glob finds files at any depth. They are one split."""
    names = ("2026/11/x.csv", "2026/y.csv", "z.csv", "2026/11/_no.csv", "2026/x.txt")
    for name in names:
        put(root, name, b"1,a\n")
    source = FileSource(root, SCHEMA, format="csv", glob="**/*.csv", one_split=True)
    assert (ALL,) == source.splits()
    assert 3 == source.look().files
    assert ["2026/11/x.csv", "2026/y.csv", "z.csv"] == sorted(source._files.listed(ALL))


@pytest.mark.parametrize(
    "glob", ["*.csv", "**/*.csv", "*/*.csv", "a?/[bx]*.csv", "a*/**/c.csv", "**", "[!a]*.csv", "a.b"]
)
def test_a_pattern_means_what_the_file_system_takes_it_for(tmp_path, glob):
    names = ["x.csv", "a.csv", "a1/b.csv", "a1/c.csv", "a1/d/c.csv", "a1/d/e/c.csv", "q/x.csv", "a.b", "aXb", "b/a.b"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.glob(glob) if path.is_file()}
    assert there == {name for name in names if glob_pattern(glob).fullmatch(name)}


def test_files_that_were_read_are_moved_or_deleted(root, tmp_path):
    """This happens after a checkpoint. A poll from a position before these files is then refused."""
    other = root.parent / "old" if not isinstance(root, StoreUrl) else StoreUrl(f"{root}-old")
    for after, archive in (("archive", other), ("delete", None)):
        put(root, f"{after}/1.parquet", parquet(2))
        put(root, f"{after}/2.parquet", parquet(3))
        source = FileSource(root, SCHEMA, after_reading=after, archive=archive)
        end = poll(source, after, rows_max=2).end
        source.notify_checkpoint_complete(CheckpointId(7), {SplitId(after): end})
        assert ["2.parquet"] == list(source._files.listed(SplitId(after)))
        assert 3 == poll(source, after, end).rows
        with pytest.raises(SourceError, match="removed them after its checkpoint 7"):
            poll(source, after)
    assert parquet(2) == place_in(other, "archive/1.parquet").read()


def test_columns_that_appear_are_remembered_beside_the_files(root):
    """With `evolve`, the next tick's source has the new column."""
    put(root, "a/1.parquet", parquet(2))
    put(root, "a/2.parquet", parquet(2, more=[1.0, 2.0]))
    source = FileSource(root, SCHEMA, columns="evolve")
    assert 2 == poll(source, "a").rows
    assert "more" in FileSource(root, SCHEMA, columns="evolve").schema().names


def test_a_file_that_is_not_whole_is_named(root):
    """Damaged files are named. A file whose footer is longer than the first request is read."""
    wide = pa.table({f"column {number} {'x' * 200}": [number] for number in range(400)})
    sink = BytesIO()
    pq.write_table(wide, sink)
    put(root, "wide/1.parquet", sink.getvalue())
    schema = StructType()
    for name in wide.column_names:
        schema = schema.add(name, LongType())
    assert 1 == poll(FileSource(root, schema), "wide").rows
    for name, content in {
        "half": parquet(9)[:-9],
        "empty": b"",
        "words": b"no Parquet file at all, but long enough",
    }.items():
        put(root, f"{name}/1.parquet", content)
        with pytest.raises(SourceError, match=f"{name}/1.parquet cannot be read as Parquet"):
            poll(FileSource(root, SCHEMA), name)


def test_a_root_without_files_and_an_address_that_is_refused(url):
    """The message names the URL and the way out."""
    with pytest.raises(SourceError, match=f"{url} cannot be listed .no object lies below it.: create the folder, or"):
        FileSource(url, SCHEMA).splits()
    with pytest.raises(SourceError, match="a URL cannot begin with s3a://: write s3://"):
        FileSource("s3a://lake/in", SCHEMA)
    with pytest.raises(SourceError, match="lies below the source's root"):
        FileSource(url, SCHEMA, after_reading="archive", archive=f"{url}/old")


def test_a_server_that_is_gone_is_named(url, monkeypatch):
    """The source fails with one sentence that has the way out."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("jobs.storage.objects._RETRIES", 0)
    with pytest.raises(SourceError, match="the store cannot be reached: check AWS_ENDPOINT_URL"):
        FileSource(url, SCHEMA).splits()
