"""Tests changes of a real PostgreSQL server: each transaction comes once and whole, and again after a replay."""

import json
import re
import shutil
import signal
import subprocess
import threading
import time
from datetime import timedelta
from decimal import Decimal

import polars as pl
import psycopg
import pyarrow.parquet as pq
import pytest

from checkpointing.identifiers import VertexId
from jobs.doctor.examination import input_sections
from jobs.sources.port import Lag, NoSuchPositionError, SourceError
from jobs.sources.postgres import staging
from jobs.sources.staged.lsn import parsed
from jobs.sources.staged.position import ChangesPosition
from tests.postgres_server import PostgresServer
from tests.scenarios.postgres.reading import SPLIT, Bank, all_rows, newest, polled, rows_of, slices


def now(bank, table):
    return {row[0]: row for row in bank.sql(f"SELECT * FROM {table}")}


def as_rows(state):
    return {key[0]: tuple(values.values()) for key, values in state.items()}


def test_the_snapshot_comes_first_and_then_each_change(bank):
    source = bank.source()
    first = polled(source)
    assert 20 == first.rows
    assert {"snapshot"} == set(rows_of(source, first)["_kind"])
    bank.sql("INSERT INTO giro VALUES (11, 5, NULL)")
    bank.sql("UPDATE giro SET balance = 6 WHERE id = 11")
    bank.sql("UPDATE giro SET id = 12 WHERE id = 11")
    bank.sql("DELETE FROM giro WHERE id = 12")
    bank.sql("TRUNCATE savings")
    rows = all_rows(source, first.end)
    kinds = ["insert", "update_after", "update_before", "update_after", "delete", "truncate"]
    assert kinds == rows["_kind"].to_list()
    ids = [None if row is None else row["id"] for row in rows["public_giro"]]
    assert [11, 11, 11, 12, 12, None] == ids
    assert [*range(20, 26)] == rows["_position"].to_list()
    assert 5 == rows["_lsn"].n_unique() == rows["_xid"].n_unique()
    assert rows["_committed_at"].is_sorted()
    assert None is polled(source, list(slices(source, first.end))[-1].end)


def test_every_position_is_replayed_the_same_for_ever(bank):
    """This holds after the slot has moved, in a new process, and with slices of another size."""
    source = bank.source()
    first = polled(source)
    for number in range(30):
        bank.sql("UPDATE giro SET balance = %s WHERE id = 1", number)
    pieces = [first, *slices(source, first.end, 7)]
    rows = rows_of(source, *pieces)
    source.notify_checkpoint_complete(1, {SPLIT: pieces[-1].end})
    confirmed = bank.sql("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE NOT temporary")
    assert [pieces[-1].end] != confirmed
    for piece in pieces:
        again = bank.source()
        assert piece == polled(again, piece.start if piece is not first else None, 7)
    assert rows.equals(all_rows(bank.source()))


def test_the_slot_moves_only_when_a_checkpoint_is_complete(bank):
    """The slot moves up to the checkpoint's position, and never back."""

    def confirmed():
        ((lsn,),) = bank.sql("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE NOT temporary")
        return int(lsn)

    source = bank.source()
    first = polled(source)
    before = confirmed()
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    second = polled(source, first.end)
    bank.sql("UPDATE giro SET balance = 2 WHERE id = 1")
    third = polled(source, second.end)
    assert before == confirmed()
    source.notify_checkpoint_complete(1, {SPLIT: second.end})
    moved = confirmed()
    assert ChangesPosition.parse(second.end).lsn <= moved < ChangesPosition.parse(third.end).lsn
    source.notify_checkpoint_complete(2, {SPLIT: first.end})
    assert moved == confirmed()


