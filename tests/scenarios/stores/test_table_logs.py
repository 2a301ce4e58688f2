"""Tests shortening an output table's log on real Delta: versions that remain read as before, and files stay known."""

import json
import os
import tempfile
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from checkpointing.graph import Table, TableMode
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.messages import Publication, TablePublished
from jobs.sinks.staged_files import StagedFiles
from jobs.storage.address import StoreUrl
from jobs.storage.place import local, scratch_folder, together
from jobs.warehouse import log_lengths
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.checkpoints import Appended, CheckpointStore
from jobs.warehouse.cleanup import read_history
from jobs.warehouse.delta_log import CommitMoment, DeltaLog, add, copied, remove
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.log_entries import entries_after, entry_place, log_of, newest_entries
from jobs.warehouse.log_lengths import EVERY_VERSIONS_IN_STORE, log_length
from jobs.warehouse.log_writing import EntryTakenError
from jobs.warehouse.output_tables import OutputTables
from jobs.warehouse.publisher import Publisher
from jobs.warehouse.table_rules import Metadata
from jobs.warehouse.table_snapshot import active_paths
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse
from tests.store_proxy import Proxy, longest_chain

NOW_S = int(time.time())
VERSIONS = 9


@pytest.fixture
def folder(tmp_path):
    """Make a table whose versions each add a row, with Delta log checkpoints at versions 3 and 6.

    Every log entry is a day old.
    """
    for number in range(VERSIONS):
        pl.DataFrame({"n": [number]}).write_delta(str(tmp_path), mode="append")
        if number in (3, 6):
            DeltaTable(tmp_path).create_checkpoint()
    _age(tmp_path, 86_400)
    return tmp_path


def _age(folder, age_s):
    for path in (folder / "_delta_log").iterdir():
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))


def _entries(folder):
    return sorted(int(path.stem) for path in (folder / "_delta_log").glob("*.json"))


def _rows(folder, version=None):
    return sorted(pl.read_delta(str(folder), version=version)["n"].to_list())


@pytest.mark.parametrize(("floor", "first"), [(0, 0), (2, 0), (3, 3), (5, 3), (6, 6), (8, 6)], ids=str)
def test_a_log_begins_at_the_newest_log_checkpoint_up_to_the_floor(folder, floor, first):
    assert (first > 0) is log_lengths.drop_entries(local(folder), floor, kept_s=0, now_s=NOW_S)
    assert list(range(first, VERSIONS)) == _entries(folder)
    for version in range(max(floor, first), VERSIONS):
        assert list(range(version + 1)) == _rows(folder, version)
    pl.DataFrame({"n": [9]}).write_delta(str(folder), mode="append")
    assert list(range(10)) == _rows(folder)


def test_an_entry_stays_until_it_is_old_enough(folder):
    assert not log_lengths.drop_entries(local(folder), 8, kept_s=86_401, now_s=NOW_S)
    os.utime(folder / "_delta_log" / f"{6:020d}.json", (NOW_S, NOW_S))
    assert log_lengths.drop_entries(local(folder), 8, kept_s=60, now_s=NOW_S)
    assert 3 == _entries(folder)[0]


def test_an_entry_stays_while_only_it_names_a_foreign_file(folder):
    """Only the log entry that removed a foreign file names this file. Once the file is deleted, the entry may go."""
    DeltaTable(folder).optimize.compact()
    _age(folder, 86_400)
    replaced = sorted(folder.glob("part-*.parquet"))
    DeltaTable(folder).create_checkpoint()
    pl.DataFrame({"n": [9]}).write_delta(str(folder), mode="append")
    DeltaTable(folder).create_checkpoint()
    _age(folder, 86_400)
    assert log_lengths.drop_entries(local(folder), 10, kept_s=0, now_s=NOW_S)
    assert [9, 10] == _entries(folder)
    active = {str(path) for path in DeltaTable(folder).file_uris()}
    for path in replaced:
        if str(path) not in active:
            path.unlink()
    assert log_lengths.drop_entries(local(folder), 10, kept_s=0, now_s=NOW_S)
    assert [10] == _entries(folder)
    assert list(range(10)) == _rows(folder)


