"""Tests that a log in an object store is opened by few requests, because Delta log checkpoints are written often."""

import json
import re
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from jobs.storage.address import StoreUrl
from jobs.storage.place import together
from jobs.warehouse.checkpoints import Appended, CheckpointStore
from jobs.warehouse.cleanup import read_history
from jobs.warehouse.log_entries import entries_after, entry_place, newest_entries
from jobs.warehouse.log_lengths import EVERY_VERSIONS_IN_STORE, log_length
from jobs.warehouse.warehouse import Warehouse
from tests.store_proxy import Proxy, longest_chain

ENTRIES = 48
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


def test_a_clean_up_reads_the_entries_of_a_log_at_the_same_time(store_server, monkeypatch, warehouse):
    """Each entry adds a file and removes the one of the entry before, and the history is in their order."""
    with Proxy(store_server, latency_ms=20) as proxy:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        folder = Warehouse(StoreUrl(f"s3://lake/{uuid4().hex}"), warehouse.paths, writer=warehouse.writer).place("t")
        together(folder.storage, lambda version: _write_entry(folder, version), range(ENTRIES))
        before = len(proxy.seen())
        history = read_history(folder)
        chain = longest_chain(proxy.seen()[before:])
    shown = {path: [(each.first, each.until) for each in times] for path, times in history.removed.items()}
    assert {f"f{version}": [(version, version + 1)] for version in range(ENTRIES - 1)} == shown
    assert range(ENTRIES) == history.whole
    assert chain <= ENTRIES // 4


def _write_entry(folder, version):
    lines = [{"add": {"path": f"f{version}"}}] + [{"remove": {"path": f"f{version - 1}"}}] * (version > 0)
    entry_place(folder, version).write("\n".join(json.dumps(line) for line in lines).encode())


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