def test_changes_since_the_newest_checkpoint_are_staged_again_after_the_folder_is_lost(bank):
    """The slot stands at the checkpoint, so the checkpoint's position is enough.

    An older position is refused, because the slot has moved past it.
    """
    source = bank.source()
    first = polled(source)
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    second = polled(source, first.end)
    source.notify_checkpoint_complete(1, {SPLIT: second.end})
    bank.sql("UPDATE giro SET balance = 2 WHERE id = 1")
    rows = all_rows(source, second.end)
    bank.staged = bank.staged.with_name("empty")
    assert rows.equals(all_rows(bank.source(), second.end))
    bank.staged = bank.staged.with_name("empty, too")
    with pytest.raises(SourceError, match=r"was moved to .* by another program"):
        polled(bank.source(), first.end)


def test_transactions_around_the_snapshot_are_neither_missed_nor_applied_twice(bank):
    stop, done = threading.Event(), []

    def write(number):
        with psycopg.connect(bank.server.url(bank.name)) as connection:
            while not stop.is_set():
                connection.execute("UPDATE giro SET balance = balance + 1 WHERE id = %s", [number])
                connection.execute("INSERT INTO savings SELECT max(id) + 1, %s FROM savings", [number])
                try:
                    connection.commit()
                except psycopg.Error:
                    connection.rollback()
                else:
                    done.append(number)

    def write_safely(number):
        try:
            write(number)
        except psycopg.errors.UniqueViolation:
            write_safely(number)

    writers = [threading.Thread(target=write_safely, args=[number]) for number in (1, 2, 3)]
    for writer in writers:
        writer.start()
    source = bank.source()
    try:
        while len(done) < 30:
            pass
        first = polled(source)
        while len(done) < 200:
            pass
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    rows = pl.concat([rows_of(source, first), all_rows(source, first.end)])
    assert 0 < rows.filter(pl.col("_kind") == "insert").height < len(done)
    assert now(bank, "giro") == as_rows(newest(rows, "giro"))
    assert now(bank, "savings") == as_rows(newest(rows, "savings"))
    snapshot = newest(rows.filter(pl.col("_kind") == "snapshot"), "giro")
    for number in (1, 2, 3):
        of_row = (pl.col("_table") == "public.giro") & (pl.col("public_giro").struct.field("id") == number)
        seen = rows.filter(of_row, pl.col("_kind") == "update_after")["public_giro"].struct.field("balance")
        begins = snapshot[number,]["balance"]
        assert [*range(begins + 1, begins + 1 + len(seen))] == seen.to_list()


def test_a_slice_ends_where_a_transaction_ends(bank):
    """A transaction with more rows than requested is one slice. Small transactions share a slice."""
    source = bank.source()
    position = polled(source).end
    for rows in (3, 1, 2, 50, 1):
        bank.sql(
            "INSERT INTO giro SELECT nextval('s'), 0, NULL FROM generate_series(1, %s)", rows
        ) if rows == 0 else None
        first = bank.sql("SELECT max(id) + 1 FROM giro")[0][0]
        bank.sql("INSERT INTO giro SELECT n, 0, NULL FROM generate_series(%s::int, %s::int) n", first, first + rows - 1)
    assert [4, 2, 50, 1] == [piece.rows for piece in slices(source, position, 4)]
    assert [6, 50, 1] == [piece.rows for piece in slices(source, position, 8)]
    assert [57] == [piece.rows for piece in slices(source, position, 1000)]


def test_a_snapshot_may_come_in_parts(bank):
    """The slices of such a snapshot have the requested size. Positions within the snapshot have no horizon."""
    source = bank.source(snapshot="parts")
    pieces = list(slices(source, None, 8))
    assert [8, 8, 4] == [piece.rows for piece in pieces]
    assert [0, 0] == [ChangesPosition.parse(piece.end).lsn for piece in pieces[:2]]
    assert rows_of(source, *pieces).equals(all_rows(bank.source(snapshot="parts")))


def test_without_a_snapshot_only_changes_come(bank):
    """The slot may have existed before the source."""
    bank.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"{bank.name}_slot")
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    assert ["update_after"] == all_rows(bank.source(snapshot="none"))["_kind"].to_list()