def test_an_incomplete_log_checkpoint_does_not_count(folder):
    """A log cannot begin with a single part of a Delta log checkpoint that has several parts."""
    whole = folder / "_delta_log" / f"{6:020d}.checkpoint.parquet"
    whole.rename(whole.with_name(f"{6:020d}.checkpoint.0000000001.0000000002.parquet"))
    assert log_lengths.drop_entries(local(folder), 8, kept_s=0, now_s=NOW_S)
    assert 3 == _entries(folder)[0]


# ------------------------------------------------------------------
# A copy of a log shows the same as the log itself. Otherwise the copy cannot be opened.


VERSIONS_OF_COPIED_LOG = 7


@pytest.mark.parametrize("checkpoint_at", [-1, 0, 4, VERSIONS_OF_COPIED_LOG])
def test_a_copied_log_has_the_same_table(warehouse, rows, checkpoint_at):
    folder = _log_of_checkpoints(warehouse, rows)
    for version in {checkpoint_at, checkpoint_at // 2} - {-1}:
        DeltaTable(str(folder), version=version).create_checkpoint()
    for version in range(checkpoint_at):
        entry_place(folder, version).delete()
    (copy, start), table = copied(folder), DeltaTable(str(folder))
    assert (VERSIONS_OF_COPIED_LOG, checkpoint_at) == (copy.version(), start)
    assert sorted(active_paths(table)) == sorted(active_paths(copy))
    assert (table.metadata().id, table.protocol(), table.schema()) == (
        copy.metadata().id,
        copy.protocol(),
        copy.schema(),
    )


def test_a_log_with_a_gap_or_a_checkpoint_in_parts_is_not_copied(warehouse, rows):
    """The copy fails. A caller then opens the log itself, and delta-rs reports what is wrong or reads the parts."""
    folder = _log_of_checkpoints(warehouse, rows)
    parts = log_of(folder) / f"{4:020d}.checkpoint.{1:010d}.{2:010d}.parquet"
    parts.write(b"one of two")
    with pytest.raises(FileNotFoundError):
        copied(folder)
    parts.delete()
    entry_place(folder, 3).delete()
    with pytest.raises(Exception, match=r"3|gap|contiguous|sequential"):
        copied(folder)


def test_a_missing_table_cannot_be_copied():
    with scratch_folder() as folder, pytest.raises(Exception, match="log"):
        copied(folder)


def _log_of_checkpoints(warehouse, rows):
    store = CheckpointStore(warehouse)
    for number in range(1, VERSIONS_OF_COPIED_LOG + 1):
        store.append(rows.checkpoint(number), number - 1)
    return warehouse.place(warehouse.paths.checkpoints)


# ------------------------------------------------------------------
# Tests that a log in an object store is opened with few requests, because Delta log checkpoints are written often.


ENTRIES = 48
VERSIONS_OF_LOGS_IN_A_STORE = 2 * EVERY_VERSIONS_IN_STORE + 3


@pytest.fixture
def in_store(store_server, monkeypatch, warehouse):
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return Warehouse(StoreUrl(f"s3://lake/{uuid4().hex}"), warehouse.paths, writer=warehouse.writer)


def test_a_log_in_a_store_has_a_checkpoint_every_few_versions_and_keeps_its_entries(in_store, rows):
    """Entries are kept for readers of the last fifty versions, so no entry is dropped yet."""
    store = CheckpointStore(in_store)
    for number in range(1, VERSIONS_OF_LOGS_IN_A_STORE + 1):
        assert Appended(number) == store.append(rows.checkpoint(number), number - 1)
        store.maintain()
    length = log_length(in_store.place(in_store.paths.checkpoints))
    assert VERSIONS_OF_LOGS_IN_A_STORE + 1 == length.entries
    assert length.since_checkpoint < EVERY_VERSIONS_IN_STORE
    assert VERSIONS_OF_LOGS_IN_A_STORE == len(CheckpointStore(in_store).observe()[1])
    assert 1 == len(store.observe_at(1))


def test_a_clean_up_reads_the_entries_of_a_log_at_the_same_time(store_server, monkeypatch, warehouse):
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


def test_the_entries_of_a_log_are_those_that_delta_rs_tells(warehouse, tables, silver, schema):
    """The entries come newest first, with operation and engine, however far back a caller reads."""
    folder = warehouse.place(silver)
    for _ in range(12):
        DeltaTable.create(str(folder), schema, mode="overwrite")
    table = DeltaTable(str(folder))
    told = [(each["version"], each["operation"], each["engineInfo"]) for each in table.history()]
    found = [(each.version, each.operation, each.engine) for each in newest_entries(folder, table.version())]
    assert told == found
    assert [11, 10, 9] == [each.version for each in entries_after(folder, 11, 8)]


# ------------------------------------------------------------------
# Tests a table's history on real Delta logs. The history says what each version showed, or that the log lacks this.


@pytest.fixture
def folder_of_table_history(tmp_path):
    folder = tmp_path / "numbers"
    for n in range(3):
        pl.DataFrame({"n": [n, -n]}).write_delta(str(folder), mode="append")
    DeltaTable(folder).delete("n = 1")
    pl.DataFrame({"n": [7]}).write_delta(str(folder), mode="append")
    DeltaTable(folder).optimize.compact()
    pl.DataFrame({"n": [8, 9]}).write_delta(str(folder), mode="overwrite")
    DeltaTable(folder).restore(3)
    DeltaTable(folder).optimize.compact()
    pl.DataFrame({"n": [10]}).write_delta(str(folder), mode="append")
    return folder


def shown_at(folder, version):
    return set(active_paths(DeltaTable(folder, version=version)))


def entry(folder, version):
    return folder / "_delta_log" / f"{version:020d}.json"


def test_files_of_a_version_are_still_shown_or_were_removed_since(folder_of_table_history):
    """For each version, the log's entries give the same answer as loading that version."""
    history, newest = read_history(local(folder_of_table_history)), DeltaTable(folder_of_table_history).version()
    shown = shown_at(folder_of_table_history, newest)
    assert newest == 9
    for version in range(newest):
        assert history.tells_of(version, newest)
        assert shown_at(folder_of_table_history, version) - shown == set(history.removed_since(version)), version
    assert not set(history.removed_since(newest))
    assert len({frozenset(history.removed_since(version)) for version in range(newest)}) > 5


def test_the_history_does_not_guess_at_lost_log_entries(folder_of_table_history):
    """Before a gap in the log, only loading a version shows its files. After the gap, the history knows them."""
    newest = DeltaTable(folder_of_table_history).version()
    shown = [shown_at(folder_of_table_history, version) for version in range(newest + 1)]
    DeltaTable(folder_of_table_history).create_checkpoint()
    entry(folder_of_table_history, 4).unlink()
    history = read_history(local(folder_of_table_history))
    told = [version for version in range(newest) if history.tells_of(version, newest)]
    assert [5, 6, 7, 8] == told
    for version in told:
        assert shown[version] - shown[newest] == set(history.removed_since(version))
    assert not history.tells_of(newest, newest + 1)


# ------------------------------------------------------------------
# Tests that what a process remembers of a table equals the table's log. Others commit between any two of its steps.
#
# The process may not know commits of others that came after its last look. Then its own commit must fail.


NAME = "silver/flights"
COLUMNS = Schema([Field("k", PrimitiveType("string"))])


class Beside:
    """A process that remembers a table's log, and somebody else who writes to the same table."""

    def __init__(self, root):
        self.folder = Path(root) / NAME
        DeltaTable.create(str(self.folder), COLUMNS)
        self.log = DeltaLog(local(Path(root)) / NAME, hook=self._cross)
        self.overtaken = False
        """Whether somebody else has committed since the process last read the log."""
        self._loses_reply = False

    def _cross(self, moment):
        if moment is CommitMoment.AFTER and self._loses_reply:
            self._loses_reply = False
            raise ConnectionError

    def _commit(self, actions, metadata=None):
        """Commit as the stores do: after an error, read the log again. If somebody else came first, commit again."""
        was_refused = False
        try:
            self.log.commit(self.log.known(), actions, says={}, metadata=metadata)
        except (EntryTakenError, ConnectionError) as error:
            was_refused = isinstance(error, EntryTakenError)
            self.log.reopen()
        assert was_refused is self.overtaken
        self.overtaken = False
        if was_refused:
            self._commit(actions, metadata)

    def adds(self):
        self._commit([_file()])

    def replaces(self):
        if self.overtaken:
            self.looks()  # a file that somebody else has removed cannot be removed again
        self._commit([*(remove(path, 1) for path in self.log.known().paths()), _file()])

    def gets_columns(self):
        if self.overtaken:
            self.looks()
        loaded = self.log.known().loaded
        wider = Schema([*loaded.schema().fields, _column()])
        self._commit([_file()], Metadata(wider, None, loaded.metadata().configuration))

    def loses_a_reply(self):
        self._loses_reply = True
        self.adds()
        self._loses_reply = False

    def shortens(self):
        """Write a Delta log checkpoint. To do this, delta-rs reads what the process has committed."""
        log_lengths.checkpoint_log(self.log, every=1)
        self.log.current()
        self.overtaken = False

    def looks(self):
        self.log.current()
        self.overtaken = False

    def other_appends(self):
        write_deltalake(str(self.folder), pa.table({"k": ["x"]}), mode="append", schema_mode="merge")
        self.overtaken = True

    def other_deletes(self):
        write_deltalake(str(self.folder), pa.table({"k": ["y"]}), mode="overwrite", schema_mode="merge")
        self.overtaken = True

    def other_changes_it(self):
        table = DeltaTable(str(self.folder))
        table.alter.set_table_properties({"delta.checkpointInterval": str(100 + table.version())})
        DeltaTable(str(self.folder)).alter.add_columns([_column()])
        self.overtaken = True

    def must_know_the_log(self):
        """Compare what the process remembers with a freshly loaded table.

        If somebody else has committed, the process reads the log first.
        """
        known, fresh = self.log.current() if self.overtaken else self.log.known(), DeltaTable(str(self.folder))
        assert fresh.version() == known.version()
        assert sorted(active_paths(fresh)) == known.paths()
        assert {f"{NAME}/{path}" for path in active_paths(fresh)} == known.files
        assert fresh.schema().to_json() == known.loaded.schema().to_json()
        assert fresh.metadata().configuration == known.loaded.metadata().configuration
        assert _plain(fresh.protocol()) == _plain(known.loaded.protocol())


STEPS = [
    "adds",
    "replaces",
    "gets_columns",
    "loses_a_reply",
    "shortens",
    "looks",
    "other_appends",
    "other_deletes",
    "other_changes_it",
]


def _plain(protocol):
    return json.dumps([getattr(protocol, name) for name in ("min_reader_version", "min_writer_version")])


def _column():
    return Field(f"c{uuid4().hex}", PrimitiveType("long"))


def _file():
    return add(f"_data/{uuid4()}.parquet", 10, '{"numRecords":1}', 1)


def _must_hold(steps):
    with tempfile.TemporaryDirectory() as root:
        beside = Beside(root)
        beside.looks()
        for step in steps:
            getattr(beside, step)()
            if not beside.overtaken:
                beside.must_know_the_log()
        beside.must_know_the_log()


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=8))
def test_a_process_knows_what_the_log_says(steps):
    """Own commits are not read again, and those of others are noticed before anything relies on the memory."""
    _must_hold(steps)


