"""Tests DebeziumSource on real MariaDB and MySQL servers: nothing is lost or doubled, and transactions stay whole."""

import datetime as dt
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path

import polars as pl
import pymysql
import pytest

from jobs.sources.debezium import running
from jobs.sources.debezium.engine import behind
from jobs.sources.debezium.server import Encryption
from jobs.sources.port import SourceAwayError, SourceError
from tests.scenarios.debezium.shop import TOTAL, balances, transactions
from tests.scenarios.postgres.reading import all_rows, polled, rows_of, slices

TYPES = """CREATE TABLE types (id bigint unsigned PRIMARY KEY, yes boolean, tiny tinyint, small smallint unsigned,
  medium mediumint, wide int unsigned, price decimal(12,2), big decimal(65,1), f float, d double, day date,
  at datetime(6), ts timestamp(3) NULL, clock time(1), y year, bits bit(3), one bit, text text, raw blob,
  doc json, size enum('s','l'))"""
VALUES = """INSERT INTO types VALUES (18446744073709551615, true, -5, 65535, -7, 4294967295, -1.50, 1e50,
  1.5, 2.5, '2024-02-29', '2024-02-03 04:05:06.789012',
  '2024-02-03 04:05:06.789', '-100:59:59.5', 2024, b'101', b'1', 'ü€😀', x'00ff', '{"a": 1}', 'l')"""
EXPECTED = {
    "id": Decimal(18446744073709551615), "yes": True, "tiny": -5, "small": 65535, "medium": -7, "wide": 4294967295,
    "price": Decimal("-1.50"), "big": f"1{'0' * 50}.0", "f": 1.5, "d": 2.5, "day": dt.date(2024, 2, 29),
    "at": dt.datetime.fromisoformat("2024-02-03T04:05:06.789012"),
    "ts": dt.datetime(2024, 2, 3, 4, 5, 6, 789000, dt.UTC),
    "clock": "-100:59:59.5", "y": 2024, "bits": b"\x05", "one": True, "text": "ü€😀", "raw": b"\x00\xff",
    "doc": '{"a": 1}', "size": "l",
}  # fmt: skip


def test_a_snapshot_and_then_each_change_also_by_another_engine(shop):
    """The changes include all types, a transaction over two tables, a changed key, a truncate and a new column.

    A position names the same rows for ever.
    """
    shop.sql(TYPES, VALUES)
    source = shop.source(tables=["giro", "savings", "types"], new_columns="evolve")
    first = [*slices(source)]
    snapshot = rows_of(source, *first)
    assert [21] == [piece.rows for piece in first]
    assert {"snapshot"} == {*snapshot["_kind"]}
    packed = {"doc": '{"a":1}'} if "mysql" == shop.server.connector else {}  # as in MySQL's log, not in a snapshot
    assert EXPECTED == snapshot.filter(pl.col("_table").str.ends_with("types"))[f"{shop.name}_types"][0]
    shop.sql("BEGIN", "UPDATE giro SET balance = 90 WHERE id = 1", "UPDATE savings SET balance = 110 WHERE id = 1")
    shop.sql("INSERT INTO savings VALUES (11, 0)", "SAVEPOINT a", "DELETE FROM savings", "ROLLBACK TO a", "COMMIT")
    shop.sql("BEGIN", "DELETE FROM giro", "ROLLBACK", VALUES.replace("18446744073709551615", "7"))
    shop.sql("UPDATE giro SET id = 20 WHERE id = 2", "DELETE FROM giro WHERE id = 3")
    seen = [*slices(source, first[-1].end)]
    changes = rows_of(source, *seen)
    update = ["update_before", "update_after"]
    assert [[*update, *update, "insert"], ["insert"], ["delete", "insert"], ["delete"]] == transactions(changes)
    assert (
        EXPECTED | packed | {"id": Decimal(7)}
        == changes.filter(pl.col("_table").str.ends_with("types"))[f"{shop.name}_types"][0]
    )
    assert None not in {*changes["_committed_at"]}
    source.close()
    shop.sql("TRUNCATE savings", "ALTER TABLE giro ADD COLUMN tag boolean, ADD COLUMN more varchar(9)")
    shop.sql("UPDATE giro SET balance = 5, tag = true, more = 'x' WHERE id = 4", "INSERT INTO savings VALUES (1, 7)")
    another = shop.source(tables=["giro", "savings", "types"], new_columns="evolve")
    tail = [*slices(another, seen[-1].end)]
    assert ["truncate"] == [*rows_of(another, *tail)["_kind"]]
    grown = shop.source(tables=["giro", "savings", "types"], new_columns="evolve")
    rest = rows_of(grown, *slices(grown, tail[-1].end))
    assert [update, ["insert"]] == transactions(rest)
    assert (True, "x") == rest.select(f"{shop.name}_giro__tag", f"{shop.name}_giro__more").row(1)
    assert [f"{shop.name}_giro__tag", f"{shop.name}_giro__more"] == grown.schema().names[-2:]
    whole = all_rows(grown)
    assert shop.table("giro") == balances(whole, shop, "giro")
    assert shop.table("savings") == balances(whole, shop, "savings")
    assert [*range(whole.height)] == [*whole["_position"]]
    assert all(whole.equals(all_rows(grown, rows_max=size)) for size in (1, 3, 50))