def test_an_old_slot_gives_no_change_that_the_snapshot_has(bank):
    """The source leaves out changes from before the snapshot, and keeps those after it."""
    bank.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"{bank.name}_slot")
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    source = bank.source()
    first = polled(source)
    bank.sql("UPDATE giro SET balance = 2 WHERE id = 1")
    rows = all_rows(source)
    assert 21 == rows.height
    assert now(bank, "giro") == as_rows(newest(rows, "giro"))
    assert 20 == first.rows


def test_two_processes_that_read_one_slot_write_one_log(bank):
    """If both processes write a file from the same position, one file wins. Both processes go on with this file."""
    one, other = bank.source(), bank.source()
    first = polled(one)
    assert first == polled(other)
    position = first.end
    for number in range(6):
        bank.sql("UPDATE giro SET balance = %s WHERE id = 1", number)
        piece = polled((one, other)[number % 2], position)
        assert piece == polled((other, one)[number % 2], position)
        position = piece.end
    assert [*range(6)] == all_rows(bank.source(), first.end)["public_giro"].struct.field("balance").to_list()


@pytest.mark.dear
def test_the_source_waits_for_a_killed_server(bank):
    """The source reads on when the server is back. No change is lost or doubled."""
    source = bank.source()
    position = polled(source).end
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    bank.server.kill()
    starting = threading.Timer(0.5, bank.server.start)
    starting.start()
    try:
        assert 1 == all_rows(source, position).height
    finally:
        starting.join()
    bank.reconnect()
    bank.sql("UPDATE giro SET balance = 2 WHERE id = 1")
    rows = all_rows(source, position)
    assert [1, 2] == rows["public_giro"].struct.field("balance").to_list()


def test_columns_have_the_types_of_the_catalog(bank):
    """This holds for numbers, times, texts, bytes, arrays and nulls, in the snapshot and in changes."""
    bank.sql("CREATE DOMAIN euro AS numeric(12, 2); CREATE TYPE mood AS ENUM ('glad', 'sad')")
    bank.sql("""CREATE TABLE typed (id bigint PRIMARY KEY, s smallint, r real, d double precision, b boolean,
        n numeric(10, 3), free numeric, wide numeric(50, 2), e euro, at timestamptz, local timestamp, day date, j jsonb,
        js json, u uuid, raw bytea, tags text[], numbers int[], prices numeric(6, 2)[], m mood, t time, i interval,
        name varchar(20), odd_chars text)""")
    bank.sql("ALTER PUBLICATION bank ADD TABLE typed")
    values = r"""1, -2, 1.5, 2.5, true, 12.345, 1e-40, 3.14, 9.99, '2026-01-02 03:04:05.678901+02',
        '2026-01-02 03:04:05', '2026-01-02', '{"a": [1, null]}', '{ "b": 1 }', '12345678-1234-1234-1234-123456789012',
        '\x00ff', ARRAY['a,b', NULL, 'NULL', '', 'q"\'], ARRAY[1, NULL], ARRAY[1.5], 'glad', '12:00:01', '1 day 02:00',
        'é\t"', E'tab\t line\n back\\ nul'"""
    bank.sql(f"INSERT INTO typed VALUES ({values})")
    bank.sql("INSERT INTO typed (id) VALUES (2)")
    source = bank.source(tables=["public.typed"])
    first = polled(source)
    bank.sql(
        "INSERT INTO typed SELECT id + 10 AS id, s, r, d, b, n, free, wide, e, at, local, day, j, js, u, raw, tags, "
        "numbers, prices, m, t, i, name, odd_chars FROM typed"
    )
    rows = all_rows(source)["public_typed"].to_list()
    assert 2 == first.rows
    assert rows[:2] == [row | {"id": row["id"] - 10} for row in rows[2:]]
    found = [field.dataType.simpleString() for field in source.schema()["public_typed"].dataType.fields]
    numbers = ["bigint", "smallint", "float", "double", "boolean", "decimal(10,3)", "string", "string", "decimal(12,2)"]
    times = ["timestamp", "timestamp_ntz", "date"]
    arrays = ["array<string>", "array<int>", "array<decimal(6,2)>"]
    assert [*numbers, *times, *["string"] * 3, "binary", *arrays, *["string"] * 5] == found
    one, nulls = rows[0], rows[1]
    assert {None} == set(nulls.values()) - {2}
    assert ["0." + 39 * "0" + "1", "3.14", '{"a": [1, null]}', '{ "b": 1 }'] == [
        one[n] for n in ("free", "wide", "j", "js")
    ]
    assert (["a,b", None, "NULL", "", 'q"\\'], [1, None]) == (one["tags"], one["numbers"])
    assert (b"\x00\xff", "tab\t line\n back\\ nul") == (one["raw"], one["odd_chars"])
    assert "2026-01-02 01:04:05.678901+00:00" == str(one["at"])