@pytest.mark.dear
@pytest.mark.parametrize("first", STEPS)
def test_a_process_knows_what_the_log_says_after_any_three_steps(first):
    for second in STEPS:
        for third in STEPS:
            _must_hold([first, second, third])


# ------------------------------------------------------------------
# Tests that a commit reads no logs, since they were read before, and that the commit is right nevertheless.


@pytest.fixture
def stores(warehouse, silver, schema):
    stores = JobStores(warehouse, cross_freely)
    stores.tables.ensure([Table(silver, TableMode.APPEND)], {silver: schema})
    return stores


@pytest.fixture
def reads(monkeypatch):
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
    assert () == stores.tables.check([silver])
    stores.entries.append(rows.checkpoint(number), number - 1)
    file = tables.stage(silver, {f"k{number}": number})
    published = stores.publish(Publication(silver, TableMode.APPEND, adds=(file,)), CheckpointId(number))
    assert isinstance(published, TablePublished)
    stores.cuts.record(CheckpointId(number), [(silver, published.version)])
    return published.version


def test_between_two_looks_a_commit_reads_no_log(stores, rows, tables, silver, reads):
    """The stores have read everything about tables, entries and cuts before, when nobody waited for it."""
    _checkpoint(stores, rows, tables, silver, 1)
    stores.look_again([silver])
    reads.clear()
    assert 2 == _checkpoint(stores, rows, tables, silver, 2)
    assert [] == reads
    assert {silver: 2} == stores.cuts.read(CheckpointId(2))


