"""Tests that a log in an object store is opened by few requests, because Delta log checkpoints are written often."""

import re
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from jobs.storage.address import StoreUrl
from jobs.stores.checkpoints import Appended, CheckpointStore
from jobs.stores.log_entries import entries_after, newest_entries
from jobs.stores.maintenance import EVERY_VERSIONS_IN_STORE, log_length
from jobs.stores.warehouse import Warehouse

VERSIONS = 2 * EVERY_VERSIONS_IN_STORE + 3


@pytest.fixture
def in_store(store_server, monkeypatch, warehouse):
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return Warehouse(StoreUrl(f"s3://lake/{uuid4().hex}"), warehouse.paths, writer=warehouse.writer)


def test_a_log_in_a_store_has_a_checkpoint_every_few_versions_and_keeps_its_entries(in_store, rows):
    """A reader looks back fifty versions, so no entry is dropped yet."""
    store = CheckpointStore(in_store)
    for number in range(1, VERSIONS + 1):
        assert Appended(number) == store.append(rows.checkpoint(number), number - 1)
        store.maintain()
    length = log_length(in_store.place(in_store.paths.checkpoints))
    assert VERSIONS + 1 == length.entries
    assert length.since_checkpoint < EVERY_VERSIONS_IN_STORE
    assert VERSIONS == len(CheckpointStore(in_store).observe()[1])
    assert 1 == len(store.observe_at(1))


def test_an_entry_names_the_program_that_wrote_it(warehouse, rows):
    """Spark's DESCRIBE HISTORY shows `engineInfo`."""
    CheckpointStore(warehouse).append(rows.checkpoint(1), 0)
    newest = DeltaTable(str(warehouse.path(warehouse.paths.checkpoints))).history(1)[0]
    assert re.fullmatch(r"Tidemark/(\d+\.\d+\..*|unknown)", newest["engineInfo"])


def test_the_entries_of_a_log_are_those_that_delta_rs_tells(warehouse, tables, silver, schema):
    """Newest first, with operation and engine, however far back they are asked for."""
    folder = warehouse.place(silver)
    for _ in range(12):
        DeltaTable.create(str(folder), schema, mode="overwrite")
    table = DeltaTable(str(folder))
    told = [(each["version"], each["operation"], each["engineInfo"]) for each in table.history()]
    found = [(each.version, each.operation, each.engine) for each in newest_entries(folder, table.version())]
    assert told == found
    assert [11, 10, 9] == [each.version for each in entries_after(folder, 11, 8)]