def test_a_value_that_the_server_did_not_send_is_not_null(bank):
    large = "x" * 10 + "".join(map(str, range(5_000)))
    bank.sql("ALTER TABLE giro ALTER note SET STORAGE EXTERNAL")
    bank.sql("UPDATE giro SET note = %s WHERE id = 1", large)
    source = bank.source()
    position = polled(source).end
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    bank.sql("UPDATE giro SET note = NULL WHERE id = 2")
    bank.sql("ALTER TABLE giro REPLICA IDENTITY FULL")
    bank.sql("UPDATE giro SET balance = 2 WHERE id = 1")
    rows = all_rows(source, position)
    assert [["note"], None, None, None] == rows["_unchanged"].to_list()
    assert [None, None, large, large] == rows["public_giro"].struct.field("note").to_list()
    assert ["update_after", "update_after", "update_before", "update_after"] == rows["_kind"].to_list()


@pytest.mark.dear
def test_a_large_transaction_is_one_slice(bank):
    """The transaction has 120,000 rows. The source writes them in pieces, so that memory does not grow with them."""
    source = bank.source()
    position = polled(source).end
    bank.sql("INSERT INTO savings SELECT n, n FROM generate_series(100, 120099) n")
    bank.sql("UPDATE savings SET balance = 0 WHERE id = 100")
    pieces = list(slices(source, position, 1_000))
    assert [120_000, 1] == [piece.rows for piece in pieces]
    assert 120_001 == rows_of(source, *pieces)["public_savings"].struct.field("id").drop_nulls().len()


