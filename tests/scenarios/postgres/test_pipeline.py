"""Tests a pipeline over PostgreSQL changes on real Spark and Delta: no cut shows a part of a transaction."""

import random
import threading
import time
from collections import Counter

import polars as pl
import psycopg
import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from tests.dying_server import dying
from tests.scenarios.postgres.bank_job import BRONZE, GIRO, HISTORY, ROWS, SAVINGS, TOTALS
from tests.scenarios.postgres.reading import newest
from tidemark.testing import TickFailedError, Trial

pytestmark = pytest.mark.spark

CANARY = "s3cret-canary"
TOTAL = 2_000
"""The sum of both tables, which no transfer changes: ten accounts in each, with 100 in each account."""


@pytest.fixture
def trial(bank, tmp_path, monkeypatch, spark):
    monkeypatch.setenv("BANK_URL", bank.server.url(bank.name, f"postgres:{CANARY}"))
    monkeypatch.setenv("BANK_SLOT", f"{bank.name}_slot")
    trial = Trial("tests.scenarios.postgres.bank_job:build", tmp_path / "trial")
    trial.data.mkdir(parents=True)
    return trial


class Transfers:
    """Moves amounts between the two tables, one transaction each, until the block ends."""

    def __init__(self, url):
        self._url, self.stop, self.done = url, threading.Event(), 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self._thread.join()

    def _run(self):
        while not self.stop.is_set():
            try:
                with psycopg.connect(self._url) as connection:
                    while not self.stop.is_set():
                        self._transfer(connection, self.done)
                        self.done += 1
            except psycopg.OperationalError:
                time.sleep(0.2)  # the server was killed

    def _transfer(self, connection, number):
        one, other, amount = number % 10 + 1, number * 7 % 10 + 1, number % 9 + 1
        connection.execute("UPDATE giro SET balance = balance - %s WHERE id = %s", [amount, one])
        connection.execute("UPDATE savings SET balance = balance + %s WHERE id = %s", [amount, other])
        connection.commit()
        time.sleep(0.03)


def balance(cut):
    tables = (cut.polars(name).collect() for name in (GIRO, SAVINGS))
    return sum(table.filter(~table["_is_deleted"])["balance"].sum() for table in tables)


def assert_whole(trial, bank):
    cuts = trial.cuts.all()
    assert [TOTAL] * len(cuts) == [balance(cut) for cut in cuts]
    newest_cut = trial.cuts.latest()
    bronze = newest_cut.polars(BRONZE).collect()
    assert [*range(bronze.height)] == sorted(bronze["_position"])
    for name, table in (("giro", GIRO), ("savings", SAVINGS)):
        server = dict(bank.sql(f"SELECT id, balance FROM {name}"))
        rows = newest_cut.polars(table).collect()
        silver = rows.filter(~rows["_is_deleted"])
        assert server == dict(silver.select("id", "balance").iter_rows())
        assert server == {key[0]: row["balance"] for key, row in newest(bronze, name).items()}


MOMENTS = (
    "after:PollSource#2",
    "after:RunMicroBatch#2",
    "before:AppendRow",
    "after:AppendRow",
    "before:PublishTable#2",
)
"""The contract of sources kills ticks at every boundary. At these moments a cut could show a part of a transaction."""


@pytest.mark.dear
@pytest.mark.timeout(590)
def test_no_cut_shows_a_part_of_a_transfer(trial, bank):
    """Transfers run while a tick dies at each boundary, while the server dies in a tick, and while both die."""
    with Transfers(bank.server.url(bank.name)) as transfers:
        trial.run(checkpoints=2)
        for boundary in MOMENTS:
            trial.kill(boundary, spark_cores=1)
        with dying(bank.server, trial.warehouse):
            trial.kill("after:AppendRow#2", spark_cores=1)
        with dying(bank.server, trial.warehouse) as died:
            trial.run(checkpoints=2)
        assert died.is_set()
        assert transfers.done
    bank.reconnect()
    trial.run(every_rows=2_000, slice_rows_max=2_000)
    assert_whole(trial, bank)
    assert [] == [path for folder in (trial.warehouse, trial.data) for path in folder.rglob("*") if has_canary(path)]


def test_deleted_keys_are_marked_and_large_values_stay(trial, bank):
    """The test deletes a key, changes another key, and updates a row without touching its large value."""
    large = "".join(map(str, range(5_000)))
    bank.sql("ALTER TABLE giro ALTER note SET STORAGE EXTERNAL")
    bank.sql("UPDATE giro SET note = %s WHERE id IN (1, 2)", large)
    trial.run()
    bank.sql("UPDATE giro SET balance = 7 WHERE id = 1")
    bank.sql("UPDATE giro SET id = 20, note = 'new' WHERE id = 2")
    bank.sql("DELETE FROM giro WHERE id = 3")
    rows = trial.run().polars(GIRO).collect().sort("id")
    kept = {row["id"]: (row["balance"], row["note"], row["_is_deleted"], row["_unchanged"]) for row in rows.to_dicts()}
    assert (7, large, False, None) == kept[1]
    assert [True, True, False] == [kept[number][2] for number in (2, 3, 4)]
    assert (100, "new", False, None) == kept[20]
    bank.sql("TRUNCATE giro")
    with pytest.raises(TickFailedError, match="the table was truncated"):
        trial.run()


