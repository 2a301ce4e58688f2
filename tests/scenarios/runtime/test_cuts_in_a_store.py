"""Two jobs of which one or both keep their warehouse on an S3 server: the second reads the cuts of the first."""

from pathlib import Path
from uuid import uuid4

import pytest

from checkpointing.identifiers import JobName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.storage.address import StoreUrl
from jobs.storage.place import storage_of
from jobs.tick.at_rest.roll_back import roll_back
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.warehouse import Warehouse
from tests.object_store import KEY, SECRET
from tests.scenarios.runtime.cut_jobs import REPORT, SHOP, SOURCES, tick
from tidemark import Cuts, SourceError


@pytest.fixture
def url(store_server, monkeypatch):
    """Return an empty prefix; the environment reaches the server."""
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return StoreUrl(f"s3://lake/{uuid4().hex}")


def entries(root, job):
    return CheckpointStore(Warehouse(root, ProtocolPaths(JobName(job)))).observe()[1]


def shows(up, down):
    """Assert that both tables are those of the upstream cut on which the newest cut rests, and return its number."""
    cut = Cuts(down, REPORT).latest()
    (below,) = cut.rests_on
    theirs = Cuts(up, SHOP).at(below.checkpoint)
    for name in SOURCES:
        there = sorted(theirs.polars(f"silver/{name}").collect()["n"])
        assert there == sorted(cut.polars(f"gold/{name}").collect()["n"])
    assert str(up) == below.warehouse
    return below.checkpoint


@pytest.mark.dear
@pytest.mark.parametrize(("up_in_store", "down_in_store"), [(True, False), (False, True), (True, True)])
def test_a_job_reads_the_cuts_of_another_one_and_follows_its_rollback(url, tmp_path, typed, up_in_store, down_in_store):
    """As in two folders: the tick after the rollback is refused before its claim, and the two commands go on."""
    near, far = (url if up_in_store else tmp_path), (url if down_in_store else tmp_path)
    up, down = near / SHOP, far / REPORT
    tick(SHOP, near, 40)
    tick(REPORT, near, warehouse=down)
    first = shows(up, down)
    assert first == Cuts(up, SHOP).latest().checkpoint
    code, out, _ = typed("cut", REPORT, "--warehouse", down)
    assert 0 == code
    assert f"rests on cut {first} of {SHOP} in {up}" in " ".join(out.split())
    code, out, _ = typed("doctor", SHOP, "--warehouse", up)
    assert f"report in {down}, from cut {first}, which is kept for it until" in " ".join(out.split())

    tick(SHOP, near, 80)
    tick(REPORT, near, warehouse=down)
    lost = shows(up, down)
    roll_back(Warehouse(up, ProtocolPaths(JobName(SHOP))), first)
    before = entries(down, REPORT)
    refused = rf"cut {lost} of shop in {up} .* rolled back behind it.*rollback report --follow"
    with pytest.raises(SourceError, match=refused):
        tick(REPORT, near, warehouse=down)
    assert before == entries(down, REPORT)
    assert 0 == typed("rollback", REPORT, "--follow", "--warehouse", down)[0]
    assert first == Cuts(down, REPORT).latest().rests_on[0].checkpoint
    tick(SHOP, near, 80)
    tick(REPORT, near, warehouse=down)
    assert shows(up, down) == Cuts(up, SHOP).latest().checkpoint
    assert list(range(80)) == sorted(Cuts(down, REPORT).latest().polars("gold/orders").collect()["n"])
    must_hold_no_secret(url, tmp_path)


def must_hold_no_secret(url: StoreUrl, folder: Path) -> None:
    """Assert that no entry, position, row, log or trace of both jobs has the key."""
    found = [(each.name, storage_of(url).read(each.name).bytes) for each in storage_of(url).list("", deep=True)]
    found += [(str(file), file.read_bytes()) for file in folder.rglob("*") if file.is_file()]
    assert len(found) > 50
    for name, content in found:
        assert KEY.encode() not in content, name
        assert SECRET.encode() not in content, name


@pytest.mark.parametrize("has_read", [False, pytest.param(True, marks=pytest.mark.dear)])
def test_a_store_that_does_not_answer_stops_the_tick_before_its_claim(url, tmp_path, typed, monkeypatch, has_read):
    """Nothing is written. `rollback --follow` does not take the silence of the store for an answer."""
    down = tmp_path / REPORT
    tick(SHOP, url, 40)
    if has_read:
        tick(REPORT, url, warehouse=down)
    there = entries(down, REPORT) if has_read else ()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    from jobs.storage import objects

    monkeypatch.setattr(objects, "_RETRIES", 1)
    objects._client_of.cache_clear()
    try:
        with pytest.raises(SourceError, match=r"because the store cannot be reached: check AWS_ENDPOINT_URL"):
            tick(REPORT, url, warehouse=down)
        if has_read:
            code, _, err = typed("rollback", REPORT, "--follow", "--warehouse", down)
            assert 0 != code
            assert "the store cannot be reached: check AWS_ENDPOINT_URL" in " ".join(err.split())
    finally:
        objects._client_of.cache_clear()
    assert there == (entries(down, REPORT) if down.exists() else ())