@pytest.mark.dear
def test_a_quiet_publication_lets_the_slot_move(bank):
    """Other tables fill the server's log. After 16 MiB the slot moves, although the publication has no new rows."""
    bank.sql("CREATE TABLE others (t text)")
    source = bank.source()
    position = polled(source).end
    source.notify_checkpoint_complete(1, {SPLIT: position})
    bank.sql("INSERT INTO others SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
    assert None is polled(source, position)
    behind = "pg_current_wal_lsn() - confirmed_flush_lsn"
    ((behind,),) = bank.sql(f"SELECT {behind} FROM pg_replication_slots WHERE NOT temporary")
    assert behind < 4_000_000
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    assert 1 == polled(bank.source(), position).rows


def test_files_that_were_read_stay_for_as_long_as_keep_says(bank):
    """Without `keep` the files stay for ever. If a position's files are gone, the error names `keep`."""
    source = bank.source(keep=timedelta(0))
    position = polled(source).end
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    second = polled(source, position)
    source.notify_checkpoint_complete(1, {SPLIT: second.end})
    assert None is polled(source, second.end)
    with pytest.raises(SourceError, match="as `keep` says"):
        polled(source, None)
    bank.sql("UPDATE giro SET balance = 2 WHERE id = 1")
    assert 1 == polled(source, second.end).rows


def test_people_see_place_position_and_lag(bank):
    """No password is shown. The lag consists of the number of unread rows and the age of the oldest unread commit."""
    source = bank.source(url=bank.server.url(bank.name, "postgres:s3cret"))
    assert {SPLIT: Lag(20, None)} == source.lag({})
    position = polled(source).end
    assert {SPLIT: Lag(0, 0.0)} == source.lag({SPLIT: position})
    bank.sql("UPDATE giro SET balance = 1 WHERE id < 4")
    found = source.lag({SPLIT: position})[SPLIT]
    assert 3 == found.rows
    assert 0 < found.seconds < 60
    assert f"publication bank of 127.0.0.1:{bank.server.port}/{bank.name}" == source.described().place
    lsn = json.loads(position)["lsn"]
    assert f"transactions before {lsn}, 20 rows" == source.named(SPLIT, position)
    assert 3 == source.rows_between(SPLIT, position, polled(source, position).end)
    source.close()
    assert 3 == polled(source, position).rows
    (section,) = input_sections(lambda: {VertexId("bank"): source}, ())
    ((name, shown),) = section.seen
    assert ("bank", ()) == (name, section.findings)
    about, unread, slot = shown.split("; ")
    assert (True, "23 rows unread") == (about.startswith("postgres: publication bank of 127.0.0.1"), unread)
    assert re.fullmatch(rf"slot {bank.name}_slot keeps [\d.]+ MiB of the server's log", slot)


def test_positions_are_ordered_text(bank):
    """A position contains the number of rows before it, and the horizon in the server's own notation."""
    source = bank.source()
    position = json.loads(polled(source).end)
    assert {"format": 1, "row": 20} == {name: position[name] for name in ("format", "row")}
    assert bank.sql("SELECT %s::pg_lsn <= pg_current_wal_lsn()", position["lsn"]) == [(True,)]


def test_words_name_places_between_transactions(bank):
    """A word may be the end, the end of the snapshot, a number of rows, a position in the server's log, or a time."""
    source = bank.source()
    first = polled(source)
    bank.sql("UPDATE giro SET balance = 1 WHERE id <= 3")
    time.sleep(0.01)
    (moment,), (place,) = bank.sql("SELECT clock_timestamp()") + bank.sql("SELECT pg_current_wal_insert_lsn()::text")
    bank.sql("UPDATE giro SET balance = 2 WHERE id <= 2")
    end = list(slices(source, first.end))[-1].end

    def row(words):
        return ChangesPosition.parse(source.seek(SPLIT, end, words)).row

    assert first.end == source.seek(SPLIT, None, "changes")
    assert end == source.seek(SPLIT, first.end, "end")
    assert [20, 23, 25] == [row(words) for words in ("20", "23", "25")]
    assert [23, 23, 25] == [row(place), row(moment.isoformat()), row("2099-01-01")]
    assert 2 == polled(source, source.seek(SPLIT, None, moment.isoformat())).rows
    for words in ("24", "yesterday", "0/1"):
        with pytest.raises(NoSuchPositionError, match="a transaction ends, from 20 to 25"):
            source.seek(SPLIT, end, words)


# ------------------------------------------------------------------
# Tests a source that reads new columns of its tables, on a real server.


def test_the_next_tick_reads_new_columns(bank):
    bank.sql("CREATE DOMAIN cents AS numeric(12, 2)")
    first = polled(bank.source(new_columns="evolve"))
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    with bank.connection.transaction():
        bank.sql("INSERT INTO giro VALUES (11, 11)")
        bank.sql("ALTER TABLE giro ADD COLUMN tags text[], ADD COLUMN credit cents")
        bank.sql("INSERT INTO giro VALUES (12, 12, NULL, '{a,b}', 1.5)")
    bank.sql("ALTER TABLE savings ADD COLUMN rate real DEFAULT 0.5")
    bank.sql("UPDATE savings SET balance = 2 WHERE id = 2")
    now_running = bank.source(new_columns="evolve")
    assert None is polled(now_running, first.end)
    assert 4 == now_running.lag({SPLIT: first.end})[SPLIT].rows
    following = bank.source(new_columns="evolve")
    names = [name for name in following.schema().names if "__" in name]
    assert ["public_giro__tags", "public_giro__credit", "public_savings__rate"] == names
    rows = all_rows(following, first.end)
    assert [None, None, ["a", "b"], None] == rows["public_giro__tags"].to_list()
    assert [None, None, Decimal("1.50"), None] == rows["public_giro__credit"].to_list()
    assert [None, None, None, 0.5] == rows["public_savings__rate"].to_list()
    assert 24 == all_rows(bank.source(new_columns="fail")).height  # a column that was read before stays
    end = list(slices(following, first.end))[-1].end
    bank.sql("ALTER TABLE giro DROP COLUMN tags")
    bank.sql("UPDATE giro SET credit = 7 WHERE id = 12")
    last = all_rows(following, end)
    assert [(None, Decimal("7.00"))] == last.select("public_giro__tags", "public_giro__credit").rows()


def test_a_large_pull_with_a_new_column_is_read_whole(bank, monkeypatch):
    monkeypatch.setattr(staging, "_MESSAGES_AT_ONCE", 3)
    first = polled(bank.source(new_columns="evolve"))
    for number in range(10):
        bank.sql("UPDATE giro SET balance = %s WHERE id = 1", number)
    bank.sql("ALTER TABLE giro ADD COLUMN tag text")
    bank.sql("UPDATE giro SET tag = 'x' WHERE id < 9")
    assert None is polled(bank.source(new_columns="evolve"), first.end)
    rows = all_rows(bank.source(new_columns="evolve"), first.end)
    assert [*range(20, 38)] == rows["_position"].to_list()
    assert [None] * 10 + ["x"] * 8 == rows["public_giro__tag"].to_list()


# ------------------------------------------------------------------
# A change of the server's catalog sends no row. The next tick finds the change all the same, even without new rows.


ALL = "'insert, update, delete, truncate'"
GIRO = "CREATE TABLE giro (id int PRIMARY KEY, balance int NOT NULL, note text)"
UPDATE = "UPDATE giro SET balance = 55 WHERE id = 5"


def read_once(bank):
    source = bank.source()
    end = polled(source).end
    bank.sql("UPDATE savings SET balance = 1 WHERE id = 1")
    end = polled(source, end).end
    source.close()
    return end


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE giro ADD COLUMN extra int DEFAULT 5", "table public.giro has the new column extra"),
        ("ALTER TABLE giro RENAME COLUMN note TO remark", "column note of table public.giro was dropped, renamed"),
        ("ALTER TABLE giro ALTER COLUMN balance TYPE bigint", "column balance of table public.giro has another type"),
        ("ALTER TABLE giro ALTER COLUMN note TYPE varchar(9)", "column note of table public.giro has another type"),
        (
            "ALTER TABLE giro DROP COLUMN note; ALTER TABLE giro ADD COLUMN note text DEFAULT 'z'",
            "column note of table public.giro was dropped and added again",
        ),
        ("ALTER TABLE giro REPLICA IDENTITY NOTHING", "no replica identity with id any more"),
        ("ALTER TABLE giro DROP CONSTRAINT giro_pkey", "no replica identity with id any more"),
        (
            "ALTER TABLE giro DROP CONSTRAINT giro_pkey, ADD PRIMARY KEY (balance, note)",
            "no replica identity with id any more",
        ),
        (
            f"DROP TABLE giro; {GIRO}; ALTER PUBLICATION bank ADD TABLE giro",
            "table public.giro was dropped and created again",
        ),
        (
            f"ALTER PUBLICATION bank DROP TABLE giro; {UPDATE}; ALTER PUBLICATION bank ADD TABLE giro",
            "table public.giro was taken out of publication bank and put into it again",
        ),
        (
            f"DROP PUBLICATION bank; {UPDATE}; CREATE PUBLICATION bank FOR TABLE giro, savings",
            "table public.giro was taken out of publication bank and put into it again",
        ),
        ("ALTER PUBLICATION bank SET (publish = 'insert')", "sends no update and no delete and no truncate any more"),
        (
            f"ALTER PUBLICATION bank SET (publish = 'insert'); {UPDATE}; ALTER PUBLICATION bank SET (publish = {ALL})",
            "publication bank was altered and altered back",
        ),
        ("ALTER PUBLICATION bank SET TABLE giro WHERE (id < 5), savings", r"its filter was none, and is \(id < 5\)"),
        ("ALTER PUBLICATION bank SET TABLE giro (id, balance), savings", "taken out of the publication"),
    ],
)
def test_a_change_of_the_catalog_is_named_by_the_next_tick(bank, change, words):
    """The server sends no row for such a change. The next tick's error is one sentence, and says how to go on."""
    end = read_once(bank)
    for statement in change.split("; "):
        bank.sql(statement)
    with pytest.raises(SourceError, match=words) as refused:
        polled(bank.source(), end)
    assert "\n" not in str(refused.value)
    assert any(way in str(refused.value) for way in ("read the tables anew", "REPLICA IDENTITY FULL", "new_columns="))