@pytest.mark.dear
def test_a_new_column_reaches_every_table_downstream(trial, bank):
    """A tick ends before the first row with the new column.

    The next tick adds the column to bronze and silver. It is null in older rows.
    """
    before = trial.run()
    bank.sql("ALTER TABLE giro ADD COLUMN tag text")
    bank.sql("UPDATE giro SET tag = 'new' WHERE id = 1")
    assert before.checkpoint == trial.run().checkpoint
    cut = trial.run()
    bronze = cut.polars(BRONZE).collect().sort("_position")
    assert [*[None] * 20, "new"] == bronze["public_giro__tag"].to_list()
    silver = dict(cut.polars(GIRO).collect().select("id", "tag").iter_rows())
    assert {number: "new" if number == 1 else None for number in range(1, 11)} == silver
    assert "public_giro__tag" not in before.polars(BRONZE).collect().columns


@pytest.mark.dear
def test_a_rollback_and_a_savepoint_go_back_behind_the_slot(trial, bank):
    """The slot has moved on with the newest checkpoint. The staged files hold the changes after the older one."""
    first = trial.run()
    savepoint = trial.warehouse.with_name("copy")
    assert ExitCode.DONE == execute(["savepoint", "bank", *warehouse(trial), "--to", str(savepoint)])
    for number in range(1, 11):
        bank.sql("UPDATE giro SET balance = %s WHERE id = %s", number, number)
    rows = trial.run().polars(GIRO).collect().sort("id").drop("_lsn")
    assert ExitCode.DONE == execute(["rollback", "bank", *warehouse(trial), str(first.checkpoint)])
    again = trial.run().polars(GIRO).collect().sort("id").drop("_lsn")
    assert rows.equals(again)
    other = Trial("tests.scenarios.postgres.bank_job:build", trial.warehouse.parent)
    other.warehouse = trial.warehouse.with_name("fork")
    copy = next(path for path in savepoint.rglob("_tidemark")).parent
    folders = ["--data", str(other.data), *warehouse(other)]
    assert ExitCode.DONE == execute(["run", "tests.scenarios.postgres.bank_job:build", *folders, "--from", str(copy)])
    assert rows.equals(other.cuts.latest().polars(GIRO).collect().sort("id").drop("_lsn"))


def warehouse(trial):
    return ["--warehouse", str(trial.warehouse)]


def has_canary(path):
    return path.is_file() and CANARY.encode() in path.read_bytes()


# ------------------------------------------------------------------
# Changes of a real PostgreSQL table become its rows and its history. The tests compare them with the server's table and
# with plain Python.


MOVE = "UPDATE giro SET id = %s, note = NULL WHERE id = %s AND NOT EXISTS (SELECT FROM giro WHERE id = %s)"


@pytest.fixture
def applied(bank, tmp_path, monkeypatch, spark):
    monkeypatch.setenv("BANK_URL", bank.server.url(bank.name))
    monkeypatch.setenv("BANK_SLOT", f"{bank.name}_slot")
    trial = Trial("tests.scenarios.postgres.bank_job:build_applied", tmp_path / "trial")
    trial.data.mkdir(parents=True)
    return trial


def change(bank, chance, transactions):
    """Run random transactions, each with several changes of few keys, and some with updates of the key itself."""
    for _ in range(transactions):
        with bank.connection.transaction():
            for _ in range(chance.randint(1, 4)):
                one, other, balance = chance.randint(1, 12), chance.randint(1, 12), chance.randint(1, 3)
                bank.sql(*chance.choice([
                    ("UPDATE giro SET balance = %s WHERE id = %s", balance, one),
                    ("DELETE FROM giro WHERE id = %s", one),
                    ("INSERT INTO giro VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", one, balance, chance.choice("ab")),
                    (MOVE, other, one, other),
                ]))  # fmt: skip


def versions(bronze):
    """Return the history, computed from the change rows one by one.

    If an update changes the key, the version of the old key ends at the position of the new row.
    """
    table, open_ones = [], {}
    own = bronze.filter(bronze["_table"] == "public.giro").sort("_position").to_dicts()
    for row, following in zip(own, [*own[1:], None], strict=True):
        if row["_kind"] == "truncate":
            table += [(key, *values, at, row["_position"], False) for key, (values, at) in open_ones.items()]
            open_ones.clear()
            continue
        new = row["public_giro"]
        key, place = new["id"], row["_position"]
        if row["_kind"] == "update_before":
            if following["public_giro"]["id"] == key:
                continue
            place += 1
        gone = row["_kind"] in ("delete", "update_before")
        values = (new["balance"], new["note"])
        if key in open_ones and (gone or open_ones[key][0] != values):
            table.append((key, *open_ones[key][0], open_ones.pop(key)[1], place, False))
        if not gone and key not in open_ones:
            open_ones[key] = (values, place)
    return Counter([*table, *((key, *values, at, None, True) for key, (values, at) in open_ones.items())])


