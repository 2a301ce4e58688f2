"""Tests that a checkpoint commits without reading logs, which were read before, and that it is right nevertheless."""

import pytest
from deltalake import DeltaTable

from checkpointing.graph import Table, TableMode
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import Publication, TablePublished
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.delta_log import DeltaLog
from jobs.warehouse.job_stores import JobStores


@pytest.fixture
def stores(warehouse, silver, schema):
    """Return the stores of a job with one table, which a claim holds."""
    stores = JobStores(warehouse, cross_freely)
    stores.ensure([Table(silver, TableMode.APPEND)], {silver: schema})
    return stores


@pytest.fixture
def reads(monkeypatch):
    """Count how often a log is read."""
    seen = []
    for name in ("update_incremental", "transaction_version"):
        plain = getattr(DeltaTable, name)
        monkeypatch.setattr(
            DeltaTable, name, lambda *given, _plain=plain, _name=name: seen.append(_name) or _plain(*given)
        )
    reopen = DeltaLog.reopen
    monkeypatch.setattr(DeltaLog, "reopen", lambda log: seen.append("reopen") or reopen(log))
    return seen


def _checkpoint(stores, rows, tables, silver, number):
    """Commit a checkpoint as a tick does; return the table's version."""
    assert () == stores.check([silver])
    stores.append(rows.checkpoint(number), number - 1)
    file = tables.stage(silver, {f"k{number}": number})
    published = stores.publish(Publication(silver, TableMode.APPEND, adds=(file,)), CheckpointId(number))
    assert isinstance(published, TablePublished)
    stores.record_cut(CheckpointId(number), [(silver, published.version)])
    return published.version


def test_between_two_looks_a_commit_reads_no_log(stores, rows, tables, silver, reads):
    """The stores read everything about tables, entries and cuts while nobody waited."""
    _checkpoint(stores, rows, tables, silver, 1)
    stores.look_again([silver])
    reads.clear()
    assert 2 == _checkpoint(stores, rows, tables, silver, 2)
    assert [] == reads
    assert {silver: 2} == stores.read_cut(CheckpointId(2))


def test_a_look_reads_no_log_if_only_we_have_committed(stores, rows, tables, silver, reads):
    """The process knows what it has committed itself, in the table as in `checkpoints` and `cuts`.

    The check before the next commit finds the commits of others.
    """
    _checkpoint(stores, rows, tables, silver, 1)
    stores.look_again([silver])
    reads.clear()
    for number in (2, 3):
        assert number == _checkpoint(stores, rows, tables, silver, number)
        stores.look_again([silver])
    assert [] == reads
    DeltaTable(str(tables.warehouse.path(silver))).alter.set_table_properties({"delta.appendOnly": "false"})
    stores.look_again([silver])
    assert [] == reads
    stores.check([silver])
    assert ["update_incremental"] == reads[:1]


def test_a_look_asks_nothing_about_tables_that_only_we_have_committed_to(stores, rows, tables, silver, monkeypatch):
    """In an object store, each question is a request. The check before the next commit asks it anyway."""
    _checkpoint(stores, rows, tables, silver, 1)
    stores.look_again([silver])
    _checkpoint(stores, rows, tables, silver, 2)
    asked, plain = [], DeltaLog.ends_at
    monkeypatch.setattr(DeltaLog, "ends_at", lambda log, version: asked.append(log.folder) or plain(log, version))
    stores.look_again([silver])
    assert tables.warehouse.place(silver) not in asked
    stores.check([silver])
    assert tables.warehouse.place(silver) in asked


def test_commits_of_others_after_the_look_are_noticed(stores, rows, tables, another, silver):
    """The check before a commit sees them, whenever they came."""
    _checkpoint(stores, rows, tables, silver, 1)
    stores.look_again([silver])
    DeltaTable(str(tables.warehouse.path(silver))).alter.set_table_properties({"delta.appendOnly": "false"})
    assert 3 == _checkpoint(stores, rows, tables, silver, 2)
    assert CheckpointId(2) == stores.shown(silver)
    assert CheckpointId(2) == JobStores(tables.warehouse, cross_freely).shown(silver)


def test_a_commit_that_asks_nothing_before_finds_out_that_another_came_first(stores, rows, tables, another, silver):
    """The tick of generation 1 publishes without a look. Its commit fails, is repeated, and stands behind the other."""
    _checkpoint(stores, rows, tables, silver, 1)
    stores.look_again([silver])
    DeltaTable(str(tables.warehouse.path(silver))).alter.set_table_properties({"delta.appendOnly": "false"})
    stores.append(rows.checkpoint(2), 1)
    file = tables.stage(silver, {"k2": 2})
    publication = Publication(silver, TableMode.APPEND, adds=(file,))
    published = stores.publish(publication, CheckpointId(2), by=Generation(1))
    assert TablePublished(CheckpointId(2), silver, 3, "") == published
    assert published == stores.publish(publication, CheckpointId(2), by=Generation(1))