def test_changes_that_lose_nothing_go_on(bank):
    """Such changes are full old rows, another owner or another kind of change of the publication, and a later table.

    The type of a text may get longer while a source reads it, and between two ticks.
    """
    bank.sql("ALTER TABLE savings ADD COLUMN word varchar(5)")
    bank.sql("ALTER PUBLICATION bank SET (publish = 'insert, update, delete')")
    running, end = bank.source(), read_once(bank)
    for place, kind in enumerate(("varchar(7)", "varchar", "text")):
        source = running if place < 2 else bank.source()
        bank.sql(f"ALTER TABLE savings ALTER COLUMN word TYPE {kind}")
        assert polled(source, end) is None
        bank.sql("UPDATE savings SET word = %s WHERE id = 2", "x" * (7 + place))
        found = all_rows(source, end)
        assert ["x" * (7 + place)] == [row["word"] for row in found["public_savings"]]
        end = list(slices(source, end))[-1].end
    bank.sql(f"CREATE ROLE {bank.name}_owner SUPERUSER; ALTER PUBLICATION bank OWNER TO {bank.name}_owner")
    bank.sql("ALTER TABLE giro REPLICA IDENTITY FULL; ALTER TABLE savings DROP CONSTRAINT savings_pkey")
    bank.sql("ALTER TABLE savings ADD PRIMARY KEY (id, balance)")
    assert polled(bank.source(), end) is None
    bank.sql(UPDATE)
    end = polled(bank.source(), end).end
    bank.sql(f"ALTER PUBLICATION bank SET (publish = {ALL})")
    bank.sql("ALTER TABLE giro REPLICA IDENTITY DEFAULT; CREATE TABLE later (id int PRIMARY KEY)")
    bank.sql("ALTER PUBLICATION bank ADD TABLE later; TRUNCATE giro")
    assert ["truncate"] == all_rows(bank.source(), end)["_kind"].to_list()
    assert "tables that are not read, since they came later: public.later" in bank.source().health()