@pytest.mark.parametrize(
    ("known", "gtid", "wanted"),
    [
        ("0-1-9,1-2-7", "0-3-10", "1-2-7,0-3-10"),  # domain 0 keeps only its newest, from whichever server
        ("", "0-1-1", "0-1-1"),
        ("a-a:1-9,b-b:1-3", "a-a:10", "b-b:1-3,a-a:1-9:10"),
        ("b-b:1-3", "a-a:1", "b-b:1-3,a-a:1"),
    ],
)
def test_an_offset_behind_a_statement_has_its_gtid(known, gtid, wanted):
    """The offset keeps no other field of the transaction."""
    offset = {"file": "binlog.000001", "pos": 7, "gtids": known, "transaction_id": gtid, "event": 1}
    assert {"file": "binlog.000001", "pos": 7, "gtids": wanted} == behind(offset, gtid)
    assert offset == behind(offset, None)


@pytest.mark.dear
@pytest.mark.timeout(590)
def test_a_truncate_is_a_transaction_of_its_own(truncated_shop):
    """A truncate is read although nothing follows it in the log. Another engine does not repeat it."""
    shop = truncated_shop
    source = shop.source()
    position = [*slices(source)][-1].end
    for _ in range(2):
        shop.sql("TRUNCATE savings", "TRUNCATE giro")
        seen = [*slices(source, position)]
        assert [["truncate"], ["truncate"]] == transactions(rows_of(source, *seen))
        source.close()
        shop.sql("INSERT INTO savings VALUES (1, 7)")
        source = shop.source()
        rest = [*slices(source, seen[-1].end)]
        assert [["insert"]] == transactions(rows_of(source, *rest))
        position = rest[-1].end


POLLS = """
import sys
from tests.scenarios.postgres.reading import slices
from jobs.sources.debezium.changes import DebeziumSource
source, position = DebeziumSource(sys.argv[1], ["giro", "savings"], staged=sys.argv[2]), None
while True:
    for piece in slices(source, position):
        position = piece.end
        print(position, flush=True)
"""


class Transfers:
    """Moves amounts between the two tables, one transaction each, until the block ends."""

    def __init__(self, shop):
        self._shop, self._stop, self.done = shop, threading.Event(), 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.is_set():
            try:
                connection = self._shop.server.connect(self._shop.name)
                connection.autocommit(False)
                while not self._stop.is_set():
                    amount, one, other = self.done % 9 + 1, self.done % 10 + 1, self.done * 7 % 10 + 1
                    with connection.cursor() as cursor:
                        cursor.execute(f"UPDATE giro SET balance = balance - {amount} WHERE id = {one}")
                        cursor.execute(f"UPDATE savings SET balance = balance + {amount} WHERE id = {other}")
                    connection.commit()
                    self.done += 1
                    time.sleep(0.02)
            except pymysql.Error:
                time.sleep(0.2)  # the server was killed


