"""Changes of a real PostgreSQL table become its rows and its history. The server and plain Python are the judges."""

import random
from collections import Counter

import polars as pl
import pytest

from tests.scenarios.postgres.applied_job import BRONZE, HISTORY, ROWS, TOTALS
from tidemark.testing import TickFailedError, Trial

pytestmark = pytest.mark.spark


MOVE = "UPDATE giro SET id = %s, note = NULL WHERE id = %s AND NOT EXISTS (SELECT FROM giro WHERE id = %s)"


@pytest.fixture
def trial(bank, tmp_path, monkeypatch, spark):
    """Return a trial of the pipeline."""
    monkeypatch.setenv("BANK_URL", bank.server.url(bank.name))
    monkeypatch.setenv("BANK_SLOT", f"{bank.name}_slot")
    trial = Trial("tests.scenarios.postgres.applied_job:build", tmp_path / "trial")
    trial.data.mkdir(parents=True)
    return trial


def change(bank, chance, transactions):
    """Run random transactions: several changes of few keys in each, among them updates that change the key."""
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
    """Return the history that the change rows tell, computed one by one. A key ends where its update's new row is."""
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
    """Compare the tables at a cut with plain Python over bronze there; return the rows of silver by key."""
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
def test_each_cut_equals_the_server_and_a_plain_history(trial, bank, identity):
    """The ticks die beside the commit and go on with another parallelism. After each tick silver is the server's table.

    With REPLICA IDENTITY FULL each update has an old row, which must not end a version that goes on.
    """
    bank.sql(f"ALTER TABLE giro REPLICA IDENTITY {identity}")
    chance = random.Random(identity)  # noqa: S311 - a test's draw
    trial.run()
    change(bank, chance, 60)
    trial.kill("before:AppendRow#2", spark_cores=1)
    change(bank, chance, 30)
    trial.kill("after:AppendRow", spark_cores=1)
    change(bank, chance, 30)
    cut = trial.run(parallelism=2)
    assert {*bank.sql("SELECT id, balance, note FROM giro")} == judge(cut)
    assert len([judge(one) for one in trial.cuts.all()]) > 3


LARGE = "".join(map(str, range(5_000)))


@pytest.mark.dear
def test_a_value_that_was_not_sent_is_that_of_the_change_before(trial, bank):
    """Updates of a key leave its large value alone: in the same micro-batch, and in ticks after that are killed."""
    trial.run()
    bank.sql("ALTER TABLE giro ALTER note SET STORAGE EXTERNAL")
    bank.sql("UPDATE giro SET note = %s, balance = 1 WHERE id IN (1, 2)", LARGE)
    bank.sql("UPDATE giro SET balance = 2 WHERE id = 1")
    trial.run()
    bank.sql("UPDATE giro SET balance = 3 WHERE id = 1")
    bank.sql("UPDATE giro SET balance = 4, note = NULL WHERE id = 1")
    bank.sql("UPDATE giro SET balance = 5 WHERE id IN (1, 2)")
    trial.kill("after:AppendRow", spark_cores=1)
    bank.sql("UPDATE giro SET balance = 6 WHERE id IN (1, 2)")
    cut = trial.run(parallelism=2)
    assert {*bank.sql("SELECT id, balance, note FROM giro")} == {*cut.polars(ROWS).collect().rows()}
    history = cut.polars(HISTORY).collect().filter(pl.col("id") < 3).sort("id", "valid_from")
    shown = [(key, balance, note if note is None else len(note)) for key, balance, note, *_ in history.rows()]
    large = len(LARGE)
    assert [row for row in shown if row[1] < 10] == [
        *((1, balance, large) for balance in (1, 2, 3)),
        *((1, balance, None) for balance in (4, 5, 6)),
        *((2, balance, large) for balance in (1, 5, 6)),
    ]


def test_a_value_that_nobody_knows_ends_the_tick(trial, bank):
    """The update gives the row a key that has no earlier change. The message says the way out."""
    bank.sql("ALTER TABLE giro ALTER note SET STORAGE EXTERNAL")
    bank.sql("UPDATE giro SET note = %s WHERE id = 1", LARGE)
    trial.run()
    bank.sql("UPDATE giro SET id = 70 WHERE id = 1")
    with pytest.raises(TickFailedError, match=r"in column note, and no earlier change of id=70 has it\. Set REPLICA"):
        trial.run()


def test_a_truncate_empties_the_table_and_ends_its_versions(trial, bank):
    """Rows of the same transaction may come before and after it. The second one comes in a tick after a kill."""
    trial.run()
    with bank.connection.transaction():
        bank.sql("UPDATE giro SET balance = 70 WHERE id = 1")
        bank.sql("TRUNCATE giro")
        bank.sql("INSERT INTO giro VALUES (1, 7, 'a'), (90, 8, 'b')")
    cut = trial.run()
    assert {(1, 7, "a"), (90, 8, "b")} == {*cut.polars(ROWS).collect().rows()} == judge(cut)
    bank.sql("TRUNCATE giro, savings")
    trial.kill("after:AppendRow", spark_cores=1)
    cut = trial.run(parallelism=2)
    assert set() == {*cut.polars(ROWS).collect().rows()} == judge(cut)
    assert cut.state("giro").polars().collect().is_empty()