def test_files_of_an_older_version_go_on_and_those_of_a_newer_one_are_called_that(bank):
    """A footer that lacks facts about the server gets the present ones.

    A file whose footer has a newer format is refused as newer, not as damaged.
    """
    end = read_once(bank)
    for file in bank.source()._log.look().files:
        table = pq.read_table(file.path)
        note = json.loads(pq.read_metadata(file.path).metadata[b"tidemark"])
        note["origin"] = {name: part for name, part in note["origin"].items() if name not in ("timeline", "catalog")}
        pq.write_table(table.replace_schema_metadata({"tidemark": json.dumps(note | {"format": 1})}), file.path)
    bank.sql("ALTER PUBLICATION bank SET (publish = 'insert, update')")
    bank.sql(UPDATE)
    later = polled(bank.source(), end)
    assert 1 == later.rows
    bank.sql("ALTER PUBLICATION bank SET (publish = 'insert')")
    with pytest.raises(SourceError, match="sends no update any more"):
        polled(bank.source(), later.end)
    newest = bank.source()._log.look().last.path
    pq.write_table(table.replace_schema_metadata({"tidemark": json.dumps(note | {"format": 9, "new": 1})}), newest)
    with pytest.raises(SourceError, match="was written by a newer version of Tidemark"):
        bank.source().schema()