def assert_whole(shop, source):
    """Assert that every transaction is whole, and that all of them together give the server's balances."""
    rows = all_rows(source)
    update = ["update_before", "update_after"]
    assert {(*update, *update)} == {tuple(each) for each in transactions(rows)[1:]}
    for table in ("giro", "savings"):
        assert shop.table(table) == balances(rows, shop, table)
    assert TOTAL == sum(balances(rows, shop, "giro").values()) + sum(balances(rows, shop, "savings").values())
    return rows


def further(source, position):
    """Poll a few times, and return the last position. While transfers run, there are always more rows."""
    for _ in range(4):
        found = polled(source, position)
        position = position if found is None else found.end
    return position


def children(pid):
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@pytest.mark.dear
@pytest.mark.timeout(590)
def test_kills_of_ticks_of_engines_and_of_the_server_lose_nothing(own_shop, monkeypatch):
    """Ticks, engines and the server get SIGKILL while transfers run. No engine outlives the process that started it."""
    shop = own_shop
    with Transfers(shop) as transfers:
        for _ in range(3):
            command = [sys.executable, "-c", POLLS, shop.server.url(shop.name), str(shop.staged)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as tick:
                for _ in range(3):
                    assert tick.stdout.readline()
                (engine,) = children(tick.pid)
                tick.kill()
            deadline = time.monotonic() + 20
            while Path(f"/proc/{engine}/stat").exists() and " Z " not in Path(f"/proc/{engine}/stat").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.1)
        source = shop.source()
        position = further(source, None)
        os.kill(source._staging._engine.pid, signal.SIGKILL)
        position = further(source, position)
        shop.server.kill()
        with pytest.raises(SourceAwayError, match=r"cannot be reached .*start the server, or correct the URL"):
            polled(source, position)
        shop.server.start()
        position = further(source, position)
        monkeypatch.setattr(running, "SILENT_S", 1.0)
        engine = source._staging._engine.pid
        os.kill(engine, signal.SIGSTOP)
        time.sleep(0.3)
        with pytest.raises(SourceAwayError, match="has said nothing for 1 s, and was ended"):
            polled(source, position)
        assert not Path(f"/proc/{engine}").exists()
        monkeypatch.undo()
        assert transfers.done > 100
    shop.reconnect()
    rows = assert_whole(shop, shop.source())
    assert rows.height > 20 + 4 * 100


@pytest.mark.dear
@pytest.mark.timeout(590)
def test_two_processes_write_one_log(shop):
    """Both processes read the same changes. Each staged file is written by one of them."""
    one, other = shop.source(), shop.source()
    start = [*slices(one)][-1].end
    for number in range(20):
        shop.sql("BEGIN", f"UPDATE giro SET balance = balance - 1 WHERE id = {number % 10 + 1}")
        shop.sql(f"UPDATE savings SET balance = balance + 1 WHERE id = {number % 10 + 1}", "COMMIT")
        for source in (one, other) if number % 2 else (other, one):
            polled(source, start)
    assert all_rows(one).equals(all_rows(other))
    assert_whole(shop, one)