def judge(cut):
    """Compare the tables at a cut with what plain Python computes from bronze. Return the rows of silver."""
    expected = versions(cut.polars(BRONZE).collect())
    history = cut.polars(HISTORY).collect()
    assert expected == Counter(history.rows())
    current = {row[:3] for row in expected if row[-1]}
    assert current == {*cut.polars(ROWS).collect().rows()}
    totals = Counter(row[1] for row in expected.elements())
    assert dict(totals) == dict(cut.polars(TOTALS).collect().select("balance", "versions").rows())
    return current


@pytest.mark.dear
@pytest.mark.timeout(590)
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_each_cut_equals_the_server_and_a_plain_history(applied, bank, identity):
    """Ticks die right before and after the commit. A tick with another parallelism goes on.

    After it, silver equals the server's table. At each cut, the tables equal the plain history.

    With REPLICA IDENTITY FULL each update has an old row. This old row must not end a version that goes on.
    """
    bank.sql(f"ALTER TABLE giro REPLICA IDENTITY {identity}")
    chance = random.Random(identity)  # noqa: S311 - a test's draw
    applied.run()
    change(bank, chance, 60)
    applied.kill("before:AppendRow#2", spark_cores=1)
    change(bank, chance, 30)
    applied.kill("after:AppendRow", spark_cores=1)
    change(bank, chance, 30)
    cut = applied.run(parallelism=2)
    assert {*bank.sql("SELECT id, balance, note FROM giro")} == judge(cut)
    assert len([judge(one) for one in applied.cuts.all()]) > 3


LARGE = "".join(map(str, range(5_000)))


@pytest.mark.dear
def test_a_value_that_was_not_sent_is_that_of_the_change_before(applied, bank):
    """Updates do not send a key's unchanged large value. Some come in one micro-batch, some in later, killed ticks."""
    applied.run()
    bank.sql("ALTER TABLE giro ALTER note SET STORAGE EXTERNAL")
    bank.sql("UPDATE giro SET note = %s, balance = 1 WHERE id IN (1, 2)", LARGE)
    bank.sql("UPDATE giro SET balance = 2 WHERE id = 1")
    applied.run()
    bank.sql("UPDATE giro SET balance = 3 WHERE id = 1")
    bank.sql("UPDATE giro SET balance = 4, note = NULL WHERE id = 1")
    bank.sql("UPDATE giro SET balance = 5 WHERE id IN (1, 2)")
    applied.kill("after:AppendRow", spark_cores=1)
    bank.sql("UPDATE giro SET balance = 6 WHERE id IN (1, 2)")
    cut = applied.run(parallelism=2)
    assert {*bank.sql("SELECT id, balance, note FROM giro")} == {*cut.polars(ROWS).collect().rows()}
    history = cut.polars(HISTORY).collect().filter(pl.col("id") < 3).sort("id", "valid_from")
    shown = [(key, balance, note if note is None else len(note)) for key, balance, note, *_ in history.rows()]
    large = len(LARGE)
    assert [row for row in shown if row[1] < 10] == [
        *((1, balance, large) for balance in (1, 2, 3)),
        *((1, balance, None) for balance in (4, 5, 6)),
        *((2, balance, large) for balance in (1, 5, 6)),
    ]


def test_a_value_that_nobody_knows_ends_the_tick(applied, bank):
    """The update gives the row a new key, which has no earlier change. The message says what to do."""
    bank.sql("ALTER TABLE giro ALTER note SET STORAGE EXTERNAL")
    bank.sql("UPDATE giro SET note = %s WHERE id = 1", LARGE)
    applied.run()
    bank.sql("UPDATE giro SET id = 70 WHERE id = 1")
    with pytest.raises(TickFailedError, match=r"in column note, and no earlier change of id=70 has it\. Set REPLICA"):
        applied.run()


def test_a_truncate_empties_the_table_and_ends_its_versions(applied, bank):
    """One transaction has rows before and after a truncate. The second truncate comes in a tick that is killed."""
    applied.run()
    with bank.connection.transaction():
        bank.sql("UPDATE giro SET balance = 70 WHERE id = 1")
        bank.sql("TRUNCATE giro")
        bank.sql("INSERT INTO giro VALUES (1, 7, 'a'), (90, 8, 'b')")
    cut = applied.run()
    assert {(1, 7, "a"), (90, 8, "b")} == {*cut.polars(ROWS).collect().rows()} == judge(cut)
    bank.sql("TRUNCATE giro, savings")
    applied.kill("after:AppendRow", spark_cores=1)
    cut = applied.run(parallelism=2)
    assert set() == {*cut.polars(ROWS).collect().rows()} == judge(cut)
    assert cut.state("giro").polars().collect().is_empty()