def test_a_look_reads_no_log_if_only_we_have_committed(stores, rows, tables, silver, reads):
    """The process knows its own commits to the table, to `checkpoints` and to `cuts`.

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
    stores.tables.check([silver])
    assert ["update_incremental"] == reads[:1]


def test_a_look_asks_nothing_about_tables_that_only_we_have_committed_to(stores, rows, tables, silver, monkeypatch):
    """In an object store, each question is a request. The check before the next commit asks this question anyway."""
    _checkpoint(stores, rows, tables, silver, 1)
    stores.look_again([silver])
    _checkpoint(stores, rows, tables, silver, 2)
    asked, plain = [], DeltaLog.ends_at
    monkeypatch.setattr(DeltaLog, "ends_at", lambda log, version: asked.append(log.folder) or plain(log, version))
    stores.look_again([silver])
    assert tables.warehouse.place(silver) not in asked
    stores.tables.check([silver])
    assert tables.warehouse.place(silver) in asked


def test_commits_of_others_after_the_look_are_noticed(stores, rows, tables, another, silver):
    """The check before a commit notices such commits, whenever they came."""
    _checkpoint(stores, rows, tables, silver, 1)
    stores.look_again([silver])
    DeltaTable(str(tables.warehouse.path(silver))).alter.set_table_properties({"delta.appendOnly": "false"})
    assert 3 == _checkpoint(stores, rows, tables, silver, 2)
    assert CheckpointId(2) == stores.tables.shown(silver)
    assert CheckpointId(2) == JobStores(tables.warehouse, cross_freely).tables.shown(silver)


def test_a_commit_that_asks_nothing_before_finds_out_that_another_came_first(stores, rows, tables, another, silver):
    """The tick of generation 1 publishes without a look. Its commit fails, is repeated, and follows the other one."""
    _checkpoint(stores, rows, tables, silver, 1)
    stores.look_again([silver])
    DeltaTable(str(tables.warehouse.path(silver))).alter.set_table_properties({"delta.appendOnly": "false"})
    stores.entries.append(rows.checkpoint(2), 1)
    file = tables.stage(silver, {"k2": 2})
    publication = Publication(silver, TableMode.APPEND, adds=(file,))
    published = stores.publish(publication, CheckpointId(2), by=Generation(1))
    assert TablePublished(CheckpointId(2), silver, 3, "") == published
    assert published == stores.publish(publication, CheckpointId(2), by=Generation(1))


# ------------------------------------------------------------------
# Readers that skip files by a log's bounds find every row: Spark, delta-rs, Polars, and DuckDB over delta-rs.


VALUES = {
    "money": (
        pa.decimal128(20, 2),
        [Decimal(text) for text in ("12345678901234567.89", "-12345678901234567.89", "9999999999999999.99", "0.01")],
    ),
    "exact": (
        pa.decimal128(38, 10),
        [Decimal("9" * 28 + "." + "9" * 10), Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("0.0000000001")],
    ),
    "whole": (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal(-(10**37)), Decimal(2**53 + 1)]),
    "long": (pa.int64(), [2**63 - 1, -(2**63), 2**53 + 1]),
    "double": (pa.float64(), [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, float("inf"), float("-inf")]),
    "single": (pa.float32(), [0.0, -0.0, 16777217.0, 3.4028234663852886e38, 0.10000000149011612]),
    "flag": (pa.bool_(), [True, False]),
    "text": (
        pa.string(),
        [
            *("", "a" * 32, "a" * 33, "e" + "\u0301" * 70_000, "z" * 40 + "\U0010ffff", "\U0010ffff" * 40),
            *("\ufffd" * 33, "\U0010d4d5"),
        ],
    ),
    "day": (pa.date32(), [date(1, 1, 1), date(202, 2, 28), date(1582, 10, 4), date(1582, 10, 15), date(9999, 12, 31)]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [
            datetime(1, 1, 2, 3, 4, 5, 678901, UTC),
            datetime(1582, 10, 4, 0, 0, 0, 1, UTC),
            datetime(1883, 11, 18, 12, 0, 0, 999999, UTC),
            datetime(9999, 12, 30, 23, 59, 59, 999999, UTC),
        ],
    ),
    "local": (
        pa.timestamp("us"),
        [datetime(1, 1, 1, 0, 0, 0, 1), datetime(1900, 1, 1, 0, 0, 0, 999), datetime(9999, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001
    ),
}
ROWS = max(len(values) for _, values in VALUES.values())
SCHEMA = pa.schema([pa.field("id", pa.int64()), *(pa.field(name, kind) for name, (kind, _) in VALUES.items())])


@pytest.fixture
def table(warehouse, silver):
    logs = TableLogs(warehouse)
    OutputTables(warehouse, logs).ensure(silver, SCHEMA, TableMode.APPEND)
    writer = StagedFiles(str(warehouse.root), warehouse.paths.job, Generation(1), VertexId("rows"), 1)
    columns = {name: [*values, *[None] * (ROWS - len(values))] for name, (_, values) in VALUES.items()}
    whole = pa.table({"id": range(ROWS)} | columns, schema=SCHEMA)
    files = tuple(writer.write(silver, whole.slice(row, 1)) for row in range(ROWS))
    assert isinstance(
        Publisher(warehouse, logs).publish(Publication(silver, TableMode.APPEND, adds=files), CheckpointId(1)),
        TablePublished,
    )
    return str(warehouse.place(silver))


def by_delta_rs(table, name, value):
    wanted = pc.field(name) == pa.scalar(value, SCHEMA.field(name).type)
    return DeltaTable(table).to_pyarrow_dataset().to_table(filter=wanted)["id"].to_pylist()


def by_polars(table, name, value):
    kind = pl.from_arrow(SCHEMA.empty_table()).schema[name]
    return pl.scan_delta(table).filter(pl.col(name) == pl.lit(value, dtype=kind)).collect()["id"].to_list()


def by_duckdb(table, name, value):
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", DeltaTable(table).to_pyarrow_dataset())
        kind = connection.execute(f"SELECT typeof({name}) FROM t").fetchone()[0]
        literal = f"'{value}'::{kind}" if name != "text" else "'" + value + "'"
        return [row[0] for row in connection.execute(f"SELECT id FROM t WHERE {name} = {literal}").fetchall()]


def by_spark(table, name, value):
    rows = SparkSession.active().read.format("delta").load(table)
    written = value.isoformat() if isinstance(value, date) else str(value)
    found = rows.filter(F.col(name) == F.lit(written).cast(rows.schema[name].dataType)).select("id").collect()
    return [row.id for row in found]


@pytest.mark.spark
@pytest.mark.parametrize("reader", [by_spark, by_delta_rs, by_polars, by_duckdb])
def test_every_reader_finds_every_value(neighbour, table, reader):
    """Each file's bounds contain all of its values, in the way that each reader interprets bounds."""
    lost = []
    for name, (kind, values) in VALUES.items():
        for value in pa.array(values, kind).to_pylist():
            equal = [row for row, each in enumerate(pa.array(values, kind).to_pylist()) if each == value]
            found = sorted(reader(table, name, value))
            if found != equal:
                lost.append((name, str(value)[:50], found, equal))
    assert not lost, "\n".join(map(str, lost))