def test_an_unfit_server_or_login_is_refused_in_a_sentence(shop, monkeypatch):
    """No engine starts for such a server or login, and no message contains the password."""
    server = shop.server
    shop.sql("CREATE TABLE plain (a int)")
    shop.sql("CREATE USER weak@127.0.0.1 IDENTIFIED BY 's3cret-canary'")
    shop.sql(f"GRANT SELECT ON {shop.name}.* TO weak@127.0.0.1")
    weak = server.url(shop.name, "weak:s3cret-canary")
    monkeypatch.setenv("NO_SHOP", "")

    def refused(**options):
        with pytest.raises(SourceError) as error:
            polled(shop.source(**options))
        assert "s3cret-canary" not in str(error.value)
        return str(error.value)

    other = {"mariadb": "mysql", "mysql": "mariadb"}[server.connector]
    assert "cannot be reached" in refused(url=f"mariadb://u:s3cret-canary@127.0.0.1:1/{shop.name}")
    assert "refuses the login of user 'weak'" in refused(url=weak.replace("canary", "canaryX"))
    assert "has no such database" in refused(url=server.url("nothing"))
    assert "GRANT SELECT, RELOAD" in refused(url=weak)
    url = server.url(shop.name).replace(server.connector, other)
    assert f"let the URL begin with {server.connector}://" in refused(url=url)
    assert "has no table nothing" in refused(tables=["nothing"])
    assert "has no primary key" in refused(tables=["plain"])
    assert "NO_SHOP is not set" in refused(url="env:NO_SHOP")
    assert "write mariadb://USER" in refused(url="postgresql://u:s3cret-canary@h/d")
    assert "write mariadb://USER" in refused(url=f"{weak}?ssl-mode=sometimes")
    assert "write mariadb://USER" in refused(url=f"{weak}?timeout=5")
    assert "name each table once" in refused(tables=["shop.giro"])
    assert "which DebeziumSource makes itself" in refused(settings={"snapshot.mode": "never"})
    assert "which DebeziumSource makes itself" in refused(settings={"database.ssl.mode": "required"})
    assert "its value would be in the open" in refused(settings={"database.ssl.keystore.password": "s3cret-canary"})
    if "mariadb" == server.connector:  # MySQL makes certificates itself
        assert "has no encryption, which ssl-mode in the URL asks for" in refused(url=f"{weak}?ssl-mode=required")
    shop.sql("SET GLOBAL binlog_row_image = 'MINIMAL'")
    try:
        assert "SET GLOBAL binlog_row_image='FULL'" in refused()
    finally:
        shop.sql("SET GLOBAL binlog_row_image = 'FULL'")
    assert not shop.staged.exists()


@pytest.mark.dear
@pytest.mark.timeout(590)
def test_the_connection_is_encrypted_and_the_certificate_is_checked(encrypted_shop, certificates, monkeypatch):
    """The server accepts only encrypted connections. The client library and Debezium both check its certificate."""
    shop, folders = encrypted_shop, itertools.count()
    shop.sql("CREATE USER reader@127.0.0.1 IDENTIFIED BY 's3cret-canary'", "GRANT ALL ON *.* TO reader@127.0.0.1")

    def source(words):
        url = f"{shop.server.url('own', 'reader:s3cret-canary')}{words}"
        return shop.source(url=url, staged=shop.staged / f"{next(folders)}")

    def refused(words, kind=SourceError):
        with pytest.raises(kind) as error:
            polled(source(words))
        assert "s3cret-canary" not in str(error.value)
        return str(error.value)

    own, another = f"&ssl-ca={certificates}/ca.pem", f"&ssl-ca={certificates}/other.pem"
    assert "let the URL end with ?ssl-mode=required" in refused("")
    for words in ("?ssl-mode=verify-ca", f"?ssl-mode=verify-ca{another}", f"?ssl-mode=verify-identity{another}"):
        assert "has a certificate that is not trusted" in refused(words)
    nowhere = refused("?ssl-mode=verify-ca&ssl-ca=nowhere.pem")
    assert "nowhere.pem, which ssl-ca in the URL of the database names, is no readable file of certificates" in nowhere
    assert not shop.staged.exists()
    for words in ("?ssl-mode=required", f"?ssl-mode=VERIFY_CA{own}", f"?ssl-mode=verify-identity{own}"):
        reading = source(words)
        first = [*slices(reading)]
        shop.sql("UPDATE giro SET balance = balance + 1 WHERE id = 1")
        assert (20, 2) == (first[0].rows, sum(piece.rows for piece in slices(reading, first[-1].end)))
        reading.close()
    monkeypatch.setattr(Encryption, "certificates", lambda _: (certificates / "other.pem").read_text())
    assert "Debezium's engine" in refused(f"?ssl-mode=verify-ca{own}", SourceAwayError)
    assert [] == [path for path in shop.staged.rglob("*.parquet") if b"s3cret-canary" in path.read_bytes()]


