"""A change of the server's catalog sends no row. The next tick finds it all the same, also one without new rows."""

import json
import shutil
import signal
import subprocess

import psycopg
import pyarrow.parquet as pq
import pytest

from jobs.sources.port import SourceError
from jobs.sources.postgres.lsn import parsed
from tests.postgres_server import PostgresServer
from tests.scenarios.postgres.reading import Bank, all_rows, polled

ALL = "'insert, update, delete, truncate'"
GIRO = "CREATE TABLE giro (id int PRIMARY KEY, balance int NOT NULL, note text)"
UPDATE = "UPDATE giro SET balance = 55 WHERE id = 5"


def read_once(bank):
    """Read the snapshot and a change, as a first tick does. Return the position."""
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
    """No row was sent since, or ever will be for it. Each sentence says how to go on."""
    end = read_once(bank)
    for statement in change.split("; "):
        bank.sql(statement)
    with pytest.raises(SourceError, match=words) as refused:
        polled(bank.source(), end)
    assert "\n" not in str(refused.value)
    assert any(way in str(refused.value) for way in ("read the tables anew", "REPLICA IDENTITY FULL", "new_columns="))


def test_changes_that_lose_nothing_go_on(bank):
    """Old rows get whole, the publication gets another owner or another kind of change, and a later table is shown."""
    bank.sql("ALTER PUBLICATION bank SET (publish = 'insert, update, delete')")
    end = read_once(bank)
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
    """A footer without facts takes those of now. A footer of another format is not called damaged."""
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
    """A delete had no value for the key, or an update no old row. The catalog shows nothing of it any more."""
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
    """Its log is longer than what was read, but it is another one. A server that lost nothing goes on."""
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
    """Stop the server in order, so that its files are whole."""
    server.process.send_signal(signal.SIGINT)
    server.process.wait(30)


def back_up(server):
    """Stop the server and copy its files, the slots with them."""
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
