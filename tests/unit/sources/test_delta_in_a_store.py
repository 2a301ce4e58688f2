"""Tests that a Delta source reads a table in an object store, on a real S3 server. delta-rs writes the table."""

from urllib.request import Request, urlopen
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StructType

from checkpointing.identifiers import VertexId
from checkpointing.messages import PollSource
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_reader import DeltaSlice
from jobs.sources.delta.delta_source import SPLIT, DeltaSource
from jobs.sources.port import SourceError
from jobs.storage.address import StoreUrl
from jobs.storage.place import place_in
from tests.object_store import KEY, SECRET

SCHEMA = StructType().add("id", LongType())
WORDS = ("a b", "c%2Fd", "ü=", "plain")


@pytest.fixture
def url(store_server, monkeypatch):
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return StoreUrl(f"s3://lake/{uuid4().hex}/orders")


@pytest.fixture
def impatient(monkeypatch):
    """Let the client repeat no request."""
    from jobs.storage import objects

    monkeypatch.setattr(objects, "_RETRIES", 1)
    objects._client_of.cache_clear()
    yield
    objects._client_of.cache_clear()


def append(url, *ids, **options):
    """Commit these ids, each with a word."""
    words = [WORDS[n % len(WORDS)] for n in ids]
    write_deltalake(str(url), pa.table({"id": pa.array(ids, pa.int64()), "word": words}), mode="append", **options)


def poll(source, position=None, rows_max=100):
    return source.poll(PollSource(VertexId("orders"), SPLIT, position, rows_max))


def read(source, rows_max, position=None):
    """Return the files and rows of all slices from a position on, and the last position."""
    found = []
    while (piece := poll(source, position, rows_max)) is not None:
        found += [(part.path, part.first, part.end, part.change) for part in DeltaSlice.parse(piece.detail).ranges]
        position = piece.end
    return found, position


def count(found):
    return sum(end - first for _, first, end, _ in found)


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_snapshot_comes_first_then_appended_rows(url, partitioned):
    """Also from a position of another object, and with values of partitions that a URL must quote."""
    by = {"partition_by": ["word"]} if partitioned else {}
    append(url, 1, 2, 3, 4, **by)
    append(url, 5, 6, **by)
    source = DeltaSource(str(url))
    assert (SPLIT,) == source.splits()
    first, end = read(source, 2)
    assert 6 == count(first)
    append(url, 7, **by)
    assert 1 == source.lag({SPLIT: end})[SPLIT].rows
    assert 1 == count(read(DeltaSource(url), 2, end)[0])
    assert [1, 7] == [count(read(source, 3, at)[0]) for at in (end, source.seek(SPLIT, end, "version 0"))]
    for part in DeltaSlice.parse(poll(DeltaSource(url)).detail).ranges:
        assert () == source._like(part).conversions  # its footer was read


def test_the_change_data_feed_is_read(url):
    """An update and a delete have files of the feed. A table without a feed is refused by name."""
    append(url, 1, 2, 3)
    with pytest.raises(SourceError, match=f"{url} has no change data feed"):
        poll(DeltaSource(url, changes=True))
    fed = url / "fed"
    append(fed, 1, 2, 3, configuration={"delta.enableChangeDataFeed": "true"})
    source = DeltaSource(fed, changes=True)
    assert ["id", "word", "_change_type", "_commit_version"] == source.schema().names
    _, end = read(source, 100)
    DeltaTable(str(fed)).update(updates={"word": "'new'"}, predicate="id = 1")
    DeltaTable(str(fed)).delete("id = 2")
    assert 2 + 1 == count(read(source, 1, end)[0])


def test_an_idle_poll_costs_two_requests(url, store_server):
    """One for the newest log entry, and one for the next."""
    append(url, 1)
    source = DeltaSource(url)
    _, end = read(source, 10)
    before = store_server.requests()
    assert poll(source, end) is None
    assert {"HEAD": 2} == store_server.requests() - before


def test_a_file_that_is_gone_is_named(url):
    """The poll fails before any of its rows is read, and says how to go on. The lag needs no file."""
    append(url, 1)
    append(url, 2)
    source = DeltaSource(url, start=0)
    (path, *_), _ = read(source, 10)[0]
    place_in(url, path).delete()
    with pytest.raises(SourceError, match=rf"{url}/{path} is gone, before its rows of version 0.*--to 'version 1'"):
        poll(source)
    assert 2 == source.lag({})[SPLIT].rows


def test_a_table_that_was_made_anew_is_another_one(url):
    """Its newest log entry has changed, so the source looks at it again."""
    append(url, 1)
    source = DeltaSource(url)
    _, end = read(source, 10)
    for each in list(place_in(url, "").entries(deep=True)):
        place_in(url, each.name).delete()
    append(url, 2)
    with pytest.raises(SourceError, match="is another table than the one that was read"):
        poll(source, end)


def sources(url):
    """Return a source of each kind. Both know their columns."""
    return DeltaSource(url, schema=SCHEMA), CutSource(url, "shop", "silver/orders", schema=SCHEMA)


def refused(source):
    """Return what a tick says before it claims its job, and assert that each poll says the same, without a secret."""
    with pytest.raises(SourceError) as first:
        source.splits()
    with pytest.raises(SourceError) as polled:
        poll(source)
    with pytest.raises(SourceError):
        source.lag({})
    said = str(first.value)
    assert "\n" not in said
    assert not {KEY, SECRET} & set(said.replace("/", " ").split())
    assert KEY not in said + str(polled.value)
    assert SECRET not in said + str(polled.value)
    return said


@pytest.mark.usefixtures("impatient")
def test_a_store_that_cannot_be_used_is_named(url, monkeypatch):
    """A missing table, job and bucket, and a server that does not answer: one sentence each, with the way out."""
    table, cuts = sources(url)
    assert refused(table) == f"{url} is not a Delta table: write it first, or correct the source's path"
    assert refused(cuts) == f"shop has never run in {url}: run it first, or correct the source's warehouse or job"
    for source in sources(StoreUrl("s3://nowhere/orders")):
        assert refused(source).endswith("because the bucket does not exist: make it, or name another one")
    with pytest.raises(SourceError, match="the bucket does not exist"):
        DeltaSource("s3://nowhere/orders").schema()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for source in sources(url / "other"):
        said = refused(source)
        assert said.endswith("because the store cannot be reached: check AWS_ENDPOINT_URL and the network")
    with pytest.raises(SourceError, match="a URL cannot begin with s3a://: write s3://"):
        DeltaSource("s3a://lake/in")


@pytest.mark.usefixtures("impatient")
def test_a_wrong_key_is_named(url, store_server):
    """The server accepts no key while this test runs."""
    append(url, 1)
    source = DeltaSource(url, schema=SCHEMA, new_columns="ignore")
    _, end = read(source, 10)
    _accept(store_server, "0")
    try:
        for each in sources(url):
            assert "because the store does not accept the credentials: set AWS_ACCESS_KEY_ID" in refused(each)
        with pytest.raises(SourceError, match="because the store forbids it: give"):  # a HEAD has no other answer
            poll(source, end)
    finally:
        _accept(store_server, "inf")
    assert poll(source, end) is None


def _accept(server, requests):
    """Let the server check the key of each request after so many."""
    url, headers = f"{server.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    urlopen(Request(url, requests.encode(), headers)).close()  # noqa: S310 - the server of this test