CHANGES = (
    ("ALTER TABLE giro ADD COLUMN tag int", "giro has the new column tag. To read it from here on: DebeziumSource"),
    ("ALTER TABLE giro DROP COLUMN note", "column note of table {0}.giro was dropped or renamed"),
    ("ALTER TABLE giro CHANGE note remark text", "column note of table {0}.giro was dropped or renamed"),
    ("ALTER TABLE giro MODIFY balance bigint", "column balance of table {0}.giro has another type: it was read as int"),
    ("ALTER TABLE giro DROP PRIMARY KEY, ADD PRIMARY KEY (id, balance)", "table {0}.giro has another primary key"),
    ("RENAME TABLE giro TO giro2", "table {0}.giro was dropped, renamed or created again"),
    ("RENAME TABLE giro TO giro2; RENAME TABLE giro2 TO giro", "table {0}.giro was dropped, renamed or created again"),
    ("CREATE TABLE n LIKE giro; RENAME TABLE giro TO o, n TO giro", "{0}.giro was dropped, renamed or created again"),
    ("DROP TABLE giro", "table {0}.giro was dropped, renamed or created again"),
)


@pytest.mark.dear
@pytest.mark.timeout(590)
@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_change_that_rows_cannot_follow_is_named_behind_the_rows_before_it(shop, change, words):
    """The change comes after an insert, which is still read. Later polls are refused too, even with another engine."""
    source = shop.source()
    position = [*slices(source)][-1].end
    shop.sql("ALTER TABLE giro MODIFY note longtext", "ALTER TABLE savings ADD INDEX (balance)")  # nothing is lost
    shop.sql("INSERT INTO giro VALUES (11, 1, 'x')", *change.split("; "))
    seen = polled(source, position)
    assert ["insert"] == [*rows_of(source, seen)["_kind"]]
    for _ in range(2):
        with pytest.raises(SourceError) as error:
            polled(source, seen.end)
        assert words.format(shop.name) in str(error.value)
        source.close()


SLOW = {
    "transforms": "slow",
    "transforms.slow.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.slow.regex": f"(?!.*[.]){'.*' * 30}!",  # takes seconds, and does not match the topic of statements
    "transforms.slow.replacement": "none",
}


@pytest.mark.dear
@pytest.mark.timeout(590)
def test_what_the_engine_is_slow_to_deliver_is_waited_for(shop):
    """The engine has read the log's last statement long before it delivers this statement."""
    source = shop.source()
    position = [*slices(source)][-1].end
    source.close()
    slow = shop.source(settings=SLOW)
    shop.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    seen = polled(slow, position)
    assert ["update_before", "update_after"] == [*rows_of(slow, seen)["_kind"]]
    shop.sql("RENAME TABLE giro TO giro2", "RENAME TABLE giro2 TO giro")
    with pytest.raises(SourceError, match=r"giro was dropped, renamed or created again"):
        polled(slow, seen.end)


@pytest.mark.dear
@pytest.mark.timeout(590)
def test_a_log_that_was_purged_or_reset_is_named(own_shop):
    """A server without its binary log cannot send the changes that follow the staged ones."""
    shop = own_shop
    source = shop.source()
    position, begun = [*slices(source)][-1].end, shop.sql("SHOW MASTER STATUS")[0][0]
    shop.sql("FLUSH BINARY LOGS", "UPDATE giro SET balance = 1 WHERE id = 1", "FLUSH BINARY LOGS")
    newest = shop.sql("SHOW BINARY LOGS")[-1][0]
    source.close()
    shop.sql(f"PURGE BINARY LOGS TO '{newest}'")
    with pytest.raises(SourceError, match=rf"no longer has {begun} of its binary log.*empty folder of staged files"):
        polled(source, position)
    with pytest.raises(SourceError, match=rf"no longer has {begun}"):
        source.health()
    shop.sql("RESET MASTER")
    with pytest.raises(SourceError, match=r"was restored from a backup, or its log was reset"):
        polled(shop.source(), position)