@pytest.mark.parametrize(
    ("first", "between", "words"),
    [
        (
            "",
            "ALTER TABLE giro ADD UNIQUE (balance); ALTER TABLE giro REPLICA IDENTITY USING INDEX giro_balance_key",
            "id",
        ),
        ("ALTER TABLE giro REPLICA IDENTITY FULL", "ALTER TABLE giro REPLICA IDENTITY DEFAULT", "balance, note"),
    ],
)
def test_rows_with_another_replica_identity_are_refused_although_it_is_back(bank, first, between, words):
    """Meanwhile a delete came without the key's value, or an update without its old row.

    The catalog shows no trace of the other replica identity.
    """
    for statement in (first, "UPDATE giro SET balance = 100 + id"):
        bank.sql(statement or "SELECT 1")
    end = read_once(bank)
    for statement in between.split("; "):
        bank.sql(statement)
    bank.sql("DELETE FROM giro WHERE id = 3")
    bank.sql(first or "ALTER TABLE giro REPLICA IDENTITY DEFAULT")
    with pytest.raises(SourceError, match=f"table public.giro had another replica identity, without {words}, in"):
        polled(bank.source(), end)


def test_a_server_that_was_restored_to_an_older_moment_is_refused(tmp_path):
    """The restored server's log is longer than what was read, but differs. A server that lost nothing goes on."""
    server = PostgresServer()
    try:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE bank")
        bank = Bank(server, "bank", tmp_path / "staged")
        end = read_once(bank)
        back_up(server)
        restore(server)
        bank.reconnect()
        bank.sql(UPDATE)
        end = polled(bank.source(), end).end
        bank.sources[-1].close()
        back_up(server)
        server.start()
        bank.reconnect()
        bank.sql("UPDATE giro SET balance = 66 WHERE id = 6")
        end = polled(bank.source(), end).end
        bank.sources[-1].close()
        stop(server)
        restore(server)
        bank.reconnect()
        bank.sql("UPDATE savings SET balance = 9 WHERE id = 9")
        bank.sql("SELECT pg_switch_wal()")
        ((at,),) = bank.sql("SELECT pg_current_wal_lsn()::text")
        assert parsed(at) > bank.source()._log.look().last.note.end
        with pytest.raises(SourceError, match=r"its timeline is 3, timeline 2 was left at .*: read the tables anew"):
            polled(bank.source(), end)
    finally:
        server.close()


def stop(server):
    """Shut the server down properly, so that its files are complete."""
    server.process.send_signal(signal.SIGINT)
    server.process.wait(30)


def back_up(server):
    stop(server)
    shutil.rmtree(server.folder / "backup", ignore_errors=True)
    shutil.copytree(server.data, server.folder / "backup", symlinks=True)


def restore(server):
    """Start the stopped server from the backup. It begins a new timeline at the end of the backup's log."""
    shutil.rmtree(server.data)
    shutil.copytree(server.folder / "backup", server.data, symlinks=True)
    (server.data / "recovery.signal").touch()
    with (server.data / "postgresql.conf").open("a") as configuration:
        configuration.write("restore_command = 'false'\n")
    if server.user:
        subprocess.run(["chown", "-R", server.user, server.data], check=True)
    server.start()
